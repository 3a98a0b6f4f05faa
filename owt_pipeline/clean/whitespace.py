"""White space as a reader sees it: one kind of space, no space at a line's end, at most one empty line in a row."""

from __future__ import annotations

import re

# Spaces of other widths (Unicode category Zs); a tab stays, it may be code or a table.
_SPACES = re.compile("[\xa0\u1680\u2000-\u200a\u202f\u205f\u3000]")
# What has no width and joins nothing: zero-width space, soft hyphen, word joiner, byte order mark.
_INVISIBLE = re.compile("[\u200b\xad\u2060\ufeff]")
_LINE_END = re.compile(r"(?<![ \t\f])[ \t\f]+$", re.MULTILINE)
_EMPTY_LINES = re.compile(r"\n{3,}")


def tidy(text: str) -> str:
    """`text` with its white space made plain; a tidy text stays as it is."""
    if not text.isascii():
        text = _INVISIBLE.sub("", _SPACES.sub(" ", text))
    if "\r" in text:
        text = text.replace("\r\n", "\n").replace("\r", "\n")
    return _EMPTY_LINES.sub("\n\n", _LINE_END.sub("", text)).strip()
