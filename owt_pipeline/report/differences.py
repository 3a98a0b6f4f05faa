"""Where two texts differ, by words, for a person to see at a glance."""

from __future__ import annotations

import difflib

Segment = tuple[str, str, str]
"""(`same`, `differs` or `skipped`, the one text's words, the other's); of `skipped`, how many words are the same."""

_MOST_WORDS = 2000
_CONTEXT_WORDS = 15
_MOST_SEGMENTS = 40


def side_by_side(one: str, other: str) -> list[Segment]:
    """The first 2,000 words of each text, what they share cut short.

    Runs of equal words are cut to 15 words beside a difference. By Ratcliff and Obershelp's matching of longest
    common runs, as difflib has it.
    """
    ours, theirs = one.split()[:_MOST_WORDS], other.split()[:_MOST_WORDS]
    codes = difflib.SequenceMatcher(a=ours, b=theirs, autojunk=False).get_opcodes()
    segments: list[Segment] = []
    for number, (tag, a, b, c, d) in enumerate(codes):
        if tag == "equal":
            segments += _shortened(ours[a:b], first=number == 0, last=number == len(codes) - 1)
        else:
            segments.append(("differs", " ".join(ours[a:b]), " ".join(theirs[c:d])))
    return segments[:_MOST_SEGMENTS]


def _shortened(words: list[str], *, first: bool, last: bool) -> list[Segment]:
    """What stands beside a difference of a run of equal words; of a text that has none, its beginning."""
    head = 0 if first and not last else _CONTEXT_WORDS
    tail = 0 if last else _CONTEXT_WORDS
    between = len(words) - head - tail
    if between <= 0:
        return [_same(words)]
    parts = [words[:head], words[len(words) - tail :] if tail else []]
    skipped: Segment = ("skipped", str(between), str(between))
    return [*([_same(parts[0])] if parts[0] else []), skipped, *([_same(parts[1])] if parts[1] else [])]


def _same(words: list[str]) -> Segment:
    return "same", " ".join(words), " ".join(words)
