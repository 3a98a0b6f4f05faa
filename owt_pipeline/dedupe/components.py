"""Which documents are decided on together: connected components of the edges between candidates, in groups.

Components are found by union-find over columns, at four bytes a document for the forest and its like for a chunk of
edges. Several parts first make forests of some of the edges each, so that the one that makes the forest of all reads
few of them.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np

from owt_pipeline.dedupe.shingles import sorted_set
from owt_pipeline.dedupe.sketches import keep_freed_memory

_CHUNK_EDGES = 1 << 16
_NO_EDGES = (np.empty(0, np.uint32), np.empty(0, np.uint32))
_ROW = 8  # shingles that take as much memory as what else is known of a candidate


class Forest:
    """Components of documents: each points at another of its component, never a greater one, or is a root.

    A root is the least document of its component.
    """

    def __init__(self, documents: int):
        keep_freed_memory()
        self.parent = np.arange(documents, dtype=np.uint32)

    def plant(self, documents: np.ndarray, roots: np.ndarray) -> None:
        """Take over another forest, while no two documents are joined yet."""
        self.parent[documents] = roots

    def join(self, left: np.ndarray, right: np.ndarray) -> None:
        """Join the components at both ends of edges."""
        for start in range(0, len(left), _CHUNK_EDGES):
            chunk = slice(start, start + _CHUNK_EDGES)
            self._join(self.parent[left[chunk]], self.parent[right[chunk]])

    def joined(self) -> tuple[np.ndarray, np.ndarray]:
        """(documents that are not alone in their component, but for its root; the root of each), by document."""
        found = [np.empty(0, self.parent.dtype)]
        for start in range(0, len(self.parent), _CHUNK_EDGES):
            above = self.parent[start : start + _CHUNK_EDGES]
            itself = np.arange(start, start + len(above), dtype=self.parent.dtype)
            found.append(itself[above != itself])
        documents = np.concatenate(found)
        return documents, self.roots(documents)

    def _join(self, left: np.ndarray, right: np.ndarray) -> None:
        while len(left):
            left, right = self.roots(left), self.roots(right)
            apart = left != right
            left, right = left[apart], right[apart]
            low, high = np.minimum(left, right), np.maximum(left, right)
            np.minimum.at(self.parent, high, low)  # each root that has a lesser neighbour goes below its least one
            self._flatten(high)

    def roots(self, documents: np.ndarray) -> np.ndarray:
        """The root of each document; afterwards the documents point at them."""
        roots = self.parent[documents]
        while not np.array_equal(above := self.parent[roots], roots):
            roots = above
        self.parent[documents] = roots
        return roots

    def _flatten(self, documents: np.ndarray) -> None:
        """Make `documents`, among which all long paths run, point at their roots: each round halves the paths."""
        while True:
            above = self.parent[self.parent[documents]]
            if np.array_equal(above, self.parent[documents]):
                return
            self.parent[documents] = above


def forest_of(documents: int, edges: Iterable[tuple[np.ndarray, np.ndarray]]) -> tuple[np.ndarray, np.ndarray]:
    """A forest of some edges: (document, root of its component), but for the roots themselves."""
    forest = Forest(documents)
    for left, right in edges:
        forest.join(left, right)
    return forest.joined()


@dataclass(frozen=True)
class Candidates:
    """Documents that have candidates, in order.

    Attributes:
      document: uint32, the document.
      text: uint32, the least document that has the same text.
      component: uint32, the number of its component.
      compared: by component, whether similarities are to be computed in it: it has several texts, and one of them no
        document of an earlier corpus has.
    """

    document: np.ndarray
    text: np.ndarray
    component: np.ndarray
    compared: np.ndarray

    @property
    def counts(self) -> dict[str, int]:
        """Texts that are candidates, their components, and the texts of the largest one."""
        texts = np.bincount(self.component[self.text == self.document], minlength=len(self.compared))[self.compared]
        return {
            "candidates": int(texts.sum()),
            "components": len(texts),
            "largest_component": int(texts.max(initial=0)),
        }

    def groups(self, shingles: float, at_most: int, at_least: int, groups: int) -> np.ndarray:
        """The group of each component, int64: components in their order, of like size together.

        Args:
          shingles: of a document, on average.
          at_most: shingles of a group, but for one large component.
          at_least: shingles of a group that is worth a file.
          groups: or fewer, where that makes smaller groups: for more workers than one.
        """
        documents = np.bincount(self.component, minlength=len(self.compared))
        sizes = np.cumsum(documents * np.where(self.compared, shingles + _ROW, _ROW))
        total = float(sizes[-1]) if len(sizes) else 0.0
        group = (sizes // min(at_most, max(at_least, total / groups))).astype(np.int64)
        return np.cumsum(np.diff(group, prepend=group[:1]) > 0)  # no number is left out


def find_candidates(
    documents: int,
    own_documents: int,
    copies: Sequence[tuple[np.ndarray, np.ndarray]],
    forests: Sequence[tuple[np.ndarray, np.ndarray]],
    edges: Sequence[tuple[np.ndarray, np.ndarray]] = (),
) -> Candidates:
    """The documents that have candidates.

    Args:
      documents: how many there are.
      own_documents: how many of them are the run's own, which come first.
      copies: documents, each once, and the least document that has the same text.
      forests: of edges between documents that share a bucket, as `forest_of` makes them.
      edges: further ones, as they are.
    """
    forest, concerned = Forest(documents), np.zeros(documents, bool)
    for number, (joined, roots) in enumerate([*(forests or [_NO_EDGES]), *copies, *edges]):
        if number:
            apart = forest.parent[joined] != roots  # of a second forest, few are
            joined, roots = joined[apart], roots[apart]
        (forest.join if number else forest.plant)(joined, roots)
        concerned[joined] = concerned[roots] = True
    document = np.flatnonzero(concerned).astype(np.uint32)
    root = forest.roots(document)
    roots = document[root == document]
    index = forest.parent  # its memory: from here on, of a root the number of its component
    index[roots] = np.arange(len(roots), dtype=index.dtype)
    component = index[root]
    index.fill(0)  # and then, of a document its row among the candidates
    index[document] = np.arange(len(document), dtype=index.dtype)
    text = document.copy()
    for copy, of in copies if len(document) else ():
        row = index[copy]
        found = document[row] == copy
        text[row[found]] = of[found]
    several, undecided = np.zeros(len(roots), bool), np.zeros(len(roots), bool)
    several[component[text != root]] = True
    of_earlier = text[np.searchsorted(document, own_documents) :]  # copies of these go in any case
    undecided[component[~np.isin(text, sorted_set(of_earlier))] if len(of_earlier) else slice(None)] = True
    return Candidates(document, text, component, several & undecided)
