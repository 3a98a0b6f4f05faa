"""What each code point is to a word: a part of it, a word of its own, or what stands between words."""

from __future__ import annotations

import functools
import unicodedata
from dataclasses import dataclass

import numpy as np

SEPARATOR, LETTER, IDEOGRAPH = 0, 1, 2

# Scripts written without spaces: each character is a word of its own, as a run of them would be a whole sentence.
_UNSPACED = (
    (0x0E00, 0x0EFF),  # Thai, Lao
    (0x1000, 0x109F),  # Myanmar
    (0x1780, 0x17FF),  # Khmer
    (0x3040, 0x30FF),  # Hiragana, Katakana
    (0x31F0, 0x31FF),  # Katakana extensions
    (0x3400, 0x4DBF),  # Han, extension A
    (0x4E00, 0x9FFF),  # Han
    (0xF900, 0xFAFF),  # Han, compatibility
    (0x20000, 0x3FFFF),  # Han, further extensions
)


@dataclass(frozen=True)
class CharacterTable:
    """Lookup by code point.

    Attributes:
      kind: uint8[0x110000], SEPARATOR, LETTER or IDEOGRAPH.
      lower: int64[0x110000], the lower-case code point.
    """

    kind: np.ndarray
    lower: np.ndarray


@functools.cache  # 10 MB and some 50 ms, needed in every process that sketches
def character_table() -> CharacterTable:
    """The table, from Python's Unicode database.

    Letters, marks and numbers are LETTER; so is what the database does not know, since most of what Unicode
    adds are letters, and another Python should not change a decision. A letter whose lower case has another
    length in UTF-8 (a dozen of them, such as U+212A) is its own lower case: words are folded in place.
    """
    kind = np.full(0x110000, SEPARATOR, np.uint8)
    lower = np.arange(0x110000, dtype=np.int64)
    for code in range(0x80, 0x20000):
        character = chr(code)
        category = unicodedata.category(character)
        if category[0] in "LMN" or category == "Cn":
            kind[code] = LETTER
            if category in ("Lu", "Lt"):
                small = character.lower()
                if len(small) == 1 and len(small.encode()) == len(character.encode()):
                    lower[code] = ord(small)
    kind[0xE0100:0xE01F0] = LETTER  # variation selectors belong to the ideograph before them
    for first, last in _UNSPACED:
        block = kind[first : last + 1]
        block[:] = np.where((block == LETTER) | (first >= 0x20000), IDEOGRAPH, SEPARATOR)
    return CharacterTable(kind, lower)


def ascii_table() -> bytes:
    """For bytes.translate: ASCII letters in lower case, digits as they are, other ASCII a space, the rest as it is."""
    table = bytearray(range(256))
    for code in range(128):
        character = chr(code)
        table[code] = ord(character.lower()) if character.isalnum() else 0x20
    return bytes(table)
