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
"""The measures of one filter on a text, by name of the signal."""


def first_violation(signals: Signals, limits: Any) -> str | None:
    """Return the measure and the limit of the first threshold that a text breaks, in words.

    Returns None if it passes. `limits` is a dataclass of `schemas/filters.py`: its field `max_X` or
    `min_X` limits the signal X. The limit itself passes.
    """
    for field in dataclasses.fields(limits):
        side, _, name = field.name.partition("_")
        value = signals[name]
        limit = getattr(limits, field.name)
        shown = f"{value:,}" if isinstance(value, int) else f"{value:.4f}"
        if side == "max" and value > limit:
            return f"{name} is {shown}, more than {limit:,g}"
        if side == "min" and value < limit:
            return f"{name} is {shown}, less than {limit:,g}"
    return None


# Words approximately as split by spaCy's English tokenizer, which datatrove and so FineWeb used.
# Punctuation marks are words of their own, except where spaCy keeps them in a word: `/etc`,
# `--help`, `GLP-1`, `03/04`, `U.S.`
_WITHIN = r"[.@&$\\+*~^|‑(\[{]|[/:=,–—](?=\d)|(?<=[^\W\d_])-(?=\d)|(?<=\d)[-–—](?=[^\W\d_])"
_PART = r"[^\W_]+(?:_+[^\W_]+)*"  # an underscore at either end is a word of its own
_TOKEN = rf"{_PART}(?:(?:{_WITHIN}){_PART})*(?:://\S*[\w/]|(?<=\.[A-Za-z])\.)?"
_NUMBER_BEFORE_UNIT = r"\d+(?:[.,]\d+)*(?=(?:[kcmn]?m|[km]?g|lb|oz|[kKMGT][bB]?)\b)"
# Most words are letters and digits before white space. They are tried first, and white space is
# skipped, because the other alternatives are slow to fail: this takes a third less time.
_WORD = re.compile(
    rf"\s*+([^\W\d_][^\W_]*+(?=\s)|{_NUMBER_BEFORE_UNIT}|{_TOKEN}|(?<=\w)['’]\w+"
    rf"|(?<![\w/.\\@~|-])(?!\.\.)[-/.\\@~|]+{_TOKEN}|\.\.+|--+|[^\w\s]|_)"
)


@lru_cache(maxsize=1)  # two filters need them
def words_of(text: str) -> list[str]:
    """Return the words of a text; punctuation marks are words of their own."""
    # White space at the end would be read from each of its characters on.
    return _WORD.findall(text.rstrip())


def gopher_repetition(text: str) -> Signals:
    """Measure how much a text repeats itself, by Gopher's rules.

    Characters are counted as in datatrove. The most frequent n-gram counts with its spaces.
    Repeated n-grams count without spaces, each repetition after the first, without overlap.
    """
    size = max(1, len(text))
    paragraphs = re.split(r"\n{2,}", text.strip())
    lines = re.split(r"\n+", text)
    repeated_paragraphs, paragraph_chars = repeated(paragraphs)
    repeated_lines, line_chars = repeated(lines)
    n_gram_chars = _n_gram_chars(words_of(text))
    return {
        "duplicate_paragraphs": repeated_paragraphs / len(paragraphs),
        "duplicate_paragraph_chars": paragraph_chars / size,
        "duplicate_lines": repeated_lines / len(lines),
        "duplicate_line_chars": line_chars / size,
        **{name: chars / size for name, chars in n_gram_chars.items()},
    }


def repeated(items: Sequence[str]) -> tuple[int, int]:
    """Return the number of items that repeat an earlier one, and the characters in them."""
    counts = Counter(items)
    num_chars = 0
    for item, count in counts.items():
        num_chars += (count - 1) * len(item)
    return len(items) - len(counts), num_chars


_MAX_TOP_N = 4
"""Up to this n, the most frequent n-gram counts; above it, all repeated ones do."""
_MAX_N = 10


def _n_gram_chars(words: Sequence[str]) -> dict[str, int]:
    """Return the characters of the most frequent 2- to 4-gram, and of the repeated 5- to 10-grams.

    An n-gram is represented by the number of its (n-1)-gram and the number of its last word. Each
    step keeps only the places of n-grams that occur more than once, since longer repeated n-grams
    start at these; soon few remain.
    """
    chars: dict[str, int] = {}
    for n in range(2, _MAX_N + 1):
        chars[f"top_{n}_gram_chars" if n <= _MAX_TOP_N else f"duplicate_{n}_gram_chars"] = 0
    number_by_word = {word: number for number, word in enumerate(dict.fromkeys(words))}
    ids = np.fromiter(map(number_by_word.__getitem__, words), np.int64, len(words))
    ends = np.zeros(len(words) + 1, np.int64)
    np.cumsum(np.fromiter(map(len, words), np.int64, len(words)), out=ends[1:])
    places = np.arange(len(words))
    groups = ids
    for n in range(2, min(_MAX_N, len(words)) + 1):
        if n > _MAX_TOP_N and not len(places):
            break
        num_within_text = int(np.searchsorted(places, len(words) - n, side="right"))
        places = places[:num_within_text]
        groups = groups[:num_within_text]
        pairs = groups * len(number_by_word) + ids[places + n - 1]
        _, groups, counts = np.unique(pairs, return_inverse=True, return_counts=True)
        counts_at_places = counts[groups]
        if n <= _MAX_TOP_N:
            top_count = int(counts.max(initial=1))
            start = 0
            if top_count > 1:
                # If several n-grams are the most frequent, the first in the text counts.
                start = int(places[np.argmax(counts_at_places == top_count)])
            num_chars = int(ends[start + n] - ends[start]) + n - 1
            chars[f"top_{n}_gram_chars"] = top_count * num_chars
        is_repeated = counts_at_places > 1
        places = places[is_repeated]
        groups = groups[is_repeated]
        if n > _MAX_TOP_N:
            chars[f"duplicate_{n}_gram_chars"] = _repeated_chars(
                places.tolist(), groups.tolist(), n, ends
            )
    return chars


def _repeated_chars(places: list[int], groups: list[int], n: int, ends: np.ndarray) -> int:
    """Return the characters of the n-grams that repeat an earlier one, without overlap."""
    seen: set[int] = set()
    num_chars = 0
    next_place = 0
    for place, group in zip(places, groups, strict=True):
        if place < next_place:
            continue
        if group in seen:
            num_chars += int(ends[place + n] - ends[place])
            next_place = place + n
        else:
            seen.add(group)
    return num_chars


STOP_WORDS = frozenset("the be to of and that have with".split())
_ALPHANUMERIC = re.compile(r"[^\W_]").search
_PUNCTUATION = string.punctuation + "“”„‘’‚«»…–—"


def gopher_quality(text: str) -> Signals:
    """Measure whether a text looks like prose, by Gopher's rules.

    The paper does not define a word. Here words are separated by white space and contain a letter
    or a digit; Dolma and NeMo Curator split at white space, too. datatrove counts spaCy's tokens,
    each punctuation mark being one, so that good articles with footnotes, prices or code have too
    few words with a letter (counts: `docs/benchmarks/figures.md`). Other open points follow
    datatrove: an ellipsis may be three points, a bullet may be a hyphen, and stop words are in
    lower case.
    """
    count_by_word: dict[str, int] = {}
    for word, count in Counter(text.split()).items():
        if word[0].isalnum() or _ALPHANUMERIC(word):
            count_by_word[word] = count
    num_alphabetic = 0
    num_chars = 0
    for word, count in count_by_word.items():
        num_chars += len(word) * count
        if word[0].isalpha() or any(map(str.isalpha, word)):
            num_alphabetic += count
    lines = text.splitlines()
    num_bullet_lines = sum(line.lstrip().startswith(("•", "-")) for line in lines)
    num_ellipsis_lines = sum(line.rstrip().endswith(("...", "…")) for line in lines)
    num_ellipses = text.count("...") + text.count("…")
    stop_words = STOP_WORDS & count_by_word.keys()
    if len(stop_words) < len(STOP_WORDS):
        stop_words = STOP_WORDS & {word.strip(_PUNCTUATION) for word in count_by_word}
    num_words = sum(count_by_word.values())
    words_or_one = max(1, num_words)
    lines_or_one = max(1, len(lines))
    return {
        "words": num_words,
        "word_length": num_chars / words_or_one,
        "hash_signs": text.count("#") / words_or_one,
        "ellipses": num_ellipses / words_or_one,
        "bullet_lines": num_bullet_lines / lines_or_one,
        "ellipsis_lines": num_ellipsis_lines / lines_or_one,
        "alphabetic_words": num_alphabetic / words_or_one,
        "stop_words": len(stop_words),
    }


MIN_LINE_WORDS = 5
MAX_WORD_CHARS = 1000
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
# character. The pattern begins with a class, which `re` finds fast, and not with the lookbehind.
_BREAK = re.compile(
    r"""([.!?](?<![.!?][.!?])[.!?]*)(?:["')\]}]+(?=\s+\S|[^\s"')\]}])|(?=[;:*@({\[]|\s+\S))(?=\s*(\S))"""
)
_TWO_MARKS = re.compile(r"[!?]{2,}")  # Punkt counts the second as a sentence
_ABBREVIATIONS = frozenset(
    "mr mrs ms dr prof st jr sr gen lt col sen rep inc ltd co corp vs jan feb aug sep sept oct nov "
    "dec "
    "u.s u.s.a u.k u.n d.c l.a n.y a.m p.m ph.d".split()
)
_LONGEST_ABBREVIATION = 8  # characters, including a preceding quote or bracket


def c4_lines(text: str) -> tuple[Signals, str]:
    """Measure whether the lines that end like sentences are natural language; return them, too.

    C4's rules: Raffel et al., JMLR 2020, section 2.2, as implemented by the code that made C4:
    `clean_page` in TensorFlow Datasets' `c4_utils.py`. Where the paper differs (5 sentences per
    page, 3 words per line), we follow the code. The list of bad words is left out, since it drops
    entire fields (Dodge et al., EMNLP 2021).
    """
    lines = []
    lorem_ipsum = curly_brackets = 0
    for line in map(_without_citations, text.splitlines()):
        ends_sentence = line.endswith(_ENDS) and not line.endswith("...")
        if not ends_sentence or len(line.split(None, MIN_LINE_WORDS - 1)) < MIN_LINE_WORDS:
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
    """Return the line without citation marks; "" if it has an overlong word."""
    line = line.strip()
    if len(line) > MAX_WORD_CHARS and max(map(len, line.split())) > MAX_WORD_CHARS:
        return ""
    if "[" not in line:
        return line
    return _CITATION.sub("", line)


def _count_sentences(line: str) -> int:
    """Return about how many sentences Punkt's English model counts in a non-empty line."""
    num_breaks = sum(_ends_sentence(line, match) for match in _BREAK.finditer(line))
    return 1 + len(_TWO_MARKS.findall(line)) + num_breaks


def _ends_sentence(line: str, match: re.Match[str]) -> bool:
    marks, next_char = match.groups()
    if "!" in marks or "?" in marks:
        return True
    if len(marks) > 1:
        return next_char.isupper()
    before = line[max(0, match.start() - _LONGEST_ABBREVIATION) : match.start()]
    words = before.lower().split()
    word = words[-1].lstrip("\"'([{*“‘") if words else ""
    is_initial = len(word) == 1 and word.isalpha()
    return word not in _ABBREVIATIONS and not is_initial


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
    """Measure whether a text's lines look like prose and not like a list, by FineWeb's own rules.

    New lines per word are counted as in datatrove, which made FineWeb.
    """
    lines = [line for line in text.split("\n") if line and not line.isspace()]
    num_new_lines = text.count("\n")
    num_punctuated = sum(_TERMINAL.match(line[-1]) is not None for line in lines)
    num_short = sum(len(line) <= SHORT_LINE for line in lines)
    _, repeated_chars = repeated(lines)
    lines_or_one = max(1, len(lines))
    return {
        "punctuated_lines": num_punctuated / lines_or_one,
        "short_lines": num_short / lines_or_one,
        "repeated_line_chars": repeated_chars / max(1, len(text) - num_new_lines),
        "new_lines": num_new_lines / max(1, len(words_of(text))),
    }


def c4(text: str) -> Signals:
    """Measure whether a page is natural language, by C4's rules."""
    signals, _ = c4_lines(text)
    return signals


FILTERS: dict[str, Callable[[str], Signals]] = {
    "gopher_repetition": gopher_repetition,
    "gopher_quality": gopher_quality,
    "c4": c4,
    "fineweb": fineweb,
}
"""The function of each filter of `schemas/filters.py` with signals of its own, by name."""
