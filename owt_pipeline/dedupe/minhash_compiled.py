"""The loop of MinHash signatures, compiled by numba for the processor at hand when this is imported."""

from __future__ import annotations

import numpy as np
from numba import njit


# Not cached: that saves 0.1 s, and fails where neither this folder nor a home may be written.
@njit("void(uint32[::1], int64[::1], uint32[::1], uint32[::1], uint32[:, ::1])")
def least_values(mixed: np.ndarray, offsets: np.ndarray, a: np.ndarray, b: np.ndarray, result: np.ndarray) -> None:
    """Put into result[k, i] the least of a[k] * x + b[k] modulo 2^32 over the values x of text i.

    Args:
      mixed: uint32, the values of all texts end to end.
      offsets: int64, text i has the values offsets[i] to offsets[i + 1]. A text without any gets 2^32 - 1.
      a, b: uint32[permutations].
      result: uint32[permutations, texts].
    """
    for i in range(len(offsets) - 1):
        values = mixed[offsets[i] : offsets[i + 1]]
        for k in range(len(a)):
            factor, term, least = a[k], b[k], np.uint32(0xFFFFFFFF)
            for j in range(len(values)):  # by number, and without min(): only so it becomes vector instructions
                value = np.uint32(values[j] * factor + term)
                least = value if value < least else least
            result[k, i] = least
