"""Connected components of documents, by union-find over arrays: four bytes a document."""

from __future__ import annotations

import numpy as np

_CHUNK_EDGES = 1 << 16


class Forest:
    """Union-find over documents: each points at a lower-numbered one of its component; the
    lowest is the root."""

    def __init__(self, documents: int):
        self.parent = np.arange(documents, dtype=np.uint32)

    def join(self, left: np.ndarray, right: np.ndarray) -> None:
        """Merge the components of each pair of documents."""
        for start in range(0, len(left), _CHUNK_EDGES):
            chunk = slice(start, start + _CHUNK_EDGES)
            self._join(self.parent[left[chunk]], self.parent[right[chunk]])

    def roots(self, documents: np.ndarray) -> np.ndarray:
        """The root of each document; compresses their paths."""
        roots = self.parent[documents]
        while not np.array_equal(above := self.parent[roots], roots):
            roots = above
        self.parent[documents] = roots
        return roots

    def _join(self, left: np.ndarray, right: np.ndarray) -> None:
        while len(left):
            left, right = self.roots(left), self.roots(right)
            apart = left != right
            left, right = left[apart], right[apart]
            low, high = np.minimum(left, right), np.maximum(left, right)
            np.minimum.at(self.parent, high, low)  # attach each root to its lowest neighbour
            self._flatten(high)

    def _flatten(self, documents: np.ndarray) -> None:
        """Point `documents` at their roots; every long path must lie within them. Each round
        halves the paths."""
        while True:
            above = self.parent[self.parent[documents]]
            if np.array_equal(above, self.parent[documents]):
                return
            self.parent[documents] = above


def star_edges(
    hashes: np.ndarray, documents: np.ndarray, further: np.ndarray | None = None
) -> tuple[np.ndarray, np.ndarray]:
    """Edges from each bucket's lowest-numbered document to the others: m - 1 for a bucket of m,
    not m(m - 1) / 2.

    Args:
      hashes: uint64; a bucket is the documents of one hash.
      documents: uint32, the document of each hash.
      further: uint64, the second half of 128-bit hashes.

    Returns the other documents, and for each the lowest-numbered one of its bucket.
    """
    order = np.argsort(hashes, kind="stable") if further is None else np.lexsort((further, hashes))
    is_first = np.ones(len(order), bool)
    np.not_equal(hashes[order[1:]], hashes[order[:-1]], out=is_first[1:])
    if further is not None:
        is_first[1:] |= further[order[1:]] != further[order[:-1]]
    sizes = np.diff(np.flatnonzero(is_first), append=len(order))
    shared = sizes > 1
    members, sizes = documents[order[np.repeat(shared, sizes)]], sizes[shared]
    if not len(sizes):
        return members, members
    least = np.repeat(np.minimum.reduceat(members, np.cumsum(sizes) - sizes), sizes)
    others = members != least
    return members[others], least[others]
