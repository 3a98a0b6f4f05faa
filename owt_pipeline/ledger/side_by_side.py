"""Two texts side by side, where they differ: for a person who asks why one repeats the other."""

from __future__ import annotations

import difflib
import textwrap
from collections.abc import Iterator, Mapping, Sequence
from itertools import zip_longest

_CONTEXT_WORDS = 12
_COMPARED_WORDS = 5000
_CHARACTERS = 160  # shown of what differs in one place


def differences(removed: str, kept: str, most: int = 5) -> list[dict[str, str]]:
    """The first places where two texts differ by words: what each has there, the words before it and behind it."""
    ours, theirs = removed.split()[:_COMPARED_WORDS], kept.split()[:_COMPARED_WORDS]
    places = []
    for tag, a, b, c, d in difflib.SequenceMatcher(a=ours, b=theirs, autojunk=False).get_opcodes():
        if tag != "equal":
            before, behind = ours[max(0, a - _CONTEXT_WORDS) : a], ours[b : b + _CONTEXT_WORDS]
            found = {"after": before, "removed": ours[a:b], "kept": theirs[c:d], "before": behind}
            places.append({name: _cut(words) for name, words in found.items()})
            if len(places) == most:
                break
    return places


def side_by_side(places: Sequence[Mapping[str, str]], titles: tuple[str, str], width: int) -> Iterator[str]:
    """Lines of two columns: the removed text and the kept one at each of the places, what differs in brackets."""
    column = max((width - 7) // 2, 20)
    for cells in (titles, *((_extract(place, "removed"), _extract(place, "kept")) for place in places)):
        wrapped = [textwrap.wrap(cell, column) for cell in cells]
        for left, right in zip_longest(*wrapped, fillvalue=""):
            yield f"    {left:<{column}} | {right}".rstrip()
        yield ""


def _extract(place: Mapping[str, str], side: str) -> str:
    return " ".join(f"… {place['after']} [{place[side]}] {place['before']} …".split())


def _cut(words: Sequence[str]) -> str:
    text = " ".join(words)
    return text if len(text) <= _CHARACTERS else text[:_CHARACTERS] + "…"
