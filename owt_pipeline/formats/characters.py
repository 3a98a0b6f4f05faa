"""Classes of characters by one version of Unicode, so that every Python takes the same decisions.

Each Python has the tables of another version of Unicode. They agree on the characters that Python
3.11, the oldest one, knows: on whether they are letters, digits, spaces or line ends, on their
lower case and on their normalization. `character_classes.txt` has the classes by the version of
Python 3.11. A text in which `hide_unassigned` has replaced the other characters is therefore
measured, lowered and normalized alike by `re`, `str` and `unicodedata` of every Python. The tests
compare all code points.

`str.isupper` differs for no known character, `str.islower` for five modifier letters, `str.upper`
for two letters, `str.isnumeric` for ten ideographs. Nothing asks for the last two.
"""

from __future__ import annotations

import functools
from collections import defaultdict
from collections.abc import Callable, Mapping
from importlib.resources import files

import numpy as np

Ranges = list[tuple[int, int]]
"""First and last code point of each range."""

# Unicode has no plans for the planes 5 to 8. Planes 0 to 3 have all letters.
_TO_FREE_PLANES = np.uint32(0x50000)
_END_OF_FREE_PLANES = 0x90000
_NUM_CODE_POINTS = 0x110000


@functools.cache
def ranges_by_class() -> Mapping[str, Ranges]:
    """Return the ranges of `character_classes.txt`, by the name of their class."""
    text = files(__package__).joinpath("character_classes.txt").read_text("ascii")
    ranges_by_name: dict[str, Ranges] = defaultdict(list)
    for line in text.split("\n"):
        if not line or line.startswith("#"):
            continue
        name, *ranges = line.split(" ")
        for codes in ranges:
            first, _, last = codes.partition("-")
            ranges_by_name[name].append((int(first, 16), int(last, 16)))
    return dict(ranges_by_name)


def hide_unassigned(text: str) -> str:
    """Return the text with characters that only some Pythons know replaced by unknown ones.

    A character that is unassigned by `character_classes.txt` becomes one of the planes 5 to 8, in
    which no version of Unicode has any. Returns the text itself if it has no such character, or if
    it has one of the planes 5 to 8, which could not be told from a replacement.
    """
    if text.isascii():
        return text
    codes = _codes(text)
    is_unassigned = _unassigned()[codes]
    if not is_unassigned.any() or _is_free(codes).any():
        return text
    return _decode(codes + is_unassigned * _TO_FREE_PLANES)


def apply_to_known(function: Callable[[str], str], text: str) -> str:
    """Return `function(text)`, which sees characters that only some Pythons know as unknown ones.

    The function may drop and move these characters.
    """
    hidden = hide_unassigned(text)
    result = function(hidden)
    if hidden is text:
        return result
    codes = _codes(result)
    return _decode(codes - _is_free(codes) * _TO_FREE_PLANES)


def _codes(text: str) -> np.ndarray:
    return np.frombuffer(text.encode("utf-32-le", "surrogatepass"), "<u4")


def _decode(codes: np.ndarray) -> str:
    return codes.tobytes().decode("utf-32-le", "surrogatepass")


def _is_free(codes: np.ndarray) -> np.ndarray:
    """Return whether each code point is in one of the planes 5 to 8."""
    return (codes >= _TO_FREE_PLANES) & (codes < _END_OF_FREE_PLANES)


@functools.cache
def _unassigned() -> np.ndarray:
    """Return for each code point whether it is unassigned in the planes 0 to 3."""
    is_unassigned = np.zeros(_NUM_CODE_POINTS, bool)
    for first, last in ranges_by_class()["unassigned"]:
        is_unassigned[first : last + 1] = True
    return is_unassigned
