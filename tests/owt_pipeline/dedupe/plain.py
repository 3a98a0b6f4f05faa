"""The definitions of dedupe in plain Python over strings and sets.

They are slow, and simple enough to trust.
"""

from __future__ import annotations

import functools
import unicodedata

from owt_pipeline.formats.characters import ranges_by_class


def is_selector(code: int) -> bool:
    """Return whether a code point is a variation selector."""
    return (
        0xFE00 <= code <= 0xFE0F
        or 0xE0100 <= code <= 0xE01EF
        or code in (0x180B, 0x180C, 0x180D, 0x180F)
    )


@functools.cache
def _unassigned() -> frozenset[int]:
    """Return the code points that are not assigned by the table of the package."""
    codes: set[int] = set()
    for first, last in ranges_by_class()["unassigned"]:
        codes.update(range(first, last + 1))
    return frozenset(codes)


def kind_of(character: str) -> str:
    """Return `letter`, `mark`, `unspaced` (a word of its own) or `separator`."""
    code = ord(character)
    # Python may know more characters than the table.
    category = "Cn" if code in _unassigned() else unicodedata.category(character)
    is_pictograph = 0x1F000 <= code <= 0x1FAFF or 0x1FC00 <= code <= 0x1FFFD
    is_free_letter = category == "Cn" and not is_pictograph
    if code >= 0x40000 or (category[0] not in "LNM" and not is_free_letter):
        return "separator"
    blocks = ((0xE00, 0xEFF), (0x1000, 0x109F), (0x1780, 0x17FF), (0x3040, 0x30FF))
    blocks += ((0x31F0, 0x31FF), (0x3400, 0x4DBF), (0x4E00, 0x9FFF), (0xF900, 0xFAFF))
    if code >= 0x20000 or any(first <= code <= last for first, last in blocks):
        return "unspaced"
    return "mark" if category[0] == "M" else "letter"


def words(text: str) -> list[str]:
    """Return the words of a text in lower case.

    A word is a run of letters and their marks, or a single ideograph. Variation selectors are left
    out.
    """
    complete_words = []
    word = ""
    for character in text:
        if is_selector(ord(character)):
            continue
        kind = kind_of(character)
        if kind == "letter" or (kind == "mark" and word):
            # In lower case, \u0130 has two characters. Only the first counts.
            word += character.lower()[0]
            continue
        complete_words.append(word)
        word = ""
        if kind == "unspaced":
            complete_words.append(character)
    return [word for word in [*complete_words, word] if word]


# A text is compared with many others.
@functools.cache
def shingle_set(text: str, n: int = 5) -> set[tuple[str, ...]]:
    """Return the distinct shingles of a text."""
    return set(shingles(text, n))


def shingles(text: str, n: int = 5) -> list[tuple[str, ...]]:
    """Return the word n-grams of a text. All words of a shorter text are one shingle."""
    units = words(text)
    if len(units) < n:
        return [tuple(units)] if units else []
    return [tuple(units[i : i + n]) for i in range(len(units) - n + 1)]


def jaccard(a: str, b: str, n: int = 5) -> float:
    """Return the Jaccard similarity of the shingles of two texts."""
    left = shingle_set(a, n)
    right = shingle_set(b, n)
    union = left | right
    return len(left & right) / len(union) if union else 0.0
