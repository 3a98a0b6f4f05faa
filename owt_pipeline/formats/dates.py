"""Dates and times in three forms: ISO 8601, seconds or milliseconds since 1970, and RFC 5322.

RFC 5322 is the form of mail, feeds and HTTP. All other forms are null and counted, since programs
and people read 01/02/2019 in two ways.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from datetime import datetime, timedelta, timezone
from email.utils import parsedate_to_datetime

UNDERSTOOD = (
    "2019-01-31, 2019-01-31 12:00:00+01:00, Thu, 31 Jan 2019 12:00:00 GMT, and seconds or "
    "milliseconds since 1970"
)
"""Examples of dates that are read, for messages."""

MISSING = frozenset(
    "- -- . ? null (null) <null> [null] #null! \\n na n/a n.a. #n/a #na <na> nan -nan nat none nil "
    "undefined missing".split()
) | {"", "#n/a n/a"}
"""How programs write a missing value, in lower case: pandas, R, Spark, databases, people."""

_MAX_CHARS_SHOWN = 100

_ISO = re.compile(r"\d{4}(-?)\d\d\1\d\d(?:[T ].*)?", re.ASCII)
# PostgreSQL and Ruby write a space before the offset, and BigQuery UTC in place of Z.
_ISO_ZONE = re.compile(r" ?(?:(UTC|Z)|([+-]\d\d(?::?\d\d)?))\Z")
_RFC_5322 = re.compile(
    r"(?:[A-Z][a-z]{2}, ?)?\d\d? [A-Z][a-z]{2} \d{4} \d\d:\d\d(?::\d\d)? "
    r"(?:[+-]\d{4}|GMT|UTC?|Z|[ECMP][SD]T)",
    re.ASCII,
)

_NUMBER = re.compile(r"-?\d+(?:\.\d+)?(?:E\+?\d+)?", re.ASCII)

# A smaller number is a year, or the number of a day in Excel: the second 10^8 was in 1973.
_MIN_SECONDS = 10**8
# A larger number of seconds is after the year 2099, so it counts milliseconds.
_MAX_SECONDS = 4_102_444_800

_EPOCH = datetime(1970, 1, 1, tzinfo=timezone.utc)


def moment_of(value: object) -> datetime | None:
    """Return the time that a string or number names, with its zone if it has one.

    A date without a time is midnight. The result is None for any other form.
    """
    if isinstance(value, bool) or not isinstance(value, (str, int, float)):
        return None
    text = str(value).strip().upper()
    try:
        if _ISO.fullmatch(text):
            return datetime.fromisoformat(_ISO_ZONE.sub(_iso_zone, text))
        if _NUMBER.fullmatch(text):
            return _moment_of_number(float(text))
        mail_date = str(value).strip()
        return parsedate_to_datetime(mail_date) if _RFC_5322.fullmatch(mail_date) else None
    except ValueError:
        return None


def seconds_of(value: object) -> int | None:
    """Return the seconds since 1970 of a number or a date; None for anything else.

    A date without a time zone is in UTC.
    """
    moment = moment_of(value)
    if moment is None:
        return None
    return int(moment.replace(tzinfo=moment.tzinfo or timezone.utc).timestamp())


def _iso_zone(zone: re.Match[str]) -> str:
    return "+00:00" if zone[1] else zone[2]


def _moment_of_number(number: float) -> datetime | None:
    seconds = number if abs(number) < _MAX_SECONDS else number / 1000
    if not _MIN_SECONDS <= abs(seconds) < _MAX_SECONDS:
        return None
    return _EPOCH + timedelta(seconds=int(seconds))


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
