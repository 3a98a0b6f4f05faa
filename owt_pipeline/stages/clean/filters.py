"""Filters by published rules: pure functions that measure a text. Thresholds are settings
(`schemas/filters.py`).

Every document is measured by every filter, whether it is on or not: the signals are a column of
`clean/`.
"""

from __future__ import annotations

import dataclasses
import re
import string
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from functools import lru_cache
from typing import Any

import numpy as np

Signals = Mapping[str, float]
"""A filter's measures of a text, by name."""


def first_violation(signals: Signals, limits: Any) -> str | None:
    """What was found and what is allowed, for the first threshold that a text breaks; None if it
    passes.

    `limits` is a dataclass of `schemas/filters.py`: its field `max_X` or `min_X` limits the signal
    X; the limit itself passes.
    """
    for field in dataclasses.fields(limits):
        side, _, name = field.name.partition("_")
        value, limit = signals[name], getattr(limits, field.name)
        if value > limit if side == "max" else value < limit:
            shown = f"{value:,}" if isinstance(value, int) else f"{value:.4f}"
            return f"{name} is {shown}, {'more' if side == 'max' else 'less'} than {limit:,g}"
    return None


# Words approximately as split by spaCy's English tokenizer, which datatrove and so FineWeb used.
# Punctuation marks are words of their own, except where spaCy keeps them in a word: `/etc`,
# `--help`, `GLP-1`, `03/04`, `U.S.`
_WITHIN = r"[.@&$\\+*~^|‑(\[{]|[/:=,–—](?=\d)|(?<=[^\W\d_])-(?=\d)|(?<=\d)[-–—](?=[^\W\d_])"
_PART = r"[^\W_]+(?:_+[^\W_]+)*"  # an underscore at either end is a word of its own
_TOKEN = rf"{_PART}(?:(?:{_WITHIN}){_PART})*(?:://\S*[\w/]|(?<=\.[A-Za-z])\.)?"
_NUMBER_BEFORE_UNIT = r"\d+(?:[.,]\d+)*(?=(?:[kcmn]?m|[km]?g|lb|oz|[kKMGT][bB]?)\b)"
_WORD = re.compile(
    rf"{_NUMBER_BEFORE_UNIT}|{_TOKEN}|(?<=\w)['’]\w+|(?<![\w/.\\@~|-])(?!\.\.)[-/.\\@~|]+{_TOKEN}|\.\.+|--+|[^\w\s]|_"
)


@lru_cache(maxsize=1)  # two filters need them
def words_of(text: str) -> list[str]:
    """The words of a text; punctuation marks are words of their own."""
    return _WORD.findall(text)


def gopher_repetition(text: str) -> Signals:
    """How much a text repeats itself, by Gopher's rules.

    Characters are counted as in datatrove: with spaces for the most frequent n-gram; without spaces
    for repeated n-grams, where each repetition after the first counts, without overlap.
    """
    size = max(1, len(text))
    paragraphs, lines = re.split(r"\n{2,}", text.strip()), re.split(r"\n+", text)
    repeated_paragraphs, paragraph_chars = repeated(paragraphs)
    repeated_lines, line_chars = repeated(lines)
    return {
        "duplicate_paragraphs": repeated_paragraphs / len(paragraphs),
        "duplicate_paragraph_chars": paragraph_chars / size,
        "duplicate_lines": repeated_lines / len(lines),
        "duplicate_line_chars": line_chars / size,
        **{name: chars / size for name, chars in _n_gram_chars(words_of(text)).items()},
    }


def repeated(items: Sequence[str]) -> tuple[int, int]:
    """(number of items that repeat an earlier one, characters in them)."""
    counts = Counter(items)
    return len(items) - len(counts), sum((count - 1) * len(item) for item, count in counts.items())


def _n_gram_chars(words: Sequence[str]) -> dict[str, int]:
    """Characters of the most frequent 2- to 4-gram, and of the repeated 5- to 10-grams.

    An n-gram is represented by the number of its (n-1)-gram and that of its last word. Each step
    keeps only the places of n-grams that occur more than once, since longer repeated n-grams start
    at these; soon few remain.
    """
    found = {f"{'top' if n < 5 else 'duplicate'}_{n}_gram_chars": 0 for n in range(2, 11)}
    numbers = {word: number for number, word in enumerate(dict.fromkeys(words))}
    ids = np.fromiter(map(numbers.__getitem__, words), np.int64, len(words))
    ends = np.zeros(len(words) + 1, np.int64)
    np.cumsum(np.fromiter(map(len, words), np.int64, len(words)), out=ends[1:])
    places, groups = np.arange(len(words)), ids
    for n in range(2, min(10, len(words)) + 1):
        if n >= 5 and not len(places):
            break
        fits = int(np.searchsorted(places, len(words) - n, side="right"))
        places, groups = places[:fits], groups[:fits]
        pairs = groups * len(numbers) + ids[places + n - 1]
        _, first, groups, counts = np.unique(
            pairs, return_index=True, return_inverse=True, return_counts=True
        )
        if n <= 4:
            top = int(counts.max(initial=1))
            start = (
                int(places[first[counts == top].min()]) if top > 1 else 0
            )  # the first in the text among equals
            found[f"top_{n}_gram_chars"] = top * int(ends[start + n] - ends[start] + n - 1)
        again = counts[groups] > 1
        places, groups = places[again], groups[again]
        if n >= 5:
            found[f"duplicate_{n}_gram_chars"] = _repeated_chars(
                places.tolist(), groups.tolist(), n, ends
            )
    return found


def _repeated_chars(places: list[int], groups: list[int], n: int, ends: np.ndarray) -> int:
    """Characters of the n-grams that repeat an earlier one, without overlap."""
    seen: set[int] = set()
    chars = free = 0
    for place, group in zip(places, groups, strict=True):
        if place < free:
            continue
        if group in seen:
            chars += int(ends[place + n] - ends[place])
            free = place + n
        else:
            seen.add(group)
    return chars


STOP_WORDS = frozenset("the be to of and that have with".split())
_ALPHANUMERIC = re.compile(r"[^\W_]").search
_PUNCTUATION = string.punctuation + "“”„‘’‚«»…–—"


def gopher_quality(text: str) -> Signals:
    """Whether a text looks like prose, by Gopher's rules.

    The paper does not define a word. Here words are separated by white space and contain a letter
    or a digit; Dolma and NeMo Curator split at white space, too. datatrove counts spaCy's tokens,
    each punctuation mark being one, so that good articles with footnotes, prices or code have too
    few words with a letter (counts: `docs/benchmarks/figures.md`). Other open points follow
    datatrove: an ellipsis may be three points, a bullet may be a hyphen, and stop words are in
    lower case.
    """
    words = {
        word: count
        for word, count in Counter(text.split()).items()
        if word[0].isalnum() or _ALPHANUMERIC(word)
    }
    lines = text.splitlines()
    n_words, n_lines = max(1, sum(words.values())), max(1, len(lines))
    return {
        "words": sum(words.values()),
        "word_length": sum(len(word) * count for word, count in words.items()) / n_words,
        "hash_signs": text.count("#") / n_words,
        "ellipses": (text.count("...") + text.count("…")) / n_words,
        "bullet_lines": sum(line.lstrip().startswith(("•", "-")) for line in lines) / n_lines,
        "ellipsis_lines": sum(line.rstrip().endswith(("...", "…")) for line in lines) / n_lines,
        "alphabetic_words": sum(
            n for word, n in words.items() if word[0].isalpha() or any(map(str.isalpha, word))
        )
        / n_words,
        "stop_words": len(STOP_WORDS.intersection(word.strip(_PUNCTUATION) for word in words)),
    }


MIN_LINE_WORDS, MAX_WORD_CHARS = 5, 1000
_CITATION = re.compile(r"\[\d*]|\[edit]|\[citation needed]")
_ENDS = (".", "?", "!", '"')
_POLICY = (
    "terms of use",
    "privacy policy",
    "cookie policy",
    "uses cookies",
    "use of cookies",
    "use cookies",
)

# Where NLTK's Punkt, which C4 uses to count sentences, may end one within a line: after end marks
# and closing brackets or quotes, if white space or a mark follows. The second group is the next
# character.
_BREAK = re.compile(
    r"""(?<![.!?])([.!?]+)(?:["')\]}]+(?=\s+\S|[^\s"')\]}])|(?=[;:*@({\[]|\s+\S))(?=\s*(\S))"""
)
_TWO_MARKS = re.compile(r"[!?]{2,}")  # Punkt counts the second as a sentence
_ABBREVIATIONS = frozenset(
    "mr mrs ms dr prof st jr sr gen lt col sen rep inc ltd co corp vs jan feb aug sep sept oct nov "
    "dec "
    "u.s u.s.a u.k u.n d.c l.a n.y a.m p.m ph.d".split()
)
_LONGEST_ABBREVIATION = 8  # characters, including a preceding quote or bracket


def c4_lines(text: str) -> tuple[Signals, str]:
    """Whether the lines that end like sentences make a page of natural language, and these lines.

    C4's rules: Raffel et al., JMLR 2020, section 2.2, as implemented by the code that made C4:
    `clean_page` in TensorFlow Datasets' `c4_utils.py`. Where the paper differs (5 sentences per
    page, 3 words per line), we follow the code. The list of bad words is left out, since it drops
    entire fields (Dodge et al., EMNLP 2021).
    """
    lines = []
    lorem_ipsum = curly_brackets = 0
    for line in map(_without_citations, text.splitlines()):
        if not line.endswith(_ENDS) or line.endswith("...") or len(line.split()) < MIN_LINE_WORDS:
            continue
        lowered = line.lower()
        lorem_ipsum += "lorem ipsum" in lowered
        if "javascript" in lowered:
            continue
        curly_brackets += "{" in line
        if not any(phrase in lowered for phrase in _POLICY):
            lines.append(line)
    sentences = sum(map(_count_sentences, lines))
    signals = {"lorem_ipsum": lorem_ipsum, "curly_brackets": curly_brackets, "sentences": sentences}
    return signals, "\n".join(lines).strip()


def _without_citations(line: str) -> str:
    """The line without citation marks; empty if it has an overlong word."""
    line = line.strip()
    if len(line) > MAX_WORD_CHARS and any(len(word) > MAX_WORD_CHARS for word in line.split()):
        return ""
    return _CITATION.sub("", line) if "[" in line else line


def _count_sentences(line: str) -> int:
    """Number of sentences in a non-empty line, approximately as Punkt's English model counts
    them."""
    return (
        1
        + len(_TWO_MARKS.findall(line))
        + sum(_ends_sentence(line, found) for found in _BREAK.finditer(line))
    )


def _ends_sentence(line: str, found: re.Match[str]) -> bool:
    marks, following = found.groups()
    if "!" in marks or "?" in marks:
        return True
    if len(marks) > 1:
        return following.isupper()
    words = line[max(0, found.start() - _LONGEST_ABBREVIATION) : found.start()].lower().split()
    word = words[-1].lstrip("\"'([{*“‘") if words else ""
    return word not in _ABBREVIATIONS and not (len(word) == 1 and word.isalpha())


SHORT_LINE = 30
# Sentence-ending marks of all scripts: Unicode's property Sentence_Terminal within the basic plane.
_TERMINAL = re.compile(
    "[!.?\u0589\u061d-\u061f\u06d4\u0700-\u0702\u07f9\u0837\u0839\u083d\u083e\u0964\u0965\u104a\u104b\u1362\u1367\u1368"
    "\u166e\u1735\u1736\u17d4\u17d5\u1803\u1809\u1944\u1945\u1aa8-\u1aab\u1b4e\u1b4f\u1b5a\u1b5b\u1b5e\u1b5f\u1b7d-\u1b7f"
    "\u1c3b\u1c3c\u1c7e\u1c7f\u2024\u203c\u203d\u2047-\u2049\u2cf9-\u2cfb\u2e2e\u2e3c\u2e53\u2e54\u3002\ua4ff\ua60e\ua60f"
    "\ua6f3\ua6f7\ua876\ua877\ua8ce\ua8cf\ua92f\ua9c8\ua9c9\uaa5d-\uaa5f\uaaf0\uaaf1\uabeb\ufe12\ufe15\ufe16\ufe52\ufe56"
    "\ufe57\uff01\uff0e\uff1f\uff61]"
)


def fineweb(text: str) -> Signals:
    """Whether a text's lines look like prose, not like a list, by FineWeb's own rules.

    New lines per word are counted as in datatrove, which made FineWeb.
    """
    lines = [line for line in text.split("\n") if line and not line.isspace()]
    n_lines, new_lines = max(1, len(lines)), text.count("\n")
    return {
        "punctuated_lines": sum(_TERMINAL.match(line[-1]) is not None for line in lines) / n_lines,
        "short_lines": sum(len(line) <= SHORT_LINE for line in lines) / n_lines,
        "repeated_line_chars": repeated(lines)[1] / max(1, len(text) - new_lines),
        "new_lines": new_lines / max(1, len(words_of(text))),
    }


def c4(text: str) -> Signals:
    """Whether a page is natural language, by C4's rules."""
    return c4_lines(text)[0]


FILTERS: dict[str, Callable[[str], Signals]] = {
    "gopher_repetition": gopher_repetition,
    "gopher_quality": gopher_quality,
    "c4": c4,
    "fineweb": fineweb,
}
"""The function of each filter of `schemas/filters.py` with signals of its own, by name."""
