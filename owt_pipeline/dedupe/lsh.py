"""Locality-sensitive hashing: bands of MinHash signatures, the buckets they fall into, and the edges these give.

Chapter 3 of Leskovec, Rajaraman and Ullman, Mining of Massive Datasets.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from owt_pipeline.dedupe.shingles import mix

_CHAIN = np.uint64(0x9E3779B97F4A7C15)

SIMILARITIES = tuple(round(0.05 * step, 2) for step in range(21))
"""Where the S-curve is given."""


@dataclass(frozen=True)
class Banding:
    """How signatures are cut: `bands` bands of `rows` values; two documents are candidates if one band is equal."""

    num_perm: int
    bands: int
    rows: int

    def probability(self, similarity: float) -> float:
        """That two documents of this Jaccard similarity are candidates."""
        return float(1 - (1 - similarity**self.rows) ** self.bands)

    def curve(self) -> list[tuple[float, float]]:
        """(similarity, probability) at SIMILARITIES: the S-curve."""
        return [(s, round(self.probability(s), 6)) for s in SIMILARITIES]


def choose_banding(
    threshold: float, num_perm: int, false_negative_weight: float, bands: int | None = None, rows: int | None = None
) -> Banding:
    """The banding that is given, or the one that costs least at the threshold: datasketch's choice.

    Args:
      threshold: Jaccard similarity from which documents are duplicates.
      num_perm: permutations to spend.
      false_negative_weight: from 0 to 1, what a missed pair weighs; a pair found in vain, which only costs its
        verification, weighs the rest.
      bands: with `rows`, given outright.
      rows: with `bands`.

    Raises ValueError where only one of bands and rows is given, or they need more permutations than there are.
    """
    if bands is None and rows is None:
        return _cheapest(threshold, num_perm, false_negative_weight)
    if bands is None or rows is None:
        raise ValueError(f"bands={bands} and rows={rows}: give both, or neither")
    if bands * rows > num_perm:
        raise ValueError(f"bands={bands} times rows={rows} is {bands * rows}, more than num_perm={num_perm}")
    return Banding(num_perm, bands, rows)


def _cheapest(threshold: float, num_perm: int, false_negative_weight: float) -> Banding:
    """The banding whose areas below and above the S-curve, left and right of the threshold, weigh least.

    As datasketch's `_optimal_param` has it, which integrates by scipy: half a second to import.
    """
    bands, rows = np.array([(b, r) for b in range(1, num_perm + 1) for r in range(1, num_perm // b + 1)]).T
    nodes, weights = np.polynomial.legendre.leggauss(64)
    left, right = threshold / 2, (1 - threshold) / 2  # halves of the intervals of length 2 that nodes are for

    def found(similarities: np.ndarray) -> np.ndarray:
        return 1 - (1 - similarities ** rows[:, None]) ** bands[:, None]

    in_vain = found(left * (1 + nodes)) @ weights * left
    missed = (1 - found(threshold + right * (1 + nodes))) @ weights * right
    least = int(np.argmin(in_vain * (1 - false_negative_weight) + missed * false_negative_weight))
    return Banding(num_perm, int(bands[least]), int(rows[least]))


def band_hashes(signatures: np.ndarray, banding: Banding) -> np.ndarray:
    """uint64[bands, texts] of uint32[num_perm, texts]: equal where all of a band's rows are."""
    result = np.empty((banding.bands, signatures.shape[1]), np.uint64)
    for band in range(banding.bands):
        hashes = np.full(signatures.shape[1], band + 1, np.uint64)
        for row in range(band * banding.rows, (band + 1) * banding.rows):
            hashes *= _CHAIN
            hashes += signatures[row]
            hashes ^= hashes >> np.uint64(29)
        result[band] = mix(hashes)
    return result


def star_edges(
    hashes: np.ndarray, documents: np.ndarray, oversized: int, further: np.ndarray | None = None
) -> tuple[np.ndarray, np.ndarray, Mapping[str, int]]:
    """Edges from each bucket's least document to its others: m - 1 for a bucket of m, where pairs are m(m - 1) / 2.

    Args:
      hashes: uint64, of some bands (hashes of different bands are different).
      documents: uint32, the numbers of the documents they are of.
      oversized: buckets of more documents are counted as such.
      further: uint64, the second half of hashes of 128 bits.

    Returns: the other documents; for each, the least one of its bucket; and counts: buckets (of two or more),
    oversized_buckets, pairs.
    """
    order = np.argsort(hashes) if further is None else np.lexsort((further, hashes))
    is_first = np.ones(len(order), bool)
    np.not_equal(hashes[order[1:]], hashes[order[:-1]], out=is_first[1:])
    if further is not None:
        is_first[1:] |= further[order[1:]] != further[order[:-1]]
    starts = np.flatnonzero(is_first)
    sizes = np.diff(starts, append=len(order))
    shared = sizes > 1
    counts = {
        "buckets": int(shared.sum()),
        "oversized_buckets": int((sizes > oversized).sum()),
        "pairs": int((sizes * (sizes - 1) // 2).sum()),
    }
    members, sizes = documents[order[np.repeat(shared, sizes)]], sizes[shared]
    if not len(sizes):
        return members, members, counts
    least = np.repeat(np.minimum.reduceat(members, np.cumsum(sizes) - sizes), sizes)
    others = members != least
    return members[others], least[others], counts
