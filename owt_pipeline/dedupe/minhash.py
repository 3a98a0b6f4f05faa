"""MinHash signatures by datasketch 2's `affine32` scheme, for a complete batch of texts at once.

h_k(x) = a_k * fmix32(x) + b_k mod 2^32, a_k odd: see datasketch/minhash.py for why these are permutations and
what is known of them. For the same 32-bit hashes the signatures are datasketch's own.
"""

from __future__ import annotations

import contextlib
import ctypes
import functools
from collections.abc import Callable

import numpy as np

COMPILED_FROM = 1 << 25
"""Hashes from which numba is worth its import and its compiler, 0.5 s, to a process: numpy takes 0.6 s for them."""

_M_TRIM_THRESHOLD, _M_MMAP_THRESHOLD = -1, -3  # of malloc.h
_KEPT_BYTES = 128 << 20
_ARRAY_BYTES = 32 << 20  # the most that glibc takes

_BLOCK = 1 << 16  # hashes worked on at once: with the product they fit the second-level cache


@functools.cache
def permutations(num_perm: int, seed: int = 1) -> tuple[np.ndarray, np.ndarray]:
    """(a, b), uint32[num_perm] each: datasketch's for the same seed."""
    generator = np.random.RandomState(seed)
    a = generator.randint(0, 1 << 31, num_perm, dtype=np.uint32) * np.uint32(2) + np.uint32(1)
    b = generator.randint(0, 1 << 32, num_perm, dtype=np.uint32)
    return a, b


def signatures(
    hashes: np.ndarray, offsets: np.ndarray, num_perm: int, seed: int = 1, *, compiled: bool = False
) -> np.ndarray:
    """uint32[num_perm, texts]: the least value of each permutation over each text's shingles.

    Args:
      hashes: uint32, the shingles of all texts end to end.
      offsets: int64, text i has the shingles offsets[i] to offsets[i + 1]. A text without any gets 2^32 - 1.
      num_perm: permutations.
      seed: of the permutations.
      compiled: by a loop that numba compiles, where it is there, a sixth of numpy's time; the values are the same.
    """
    result = np.full((num_perm, len(offsets) - 1), 0xFFFFFFFF, np.uint32)
    a, b = permutations(num_perm, seed)
    mixed = fmix32(hashes)
    if compiled and (least_values := _least_values()) is not None:
        least_values(mixed, offsets, a, b, result)
        return result
    filled = np.flatnonzero(np.diff(offsets))
    for block in _blocks(offsets, filled):
        first, last = offsets[block[0]], offsets[block[-1] + 1]
        values, product = mixed[first:last], np.empty(last - first, np.uint32)
        starts = offsets[block] - first
        minima = np.empty((num_perm, len(block)), np.uint32)
        for k in range(num_perm):
            np.multiply(values, a[k], out=product)
            np.add(product, b[k], out=product)
            np.minimum.reduceat(product, starts, out=minima[k])
        result[:, block] = minima
    return result


@functools.cache
def _least_values() -> Callable[..., None] | None:
    try:
        from owt_pipeline.dedupe.minhash_compiled import least_values
    except ImportError:  # numba is an extra, and lags behind new versions of numpy
        return None
    return least_values


def fmix32(hashes: np.ndarray) -> np.ndarray:
    """MurmurHash3's 32-bit finalizer."""
    hashes = hashes ^ (hashes >> np.uint32(16))
    hashes *= np.uint32(0x85EBCA6B)
    hashes ^= hashes >> np.uint32(13)
    hashes *= np.uint32(0xC2B2AE35)
    hashes ^= hashes >> np.uint32(16)
    return hashes


def _blocks(offsets: np.ndarray, texts: np.ndarray) -> list[np.ndarray]:
    """`texts` in runs of some _BLOCK shingles; a longer text is a run of its own."""
    if not len(texts):
        return []
    block_of = offsets[texts] // _BLOCK
    return np.split(texts, np.flatnonzero(np.diff(block_of)) + 1)


@functools.cache
def keep_freed_memory() -> None:
    """Let this process keep up to 128 MB of what it frees, for the arrays of the next texts.

    They are of a megabyte or so and come and go by the dozen; glibc returns each to the system and takes it again,
    page by page. In worker processes that was a sixth of their time. Another C library goes its own way.
    """
    with contextlib.suppress(OSError, AttributeError):
        libc = ctypes.CDLL("libc.so.6")
        libc.mallopt(_M_TRIM_THRESHOLD, _KEPT_BYTES)
        libc.mallopt(_M_MMAP_THRESHOLD, _ARRAY_BYTES)
