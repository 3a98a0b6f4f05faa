"""Search for texts that repeat a forgotten one.

A text repeats another if it has the same words in the same order, or if the Jaccard similarity of
their sets of word 5-grams is at least 0.8, whatever the run's options are. The search is exact: it
misses no such text.

1. Bound the number of words of each text by its bytes.
2. Find the shingles of the beginning of each text. If more of them are new than a fifth of all
   words, the text cannot repeat a forgotten one. Nearly all texts are decided here.
3. Compare the complete set of the others with each forgotten text that has a common shingle.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import pyarrow as pa

from owt_pipeline.engine.takedowns import NGRAM, Fingerprint, fingerprints
from owt_pipeline.formats.batches import bounded_ranges, byte_lengths
from owt_pipeline.formats.shingles import hash_words, ngrams, sorted_set

# The inverse of the share of a text's shingles that may be missing from a text that it repeats:
# similarity 4/5. In no key: who changes it raises the version of `export`, and mends
# docs/how-to/takedown.md and docs/design.md.
_MISSING = 5
_MIN_SIMILARITY = 0.8

# The share of a text's bytes in its beginning. More than a fifth, so that a text with a few common
# phrases among its first words is decided, too.
_BEGINNING = 0.3

# The beginnings of this many bytes of texts fit the second-level cache.
_CHUNK_BYTES = 2 << 20

# Slots of the table of forgotten shingles for each of them. A slot that is taken by another shingle
# costs a complete comparison at most, never a match.
_SLOTS = 16


class Match(NamedTuple):
    """A text that repeats forgotten ones: its row, and their positions, the most similar first."""

    row: int
    positions: list[int]


class ForgottenTexts:
    """The fingerprints of forgotten texts; memory is about 30 bytes per word of them."""

    def __init__(self, texts: Sequence[Fingerprint]):
        self._positions_by_digest: dict[bytes, list[int]] = {}
        for position, text in enumerate(texts):
            self._positions_by_digest.setdefault(text.digest, []).append(position)
        # The number of distinct shingles of each text.
        self._sizes = np.fromiter((len(text.shingles) for text in texts), np.int64, len(texts))
        shingles = np.concatenate([np.empty(0, np.uint64), *(text.shingles for text in texts)])
        owners = np.repeat(np.arange(len(texts), dtype=np.uint32), self._sizes)
        order = np.argsort(shingles, kind="stable")
        # The shingles of all texts, sorted, and the position of the text of each.
        self._shingles = shingles[order]
        self._owners = owners[order]
        num_bits = max(_SLOTS * len(shingles), 1).bit_length()
        self._shift = np.uint64(64 - num_bits)
        self._is_taken = np.zeros(1 << num_bits, bool)
        self._is_taken[self._shingles >> self._shift] = True

    def matches(self, texts: pa.Array) -> list[Match]:
        """Return the rows whose text repeats forgotten ones, in order."""
        if not len(self._sizes):
            return []
        matches = []
        for start, end in bounded_ranges(byte_lengths(texts), _CHUNK_BYTES):
            chunk = texts.slice(start, end - start)
            rows = np.flatnonzero(self._may_repeat(chunk))
            candidates = fingerprints(chunk.take(pa.array(rows)))
            for row, text in zip(rows.tolist(), candidates, strict=True):
                similar = self._similar(text.shingles)
                equal = self._positions_by_digest.get(text.digest, [])
                positions = [*equal, *(place for place in similar if place not in equal)]
                if positions:
                    matches.append(Match(start + row, positions))
        return matches

    def _may_repeat(self, texts: pa.Array) -> np.ndarray:
        """Return bool (n,): whether the beginning of each text allows a match."""
        beginnings, max_words = _cut(texts)
        words = hash_words(beginnings)
        # The only n-gram of a shorter beginning is not one of the complete text.
        has_ngrams = np.diff(words.offsets) >= NGRAM
        may_repeat = np.ones(len(texts), bool)
        for row, values in enumerate(ngrams(words, NGRAM).each()):
            if not has_ngrams[row]:
                continue
            is_new = ~self._is_taken[values >> self._shift]
            num_new = len(sorted_set(values[is_new]))
            # A text that repeats another has at least 4/5 of its shingles in it, and at most one
            # shingle for each word.
            may_repeat[row] = _MISSING * num_new <= max_words[row]
        return may_repeat

    def _similar(self, shingles: np.ndarray) -> list[int]:
        """Return the positions of the texts that reach the similarity."""
        start = np.searchsorted(self._shingles, shingles)
        end = np.searchsorted(self._shingles, shingles, side="right")
        # A text without words has no shingles.
        if not np.count_nonzero(end > start):
            return []
        pieces = [self._owners[a:b] for a, b in zip(start.tolist(), end.tolist(), strict=True)]
        owners, common = np.unique(np.concatenate(pieces), return_counts=True)
        similarity = common / (self._sizes[owners] + len(shingles) - common)
        order = np.lexsort((owners, -similarity))
        return [int(owners[k]) for k in order if similarity[k] >= _MIN_SIMILARITY]


_ALPHANUMERIC = np.zeros(256, bool)
_ALPHANUMERIC[[*b"0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz"]] = True


def _cut(texts: pa.Array) -> tuple[pa.Array, np.ndarray]:
    """Return the beginning of each text, and an upper bound of the number of words of each text.

    A beginning ends before a space, so its words are the first words of the text. A text without a
    space is its own beginning. Each word begins with a letter or digit after another character, or
    with a character beyond ASCII, so these are counted.
    """
    texts = texts.cast(pa.large_binary())
    _, offset_buffer, data_buffer = texts.buffers()
    offsets = np.frombuffer(offset_buffer, np.int64)[texts.offset :][: len(texts) + 1]
    first = int(offsets[0])
    content = bytes(data_buffer[first : int(offsets[-1])]) if data_buffer else b""
    offsets = offsets - first
    data = np.frombuffer(content, np.uint8)
    is_alphanumeric = _ALPHANUMERIC[data]
    may_begin = data >= 0xC0
    may_begin[1:] |= is_alphanumeric[1:] & ~is_alphanumeric[:-1]
    starts = offsets[:-1][offsets[:-1] < offsets[1:]]
    may_begin[starts] |= is_alphanumeric[starts]
    counts = np.zeros(len(texts), np.int64)
    has_bytes = offsets[:-1] < offsets[1:]
    counts[has_bytes] = np.add.reduceat(may_begin, offsets[:-1][has_bytes], dtype=np.int64)
    beginnings = []
    for start, end in itertools.pairwise(offsets.tolist()):
        space = content.find(b" ", start + int(_BEGINNING * (end - start)), end)
        beginnings.append(content[start : end if space < 0 else space])
    return pa.array(beginnings, pa.binary()).cast(pa.string()), counts
