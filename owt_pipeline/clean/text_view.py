"""A text as the filters look at it: its lines, paragraphs and words, each split once, when first asked for."""

from __future__ import annotations

import re
from collections import Counter
from functools import cached_property

# Words as spaCy's English tokenizer splits them, nearly: datatrove uses it, and FineWeb was made with it.
# Punctuation is a word of its own but where spaCy leaves it in one: `/etc`, `--help`, `GLP-1`, `03/04`, `U.S.`
_WITHIN = r"[.@&$\\+*~^|‑(\[{]|[/:=,–—](?=\d)|(?<=[^\W\d_])-(?=\d)|(?<=\d)[-–—](?=[^\W\d_])"
_PART = r"[^\W_]+(?:_+[^\W_]+)*"  # an underscore at either end is a word of its own
_TOKEN = rf"{_PART}(?:(?:{_WITHIN}){_PART})*(?:://\S*[\w/]|(?<=\.[A-Za-z])\.)?"
_NUMBER_BEFORE_UNIT = r"\d+(?:[.,]\d+)*(?=(?:[kcmn]?m|[km]?g|lb|oz|[kKMGT][bB]?)\b)"
_WORD = re.compile(
    rf"{_NUMBER_BEFORE_UNIT}|{_TOKEN}|(?<=\w)['’]\w+|(?<![\w/.\\@~|-])(?!\.\.)[-/.\\@~|]+{_TOKEN}|\.\.+|--+|[^\w\s]|_"
)
_LETTER_OR_DIGIT = re.compile(r"[^\W_]")
_PARAGRAPH = re.compile(r"\n{2,}")
_LINE = re.compile(r"\n+")


class TextView:
    """A text, and what it is made of.

    Attributes:
      text: the text.
      words: its words, and its punctuation marks as words of their own.
      distinct_words: how often each word occurs, in the order of first occurrence.
      spaced_words: how often each word occurs as a reader counts them: what white space parts, with the punctuation
        at its ends, if there is a letter or a digit in it.
      n_words: the number of those.
      lines: its lines, empty ones left out; `paragraphs` what empty lines part.
    """

    def __init__(self, text: str):
        self.text = text

    @cached_property
    def words(self) -> list[str]:
        return _WORD.findall(self.text)

    @cached_property
    def distinct_words(self) -> Counter[str]:
        return Counter(self.words)

    @cached_property
    def spaced_words(self) -> Counter[str]:
        return Counter({word: n for word, n in Counter(self.text.split()).items() if _LETTER_OR_DIGIT.search(word)})

    @cached_property
    def n_words(self) -> int:
        return self.spaced_words.total()

    @cached_property
    def lines(self) -> list[str]:
        return _LINE.split(self.text)

    @cached_property
    def paragraphs(self) -> list[str]:
        return _PARAGRAPH.split(self.text.strip())
