"""The words of many texts at once, as byte ranges of one normalised buffer: no loop over words or texts."""

from __future__ import annotations

import itertools
from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from owt_pipeline.dedupe.characters import IDEOGRAPH, SEPARATOR, ascii_table, character_table

PADDING = 8
"""Bytes after the last text, so that eight bytes can be read from any word's start."""

_SPACE = 0x20
_ASCII = ascii_table()


@dataclass(frozen=True)
class Words:
    """The words of a batch of texts, in order.

    Attributes:
      letters: uint8, the texts' UTF-8 in lower case, what separates words as spaces, PADDING spaces at the end.
      starts: int64, first byte of each word in `letters`.
      ends: int64, the byte after each word.
      offsets: int64, text i has the words offsets[i] to offsets[i + 1].
    """

    letters: np.ndarray
    starts: np.ndarray
    ends: np.ndarray
    offsets: np.ndarray


def find_words(texts: pa.Array) -> Words:
    """The words of `texts` (a string array without nulls): maximal runs of letters, marks and numbers, in lower case.

    Each ideograph, and each letter of a script written without spaces, is a word of its own.
    """
    letters, bounds, ideographs, after = _letters(texts)
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
    # Texts lie end to end, and ideographs side by side: there too, a word ends and the next one starts.
    cuts = np.concatenate([bounds[1:-1], ideographs, after])
    is_start[cuts] = is_word[cuts]
    is_end[cuts] = is_word[cuts - 1]  # before the first byte, that is the padding: no letter
    starts, ends = np.flatnonzero(is_start), np.flatnonzero(is_end)
    return Words(letters, starts, ends, np.searchsorted(starts, bounds))


def normalise(texts: pa.Array) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """(uint8 of the normalised texts, starts, ends of each in them) of a string array without nulls.

    A normalised text is its words with a space between, none beside those that stand alone: so two are equal
    exactly where the texts have the same words in the same order. A text without words is empty.
    """
    letters, bounds, ideographs, after = _letters(texts)
    is_word = letters != _SPACE
    keep = is_word.copy()
    keep[1:] |= is_word[:-1]  # of several separators, the first
    before = ideographs[~is_word[ideographs - 1]]
    if len(before):
        spaces = np.flatnonzero(keep & ~is_word)
        first = np.searchsorted(spaces, before) - 1  # of the separators right before each, the one kept so far
        keep[spaces[first[first >= 0]]] = False
    for cuts in (bounds[:-1], after):  # what begins a text, or follows an ideograph, separates no two words
        keep[cuts] = is_word[cuts]
    keep[bounds[-1] :] = False
    kept = letters[keep]
    lengths = [np.count_nonzero(keep[a:b]) for a, b in itertools.pairwise(bounds.tolist())]
    ends = np.cumsum([0, *lengths])
    starts, ends = ends[:-1], ends[1:].copy()
    trails = ends > starts
    trails[trails] = kept[ends[trails] - 1] == _SPACE
    ends[trails] -= 1
    return kept, starts, ends


def text_bytes(texts: pa.Array) -> tuple[np.ndarray, np.ndarray]:
    """(uint8 of all texts end to end, int64 bounds of each in them) of a string array, without a copy of the text."""
    wide = pa.types.is_large_string(texts.type)
    _, offsets_buffer, data_buffer = texts.buffers()
    offsets = np.frombuffer(offsets_buffer, np.int64 if wide else np.int32)
    offsets = offsets[texts.offset : texts.offset + len(texts) + 1].astype(np.int64)
    data = np.frombuffer(data_buffer, np.uint8) if data_buffer is not None else np.empty(0, np.uint8)
    return data[offsets[0] : offsets[-1]], offsets - offsets[0]


def _letters(texts: pa.Array) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """(letters as in Words, bounds of each text, first byte of each ideograph, the byte after it)."""
    data, bounds = text_bytes(texts)
    letters = _lower_ascii(data)
    return letters, bounds, *_lower_beyond_ascii(letters)


def _lower_ascii(data: np.ndarray) -> np.ndarray:
    buffer = bytearray(len(data) + PADDING)
    buffer[: len(data)] = data.data
    return np.frombuffer(buffer.translate(_ASCII), np.uint8)


def _lower_beyond_ascii(letters: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Fold the characters beyond ASCII in place; returns the first byte of each ideograph, and the byte after it."""
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
        np.where(size == 3, (b0 & 0x0F) << 12 | b1 << 6 | b2, (b0 & 0x07) << 18 | b1 << 12 | b2 << 6 | b3),
    )
    kind = table.kind[code]
    for separator, length in ((lead[(kind == SEPARATOR) & (size >= 1 + k)], k) for k in range(4)):
        letters[separator + length] = _SPACE
    small = table.lower[code]
    changed = np.flatnonzero(small != code)
    _write_utf8(letters, lead[changed], size[changed], small[changed])
    stands_alone = kind == IDEOGRAPH
    return lead[stands_alone], lead[stands_alone] + size[stands_alone]


def _write_utf8(letters: np.ndarray, at: np.ndarray, size: np.ndarray, code: np.ndarray) -> None:
    """Write code points of 2 to 4 bytes each over those at `at`."""
    for length, mark in ((2, 0xC0), (3, 0xE0), (4, 0xF0)):
        of_length = size == length
        where, rest = at[of_length], code[of_length]
        for k in range(length - 1, 0, -1):
            letters[where + k] = 0x80 | (rest & 0x3F)
            rest = rest >> 6
        letters[where] = mark | rest
