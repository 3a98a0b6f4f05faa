"""Tables of links: Parquet, JSON Lines or CSV with a column `url`, and lists of URLs, which are
tables of one column.

row of a table    url  score  created_utc  title  source, in capitals or not, in any order
becomes           a submission without an id; with a reason if it has no URL or cannot be read
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from datetime import datetime, timezone
from typing import Any

from owt_pipeline.formats.records import Record, known_format, read_records
from owt_pipeline.stages.collect.submissions import as_text, integer
from schemas import Reason

_URL = ("posted_url", "url")
_TIME = ("created_utc", "time", "timestamp")
_SOURCE = ("link_sources", "source")
_COLUMNS = (*_URL, "score", *_TIME, "title", *_SOURCE, "subreddits")
"""The columns that are read; of several for the same, the first that has a value. urls/ of a run
has `posted_url`, `link_sources` and `subreddits`, and Hacker News' dump `time`."""

_DATE = re.compile(
    r"(\d{4}-\d\d-\d\d)(?:[T ](\d\d:\d\d:\d\d)(?:\.\d+)?)? ?(?:UTC|Z|([+-]\d\d):?(\d\d))?"
)

_Row = dict[str, Any]


def link_rows(path: str, name: str) -> Iterator[_Row]:
    """The rows of a table, by columns of SUBMISSIONS.

    Raises UserError if the file is damaged, or Parquet or CSV without a column `url`.
    """
    kind = known_format(path) or "text"
    records = read_records(
        path, name, kind, columns=_COLUMNS, required=("url", "posted_url"), split_text="lines"
    )
    if kind == "text":
        yield from _of_lines(records)
        return
    for record in records:
        line = int(record.where.rpartition(":")[2])
        yield (
            _bad_line(line, record.problem)
            if record.fields is None
            else _of_fields(line, record.fields)
        )


def _bad_line(line: int, note: str | None) -> _Row:
    return {"line": line, "reason": str(Reason.BAD_LINE), "note": note}


def _of_lines(records: Iterable[Record]) -> Iterator[_Row]:
    """URLs, one a line, without blank lines and those that begin with `#`; lines may end in CR
    alone.

    A line with a tab in it is a `bad_url`: it has columns, which would become one URL.
    """
    number = 0
    for record in records:
        if record.fields is None:
            number += 1
            yield _bad_line(number, record.problem)
            continue
        for text in record.fields["text"].split("\r"):
            number, text = number + 1, text.strip()
            if "\t" in text and not text.startswith("#"):
                yield {
                    "line": number,
                    "reason": str(Reason.BAD_URL),
                    "note": f"a tab in {text[:100]!r}",
                }
            elif text and not text.startswith("#"):
                yield {"line": number, "url": text}


def _of_fields(line: int, fields: Mapping[str, Any]) -> _Row:
    given: dict[str, Any] = {}
    for name, field in fields.items():
        if (value := _plain(field)) not in (None, "", []):
            given.setdefault(name.lower(), value)

    def first(names: tuple[str, ...]) -> Any:
        return next((given[name] for name in names if name in given), None)

    url, score, source = first(_URL), first(("score",)), first(_SOURCE)
    if not isinstance(url, str):
        has_field = any(name.lower() == "url" for name in fields)
        note = None if has_field else f"no field url, but {', '.join(list(fields)[:8]) or 'none'}"
        return {"line": line, "reason": str(Reason.NO_URL), "note": note}
    row = {
        "line": line,
        "url": url,
        "title": as_text(first(("title",))),
        "created_utc": _seconds(first(_TIME)),
        "score": None
        if score is None
        else integer(score if isinstance(score, (bool, int, float)) else str(score)),
        "link_sources": _strings(source),
        "subreddits": _strings(first(("subreddits",))),
    }
    if score is not None and row["score"] is None:
        row |= _bad_line(line, f"the score is {str(score)[:100]!r}; expected a number")
    return row


def _plain(value: Any) -> Any:
    if isinstance(value, bytes):  # some programs write strings to Parquet as bytes
        value = value.decode("utf-8", "replace")
    return value.strip() if isinstance(value, str) else value


def _strings(value: Any) -> list[str] | None:
    """Those of a list, or the only one; null without any."""
    return [
        text for text in map(as_text, value if isinstance(value, list) else [value]) if text
    ] or None


def _seconds(value: Any) -> int | None:
    """Seconds since 1970 of a number or a date; a date without a time zone is in UTC."""
    found = _DATE.fullmatch(value) if isinstance(value, str) else None
    if not found:
        return integer(value)
    day, time, hours, minutes = found.groups()
    try:
        moment = datetime.fromisoformat(
            f"{day}T{time or '00:00:00'}{hours or '+00'}:{minutes or '00'}"
        )
    except ValueError:
        return None
    return int(moment.astimezone(timezone.utc).timestamp())
