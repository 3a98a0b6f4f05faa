"""Shingles: n-grams of words or of characters, as 64-bit hashes, for a complete batch of texts at once."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import xxhash

from owt_pipeline.dedupe.words import PADDING, Folded, Words, find_words

KINDS = ("words", "characters")

_LONG_WORD = 64  # bytes; rarer ones are hashed one by one

_MIX_1, _MIX_2 = np.uint64(0xFF51AFD7ED558CCD), np.uint64(0xC4CEB9FE1A85EC53)  # MurmurHash3's finalizer
_CHAIN = np.uint64(0x9E3779B97F4A7C15)
_BYTE_MASKS = np.array([(1 << 8 * n) - 1 for n in range(9)], np.uint64)


@dataclass(frozen=True)
class Shingles:
    """The shingles of a batch of texts, repeats included.

    Attributes:
      hashes: uint64, one a shingle.
      offsets: int64, text i has the shingles offsets[i] to offsets[i + 1]; none where it has no word.
    """

    hashes: np.ndarray
    offsets: np.ndarray

    def sets(self) -> list[np.ndarray]:
        """The shingles of each text as a set: sorted, each once."""
        return [sorted_set(self.hashes[a:b]) for a, b in zip(self.offsets[:-1], self.offsets[1:], strict=True)]


def shingle(texts: Folded, n: int, kind: str = "words") -> Shingles:
    """The n-grams of the words of texts; a text of fewer than n words has one shingle of all of them.

    Args:
      texts: the texts.
      n: words, or characters, in a shingle.
      kind: `words`; or `characters`, of the words with a space after each.
    """
    words = find_words(texts)
    if kind == "characters":
        return Shingles(*ngrams(*_characters(words), n))
    return Shingles(*ngrams(hash_words(words), words.offsets, n))


def hash_words(words: Words) -> np.ndarray:
    """uint64 of each word's bytes: for words of up to eight bytes, no two have the same."""
    lengths = words.ends - words.starts
    # Eight bytes from each start, as one number; the bytes behind the word are masked off. Words of more bytes
    # are few, and take another round for every eight.
    windows = np.ndarray((len(words.letters) - PADDING + 1,), "V8", words.letters, strides=(1,))
    hashes = windows[words.starts].view("<u8") & _BYTE_MASKS[np.minimum(lengths, 8)]
    left = np.flatnonzero((lengths > 8) & (lengths <= _LONG_WORD))
    done = 8
    while len(left):
        block = windows[words.starts[left] + done].view("<u8") & _BYTE_MASKS[np.minimum(lengths[left] - done, 8)]
        hashes[left] = mix(hashes[left]) * _CHAIN + block
        done += 8
        left = left[lengths[left] > done]
    hashes = mix(hashes)
    for i in np.flatnonzero(lengths > _LONG_WORD):
        hashes[i] = xxhash.xxh3_64_intdigest(words.letters[words.starts[i] : words.ends[i]].data)
    return hashes


def ngrams(units: np.ndarray, offsets: np.ndarray, n: int) -> tuple[np.ndarray, np.ndarray]:
    """(uint64 hash of each n-gram, offsets) of texts made of hashed units, such as words.

    Args:
      units: uint64, the texts' units end to end.
      offsets: int64, text i has the units offsets[i] to offsets[i + 1].
      n: units in an n-gram. A text of fewer has one, of all its units.
    """
    total, lengths = len(units), np.diff(offsets)
    grams = np.zeros(total, np.uint64)
    if total >= n:
        whole = units[: total - n + 1].copy()
        for k in range(1, n):
            whole *= _CHAIN
            whole += units[k : total - n + 1 + k]
        grams[: total - n + 1] = whole
    # An n-gram is there for each unit but the last n - 1 of a text: from those it would reach into the next one.
    keep = np.ones(total, bool)
    for k in range(1, n):
        keep[offsets[1:][lengths > k] - k] = False
    short = np.flatnonzero((lengths > 0) & (lengths < n))
    grams[offsets[short]] = _whole_texts(units, offsets[short], lengths[short])
    counts = np.where(lengths >= n, lengths - n + 1, np.minimum(lengths, 1))
    return mix(grams[keep]), np.concatenate([[0], np.cumsum(counts)])


def sorted_set(values: np.ndarray) -> np.ndarray:
    """The values, sorted, each once: np.unique, which from NumPy 2.3 on hashes and is twenty times as slow here."""
    values = np.sort(values)
    keep = np.ones(len(values), bool)
    np.not_equal(values[1:], values[:-1], out=keep[1:])
    return values[keep]


def mix(hashes: np.ndarray) -> np.ndarray:
    """MurmurHash3's 64-bit finalizer: a bijection after which each bit depends on all."""
    hashes = hashes ^ (hashes >> np.uint64(33))
    hashes *= _MIX_1
    hashes ^= hashes >> np.uint64(33)
    hashes *= _MIX_2
    hashes ^= hashes >> np.uint64(33)
    return hashes


def _whole_texts(units: np.ndarray, starts: np.ndarray, lengths: np.ndarray) -> np.ndarray:
    """One hash of all units of each text; the texts have few."""
    hashes = lengths.astype(np.uint64)
    for k in range(int(lengths.max(initial=0))):
        longer = lengths > k
        hashes[longer] = hashes[longer] * _CHAIN + units[starts[longer] + k]
    return hashes


def _characters(words: Words) -> tuple[np.ndarray, np.ndarray]:
    """(hash of each character, offsets) of the texts as their words with a space after each."""
    lengths = words.ends - words.starts + 1  # with the space after it
    bounds = np.concatenate([[0], np.cumsum(lengths)])
    # Byte i of the joined texts is byte i - bounds[w] + starts[w] of the letters, w being the word it is in.
    source = np.arange(bounds[-1]) + np.repeat(words.starts - bounds[:-1], lengths)
    joined = words.letters[source]
    joined[bounds[1:] - 1] = 0x20
    is_first_byte = (joined & 0xC0) != 0x80
    before = np.concatenate([[0], np.cumsum(is_first_byte)])  # characters before each byte
    codes = np.frombuffer(joined.tobytes().decode("utf-8", "replace").encode("utf-32-le"), "<u4")
    offsets = before[bounds[words.offsets]]
    return mix(codes.astype(np.uint64)), offsets
