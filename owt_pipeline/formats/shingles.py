"""Shingles of many texts at once, without a Python loop over texts: 64-bit hashes of n-grams of
words."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import xxhash

from owt_pipeline.formats.batches import bounded_ranges, byte_lengths
from owt_pipeline.formats.words import find_words, without_selectors

# The arrays of the words of this many bytes fit the second-level cache.
_CHUNK_BYTES = 1 << 19

# The constants of MurmurHash3's finalizer.
_MIX_1, _MIX_2 = np.uint64(0xFF51AFD7ED558CCD), np.uint64(0xC4CEB9FE1A85EC53)
_CHAIN = np.uint64(0x9E3779B97F4A7C15)


def chunked(texts: pa.Array) -> Iterator[pa.Array]:
    """Yield slices of `texts` of about _CHUNK_BYTES; a longer text is a slice of its own."""
    for start, end in bounded_ranges(byte_lengths(texts), _CHUNK_BYTES):
        yield texts.slice(start, end - start)


@dataclass(frozen=True)
class Hashes:
    """Hashes of the words of a batch of texts, or of their n-grams, in order and with repeats.

    Attributes:
      values: uint64, those of all texts end to end.
      offsets: int64, text i has the values offsets[i] to offsets[i + 1]; a text without words has
        none.
    """

    values: np.ndarray
    offsets: np.ndarray

    def each(self) -> list[np.ndarray]:
        """The hashes of each text."""
        return [self.values[a:b] for a, b in itertools.pairwise(self.offsets.tolist())]

    def sets(self) -> list[np.ndarray]:
        """The distinct hashes of each text, sorted."""
        return [sorted_set(values) for values in self.each()]

    def take(self, rows: Sequence[int]) -> Hashes:
        """Those of some of the texts."""
        each = self.each()
        chosen = [each[row] for row in rows]
        return Hashes(np.concatenate([self.values[:0], *chosen]), np.cumsum([0, *map(len, chosen)]))


def hash_words(texts: pa.Array) -> Hashes:
    """Return the hash of each word of the texts, a string array without nulls."""
    words, offsets = find_words(texts)
    # A text repeats its words: each distinct one is hashed once.
    distinct = words.dictionary_encode()
    as_bytes = distinct.dictionary.cast(pa.binary()).to_pylist()
    hashes = np.fromiter(map(xxhash.xxh3_64_intdigest, as_bytes), np.uint64, len(as_bytes))
    return Hashes(hashes[distinct.indices.to_numpy()], offsets)


def hash_texts(texts: pa.Array, words: Hashes) -> list[bytes]:
    """A 128-bit hash of each text, equal if and only if the texts have the same words in the
    same order.

    Of a text without words, it is that of the text without variation selectors, after a byte 0.

    Args:
      texts: the texts.
      words: their words.
    """
    return [
        xxhash.xxh3_128_digest(
            of_text.data if len(of_text) else b"\x00" + without_selectors(text.as_py()).encode()
        )
        for text, of_text in zip(texts, words.each(), strict=True)
    ]


def ngrams(words: Hashes, n: int) -> Hashes:
    """The hash of each n-gram of words; a text of fewer words has one of all of them."""
    units, offsets = words.values, words.offsets
    total, lengths = len(units), np.diff(offsets)
    grams = np.zeros(total, np.uint64)
    if total >= n:
        hashes = units[: total - n + 1].copy()
        for k in range(1, n):
            hashes *= _CHAIN
            hashes += units[k : total - n + 1 + k]
        grams[: total - n + 1] = hashes
    # An n-gram starts at each unit except the last n - 1 of a text, where it would reach into the
    # next text.
    keep = np.ones(total, bool)
    for k in range(1, n):
        keep[offsets[1:][lengths > k] - k] = False
    short = np.flatnonzero((lengths > 0) & (lengths < n))
    grams[offsets[short]] = _complete_texts(units, offsets[short], lengths[short])
    counts = np.where(lengths >= n, lengths - n + 1, np.minimum(lengths, 1))
    return Hashes(mix(grams[keep]), np.concatenate([[0], np.cumsum(counts)]))


def sorted_set(values: np.ndarray) -> np.ndarray:
    """The distinct values, sorted. np.unique hashes since NumPy 2.3, which takes twenty times as
    long here."""
    values = np.sort(values)
    keep = np.ones(len(values), bool)
    np.not_equal(values[1:], values[:-1], out=keep[1:])
    return values[keep]


def mix(hashes: np.ndarray) -> np.ndarray:
    """MurmurHash3's 64-bit finalizer: a bijection in which every output bit depends on every
    input bit."""
    hashes = hashes ^ (hashes >> np.uint64(33))
    hashes *= _MIX_1
    hashes ^= hashes >> np.uint64(33)
    hashes *= _MIX_2
    hashes ^= hashes >> np.uint64(33)
    return hashes


def _complete_texts(units: np.ndarray, starts: np.ndarray, lengths: np.ndarray) -> np.ndarray:
    """One hash of all units of each text, for texts of few units."""
    hashes = lengths.astype(np.uint64)
    for k in range(int(lengths.max(initial=0))):
        longer = lengths > k
        hashes[longer] = hashes[longer] * _CHAIN + units[starts[longer] + k]
    return hashes
