"""Prefix filtering: which documents of a large component can be similar enough at all, without comparing all pairs.

Order all shingles by how few documents of the component have them. Two sets of a given similarity share so many
shingles that they must share one among the first, rarest ones of each (Chaudhuri, Ganti and Kaushik 2006); and where
the first shared one is far behind, too few are left (the positional filter of PPJoin, Xiao et al. 2008). So a
document made of a template and a text of its own is compared with none of the others of that template: what it
shares with them is not rare. Nothing that reaches the threshold is lost.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

Similarity = Callable[[np.ndarray, "int | np.ndarray", np.ndarray], np.ndarray]
"""(shingles in common, shingles of the document that goes, of the one that stays) -> similarity"""

_MAX_ENTRIES = 1 << 16  # looked at for one document: 2 ms

_COUNT_SLOTS = 1 << 22  # at most, of the table that counts documents per shingle: 32 MB
_MULTIPLIER = np.uint64(0x9E3779B97F4A7C15)


class PrefixIndex:
    """The documents of a component that stay so far, by their rarest shingles."""

    def __init__(self, sets: Sequence[np.ndarray], similarity: Similarity, threshold: float):
        """An empty index.

        Args:
          sets: the shingle set of each document, sorted; one or more.
          similarity: how it follows from the sizes.
          threshold: what is looked for.
        """
        self.sizes = np.array([len(one) for one in sets], np.int64)
        self.similarity, self.threshold = similarity, threshold
        frequencies = _Frequencies(sets)
        smallest, largest = int(self.sizes.min()), int(self.sizes.max())
        shingles, positions = [], []
        for one in sets:
            length = self._prefix_length(len(one), smallest, largest)
            first, at = frequencies.rarest(one, length)
            shingles.append(first)
            positions.append(at)
        self.offsets = np.concatenate([[0], np.cumsum([len(at) for at in positions])])
        self.positions = np.concatenate(positions)
        _, self.shingles, counts = np.unique(np.concatenate(shingles), return_inverse=True, return_counts=True)
        # The entries of each shingle lie side by side, with room for all documents that have it in their prefix.
        self.start = np.concatenate([[0], np.cumsum(counts)])[:-1]
        self.filled = np.zeros(len(counts), np.int64)
        self.documents = np.empty(len(self.shingles), np.int64)
        self.at = np.empty(len(self.shingles), np.int64)

    def add(self, i: int) -> None:
        """Document i stays."""
        mine = slice(self.offsets[i], self.offsets[i + 1])
        shingles = self.shingles[mine]
        entry = self.start[shingles] + self.filled[shingles]
        self.documents[entry] = i
        self.at[entry] = self.positions[mine]
        self.filled[shingles] += 1

    def rivals(self, i: int) -> tuple[np.ndarray, int]:
        """The documents that stay and may be similar enough to document i, those first that share most of its rarest
        shingles; and how many entries were left out because there are more than a document's share of work."""
        mine = slice(self.offsets[i], self.offsets[i + 1])
        shingles, positions = self.shingles[mine], self.positions[mine]
        counts = self.filled[shingles]
        ends = np.cumsum(counts)
        total = int(ends[-1]) if len(ends) else 0
        if total == 0:
            return np.empty(0, np.int64), 0
        if total > _MAX_ENTRIES:  # the rarest shingles say most
            counts = np.minimum(counts, np.maximum(_MAX_ENTRIES - (ends - counts), 0))
            ends = np.cumsum(counts)
        entry = np.arange(ends[-1]) + np.repeat(self.start[shingles] - (ends - counts), counts)
        documents = self.documents[entry]
        left = np.minimum(self.sizes[i] - np.repeat(positions, counts), self.sizes[documents] - self.at[entry])
        possible = self.similarity(left, self.sizes[i], self.sizes[documents]) >= self.threshold
        found, shared = np.unique(documents[possible], return_counts=True)
        return found[np.argsort(-shared, kind="stable")], total - int(ends[-1])

    def _prefix_length(self, size: int, smallest: int, largest: int) -> int:
        """How many of a document's rarest shingles can be the first it shares with one that is similar enough.

        If the first one is at position p, at most size - p are shared; it does not matter whether the document
        goes or stays, nor with which other size, from `smallest` to `largest`, this is enough.
        """
        common = np.minimum(size - np.arange(size), largest)
        other = np.maximum(common, smallest)
        mine = np.full(size, size)
        enough = (self.similarity(common, mine, other) >= self.threshold) | (
            self.similarity(common, other, mine) >= self.threshold
        )
        return int(enough.sum())


class _Frequencies:
    """In how many documents each shingle is: never too few, sometimes too many, where two fall into one slot.

    The order of shingles may be any; this one need only be the same for all documents, and put rare ones first.
    """

    def __init__(self, sets: Sequence[np.ndarray]):
        total = sum(len(one) for one in sets)
        self.bits = np.uint64(64 - min(max(2 * total, 2) - 1, _COUNT_SLOTS - 1).bit_length())
        slots = 1 << (64 - int(self.bits))
        self.counts = np.zeros(slots, np.int64)
        waiting: list[np.ndarray] = []
        size = 0
        for one in sets:
            waiting.append(one)
            size += len(one)
            if size >= slots:
                self._count(waiting)
                waiting, size = [], 0
        self._count(waiting)

    def _count(self, sets: list[np.ndarray]) -> None:
        if sets:
            self.counts += np.bincount(self._slot(np.concatenate(sets)), minlength=len(self.counts))

    def _slot(self, shingles: np.ndarray) -> np.ndarray:
        return (shingles * _MULTIPLIER >> self.bits).astype(np.int64)

    def rarest(self, shingles: np.ndarray, length: int) -> tuple[np.ndarray, np.ndarray]:
        """(shingles, positions) of the `length` rarest that are in more than one document."""
        counts = self.counts[self._slot(shingles)]
        order = np.argsort(counts, kind="stable")[:length]
        positions = np.flatnonzero(counts[order] > 1)
        return shingles[order[positions]], positions
