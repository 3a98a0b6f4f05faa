"""Connected components of the candidate edges, and the groups in which components are verified.

Components are found by union-find over arrays, with four bytes per document for the forest and as much again for a
chunk of edges. Several parts each reduce some of the edges to a forest, so the final step reads few edges.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np

from owt_pipeline.stages.dedupe.shingles import sorted_set
from owt_pipeline.stages.dedupe.sketches import keep_freed_memory

_CHUNK_EDGES = 1 << 16
_NO_EDGES = (np.empty(0, np.uint32), np.empty(0, np.uint32))
_ROW = 8  # memory of a candidate's other columns, in shingles


class Forest:
    """Union-find over documents: each points at a lower-numbered one of its component; the lowest is the root."""

    def __init__(self, documents: int):
        keep_freed_memory()
        self.parent = np.arange(documents, dtype=np.uint32)

    def plant(self, documents: np.ndarray, roots: np.ndarray) -> None:
        """Start from another forest; only allowed before the first join."""
        self.parent[documents] = roots

    def join(self, left: np.ndarray, right: np.ndarray) -> None:
        """Merge the components of each pair of documents."""
        for start in range(0, len(left), _CHUNK_EDGES):
            chunk = slice(start, start + _CHUNK_EDGES)
            self._join(self.parent[left[chunk]], self.parent[right[chunk]])

    def joined(self) -> tuple[np.ndarray, np.ndarray]:
        """(documents that are not roots, their roots), ordered by document."""
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
            np.minimum.at(self.parent, high, low)  # attach each root to its lowest neighbour
            self._flatten(high)

    def roots(self, documents: np.ndarray) -> np.ndarray:
        """The root of each document; compresses their paths."""
        roots = self.parent[documents]
        while not np.array_equal(above := self.parent[roots], roots):
            roots = above
        self.parent[documents] = roots
        return roots

    def _flatten(self, documents: np.ndarray) -> None:
        """Point `documents` at their roots; every long path must lie within them. Each round halves the paths."""
        while True:
            above = self.parent[self.parent[documents]]
            if np.array_equal(above, self.parent[documents]):
                return
            self.parent[documents] = above


def forest_of(documents: int, edges: Iterable[tuple[np.ndarray, np.ndarray]]) -> tuple[np.ndarray, np.ndarray]:
    """(document, root of its component) for every document that is not a root, from some of the edges."""
    forest = Forest(documents)
    for left, right in edges:
        forest.join(left, right)
    return forest.joined()


@dataclass(frozen=True)
class Candidates:
    """Documents that have candidates, in order.

    Attributes:
      document: uint32, the document.
      text: uint32, the lowest-numbered document with the same text.
      component: uint32, the number of its component.
      compared: by component, whether similarities must be computed: it has several texts, at least one of which no
        document of an earlier corpus has.
    """

    document: np.ndarray
    text: np.ndarray
    component: np.ndarray
    compared: np.ndarray

    @property
    def counts(self) -> dict[str, int]:
        """The numbers of candidate texts, of their components, and of texts in the largest component."""
        texts = np.bincount(self.component[self.text == self.document], minlength=len(self.compared))[self.compared]
        return {
            "candidates": int(texts.sum()),
            "components": len(texts),
            "largest_component": int(texts.max(initial=0)),
        }

    def groups(self, shingles: float, at_most: int, at_least: int, groups: int) -> np.ndarray:
        """The group of each component, int64; a group holds components of similar size in order.

        Args:
          shingles: average shingles of a document.
          at_most: most shingles of a group; a single larger component is a group of its own.
          at_least: fewest shingles of a group that is worth a file.
          groups: target number of groups, where `at_most` and `at_least` allow it.
        """
        documents = np.bincount(self.component, minlength=len(self.compared))
        sizes = np.cumsum(documents * np.where(self.compared, shingles + _ROW, _ROW))
        total = float(sizes[-1]) if len(sizes) else 0.0
        group = (sizes // min(at_most, max(at_least, total / groups))).astype(np.int64)
        return np.cumsum(np.diff(group, prepend=group[:1]) > 0)  # consecutive numbers


def find_candidates(
    documents: int,
    own_documents: int,
    copies: Sequence[tuple[np.ndarray, np.ndarray]],
    forests: Sequence[tuple[np.ndarray, np.ndarray]],
    edges: Sequence[tuple[np.ndarray, np.ndarray]] = (),
) -> Candidates:
    """The documents that have candidates.

    Args:
      documents: number of documents.
      own_documents: how many of them, the first ones, are the run's own.
      copies: each copied document once, and the lowest-numbered document with the same text.
      forests: forests of the edges between documents that share a bucket, from `forest_of`.
      edges: further edges.
    """
    forest, concerned = Forest(documents), np.zeros(documents, bool)
    for number, (joined, roots) in enumerate([*(forests or [_NO_EDGES]), *copies, *edges]):
        if number:
            apart = forest.parent[joined] != roots  # few, after the first forest
            joined, roots = joined[apart], roots[apart]
        (forest.join if number else forest.plant)(joined, roots)
        concerned[joined] = concerned[roots] = True
    document = np.flatnonzero(concerned).astype(np.uint32)
    root = forest.roots(document)
    roots = document[root == document]
    index = forest.parent  # reuse the memory: from here on, maps a root to the number of its component
    index[roots] = np.arange(len(roots), dtype=index.dtype)
    component = index[root]
    index.fill(0)  # from here on, maps a document to its row among the candidates
    index[document] = np.arange(len(document), dtype=index.dtype)
    text = document.copy()
    for copy, of in copies if len(document) else ():
        row = index[copy]
        found = document[row] == copy
        text[row[found]] = of[found]
    several, undecided = np.zeros(len(roots), bool), np.zeros(len(roots), bool)
    several[component[text != root]] = True
    of_earlier = text[np.searchsorted(document, own_documents) :]  # their copies are removed without a comparison
    undecided[component[~np.isin(text, sorted_set(of_earlier))] if len(of_earlier) else slice(None)] = True
    return Candidates(document, text, component, several & undecided)
