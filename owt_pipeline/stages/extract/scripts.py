"""Superscripts and subscripts in plain text, where they keep meaning: `10<sup>6</sup>` is not 106.

Unicode has superscripts of digits and some letters, but GPT-2's tokenizer has a token only for ²: ⁶ takes two tokens,
⁻¹⁰ six, `^-10` three. People type `^`, and formulas use it.
"""

from __future__ import annotations

import re

CONTEXT = 16
"""Number of characters before a script that are considered."""

_LETTER = "A-Za-zα-ωΑ-Ωа-я"
_TERM = rf"\(?(?:\d*[{_LETTER}]|\d+)\)?"
_EXPRESSION = re.compile(rf"[-−–+]?{_TERM}(?:\s?[-−–+*/·^]?\s?{_TERM}){{0,4}}[-−–+]?|[-−–+]")
_INDEX = re.compile(r"[\w+−–,*/=^-]{1,12}")
_ORDINAL = re.compile(r"[nr]de?|[eè]me|st|th|ers?|re|me|[aeoscrdhºª]|tm|sm", re.IGNORECASE)
# A digit, a bracket, or a letter that is no part of a longer word, or of a unit or a function.
_BASE = re.compile(
    rf"(?:\d|[)\]}}]|(?<![^\W\d_])(?:[{_LETTER}]|[A-Z][a-z]|[a-zµμ]m|in|ft|sin|cos|tan|log)|[=+×·*/]\s?[a-z]{{2}})$"
)
_NOTE = re.compile(r"\[?\s*((?:\d{1,4}|[a-z]{1,2}|[*†‡§¶]{1,3}|[a-z]+[ .]\d{1,3}))\s*\]?", re.IGNORECASE)
_TAKES_DIGITS = re.compile(r"(?:[A-Z][a-z]?|[)\]])$")
_TAKES_INDEX = re.compile(rf"[{_LETTER})\]}}∑∏∫\d]$")


def superscript(text: str, before: str, *, in_link: bool) -> str:
    """A superscript as plain text: `^2`, `[2]` for a link to a note, or unchanged.

    Args:
      text: the text of the superscript.
      before: the text before it in its block, at most CONTEXT characters.
      in_link: whether it is a link.
    """
    script = text.strip()
    if in_link:
        note = _NOTE.fullmatch(script)
        return f"[{note[1]}]" if note else text
    if not script or not _EXPRESSION.fullmatch(script) or _ORDINAL.fullmatch(script) or not _BASE.search(before):
        return text
    return _marked("^", script) + (" " if text[-1:].isspace() else "")


def subscript(text: str, before: str) -> str:
    """A subscript as plain text: `x_n`, but `H2O`; arguments as for `superscript`."""
    script = text.strip()
    if not script or not _TAKES_INDEX.search(before) or not _INDEX.fullmatch(script):
        return text
    if script[0].isdecimal() and script.isalnum() and _TAKES_DIGITS.search(before):
        return text
    return _marked("_", script) + (" " if text[-1:].isspace() else "")


def _marked(mark: str, script: str) -> str:
    return f"{mark}{script}" if script.lstrip("-−–+").isalnum() or len(script) == 1 else f"{mark}{{{script}}}"
