"""The words of texts: what near-duplicates and evaluation sets are compared by.

A word is a run of letters, marks and numbers, in lower case. Each ideograph, and each character of
a script written without spaces, is a word of its own, since a run of them is a complete sentence.

    lower case          "I \\u2764\\ufe0f THE Café, 漢字"  ->  "i \\u2764\\ufe0f the café, 漢字"
    replace             selectors by nothing, separators by spaces, with spaces around ideographs
    split at spaces     "i the café  漢  字 "  ->  ["i", "the", "café", "漢", "字"]
"""

from __future__ import annotations

import functools
import re
import unicodedata
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

# Variation selectors choose between the forms of a character (U+FE0F: the coloured one); the text
# is the same.
_SELECTORS = "[\u180b-\u180d\u180f\ufe00-\ufe0f\U000e0100-\U000e01ef]"

# Scripts written without spaces.
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
_FIRST_WITHOUT_LETTERS = 0x40000

Ranges = list[tuple[int, int]]
"""First and last code point of each range."""


def find_words(texts: pa.Array) -> tuple[pa.Array, np.ndarray]:
    """Return the words of all texts end to end, and int64 offsets.

    Text i has the words offsets[i] to offsets[i + 1]. `texts` is a string array without nulls.
    Arrow does it without a Python loop over texts.
    """
    classes = character_classes()
    letters = _class_of_re2(classes.letters)
    marks = _class_of_re2(classes.marks)
    unspaced = _class_of_re2(classes.unspaced)
    texts = pc.utf8_lower(texts)
    texts = pc.replace_substring_regex(texts, _SELECTORS, "")
    texts = pc.replace_substring_regex(texts, f"[^{letters}{marks}{unspaced}]+", " ")
    texts = pc.replace_substring_regex(texts, f"([{unspaced}])", r" \1 ")
    # Marks after a symbol or an ideograph are not part of a word.
    texts = pc.replace_substring_regex(texts, f"(^| )[{marks}]+", " ")
    pieces = pc.ascii_split_whitespace(texts)
    lengths = pc.list_value_length(pieces).to_numpy().astype(np.int64)
    words = pieces.flatten()
    # A text that begins or ends with a space, or is empty, has an empty piece there.
    is_word = pc.greater(pc.binary_length(words), 0)
    text_of_piece = np.repeat(np.arange(len(lengths)), lengths)
    text_of_word = text_of_piece[is_word.to_numpy(zero_copy_only=False)]
    num_words = np.bincount(text_of_word, minlength=len(lengths))
    return words.filter(is_word), np.concatenate([[0], np.cumsum(num_words)])


def words_of(text: str) -> list[str]:
    """Return the words of one text, as `find_words` finds them.

    `find_words` compiles its patterns at each call, which takes milliseconds.
    """
    text = without_selectors(text.lower())
    # Python's classes of all letters are slow, and most texts are Latin.
    if _BEYOND_LATIN.search(text):
        return _word_pattern().findall(text)
    return _LATIN_WORD.findall(text)


_BEYOND_LATIN = re.compile("[^\x00-\u02ff\u2010-\u205e\u20a0-\u20bf]")
_LATIN_WORD = re.compile(r"[^\W_]+")


def without_selectors(text: str) -> str:
    """Return the text without variation selectors."""
    if text.isascii():
        return text
    return re.sub(_SELECTORS, "", text)


@dataclass(frozen=True)
class CharacterClasses:
    """The characters of words; all others separate words.

    Attributes:
      letters: letters and numbers.
      marks: marks, which belong to the letter before them.
      unspaced: ideographs and characters of scripts without spaces; each is a word.
    """

    letters: Ranges
    marks: Ranges
    unspaced: Ranges


@functools.cache
def character_classes() -> CharacterClasses:
    """Return the classes by Python's Unicode database, which takes a tenth of a second.

    Code points that the database does not know count as letters: most additions to Unicode are, and
    another Python version should not change decisions.
    """
    is_unspaced = np.zeros(_FIRST_WITHOUT_LETTERS, bool)
    for first, last in _UNSPACED:
        is_unspaced[first : last + 1] = True
    letters: list[int] = []
    marks: list[int] = []
    unspaced: list[int] = []
    for code in range(_FIRST_WITHOUT_LETTERS):
        category = unicodedata.category(chr(code))
        if category[0] not in "LNM" and category != "Cn":
            continue
        if is_unspaced[code]:
            unspaced.append(code)
        elif category[0] == "M":
            marks.append(code)
        else:
            letters.append(code)
    return CharacterClasses(
        letters=list(_runs(letters)), marks=list(_runs(marks)), unspaced=list(_runs(unspaced))
    )


def _runs(codes: Iterable[int]) -> Iterator[tuple[int, int]]:
    """Yield the ranges of code points in order."""
    first = last = -1
    for code in codes:
        if code != last + 1 or first < 0:
            if first >= 0:
                yield first, last
            first = code
        last = code
    if first >= 0:
        yield first, last


def _class_of_re2(ranges: Ranges) -> str:
    """Return the inside of a character class for Arrow's regular expressions."""
    return "".join(f"\\x{{{first:x}}}-\\x{{{last:x}}}" for first, last in ranges)


def _class_of_python(ranges: Ranges) -> str:
    """Return the inside of a character class for Python's regular expressions."""
    return "".join(f"\\U{first:08x}-\\U{last:08x}" for first, last in ranges)


@functools.cache
def _word_pattern() -> re.Pattern[str]:
    """Return the pattern of a word of any script."""
    classes = character_classes()
    letters = _class_of_python(classes.letters)
    marks = _class_of_python(classes.marks)
    unspaced = _class_of_python(classes.unspaced)
    return re.compile(f"[{unspaced}]|[{letters}][{letters}{marks}]*")
