"""Connected components of documents, by union-find over arrays: four bytes a document."""

from __future__ import annotations

import numpy as np

_CHUNK_EDGES = 1 << 16
"""Edges that are joined at a time."""


class Forest:
    """Union-find over documents.

    Each document points at a document of its component with a lower number. The document with the
    lowest number is the root, and points at itself.
    """

    def __init__(self, num_documents: int):
        self.parent = np.arange(num_documents, dtype=np.uint32)

    def join(self, left: np.ndarray, right: np.ndarray) -> None:
        """Merge the components of each pair of documents."""
        for start in range(0, len(left), _CHUNK_EDGES):
            chunk = slice(start, start + _CHUNK_EDGES)
            self._join(self.parent[left[chunk]], self.parent[right[chunk]])

    def roots(self, documents: np.ndarray) -> np.ndarray:
        """Return the root of each document, and compress their paths."""
        roots = self.parent[documents]
        while not np.array_equal(above := self.parent[roots], roots):
            roots = above
        self.parent[documents] = roots
        return roots

    def _join(self, left: np.ndarray, right: np.ndarray) -> None:
        """Join the trees of `left[i]` and `right[i]`, for each i.

        A tree with several neighbours is attached to one of them in a round, so rounds follow until
        no pair is in two trees.
        """
        while len(left):
            left = self.roots(left)
            right = self.roots(right)
            is_distinct = left != right
            left = left[is_distinct]
            right = right[is_distinct]
            low = np.minimum(left, right)
            high = np.maximum(left, right)
            np.minimum.at(self.parent, high, low)  # attach each root to its lowest neighbour
            self._flatten(high)

    def _flatten(self, documents: np.ndarray) -> None:
        """Point `documents` at their roots; every long path must lie within them."""
        while True:
            # Each round halves the paths.
            above = self.parent[self.parent[documents]]
            if np.array_equal(above, self.parent[documents]):
                return
            self.parent[documents] = above


def star_edges(
    hashes: np.ndarray, documents: np.ndarray, further: np.ndarray | None = None
) -> tuple[np.ndarray, np.ndarray]:
    """Return edges from each bucket's lowest-numbered document to the others.

    These are m - 1 for a bucket of m documents, where all pairs would be m(m - 1) / 2.

    Args:
      hashes: uint64; a bucket is the documents of one hash.
      documents: uint32, the document of each hash.
      further: uint64, the second half of 128-bit hashes.

    Returns:
      The other documents, and for each the lowest-numbered document of its bucket.
    """
    order = np.argsort(hashes, kind="stable") if further is None else np.lexsort((further, hashes))
    is_first = np.ones(len(order), bool)
    ordered_hashes = hashes[order]
    np.not_equal(ordered_hashes[1:], ordered_hashes[:-1], out=is_first[1:])
    if further is not None:
        is_first[1:] |= further[order[1:]] != further[order[:-1]]
    sizes = np.diff(np.flatnonzero(is_first), append=len(order))
    is_shared = sizes > 1
    members = documents[order[np.repeat(is_shared, sizes)]]
    sizes = sizes[is_shared]
    if not len(sizes):
        return members, members
    starts = np.cumsum(sizes) - sizes
    lowest = np.repeat(np.minimum.reduceat(members, starts), sizes)
    is_other = members != lowest
    return members[is_other], lowest[is_other]
