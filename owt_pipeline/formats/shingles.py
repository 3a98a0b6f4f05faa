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
_MIX_1 = np.uint64(0xFF51AFD7ED558CCD)
_MIX_2 = np.uint64(0xC4CEB9FE1A85EC53)

# 2^64 divided by the golden ratio, and odd: the factor of a polynomial over the words' hashes.
_CHAIN = np.uint64(0x9E3779B97F4A7C15)


def chunked(texts: pa.Array) -> Iterator[pa.Array]:
    """Yield slices of `texts` of about _CHUNK_BYTES; a longer text is a slice of its own."""
    for start, end in bounded_ranges(byte_lengths(texts), _CHUNK_BYTES):
        yield texts.slice(start, end - start)


@dataclass(frozen=True)
class Hashes:
    """Hashes of the words of a batch of texts, or of their n-grams, in order and with repeats.

    Attributes:
      values: uint64, the hashes of all texts end to end.
      offsets: int64, text i has the values offsets[i] to offsets[i + 1]; a text without words has
        no values.
    """

    values: np.ndarray
    offsets: np.ndarray

    def each(self) -> list[np.ndarray]:
        """Return the hashes of each text."""
        return [self.values[a:b] for a, b in itertools.pairwise(self.offsets.tolist())]

    def sets(self) -> list[np.ndarray]:
        """Return the distinct hashes of each text, sorted."""
        return [sorted_set(values) for values in self.each()]

    def take(self, rows: Sequence[int]) -> Hashes:
        """Return the hashes of some of the texts."""
        hashes_by_row = self.each()
        chosen = [hashes_by_row[row] for row in rows]
        values = np.concatenate([self.values[:0], *chosen])
        return Hashes(values, np.cumsum([0, *map(len, chosen)]))


def hash_words(texts: pa.Array) -> Hashes:
    """Return the hash of each word of the texts, a string array without nulls."""
    words, offsets = find_words(texts)
    # A text repeats its words: each distinct one is hashed once.
    distinct = words.dictionary_encode()
    as_bytes = distinct.dictionary.cast(pa.binary()).to_pylist()
    hashes = np.fromiter(map(xxhash.xxh3_64_intdigest, as_bytes), np.uint64, len(as_bytes))
    return Hashes(hashes[distinct.indices.to_numpy()], offsets)


def hash_texts(texts: pa.Array, words: Hashes) -> list[bytes]:
    """Return a 128-bit hash of each text, which depends on its words and their order.

    A text without words is hashed itself, without variation selectors and after a byte 0.

    Args:
      texts: the texts.
      words: the hashes of their words.
    """
    digests = []
    for text, hashes in zip(texts, words.each(), strict=True):
        if len(hashes):
            content = hashes.tobytes()
        else:
            content = b"\x00" + without_selectors(text.as_py()).encode()
        digests.append(xxhash.xxh3_128_digest(content))
    return digests


def ngrams(words: Hashes, n: int) -> Hashes:
    """Return the hash of each n-gram of words; a text of fewer words has one gram, of all words."""
    values = words.values
    offsets = words.offsets
    lengths = np.diff(offsets)
    grams = np.zeros(len(values), np.uint64)
    num_windows = len(values) - n + 1
    if num_windows > 0:
        hashes = values[:num_windows].copy()
        for k in range(1, n):
            hashes *= _CHAIN
            hashes += values[k : num_windows + k]
        grams[:num_windows] = hashes
    # An n-gram starts at each word except the last n - 1 of a text, where it would reach into the
    # next text.
    is_start = np.ones(len(values), bool)
    for k in range(1, n):
        is_start[offsets[1:][lengths > k] - k] = False
    short_texts = np.flatnonzero((lengths > 0) & (lengths < n))
    starts = offsets[short_texts]
    grams[starts] = _hash_complete_texts(values, starts, lengths[short_texts])
    counts = np.where(lengths >= n, lengths - n + 1, np.minimum(lengths, 1))
    return Hashes(mix(grams[is_start]), np.concatenate([[0], np.cumsum(counts)]))


def sorted_set(values: np.ndarray) -> np.ndarray:
    """Return the distinct values, sorted."""
    # np.unique uses a hash table since NumPy 2.3, which takes twenty times as long here.
    values = np.sort(values)
    is_first = np.ones(len(values), bool)
    np.not_equal(values[1:], values[:-1], out=is_first[1:])
    return values[is_first]


def mix(hashes: np.ndarray) -> np.ndarray:
    """Return the hashes after MurmurHash3's 64-bit finalizer.

    It is a bijection in which every bit of the output depends on every bit of the input.
    """
    hashes = hashes ^ (hashes >> np.uint64(33))
    hashes *= _MIX_1
    hashes ^= hashes >> np.uint64(33)
    hashes *= _MIX_2
    hashes ^= hashes >> np.uint64(33)
    return hashes


def _hash_complete_texts(values: np.ndarray, starts: np.ndarray, lengths: np.ndarray) -> np.ndarray:
    """Return one hash of all words of each text, for texts of few words.

    Args:
      values: the hashes of words.
      starts: the position in `values` of the first word of each text.
      lengths: the number of words of each text.
    """
    hashes = lengths.astype(np.uint64)
    for k in range(int(lengths.max(initial=0))):
        has_word = lengths > k
        hashes[has_word] = hashes[has_word] * _CHAIN + values[starts[has_word] + k]
    return hashes
