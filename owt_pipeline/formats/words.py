"""The words of texts: what near-duplicates and evaluation sets are compared by.

A word is a run of letters, marks and numbers, in lower case. Each ideograph, and each character of
a script written without spaces, is a word of its own, since a run of them is a complete sentence.
Characters that Unicode assigns later count as letters, except in blocks of pictographs.

    lower case          "I \\u2764\\ufe0f THE Café, 漢字"  ->  "i \\u2764\\ufe0f the café, 漢字"
    replace             selectors by nothing, separators by spaces, with spaces around ideographs
    split at spaces     "i the café  漢  字 "  ->  ["i", "the", "café", "漢", "字"]
"""

from __future__ import annotations

import functools
import re

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from owt_pipeline.formats.characters import apply_to_known, ranges_by_class

# Variation selectors choose between the forms of a character (U+FE0F: the coloured one); the text
# is the same.
_SELECTORS = "[\u180b-\u180d\u180f\ufe00-\ufe0f\U000e0100-\U000e01ef]"


def find_words(texts: pa.Array) -> tuple[pa.Array, np.ndarray]:
    """Return the words of all texts end to end, and int64 offsets.

    Text i has the words offsets[i] to offsets[i + 1]. `texts` is a string array without nulls.
    Arrow does it without a Python loop over texts.
    """
    letters = _class_of_re2("letters")
    marks = _class_of_re2("marks")
    unspaced = _class_of_re2("unspaced")
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
    text = without_selectors(apply_to_known(str.lower, text))
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


@functools.cache
def _class_of_re2(name: str) -> str:
    """Return the inside of a character class for Arrow's regular expressions."""
    ranges = ranges_by_class()[name]
    return "".join(f"\\x{{{first:x}}}-\\x{{{last:x}}}" for first, last in ranges)


def _class_of_python(name: str) -> str:
    """Return the inside of a character class for Python's regular expressions."""
    ranges = ranges_by_class()[name]
    return "".join(f"\\U{first:08x}-\\U{last:08x}" for first, last in ranges)


@functools.cache
def _word_pattern() -> re.Pattern[str]:
    """Return the pattern of a word of any script."""
    letters = _class_of_python("letters")
    marks = _class_of_python("marks")
    unspaced = _class_of_python("unspaced")
    return re.compile(f"[{unspaced}]|[{letters}][{letters}{marks}]*")
