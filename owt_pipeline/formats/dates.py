"""Dates and times as people and programs write them, if they can be read in one way only.

Numbers of days and months that may be exchanged (01/02/2019), years of two digits, and dates
without a day or a year are not read. Names of months are English. The parser is dateutil's, which
guesses: it reads each text twice with different guesses, and only what both give counts.
"""

from __future__ import annotations

import functools
import re
from dataclasses import dataclass
from datetime import date, datetime, timedelta, timezone, tzinfo

UNDERSTOOD = (
    "2019-01-31, 2019/1/31, 31 Jan 2019, January 31, 2019 and 31/01/2019, with or without a time"
)
"""Examples of dates that are read, for messages."""

MISSING = frozenset(
    ("", "-", "--", ".", "?", "null", "(null)", "<null>", "[null]", "#null!", "\\n", "na", "n/a",
     "n.a.", "#n/a", "#n/a n/a", "#na", "<na>", "nan", "-nan", "nat", "none", "nil", "nul",
     "undefined", "missing", "1.#qnan", "-1.#qnan", "1.#ind", "-1.#ind")
)  # fmt: skip
"""How programs write a missing value, in lower case: pandas, R, Spark, databases, people."""

# A longer text is not a date, and dateutil takes a while to refuse it.
_MAX_CHARS = 80
_MAX_CHARS_SHOWN = 100

_YEAR_FIRST = re.compile(r"([1-9]\d{3})([-/.])(\d\d?)\2(\d\d?)(?!\d)", re.ASCII)
_COMPACT_DAY = re.compile(r"((?:19|20)\d\d)(\d\d)(\d\d)(?:\d{4}(?:\d\d)?)?", re.ASCII)
# Not a part of a time, such as the fraction of a second.
_YEAR = re.compile(r"(?<!:\d\d\.)(?<![\d:])[1-9]\d{3}(?!\d)", re.ASCII)
_OFFSET_AFTER_TIME = re.compile(r"(?<=:\d\d)(?:\.\d+)? ?(?:[AP]M ?)?[+-]\d{4}(?!\d)", re.A | re.I)
# JavaScript writes `GMT+0100 (Central European Standard Time)`, and dateutil reads the sign of
# `GMT+1` as POSIX does, the other way round.
_GMT_OF_OFFSET = re.compile(r"(?:GMT|UTC) ?(?=[+-]\d)")
_ZONE_IN_BRACKETS = re.compile(r"\s*\([A-Za-z ]*\)$")
_HALF_OF_DAY = re.compile(r"\b([ap])\.\s?m\.", re.IGNORECASE)

_MONTHS = ("Jan", "Feb", "Mar", "Apr", "May", "Jun", "Jul", "Aug", "Sep", "Oct", "Nov", "Dec")

# The zones that RFC 5322 names, in hours.
_HOURS_OF_ZONE = {
    "UTC": 0, "UT": 0, "GMT": 0, "Z": 0,
    "EST": -5, "EDT": -4, "CST": -6, "CDT": -5, "MST": -7, "MDT": -6, "PST": -8, "PDT": -7,
}  # fmt: skip

# What a text lacks is taken from these. A date that lacks something has two readings, then.
_DEFAULTS = (datetime(2001, 1, 1), datetime(2004, 2, 2))


def date_of(text: str) -> date | None:
    """Return the day that a text names, as it is written; None if it has no single reading.

    A zone does not change the day. After a date in ISO 8601, any text may follow.
    """
    text = text.strip()
    compact_day = _COMPACT_DAY.fullmatch(text)
    if compact_day is not None:
        return _day(*compact_day.groups())
    year_first = _YEAR_FIRST.match(text)
    is_iso = year_first is not None and len(year_first[0]) == 10 and year_first[2] == "-"
    if year_first is not None and (is_iso or year_first.end() == len(text)):
        return _day(year_first[1], year_first[3], year_first[4])
    moment = _parse(text, ignores_zone=True)
    return moment.date() if moment is not None else None


def moment_of(text: str) -> datetime | None:
    """Return the time that a text names, with its zone if it has one; None for no single reading.

    A date without a time is midnight. An unknown name of a zone, such as CEST, has no reading.
    """
    return _parse(text.strip(), ignores_zone=False)


def _day(year: str, month: str, day: str) -> date | None:
    try:
        return date(int(year), int(month), int(day))
    except ValueError:
        return None


@functools.lru_cache(maxsize=4096)
def _parse(text: str, *, ignores_zone: bool) -> datetime | None:
    """Return the only reading of a text by dateutil, or None."""
    if len(text) > _MAX_CHARS or not text.isascii():
        return None
    text = _GMT_OF_OFFSET.sub("", _ZONE_IN_BRACKETS.sub("", text))
    text = _HALF_OF_DAY.sub(r"\1m", text)
    years = _YEAR.findall(_OFFSET_AFTER_TIME.sub("", text))
    # With two numbers of four digits, dateutil takes the second for a time.
    if len(years) != 1:
        return None
    year_first = _YEAR_FIRST.match(text)
    if year_first is not None:
        year, _, month, day = year_first.groups()
        if not 1 <= int(month) <= 12:
            return None
        # dateutil would exchange the day and the month.
        text = f"{day} {_MONTHS[int(month) - 1]} {year}{text[year_first.end() :]}"
    readings = {
        _read(text, day_first, default, ignores_zone)
        for day_first, default in zip((False, True), _DEFAULTS, strict=True)
    }
    reading = readings.pop()
    if readings or reading is None:
        return None
    # dateutil takes the year of "27-28 Nov 2021" for a time.
    return reading if reading.year == int(years[0]) else None


def _read(text: str, day_first: bool, default: datetime, ignores_zone: bool) -> datetime | None:
    # Not every table has dates in words.
    from dateutil import parser

    try:
        return parser.parse(
            text, default=default, dayfirst=day_first, ignoretz=ignores_zone, tzinfos=_zone
        )
    # dateutil's own errors are ValueErrors. Odd texts raise others, too.
    except (ValueError, OverflowError, TypeError, IndexError, AttributeError):
        return None


def _zone(name: str | None, offset: int | None) -> tzinfo | None:
    """Return the zone of a name or of an offset in seconds; raise ValueError for an unknown one."""
    if offset is not None:
        return timezone(timedelta(seconds=offset))
    if name is None:
        return None
    if name.upper() not in _HOURS_OF_ZONE:
        raise ValueError(f"unknown zone {name}")
    return timezone(timedelta(hours=_HOURS_OF_ZONE[name.upper()]))


@dataclass
class UnreadDates:
    """The values of a column that were expected to be dates, and how many are not understood.

    Attributes:
      num_values: values that are not missing.
      num_unread: values of these that are not understood, so that they become null.
      first_unread: the first of them, and where it is.
    """

    num_values: int = 0
    num_unread: int = 0
    first_unread: str = ""

    def add(self, value: object, is_read: bool, where: str) -> None:
        """Count a value, unless it is a spelling of null."""
        if value is None or str(value).strip().lower() in MISSING:
            return
        self.num_values += 1
        if is_read:
            return
        self.num_unread += 1
        self.first_unread = self.first_unread or f"{str(value)[:_MAX_CHARS_SHOWN]!r} ({where})"

    def merge(self, other: UnreadDates) -> None:
        """Add the counts of a later part of the column."""
        self.num_values += other.num_values
        self.num_unread += other.num_unread
        self.first_unread = self.first_unread or other.first_unread

    @property
    def problem(self) -> str:
        """How many values are not understood, with an example; "" if all are."""
        if not self.num_unread:
            return ""
        return (
            f"{self.num_unread:,} of {self.num_values:,} dates are not understood and become "
            f"null, the first is {self.first_unread}; understood are {UNDERSTOOD}"
        )
