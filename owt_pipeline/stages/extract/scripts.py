"""Superscripts and subscripts in plain text: `10<sup>6</sup>` is not 106, and `1999<sup>1</sup>` is not a power.

- Powers: `10^6`, `mc^2`, `x^{n+1}`. Unicode has superscripts of digits and some letters, but GPT-2's tokenizer has a
  token only for ²: ⁶ takes two tokens, ⁻¹⁰ six, `^-10` three. NFKC turns them into plain digits (`mc²` into `mc2`).
  People type `^`, and formulas use it.
- References to notes: `[1]`. `blocks` reads those with a link to the note, this module the others.
- Subscripts: `x_n`, `C_nH_{2n+2}`, `log_2`; digits after a capital letter or a bracket are plain: `H2O`, `B12`.
- Ordinals, asterisks, cents of a price and everything else: unchanged; `TM` becomes ™.

Digits without a link may be a power or a note. A power follows a variable, a unit, a function, 10 or another single
digit, or is next to an operator; a note follows a word, a year or punctuation.
"""

from __future__ import annotations

import re

from lxml import etree

CONTEXT = 40
"""Number of characters before a script that are considered."""

_LETTER = "A-Za-zα-ωΑ-Ωа-я"
_TYPED = {"TM": "™", "tm": "™", "SM": "℠", "sm": "℠"}
_NUMBERS = re.compile(r"\d{1,4}(?:\s*[,;–-]\s*\d{1,4})*")
_SIGNED = re.compile(r"[-−–+]\d{1,4}|\d[-−–+]")  # a power or an ion's charge; notes have no sign
_ORDINAL = re.compile(r"[nr]de?|[eè]me|st|th|ers?|re|[aeoscrdhºª]", re.IGNORECASE)
_TERM = rf"\(?(?:\d*[{_LETTER}]|\d+)\)?"
_EXPRESSION = re.compile(rf"[-−–+]?{_TERM}(?:\s?[-−–+*/·^]?\s?{_TERM}){{0,4}}")
_INDEX = re.compile(r"[\w+−–,*/=^-]{1,12}")

_OPERATOR_AFTER = re.compile(r"\s?[=×⋅·*/^<>≤≥≈±]|\s[+−–-]\s|[+−-]\(?\w")
_OPERATOR_BEFORE = re.compile(r"(?:[=×⋅·*/^<>≤≥≈±+−]\s?|\s[-–]\s)\(?[\w.]{1,6}$")
_TEN = re.compile(r"(?<![\w.,])10$|[×x·⋅*]\s?10$")
_DIGIT = re.compile(r"(?<![\w.,$€£])[2-9]$")
_PRICE = re.compile(r"[$€£]\s?\d[\d,]*([.,]?)$")
# A variable, a unit, a function, or two factors that are not an English word.
_VARIABLE = re.compile(
    rf"(?:(?<![^\W_])[{_LETTER}]|[α-ωΑ-Ω][a-z]|\d ?(?:in|[cdk]?м)|(?<![^\W\d_])(?:µm|μm|км|sin|cos|tan|log|sec"
    r"|(?!(?:am|an|as|at|be|by|do|go|he|if|in|is|it|me|my|no|of|on|or|so|to|up|us|we)\b)[a-z][a-z]))$"
)
_BRACKETED = re.compile(r"\(([^()]*)\)$")
_WORD = re.compile(r"[^\W\d_]{3}|[A-Z]{2}")
_ISOTOPE = re.compile(r"[A-Z][a-z]?(?![a-z])")
_TAKES_DIGITS = re.compile(r"(?:[A-Z][a-z]?|[)\]])$")
_TAKES_INDEX = re.compile(rf"[{_LETTER})\]}}∑∏∫\d]$")


def link_of(script: etree._Element) -> etree._Element | None:
    """The link in a superscript, or around it with nothing else."""
    link = script.find(".//a[@href]")
    around = script.getparent()
    if link is None and around is not None and around.tag == "a" and len(around) == 1:
        link = None if (around.text or "").strip() or (script.tail or "").strip() else around
    return link


def superscript(text: str, before: str, after: str, *, in_link: bool = False) -> str:
    """A superscript as plain text.

    Args:
      text: the text of the superscript.
      before: the text before it in its block, at most CONTEXT characters.
      after: the text after it.
      in_link: whether it is the complete text of a link, which a power never is.
    """
    script = text.strip()
    if script in _TYPED:
        return text.replace(script, _TYPED[script])
    base = before.rstrip()
    if base == before and len(script) == 2 and script.isdecimal() and (price := _PRICE.search(before)):
        return script if price[1] else f".{script}"
    space = " " if text[-1:].isspace() else ""
    if _NUMBERS.fullmatch(script):
        if base != before or not base:
            if after and _ISOTOPE.match(after) and not space:
                return f"^{script}"
            if not base and not after:
                return text
        is_power = not in_link and script.isdecimal() and _is_power(script, base, after)
        return _marked("^", script, after) + space if is_power else f"[{script}]{space}"
    if base != before or not base or not (base[-1].isalnum() or base[-1] in ")]}"):
        return text
    if _SIGNED.fullmatch(script):
        return f"^{script}{space}"
    is_abbreviation = script.isalpha() and len(script) > 1 and base[-1] != "e"  # M<sup>me</sup>; e<sup>ix</sup>
    if is_abbreviation or _ORDINAL.fullmatch(script) or not _EXPRESSION.fullmatch(script):
        return text
    if base[-1].isdigit() or _VARIABLE.search(base) or _is_bracketed(base):
        return _marked("^", script, after) + space
    return text


def subscript(text: str, before: str, after: str) -> str:
    """A subscript as plain text; arguments as for `superscript`."""
    script = text.strip()
    if not _TAKES_INDEX.search(before) or not _INDEX.fullmatch(script):
        return text
    if script[0].isdecimal() and script.isalnum() and _TAKES_DIGITS.search(before):
        return text
    return _marked("_", script, after) + (" " if text[-1:].isspace() else "")


def _is_power(script: str, before: str, after: str) -> bool:
    """Whether superscript digits after `before` are an exponent, not the number of a note."""
    if _TEN.search(before) or _is_bracketed(before):
        return True
    base = before[-1:]
    if not base.isalnum():
        return False
    if _OPERATOR_BEFORE.search(before) or _OPERATOR_AFTER.match(after):
        return base.isdigit() or len(re.split(r"[\W\d_]", before)[-1]) <= 3
    if script in ("0", "1"):
        return False
    if base.isdigit():
        return _DIGIT.search(before) is not None
    found = _VARIABLE.search(before)
    return found is not None and (len(found[0]) == 1 or script in ("2", "3", "4"))


def _is_bracketed(before: str) -> bool:
    """Whether `before` ends with a term in brackets, not a word, an abbreviation or a year."""
    found = _BRACKETED.search(before)
    return found is not None and not found[1].isdecimal() and bool(found[1]) and not _WORD.search(found[1])


def _marked(mark: str, script: str, after: str) -> str:
    """`script` after `mark`, in braces if it would be ambiguous."""
    plain = r"[-−–+]?\d+|[^\W\d_]" if mark == "^" else r"\d+|[^\W\d_]+"
    joins = after[:1].isdigit() or (len(script) > 1 and script[-1].isalpha() and after[:1].isalpha())
    return f"{mark}{script}" if re.fullmatch(plain, script) and not joins else f"{mark}{{{script}}}"
