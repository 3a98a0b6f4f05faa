"""The definitions of dedupe in plain Python over strings and sets: slow, and simple enough to
trust."""

from __future__ import annotations

import functools

from owt_pipeline.stages.dedupe.shingles import IDEOGRAPH, LETTER, MARK, character_table


def is_selector(code: int) -> bool:
    return (
        0xFE00 <= code <= 0xFE0F
        or 0xE0100 <= code <= 0xE01EF
        or code in (0x180B, 0x180C, 0x180D, 0x180F)
    )


def words(text: str) -> list[str]:
    """Runs of letters and their marks in lower case; an ideograph is a word of its own.
    Variation selectors are no text."""
    found, word = [], ""
    after_word = False  # whether a mark belongs to the character before it
    for character in text:
        if is_selector(ord(character)):
            continue
        if ord(character) < 0x80:
            is_letter, alone, lower = character.isalnum(), False, character.lower()
        else:
            kind = character_table().kind[ord(character)]
            is_letter, alone = kind == LETTER or (kind == MARK and after_word), kind == IDEOGRAPH
            lower = chr(character_table().lower[ord(character)])
        if not is_letter or alone:
            found.append(word)
            word = ""
        after_word = is_letter or alone
        if alone:
            found.append(lower)
        elif is_letter:
            word += lower
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
