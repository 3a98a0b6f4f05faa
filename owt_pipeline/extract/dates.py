"""Days in text, as in `2019-05-03`, `May 3rd, 2019`, `3. Mai 2019`, `3 de mayo de 2019`, `3.5.2019`, `2019年5月3日`.

`3/5/2019` is left out, which could be either of two days.
"""

from __future__ import annotations

import re
from datetime import date

_ISO = re.compile(r"(?<!\d)((?:19|20)\d\d)[-/.]?(0[1-9]|1[0-2])[-/.]?(0[1-9]|[12]\d|3[01])(?!\d)")
_YEAR = r"((?:19|20)\d\d)(?!\d)"
_MONTHS = [
    "jan jän ene gen sty", "feb fév fev", "mar mär maa mrt", "apr avr abr", "may mai mag maj mei", "jun juin giu",
    "jul juil lug", "aug aoû ago", "sep set", "oct okt ott out", "nov", "dec dez dic déc",
]  # fmt: skip
_MONTH_OF = {prefix: number for number, prefixes in enumerate(_MONTHS, 1) for prefix in prefixes.split()}
MONTH = rf"((?:{'|'.join(sorted(_MONTH_OF, key=len, reverse=True))})[^\W\d_]{{0,7}})"
"""A month's name, or how it is cut short, in a dozen languages; one group."""
_DAY_FIRST = re.compile(
    rf"(?<!\d)(\d{{1,2}})(?:st|nd|rd|th|er|º|\.)?\s+(?:de\s+|of\s+)?{MONTH}[.,]?\s+(?:de\s+|del\s+)?{_YEAR}",
    re.IGNORECASE,
)
_MONTH_FIRST = re.compile(rf"\b{MONTH}\.?\s+(\d{{1,2}})(?:st|nd|rd|th)?,?\s+{_YEAR}", re.IGNORECASE)
_DOTTED = re.compile(rf"(?<![\d.])(\d{{1,2}})\.\s?(\d{{1,2}})\.\s?{_YEAR}")
_SLASHED = re.compile(rf"(?<![\d/])(\d{{1,2}})/(\d{{1,2}})/{_YEAR}")
_CJK = re.compile(r"((?:19|20)\d\d)\s*[年년]\s*(\d{1,2})\s*[月월]\s*(\d{1,2})\s*[日일]")


def iso_date(text: str) -> date | None:
    """The first day in `text` that is written year, month, day."""
    match = _ISO.search(text)
    return _day(*match.groups()) if match else None


def date_in_text(text: str) -> date | None:
    """The day that `text` gives in one of the ways above; None without one, or where it could be two."""
    found = iso_date(text)
    if found is not None:
        return found
    if match := _CJK.search(text):
        return _day(*match.groups())
    if match := _DAY_FIRST.search(text):
        return _day(match[3], _month(match[2]), match[1])
    if match := _MONTH_FIRST.search(text):
        return _day(match[3], _month(match[1]), match[2])
    if match := _DOTTED.search(text):
        return _day(match[3], match[2], match[1])
    if match := _SLASHED.search(text):
        first, second = int(match[1]), int(match[2])
        if first > 12 or first == second:
            return _day(match[3], second, first)
        return _day(match[3], first, second) if second > 12 else None
    return None


def _month(name: str) -> int:
    name = name.lower()
    return _MONTH_OF.get(name[:4]) or _MONTH_OF[name[:3]]


def _day(year: str, month: str | int, day: str | int) -> date | None:
    try:
        return date(int(year), int(month), int(day))
    except ValueError:
        return None
