"""Tables of links: Parquet, JSON Lines or CSV with a column `url`.

A list of URLs is a table of one column.

row of a table    url  score  created_utc  title  source, in capitals or not, in any order
becomes           a submission without an id, with a reason if it has no URL or cannot be read
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from decimal import Decimal
from operator import itemgetter
from typing import Any

import pyarrow as pa

from owt_pipeline.errors import UserError
from owt_pipeline.formats.captures import OR_DAMAGED
from owt_pipeline.formats.dates import MISSING, UnreadDates, seconds_of
from owt_pipeline.formats.file_kinds import kind_of, read_start
from owt_pipeline.formats.files import AcceptedFiles, known_format
from owt_pipeline.formats.records import (
    MissingColumn,
    Record,
    describe_file,
    names_below_common_folder,
    read_records,
)
from owt_pipeline.stages.collect.kind import Source, SourceKind, Tally, in_batches
from owt_pipeline.stages.collect.submissions import as_text, integer
from owt_pipeline.storage.folder import open_source
from schemas import Reason

_URL = ("posted_url", "url")
_TIME = ("created_utc", "time", "timestamp")
_RENAME = "check what the file is, or rename the column that has the URLs to url"

_SOURCE = ("link_sources", "source")
_COLUMNS = (*_URL, "score", *_TIME, "title", *_SOURCE, "subreddits")
"""The columns that are read.

If several columns are for the same value, the first with a value counts. urls/ of a run has
`posted_url`, `link_sources` and `subreddits`, and the dump of Hacker News has `time`.
"""

# Some databases write this for null in a column of any type.
_DATABASE_NULL = r"\N"

_MAX_FIELDS_SHOWN = 8
_MAX_CHARS_SHOWN = 100

_Row = dict[str, Any]


class LinkTable(SourceKind):
    """A table of links, or a list of URLs."""

    name = "links"
    option = "links"
    accepted = AcceptedFiles(
        "--links",
        "tables of links",
        kinds=("parquet", "json", "table", "urls"),
        is_promised=lambda name: known_format(name) in ("jsonl", "parquet", "csv"),
    )
    bytes_per_shard = 1 << 20
    link_source = "links"
    bad_reasons = (Reason.BAD_LINE, Reason.BAD_URL)
    expected = "a URL"

    def names_of(
        self, uris: Sequence[str], recorded_by_uri: Mapping[str, Mapping[str, Any]]
    ) -> dict[str, str]:
        """Return the name of each table, by its URI.

        A name is the path below the folder that all tables have in common. A recorded table keeps
        its name. A new table whose name is taken is named by its URI.
        """
        recorded_names: dict[str, str] = {}
        for uri in uris:
            if uri in recorded_by_uri:
                recorded_names[uri] = str(recorded_by_uri[uri]["name"])
        taken = set(recorded_names.values())
        names: dict[str, str] = {}
        for uri, name in names_below_common_folder(uris).items():
            if uri in recorded_names:
                names[uri] = recorded_names[uri]
            elif name in taken:
                names[uri] = uri
            else:
                names[uri] = name
        return dict(sorted(names.items(), key=itemgetter(1)))

    def describe(self, uri: str, name: str, recorded: Mapping[str, Any] | None) -> dict[str, Any]:
        return describe_file(uri, name, recorded)

    def read(
        self, source: Source, uri: str, tally: Tally, allow_damaged: bool
    ) -> Iterator[pa.RecordBatch]:
        """Yield batches of rows. Raises UserError for a damaged table unless `allow_damaged`."""
        return in_batches(_rows_until_damage(uri, source.name, tally, allow_damaged))

    def find_problem(self, tally: Tally) -> str | None:
        if tally.lines == 0 or tally.without_url < tally.lines:
            return None
        first = f" ({tally.first_without_url})" if tally.first_without_url else ""
        return f"none of {tally.lines:,} lines has a URL{first}; {_RENAME}"


def _rows_until_damage(uri: str, name: str, tally: Tally, allow_damaged: bool) -> Iterator[_Row]:
    try:
        yield from link_rows(uri, name, tally.times)
    except UserError as error:
        if isinstance(error, MissingColumn) and not allow_damaged:
            raise UserError(f"{error}; {_RENAME}") from error
        if not allow_damaged:
            raise UserError(f"{error}{OR_DAMAGED}") from error
        tally.broken = str(error).removeprefix(uri).strip(" ,:")


def link_rows(path: str, name: str, times: UnreadDates | None = None) -> Iterator[_Row]:
    """Yield the rows of a table by columns of SUBMISSIONS, and count their times in `times`.

    Raises UserError if the file is damaged, or if it is Parquet or CSV without a column `url`.
    """
    kind = _format_of(path)
    records = read_records(
        path, name, kind, columns=_COLUMNS, required=("url", "posted_url"), split_text="lines"
    )
    if kind == "text":
        yield from _rows_of_list(records)
        return
    times = UnreadDates() if times is None else times
    for record in records:
        line = int(record.where.rpartition(":")[2])
        if record.fields is None:
            yield _bad_line(line, record.problem)
            continue
        yield _row_of_fields(line, record.fields, times)


def _format_of(path: str) -> str:
    """Return how a file is read: by its content, or else its extension."""
    with open_source(path) as file:
        kind = kind_of(read_start(file))
    if kind == "json":
        return "jsonl"
    if kind == "table":
        return "csv"
    return "parquet" if kind == "parquet" else known_format(path) or "text"


def _bad_line(line: int, note: str | None) -> _Row:
    return {"line": line, "reason": str(Reason.BAD_LINE), "note": note}


def _rows_of_list(records: Iterable[Record]) -> Iterator[_Row]:
    """Yield the rows of a list with one URL on each line.

    Blank lines and lines that begin with `#` are skipped. A line with a tab or a CR within it is a
    `bad_url`: its columns or lines would become one URL.
    """
    for number, record in enumerate(records, start=1):
        if record.fields is None:
            yield _bad_line(number, record.problem)
            continue
        url = record.fields["text"].strip()
        has_lines = "\r" in url
        if not url or (url.startswith("#") and not has_lines):
            continue
        if has_lines or "\t" in url:
            note = f"a tab or a CR in {url[:_MAX_CHARS_SHOWN]!r}"
            yield {"line": number, "reason": str(Reason.BAD_URL), "note": note}
        else:
            yield {"line": number, "url": url}


def _row_of_fields(line: int, fields: Mapping[str, Any], times: UnreadDates) -> _Row:
    values: dict[str, Any] = {}
    for name, field in fields.items():
        value = _plain(field)
        if value not in (None, "", [], _DATABASE_NULL):
            values.setdefault(name.lower(), value)

    def first(names: tuple[str, ...]) -> Any:
        return next((values[name] for name in names if name in values), None)

    url = first(_URL)
    if not isinstance(url, str):
        return {"line": line, "reason": str(Reason.NO_URL), "note": _note_without_url(fields)}
    time = first(_TIME)
    seconds = seconds_of(time)
    times.add(time, seconds is not None, f"line {line}")
    row = {
        "line": line,
        "url": url,
        "title": as_text(first(("title",))),
        "created_utc": seconds,
        "score": None,
        "link_sources": _strings(first(_SOURCE)),
        "subreddits": _strings(first(("subreddits",))),
    }
    score = first(("score",))
    if score is None or _is_missing_number(score):
        return row
    row["score"] = integer(score if isinstance(score, (bool, int, float)) else str(score))
    if row["score"] is None:
        note = f"the score is {str(score)[:_MAX_CHARS_SHOWN]!r}; expected a number"
        row |= _bad_line(line, note)
    return row


def _note_without_url(fields: Mapping[str, Any]) -> str | None:
    """Return which fields a row without a URL has; None if it has a field `url`."""
    if any(name.lower() == "url" for name in fields):
        return None
    names = ", ".join(list(fields)[:_MAX_FIELDS_SHOWN])
    return f"no field url, but {names or 'none'}"


def _plain(value: Any) -> Any:
    # The numbers of some databases.
    if isinstance(value, Decimal):
        return int(value) if value == int(value) else float(value)
    if isinstance(value, str):
        return value.strip()
    return value


def _strings(value: Any) -> list[str] | None:
    """Return the texts of a list, or a single text as a list; None without a text."""
    values = value if isinstance(value, list) else [value]
    texts = [text for text in map(as_text, values) if text]
    return texts or None


def _is_missing_number(value: Any) -> bool:
    if isinstance(value, str):
        return value.lower() in MISSING
    return isinstance(value, float) and math.isnan(value)
