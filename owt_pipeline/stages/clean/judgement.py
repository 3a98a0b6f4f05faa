"""The input of a filter, a text with its words and lines, and its result: signals and the first broken limit."""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cached_property

from schemas import Reason


@dataclass(frozen=True)
class Limit:
    """The range of a signal in which a text passes, both ends included."""

    minimum: float = -math.inf
    maximum: float = math.inf


@dataclass(frozen=True)
class Judgement:
    """The result of a filter for one text.

    Attributes:
      signals: the measured signals, by name.
      broken: None if the text passes; else what was found and what is allowed.
      kept: the part of a passing text to keep; None for all of it.
    """

    signals: Mapping[str, float]
    broken: str | None
    kept: str | None = None


@dataclass(frozen=True)
class Filter:
    """A published rule, or set of rules.

    Attributes:
      judge: a pure function of the text.
      limits: limits of its signals.
      reason: reject reason for texts that break a limit.
    """

    judge: Callable[[TextView], Judgement]
    limits: Mapping[str, Limit]
    reason: Reason


def by_limits(signals: Mapping[str, float], limits: Mapping[str, Limit]) -> Judgement:
    """The judgement by `limits`, checked in order."""
    for name, limit in limits.items():
        value = signals[name]
        if value < limit.minimum:
            return Judgement(signals, f"{name} is {_shown(value)}, less than {limit.minimum:,}")
        if value > limit.maximum:
            return Judgement(signals, f"{name} is {_shown(value)}, more than {limit.maximum:,}")
    return Judgement(signals, None)


def _shown(value: float) -> str:
    return f"{value:,}" if isinstance(value, int) else f"{value:.4f}"


# Words approximately as split by spaCy's English tokenizer, which datatrove and so FineWeb used. Punctuation marks are
# words of their own, except where spaCy keeps them in a word: `/etc`, `--help`, `GLP-1`, `03/04`, `U.S.`
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
    """A text with its words, lines and paragraphs.

    Attributes:
      text: the text.
      words: its words; punctuation marks are words of their own.
      distinct_words: count of each word, in the order of first occurrence.
      spaced_words: count of each word separated by white space that contains a letter or a digit, with punctuation.
      n_words: the total of `spaced_words`.
      lines: its non-empty lines.
      paragraphs: its blocks of text separated by empty lines.
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
