"""A program that prints a digest of what its Python knows of each character of the table.

It needs no package, so that any Python can run it.
"""

from __future__ import annotations

import hashlib
import re
import sys
import unicodedata
from pathlib import Path

TABLE = Path(__file__).parents[1] / "owt_pipeline/formats/character_classes.txt"

# Planes 0 to 3 have all letters. The planes 5 to 8 take the characters that are hidden.
_END_OF_LETTERS = 0x40000
_PLACES = (*range(_END_OF_LETTERS), *range(0x50000, 0x51000), *range(0xE0000, 0xE1000))


def unassigned() -> set[int]:
    """Return the code points of the class `unassigned`."""
    codes: set[int] = set()
    for line in TABLE.read_text("ascii").split("\n"):
        name, *ranges = line.split(" ")
        if name == "unassigned":
            for pair in ranges:
                first, last = pair.split("-")
                codes.update(range(int(first, 16), int(last, 16) + 1))
    return codes


def properties(character: str) -> tuple[object, ...]:
    """Return all that code which shapes bytes asks of a character."""
    return (
        *(character.isalpha(), character.isalnum(), character.isspace(), character.isupper()),
        *(character.isdecimal(), character.isdigit(), character.isprintable()),
        *(character.lower(), character.casefold(), character.strip()),
        *(f"a{character}b".split(), f"a{character}b".splitlines(), f"a{character}".title()),
        *(re.match(pattern, character) is not None for pattern in (r"\w", r"\s", r"\d")),
        unicodedata.combining(character),
        *(unicodedata.normalize(form, character) for form in ("NFC", "NFD", "NFKC")),
    )


def main() -> None:
    """Print the digest."""
    digest = hashlib.sha256()
    free = unassigned()
    for code in _PLACES:
        is_surrogate = 0xD800 <= code < 0xE000
        if code not in free and not is_surrogate:
            digest.update(repr((code, properties(chr(code)))).encode())
    print(digest.hexdigest())


if __name__ == "__main__":
    sys.exit(main())
