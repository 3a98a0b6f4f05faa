"""The definitions of dedupe in plain Python over strings and sets: slow, and simple enough to
trust."""

from __future__ import annotations

import functools
import unicodedata


def is_selector(code: int) -> bool:
    return (
        0xFE00 <= code <= 0xFE0F
        or 0xE0100 <= code <= 0xE01EF
        or code in (0x180B, 0x180C, 0x180D, 0x180F)
    )


def kind_of(character: str) -> str:
    """`letter`, `mark`, `unspaced` (a word of its own) or `separator`."""
    category, code = unicodedata.category(character), ord(character)
    if code >= 0x40000 or (category[0] not in "LNM" and category != "Cn"):
        return "separator"
    blocks = ((0xE00, 0xEFF), (0x1000, 0x109F), (0x1780, 0x17FF), (0x3040, 0x30FF))
    blocks += ((0x31F0, 0x31FF), (0x3400, 0x4DBF), (0x4E00, 0x9FFF), (0xF900, 0xFAFF))
    if code >= 0x20000 or any(first <= code <= last for first, last in blocks):
        return "unspaced"
    return "mark" if category[0] == "M" else "letter"


def words(text: str) -> list[str]:
    """Runs of letters and their marks in lower case; an ideograph is a word of its own.
    Variation selectors are no text."""
    found, word = [], ""
    for character in text:
        if is_selector(ord(character)):
            continue
        kind = kind_of(character)
        if kind == "letter" or (kind == "mark" and word):
            word += character.lower()[0]  # of the two characters of a lower-case \u0130 the first
            continue
        found.append(word)
        word = ""
        if kind == "unspaced":
            found.append(character)
    return [w for w in [*found, word] if w]


@functools.cache  # the same texts are compared with many
def shingle_set(text: str, n: int = 5) -> set[tuple[str, ...]]:
    return set(shingles(text, n))


def shingles(text: str, n: int = 5) -> list[tuple[str, ...]]:
    units = words(text)
    if len(units) < n:
        return [tuple(units)] if units else []
    return [tuple(units[i : i + n]) for i in range(len(units) - n + 1)]


def jaccard(a: str, b: str, n: int = 5) -> float:
    left, right = shingle_set(a, n), shingle_set(b, n)
    return len(left & right) / len(left | right) if left | right else 0.0
