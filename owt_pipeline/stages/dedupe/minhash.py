"""MinHash signatures of a batch of texts, and the bands that they form.

The scheme is datasketch 2's `affine32`:
h_k(x) = a_k * fmix32(x) + b_k mod 2^32, a_k odd; datasketch/minhash.py explains why these are
permutations and how good they are. Equal 32-bit hashes give datasketch's signatures.
"""

from __future__ import annotations

import contextlib
import ctypes
import functools

import numpy as np

from owt_pipeline.formats.shingles import mix

# Two documents are candidates if they agree in all rows of one band: locality-sensitive hashing,
# chapter 3 of Leskovec, Rajaraman and Ullman, Mining of Massive Datasets. A pair of similarity s
# does with probability 1 - (1 - s^rows)^bands. More rows find fewer dissimilar pairs, which only
# cost a comparison; more bands cost memory. datasketch's optimiser chooses 21 x 6 of 128
# permutations for a threshold of 0.8: 0.998 of the pairs at 0.8 are candidates, but 0.28 at 0.5.
BANDS = 21
ROWS = 6

# For lower thresholds there are fewer rows, so that at least this share of the pairs exactly at the
# threshold are candidates. With one row, texts that share any phrase would be candidates.
_MIN_PROBABILITY = 0.98
_MIN_ROWS = 2

# Hashes per step: with their products they fit the second-level cache.
_BLOCK = 1 << 16
_CHAIN = np.uint64(0x9E3779B97F4A7C15)


def probability(similarity: float, bands: int = BANDS, rows: int = ROWS) -> float:
    """Return the probability that two documents of this Jaccard similarity share a band."""
    return float(1 - (1 - similarity**rows) ** bands)


def banding(threshold: float) -> tuple[int, int]:
    """Return (bands, rows of a band) for a threshold, of at most BANDS * ROWS permutations."""
    for rows in range(ROWS, _MIN_ROWS, -1):
        bands = BANDS * ROWS // rows
        if probability(threshold, bands, rows) >= _MIN_PROBABILITY:
            return bands, rows
    return BANDS * ROWS // _MIN_ROWS, _MIN_ROWS


@functools.cache
def permutations(count: int) -> tuple[np.ndarray, np.ndarray]:
    """Return datasketch's (a, b), uint32[count] each."""
    generator = np.random.RandomState(1)
    a = generator.randint(0, 1 << 31, count, dtype=np.uint32) * np.uint32(2) + np.uint32(1)
    b = generator.randint(0, 1 << 32, count, dtype=np.uint32)
    return a, b


def signatures(hashes: np.ndarray, offsets: np.ndarray, count: int = BANDS * ROWS) -> np.ndarray:
    """Return the minimum of each permutation over each text's shingles, as uint32[count, texts].

    Args:
      hashes: uint32, the shingles of all texts end to end.
      offsets: int64, text i has the shingles offsets[i] to offsets[i + 1]. A text without any gets
        2^32 - 1.
      count: number of permutations.
    """
    result = np.full((count, len(offsets) - 1), 0xFFFFFFFF, np.uint32)
    has_shingles = np.flatnonzero(np.diff(offsets))
    if not len(has_shingles):
        return result
    a, b = permutations(count)
    mixed = fmix32(hashes)
    block_of_text = offsets[has_shingles] // _BLOCK
    first_of_blocks = np.flatnonzero(np.diff(block_of_text)) + 1
    for block in np.split(has_shingles, first_of_blocks):
        first = offsets[block[0]]
        end = offsets[block[-1] + 1]
        values = mixed[first:end]
        starts = offsets[block] - first
        product = np.empty(end - first, np.uint32)
        minima = np.empty((count, len(block)), np.uint32)
        for k in range(count):
            np.multiply(values, a[k], out=product)
            np.add(product, b[k], out=product)
            np.minimum.reduceat(product, starts, out=minima[k])
        result[:, block] = minima
    return result


def fmix32(hashes: np.ndarray) -> np.ndarray:
    """Return the hashes mixed by MurmurHash3's 32-bit finalizer."""
    hashes = hashes ^ (hashes >> np.uint32(16))
    hashes *= np.uint32(0x85EBCA6B)
    hashes ^= hashes >> np.uint32(13)
    hashes *= np.uint32(0xC2B2AE35)
    hashes ^= hashes >> np.uint32(16)
    return hashes


def band_hashes(signatures: np.ndarray, rows: int = ROWS) -> np.ndarray:
    """Return the hash of each text's bands, as uint64[bands, texts].

    Two texts have the same hash of a band if they agree in all rows of it. `signatures` is
    uint32[bands * rows, texts].
    """
    num_bands = len(signatures) // rows
    result = np.empty((num_bands, signatures.shape[1]), np.uint64)
    for band in range(num_bands):
        hashes = np.full(signatures.shape[1], band + 1, np.uint64)
        for row in signatures[band * rows : (band + 1) * rows]:
            hashes *= _CHAIN
            hashes += row
            hashes ^= hashes >> np.uint64(29)
        result[band] = mix(hashes)
    return result


# From malloc.h.
_M_TRIM_THRESHOLD = -1
_M_MMAP_THRESHOLD = -3


@functools.cache
def keep_freed_memory() -> None:
    """Let this process keep up to 128 MB of freed memory for the arrays of the next texts.

    Otherwise glibc returns these arrays of about a megabyte to the system and gets them back page
    by page, which took a sixth of the workers' time. No effect with another C library.
    """
    with contextlib.suppress(OSError, AttributeError):
        libc = ctypes.CDLL("libc.so.6")
        libc.mallopt(_M_TRIM_THRESHOLD, 128 << 20)
        libc.mallopt(_M_MMAP_THRESHOLD, 32 << 20)  # the largest that glibc accepts
