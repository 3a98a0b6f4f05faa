"""Gopher's repetition rules: Rae et al., "Scaling Language Models", 2021 (arXiv 2112.11446), table A1.

How characters are counted is as in datatrove: those of the most frequent n-gram with its spaces, those of repeated
n-grams without, each repetition after the first and without overlap.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from owt_pipeline.clean.filters.judgement import Judgement, Limit, by_limits
from owt_pipeline.clean.text_view import TextView

LIMITS = {  # shares: of paragraphs and lines that repeat an earlier one, and of characters
    "duplicate_paragraphs": Limit(maximum=0.3),
    "duplicate_paragraph_chars": Limit(maximum=0.2),
    "duplicate_lines": Limit(maximum=0.3),
    "duplicate_line_chars": Limit(maximum=0.2),
    **{f"top_{n}_gram_chars": Limit(maximum=most) for n, most in {2: 0.20, 3: 0.18, 4: 0.16}.items()},
    **{
        f"duplicate_{n}_gram_chars": Limit(maximum=most)
        for n, most in {5: 0.15, 6: 0.14, 7: 0.13, 8: 0.12, 9: 0.11, 10: 0.10}.items()
    },
}


def gopher_repetition(view: TextView) -> Judgement:
    """Whether the text repeats itself."""
    size = max(1, len(view.text))
    paragraphs, paragraph_chars = repeated(view.paragraphs)
    lines, line_chars = repeated(view.lines)
    signals = {
        "duplicate_paragraphs": paragraphs / len(view.paragraphs),
        "duplicate_paragraph_chars": paragraph_chars / size,
        "duplicate_lines": lines / len(view.lines),
        "duplicate_line_chars": line_chars / size,
        **{name: chars / size for name, chars in _n_gram_chars(view).items()},
    }
    return by_limits(signals, LIMITS)


def repeated(items: Sequence[str]) -> tuple[int, int]:
    """(how many of the items repeat an earlier one, characters of those)."""
    if len(set(items)) == len(items):
        return 0, 0
    seen: set[str] = set()
    count = chars = 0
    for item in items:
        if item in seen:
            count += 1
            chars += len(item)
        else:
            seen.add(item)
    return count, chars


def _n_gram_chars(view: TextView) -> dict[str, int]:
    """Characters of the most frequent 2- to 4-gram, and of the repeated 5- to 10-grams.

    Of the places of n-grams only those stay whose n-gram is there more than once: a longer one that repeats starts
    at one of them. There are few after the first steps, and an n-gram is a pair: the (n-1)-gram's number, and the
    number of its last word.
    """
    found = {name: 0 for name in LIMITS if "gram" in name}
    words = view.words
    numbers = dict(zip(view.distinct_words, range(len(view.distinct_words)), strict=True))
    ids = np.fromiter(map(numbers.__getitem__, words), np.int64, len(words))
    ends = np.zeros(len(words) + 1, np.int64)
    np.cumsum(np.fromiter(map(len, words), np.int64, len(words)), out=ends[1:])
    places, groups = np.arange(len(words)), ids
    for n in range(2, min(10, len(words)) + 1):
        fits = int(np.searchsorted(places, len(words) - n, side="right"))
        places, groups = places[:fits], groups[:fits]
        pairs = groups * len(numbers) + ids[places + n - 1]
        _, first, groups, counts = np.unique(pairs, return_index=True, return_inverse=True, return_counts=True)
        if n <= 4:
            top, start = 1, 0  # among equals, the first in the text
            if len(counts) and counts.max() > 1:
                top = int(counts.max())
                start = int(places[first[counts == top].min()])
            found[f"top_{n}_gram_chars"] = top * int(ends[start + n] - ends[start] + n - 1)
        again = counts[groups] > 1
        places, groups = places[again], groups[again]
        if n >= 5:
            if not len(places):
                break
            found[f"duplicate_{n}_gram_chars"] = _repeated_chars(places.tolist(), groups.tolist(), n, ends)
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
