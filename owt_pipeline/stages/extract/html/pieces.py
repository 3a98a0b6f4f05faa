"""The text of a block from its pieces: marks for `<br>`, code and formulas; superscripts."""

from __future__ import annotations

import re
from itertools import islice

from owt_pipeline.stages.extract.html.blocks import CODE, DISPLAY, FORMULA, Container

BREAK = "\x00"
"""Represents `<br>` until a block is complete; parsed text has no zero characters."""
# A script that takes an object for a text writes this.
_SCRIPT_OBJECTS = re.compile(r"(?:\[object \w+\][,;\s]*)+")
_MISSING_VALUES = frozenset(("undefined", "null", "NaN"))
# Few pages have this, and searching for it takes less time than replacing. Ignoring the case would
# take twice as long, 1% of the time of reading.
_MAY_END_BREAK = re.compile(rb"/[bB][rR]\s*/?>")
_END_OF_BREAK = re.compile(rb"</br\s*/?>", re.IGNORECASE)
_TAGS_OF_LISTS = frozenset(("li", "dd", "dt"))
_LINE_ENDS = re.compile("\n+")
_EMPTY_LINES = re.compile("\n{3,}")
# White space that a browser collapses.
_SPACE = " \t\n\r\f"
_SPACES = re.compile(f"[{_SPACE}]+")
_MARKS = str.maketrans(dict.fromkeys((CODE, FORMULA, DISPLAY)))
# Superscripts that keep meaning after a digit, a bracket or a word of one or two letters; `e` and
# `o` are ordinals.
_EXPONENT = re.compile(r"[-−–+]?(?:\d+[a-z]?|[bijkmnpqtxyzA-Z])(?:[-−–+](?:\d+|[a-z]))?[-−–+]?")
_BASE = re.compile(r"(?:[\d)\]}]|(?<![^\W\d_])[^\W\d_]{1,2})$")


def with_breaks(page: bytes) -> bytes:
    """Return a page with a break for each `</br>`, as in browsers; libxml2 drops it."""
    return _END_OF_BREAK.sub(b"<br>", page) if _MAY_END_BREAK.search(page) else page


def read_pieces(joined: str) -> tuple[str, str | None]:
    """Return the text of joined pieces, and the text with its marks; None if it has no marks."""
    # Most texts have only printable characters and single spaces, which is quickly known.
    if joined.isprintable() and "  " not in joined:
        return joined.strip(), None
    # A browser shows a soft hyphen only at the end of a line.
    joined = joined.replace("\xad", "")
    if not (BREAK in joined or CODE in joined or FORMULA in joined or DISPLAY in joined):
        return " ".join(joined.split()), None
    lines = joined.replace(CODE + CODE, "").split(BREAK)
    marked = "\n".join([" ".join(line.split()) for line in lines])
    if marked.count(CODE) % 2:
        # Code begins or ends around other blocks.
        marked = marked.replace(CODE, "")
    text = marked.replace(CODE, "").replace(FORMULA, "").replace(DISPLAY, "")
    return _LINE_ENDS.sub("\n", text).strip(), _EMPTY_LINES.sub("\n\n", marked.strip("\n"))


def read_lines(pieces: str) -> str:
    """Return code with a line for each `<br>`, with the indentation that a browser shows."""
    lines = []
    for line in pieces.translate(_MARKS).split(BREAK):
        start = line.lstrip(_SPACE)
        space = line[: len(line) - len(start)]
        # A space after a line end is in the page's source only, and a tab without one is code.
        indentation = "" if "\n" in space else space.replace(" ", "")
        lines.append(indentation + _SPACES.sub(" ", start).replace("\xa0", " ").rstrip())
    return "\n".join(lines).strip("\n")


def is_missing_value(text: str, container: Container, is_in_table: bool) -> bool:
    """Return whether a script has written a missing value or an object in place of a text.

    A table or a list of values may have `null`.
    """
    if text[:1] == "[":
        return _SCRIPT_OBJECTS.fullmatch(text) is not None
    if text not in _MISSING_VALUES or is_in_table:
        return False
    tags = {ancestor.tag for ancestor in islice(container.ancestors(), 2)}
    return tags.isdisjoint(_TAGS_OF_LISTS)


def superscript(text: str, before: str, *, is_note: bool) -> list[str] | None:
    """Return the pieces of a superscript: `10^6` is not 106. None if it stays as it is.

    Args:
      text: its text.
      before: the text before it.
      is_note: whether it is linked, as the number of a note.
    """
    script = text.strip()
    if is_note and script.isdecimal():
        return [f"[{script}]"]
    if not is_note and _EXPONENT.fullmatch(script) and _BASE.search(before):
        written = script if script.lstrip("-−–+").isalnum() else f"{{{script}}}"
        return [f"^{written}", text[len(text.rstrip()) :]]
    return None
