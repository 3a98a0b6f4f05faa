"""Prints `owt_pipeline/formats/character_classes.txt`, by the Unicode tables of its interpreter.

python3.11 tools/character_classes.py > owt_pipeline/formats/character_classes.txt
"""

from __future__ import annotations

import sys
import textwrap
import unicodedata
from collections import defaultdict
from collections.abc import Iterable

# Planes 0 to 3 have all letters that Unicode has or plans.
_FIRST_WITHOUT_LETTERS = 0x40000

# Scripts written without spaces.
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

# Unicode keeps the free places of these blocks for pictographs (the default of the property
# Extended_Pictographic). Other additions to Unicode are mostly letters.
_PICTOGRAPHS = ((0x1F000, 0x1FAFF), (0x1FC00, 0x1FFFD))

_HEAD = """\
# Classes of characters, as ranges of code points by which texts are compared and repaired.
# letters, marks, unspaced: the characters of words (owt_pipeline/formats/words.py)
# combining: characters that decompose into combining marks
# unassigned: characters that Unicode did not have
# Source: https://www.unicode.org/Public/{version}/ucd/UnicodeData.txt, as Python has it
# Written by: python{python} tools/character_classes.py
"""


def _is_within(code: int, blocks: Iterable[tuple[int, int]]) -> bool:
    return any(first <= code <= last for first, last in blocks)


def classes_of(code: int) -> list[str]:
    """Return the classes of a code point below _FIRST_WITHOUT_LETTERS."""
    character = chr(code)
    category = unicodedata.category(character)
    classes = []
    if category == "Cn":
        classes.append("unassigned")
    if unicodedata.combining(unicodedata.normalize("NFD", character)[0]):
        classes.append("combining")
    is_free_letter = category == "Cn" and not _is_within(code, _PICTOGRAPHS)
    if category[0] not in "LNM" and not is_free_letter:
        return classes
    if _is_within(code, _UNSPACED):
        classes.append("unspaced")
    elif category[0] == "M":
        classes.append("marks")
    else:
        classes.append("letters")
    return classes


def main() -> None:
    """Print the file."""
    ranges_by_class: dict[str, list[list[int]]] = defaultdict(list)
    for code in range(_FIRST_WITHOUT_LETTERS):
        for name in classes_of(code):
            ranges = ranges_by_class[name]
            if ranges and ranges[-1][1] == code - 1:
                ranges[-1][1] = code
            else:
                ranges.append([code, code])
    python = ".".join(map(str, sys.version_info[:2]))
    print(_HEAD.format(version=unicodedata.unidata_version, python=python), end="")
    for name, ranges in sorted(ranges_by_class.items()):
        written = " ".join(f"{first:x}-{last:x}" for first, last in ranges)
        print(textwrap.fill(written, 100, initial_indent=f"{name} ", subsequent_indent=f"{name} ",
                            break_on_hyphens=False))  # fmt: skip


if __name__ == "__main__":
    main()
