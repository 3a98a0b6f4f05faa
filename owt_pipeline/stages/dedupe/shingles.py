"""Words and shingles of many texts at once, without a Python loop over words or texts: words are
byte ranges of one normalised buffer, shingles are 64-bit hashes of n-grams of words."""

from __future__ import annotations

import functools
import itertools
import re
import unicodedata
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import xxhash

PADDING = 8
"""Bytes after the last text, so that eight bytes can be read from the start of any word."""

_SPACE = 0x20
_CHUNK_BYTES = 1 << 19

# For bytes.translate: lower-cases ASCII letters, turns ASCII other than letters and digits into
# spaces.
_LOWER_ASCII = bytes(
    code if code >= 0x80 else ord(chr(code).lower()) if chr(code).isalnum() else _SPACE
    for code in range(256)
)


@dataclass(frozen=True)
class Folded:
    """A batch of texts in lower case.

    Attributes:
      letters: uint8, the texts' UTF-8 in lower case, word separators as spaces, PADDING spaces at
        the end.
      bounds: int64, text i has the bytes bounds[i] to bounds[i + 1].
      ideographs: int64, the first byte of each character that is a word of its own.
      after: int64, the byte after each of these.
    """

    letters: np.ndarray
    bounds: np.ndarray
    ideographs: np.ndarray
    after: np.ndarray


@dataclass(frozen=True)
class Words:
    """The words of a batch of texts, in order.

    Attributes:
      letters: `letters` of the folded texts.
      starts: int64, first byte of each word in `letters`.
      ends: int64, the byte after each word.
      offsets: int64, text i has the words offsets[i] to offsets[i + 1].
    """

    letters: np.ndarray
    starts: np.ndarray
    ends: np.ndarray
    offsets: np.ndarray


def chunked(texts: pa.Array) -> Iterator[pa.Array]:
    """Slices of `texts` of about _CHUNK_BYTES, so that their arrays of words fit the
    second-level cache.

    A longer text is a slice of its own.
    """
    ends = np.cumsum(
        pc.fill_null(pc.binary_length(texts), 0).to_numpy(zero_copy_only=False).astype(np.int64)
    )
    cuts = np.flatnonzero(np.diff(ends // _CHUNK_BYTES)) + 1
    for start, end in zip([0, *cuts.tolist()], [*cuts.tolist(), len(texts)], strict=True):
        if end > start:
            yield texts.slice(start, end - start)


def fold(texts: pa.Array) -> Folded:
    """A string array without nulls in lower case, as `find_words` takes it."""
    data, bounds = _text_bytes(texts)
    padded = bytearray(data.data) + bytes(PADDING)
    if any(first in padded for first in _SELECTOR_BYTES):
        data, bounds = _text_bytes(pc.replace_substring_regex(texts, _SELECTORS.pattern, ""))
        padded = bytearray(data.data) + bytes(PADDING)
    letters = np.frombuffer(padded.translate(_LOWER_ASCII), np.uint8)
    return Folded(letters, bounds, *_lower_beyond_ascii(letters, bounds))


def find_words(folded: Folded) -> Words:
    """The words of the texts: maximal runs of letters, marks and numbers, in lower case.

    Each ideograph, and each letter of a script written without spaces, is a word of its own.
    """
    letters, bounds = folded.letters, folded.bounds
    is_word = letters != _SPACE
    # A word starts where a letter follows a separator, and ends where a separator follows a letter:
    #   letters   " one two"
    #   is_start  01000100 0
    #   is_end    00001000 1
    size = len(letters) - PADDING
    is_start, is_end = np.zeros(size + 1, bool), np.zeros(size + 1, bool)
    is_start[0] = is_word[0]
    np.greater(is_word[1 : size + 1], is_word[:size], out=is_start[1:])
    np.less(is_word[1 : size + 1], is_word[:size], out=is_end[1:])
    # Words also end and start where two texts or two ideographs meet.
    cuts = np.concatenate([bounds[1:-1], folded.ideographs, folded.after])
    is_start[cuts] = is_word[cuts]
    is_end[cuts] = is_word[cuts - 1]  # cut 0 reads the padding, which is no letter
    starts, ends = np.flatnonzero(is_start), np.flatnonzero(is_end)
    return Words(letters, starts, ends, np.searchsorted(starts, bounds))


# Variation selectors choose between the forms of a character (U+FE0F: the coloured one); the text
# is the same.
_SELECTORS = re.compile("[\u180b-\u180d\u180f\ufe00-\ufe0f\U000e0100-\U000e01ef]")

_SELECTOR_BYTES = (b"\xef\xb8", b"\xf3\xa0", b"\xe1\xa0")  # what each begins with in UTF-8


def _text_bytes(texts: pa.Array) -> tuple[np.ndarray, np.ndarray]:
    """(uint8 of all texts end to end, int64 bounds) of a string array, without copying the text."""
    wide = pa.types.is_large_string(texts.type)
    _, offsets_buffer, data_buffer = texts.buffers()
    offsets = np.frombuffer(offsets_buffer, np.int64 if wide else np.int32)
    offsets = offsets[texts.offset : texts.offset + len(texts) + 1].astype(np.int64)
    data = (
        np.frombuffer(data_buffer, np.uint8) if data_buffer is not None else np.empty(0, np.uint8)
    )
    return data[offsets[0] : offsets[-1]], offsets - offsets[0]


def _lower_beyond_ascii(letters: np.ndarray, bounds: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Fold non-ASCII characters in place; return the first byte of each ideograph and the byte
    after it."""
    lead = np.flatnonzero(letters >= 0xC0)
    if not len(lead):
        return lead, lead
    table = character_table()
    b0, b1, b2, b3 = (letters[lead + k].astype(np.int64) for k in range(4))
    b1, b2, b3 = b1 & 0x3F, b2 & 0x3F, b3 & 0x3F
    size = 2 + (b0 >= 0xE0).astype(np.int64) + (b0 >= 0xF0)
    code = np.where(
        size == 2,
        (b0 & 0x1F) << 6 | b1,
        np.where(
            size == 3, (b0 & 0x0F) << 12 | b1 << 6 | b2, (b0 & 0x07) << 18 | b1 << 12 | b2 << 6 | b3
        ),
    )
    kind = table.kind[code]
    for separator, length in ((lead[(kind == SEPARATOR) & (size >= 1 + k)], k) for k in range(4)):
        letters[separator + length] = _SPACE
    marks = kind == MARK
    if marks.any():
        _separate_marks(letters, lead[marks], size[marks], bounds)
    small = table.lower[code]
    changed = np.flatnonzero(small != code)
    _write_utf8(letters, lead[changed], size[changed], small[changed])
    is_ideograph = kind == IDEOGRAPH
    return lead[is_ideograph], lead[is_ideograph] + size[is_ideograph]


def _separate_marks(
    letters: np.ndarray, at: np.ndarray, size: np.ndarray, bounds: np.ndarray
) -> None:
    """Turn the marks at `at` into spaces, except those of a letter: after a symbol they are none
    of a word's.

    Of marks in a row, what is before the first decides.
    """
    first = np.isin(at, bounds[:-1])
    alone = first | (letters[at - 1] == _SPACE)  # byte -1 is padding
    first[0] = True
    first[1:] |= at[1:] != at[:-1] + size[:-1]
    alone = alone[first][np.cumsum(first) - 1]
    for length in range(4):
        letters[at[alone & (size > length)] + length] = _SPACE


def _write_utf8(letters: np.ndarray, at: np.ndarray, size: np.ndarray, code: np.ndarray) -> None:
    """Overwrite the characters at `at` with code points of the same size, 2 to 4 bytes."""
    for length, mark in ((2, 0xC0), (3, 0xE0), (4, 0xF0)):
        of_length = size == length
        where, rest = at[of_length], code[of_length]
        for k in range(length - 1, 0, -1):
            letters[where + k] = 0x80 | (rest & 0x3F)
            rest = rest >> 6
        letters[where] = mark | rest


SEPARATOR, LETTER, IDEOGRAPH, MARK = 0, 1, 2, 3

# Scripts written without spaces: each character is a word, since a run of them is a complete
# sentence.
_UNSPACED = (
    (0x0E00, 0x0EFF),  # Thai, Lao
    (0x1000, 0x109F),  # Myanmar
    (0x1780, 0x17FF),  # Khmer
    (0x3040, 0x30FF),  # Hiragana, Katakana
    (0x31F0, 0x31FF),  # Katakana extensions
    (0x3400, 0x4DBF),  # Han, extension A
    (0x4E00, 0x9FFF),  # Han
    (0xF900, 0xFAFF),  # Han, compatibility
    (0x20000, 0x3FFFF),  # Han, further extensions
)


@dataclass(frozen=True)
class CharacterTable:
    """Lookup by code point.

    Attributes:
      kind: uint8[0x110000], SEPARATOR, LETTER, IDEOGRAPH or MARK.
      lower: int64[0x110000], the lower-case code point.
    """

    kind: np.ndarray
    lower: np.ndarray


@functools.cache  # 10 MB and about 50 ms; every process that sketches needs it
def character_table() -> CharacterTable:
    """The table, from Python's Unicode database.

    Letters and numbers are LETTER. So are code points that the database does not know: most
    additions to Unicode are letters, and another Python version should not change decisions. A
    letter whose lower case has another length in UTF-8 (a dozen, such as U+212A) is left as it is,
    since words are folded in place.
    """
    kind = np.full(0x110000, SEPARATOR, np.uint8)
    lower = np.arange(0x110000, dtype=np.int64)
    for code in range(0x80, 0x20000):
        character = chr(code)
        category = unicodedata.category(character)
        if category[0] == "M":
            kind[code] = MARK
        elif category[0] in "LN" or category == "Cn":
            kind[code] = LETTER
            if category in ("Lu", "Lt"):
                small = character.lower()
                if len(small) == 1 and len(small.encode()) == len(character.encode()):
                    lower[code] = ord(small)
    for first, last in _UNSPACED:
        block = kind[first : last + 1]
        block[:] = np.where((block != SEPARATOR) | (first >= 0x20000), IDEOGRAPH, SEPARATOR)
    return CharacterTable(kind, lower)


_LONG_WORD = 64  # bytes; longer words are rare and hashed one by one

_MIX_1, _MIX_2 = (
    np.uint64(0xFF51AFD7ED558CCD),
    np.uint64(0xC4CEB9FE1A85EC53),
)  # MurmurHash3's finalizer
_CHAIN = np.uint64(0x9E3779B97F4A7C15)
_BYTE_MASKS = np.array([(1 << 8 * n) - 1 for n in range(9)], np.uint64)


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
    """The hash of each word's bytes; distinct for words of up to eight bytes."""
    words = find_words(fold(texts))
    lengths = words.ends - words.starts
    # Read eight bytes from each start as one number and mask off those after the word. The few
    # longer words take another round for every eight bytes.
    windows = np.ndarray((len(words.letters) - PADDING + 1,), "V8", words.letters, strides=(1,))
    hashes = windows[words.starts].view("<u8") & _BYTE_MASKS[np.minimum(lengths, 8)]
    left = np.flatnonzero((lengths > 8) & (lengths <= _LONG_WORD))
    done = 8
    while len(left):
        block = (
            windows[words.starts[left] + done].view("<u8")
            & _BYTE_MASKS[np.minimum(lengths[left] - done, 8)]
        )
        hashes[left] = mix(hashes[left]) * _CHAIN + block
        done += 8
        left = left[lengths[left] > done]
    hashes = mix(hashes)
    for i in np.flatnonzero(lengths > _LONG_WORD):
        hashes[i] = xxhash.xxh3_64_intdigest(words.letters[words.starts[i] : words.ends[i]].data)
    return Hashes(hashes, words.offsets)


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
            of_text.data if len(of_text) else b"\x00" + _SELECTORS.sub("", text.as_py()).encode()
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
