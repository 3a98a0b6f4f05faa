"""Two texts side by side, with their common parts shortened."""

from __future__ import annotations

import difflib

Segment = tuple[str, str, str]
"""(`same`, `differs` or `skipped`; the first text's words; the second's); for `skipped`, the number of equal words."""

_CONTEXT_WORDS = 15
_MOST_SEGMENTS = 40


def side_by_side(one: str, other: str, most_words: int = 2000) -> list[Segment]:
    """The first `most_words` words of each text, with their common parts shortened.

    Runs of equal words are cut to 15 words next to a difference. The matching is difflib's (Ratcliff and Obershelp).
    """
    ours, theirs = one.split()[:most_words], other.split()[:most_words]
    codes = difflib.SequenceMatcher(a=ours, b=theirs, autojunk=False).get_opcodes()
    segments: list[Segment] = []
    for number, (tag, a, b, c, d) in enumerate(codes):
        if tag == "equal":
            segments += _shortened(ours[a:b], first=number == 0, last=number == len(codes) - 1)
        else:
            segments.append(("differs", " ".join(ours[a:b]), " ".join(theirs[c:d])))
    return segments[:_MOST_SEGMENTS]


def _shortened(words: list[str], *, first: bool, last: bool) -> list[Segment]:
    """The words of a run of equal words next to a difference; if there is no difference, its beginning."""
    head = 0 if first and not last else _CONTEXT_WORDS
    tail = 0 if last else _CONTEXT_WORDS
    between = len(words) - head - tail
    if between <= 0:
        return [_same(words)]
    skipped: Segment = ("skipped", str(between), str(between))
    return [*([_same(words[:head])] if head else []), skipped, *([_same(words[-tail:])] if tail else [])]


def _same(words: list[str]) -> Segment:
    return "same", " ".join(words), " ".join(words)
