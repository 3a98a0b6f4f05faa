"""A stateless permutation of 0 … n−1: any element in constant time, no table to store or to restore."""

from __future__ import annotations

import numpy as np

_ROUNDS = (
    6  # four make a pseudorandom permutation of a large domain (Luby and Rackoff); small ones profit from two more
)
_MASK64 = (1 << 64) - 1


class Permutation:
    """A pseudorandom permutation of the integers below `n`, chosen by `key`.

    A Feistel network over the smallest power of two that holds n, restricted to n by walking the cycle:
    an image outside is permuted again until it is inside. Feistel networks: Luby and Rackoff, 1988;
    cycle walking: Black and Rogaway, "Ciphers with Arbitrary Finite Domains", 2002; as a data order:
    Levanter. The round function is MurmurHash3's 32-bit finaliser.

    Args:
      n: size of the domain, from 1 to 2**62.
      key: any integers; equal keys give equal permutations.
    """

    def __init__(self, n: int, *key: int) -> None:
        if not 1 <= n <= 1 << 62:
            raise ValueError(f"a permutation needs 1 to 2**62 elements, not {n}")
        self.n = n
        bits = max(2, (n - 1).bit_length())
        self._low_bits = bits // 2
        self._high_bits = bits - bits // 2
        state = 0
        for part in key:
            state = mix64(state ^ mix64(part & _MASK64))
        self._keys = [np.uint32(mix64(state + round_number) & 0xFFFFFFFF) for round_number in range(_ROUNDS)]

    def __call__(self, index: np.ndarray) -> np.ndarray:
        """The images of `index` (any integers below n) as int64."""
        image = self._encrypt(index.astype(np.uint64))
        outside = np.flatnonzero(image >= self.n)
        while outside.size:  # under half of them each time: the domain is under twice n (four at n below 3)
            image[outside] = self._encrypt(image[outside])
            outside = outside[image[outside] >= self.n]
        return image.astype(np.int64)

    def _encrypt(self, value: np.ndarray) -> np.ndarray:
        low_bits, high_bits = self._low_bits, self._high_bits
        high = (value >> np.uint64(low_bits)).astype(np.uint32)
        low = (value & np.uint64((1 << low_bits) - 1)).astype(np.uint32)
        for key in self._keys:
            # The halves swap, and with them their widths; an even number of rounds brings them back.
            high, low = low, high ^ (_mix32(low ^ key) & np.uint32((1 << high_bits) - 1))
            high_bits, low_bits = low_bits, high_bits
        return (high.astype(np.uint64) << np.uint64(low_bits)) | low


def mix64(value: int) -> int:
    """The finaliser of SplitMix64 (Steele, Lea and Flood, 2014) on one integer."""
    value = (value + 0x9E3779B97F4A7C15) & _MASK64
    value = ((value ^ (value >> 30)) * 0xBF58476D1CE4E5B9) & _MASK64
    value = ((value ^ (value >> 27)) * 0x94D049BB133111EB) & _MASK64
    return value ^ (value >> 31)


def _mix32(value: np.ndarray) -> np.ndarray:
    value ^= value >> np.uint32(16)
    value *= np.uint32(0x85EBCA6B)
    value ^= value >> np.uint32(13)
    value *= np.uint32(0xC2B2AE35)
    value ^= value >> np.uint32(16)
    return value
