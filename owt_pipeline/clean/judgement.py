"""What a filter is given, a text and what it is made of; and what it finds: signals, and the first beyond its limit."""

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
    """The least and the most that a signal of a text that passes may be, both included."""

    minimum: float = -math.inf
    maximum: float = math.inf


@dataclass(frozen=True)
class Judgement:
    """What a filter found in one text.

    Attributes:
      signals: what was measured, by name.
      broken: None for a text that passes; else what was found and what is allowed.
      kept: what remains of a text that passes; None where all of it does.
    """

    signals: Mapping[str, float]
    broken: str | None
    kept: str | None = None


@dataclass(frozen=True)
class Filter:
    """A published rule, or set of rules.

    Attributes:
      judge: a pure function of the text.
      limits: those of its signals.
      reason: why a text that breaks one is rejected.
    """

    judge: Callable[[TextView], Judgement]
    limits: Mapping[str, Limit]
    reason: Reason


def by_limits(signals: Mapping[str, float], limits: Mapping[str, Limit]) -> Judgement:
    """Judge by the limits, in their order."""
    for name, limit in limits.items():
        value = signals[name]
        if value < limit.minimum:
            return Judgement(signals, f"{name} is {_shown(value)}, less than {limit.minimum:,}")
        if value > limit.maximum:
            return Judgement(signals, f"{name} is {_shown(value)}, more than {limit.maximum:,}")
    return Judgement(signals, None)


def _shown(value: float) -> str:
    return f"{value:,}" if isinstance(value, int) else f"{value:.4f}"


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
