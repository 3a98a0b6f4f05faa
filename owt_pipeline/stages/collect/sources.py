"""Reads dumps in blocks of lines, and tables and WARC files in batches of URLs, and makes rows
of them."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from owt_pipeline.errors import UserError
from owt_pipeline.formats import lines
from owt_pipeline.formats.batches import MAX_BATCH_BYTES
from owt_pipeline.formats.captures import COMPLETE, OR_DAMAGED, Broken, captures
from owt_pipeline.formats.lines import Block, LineReader, is_utf16
from owt_pipeline.formats.messages import REDIRECTS, is_html
from owt_pipeline.formats.records import MissingColumn
from owt_pipeline.stages.collect.links import advise_to_rename, link_rows
from owt_pipeline.stages.collect.rules import Rules
from owt_pipeline.stages.collect.submissions import (
    SUBMISSIONS,
    as_text,
    read_block,
    rows_of,
    submissions,
)
from owt_pipeline.storage.folder import open_source
from schemas import Reason

BLOCKS = pa.schema([pa.field("data", pa.large_binary()), pa.field("first_line", pa.int64())])
"""A block of lines, as it is sent to a worker process."""

_MAX_BATCH_ROWS = 10_000


@dataclass(frozen=True)
class Source:
    """One file, or one subreddit.

    Attributes:
      number: its place among all sources.
      kind: `dump` (submissions as JSON, one per line), `links` (a table), `warc` or `subreddit`.
      uri: path or URI; name of the subreddit.
      name: its name in the ledger: the file's name without its folder, or `r/SUBREDDIT`; of a table
        of links, with the folders below the one that all tables have in common.
    """

    number: int
    kind: str
    uri: str
    name: str

    @property
    def link_source(self) -> str:
        """Where its links are found, unless it says so itself."""
        return "reddit" if self.kind in ("dump", "subreddit") else self.kind


@dataclass
class Tally:
    """Counts of one source. A line is one that is not blank, the row of a table, or an HTML
    response of a WARC file.

    Attributes:
      kind: kind of the source.
      lines: number of lines.
      without_url: lines without a URL.
      first_without_url: what the first of them has instead.
      malformed: lines that a source of its kind must not have: `bad_line`; in tables of links,
        `bad_url`, too.
      first_malformed: place and problem of the first of them.
      last_malformed: number of the last of them.
      broken: where and why the source ends early.
      ends_within_line: whether the last line has no end.
      overlong: number of the first line that is too long to be a record; 0 if there is none.
      last_line: number of the last line that was read.
    """

    kind: str
    lines: int = 0
    without_url: int = 0
    first_without_url: str = ""
    malformed: int = 0
    first_malformed: str = ""
    last_malformed: int = 0
    broken: str | None = None
    remedy: str = COMPLETE
    ends_within_line: bool = False
    overlong: int = 0
    last_line: int = 0

    def add(self, rows: pa.RecordBatch) -> None:
        """Count rows of schema ROWS."""
        self.lines += rows.num_rows
        self.without_url += pc.sum(pc.equal(rows["reason"], str(Reason.NO_URL))).as_py() or 0
        if self.without_url and not self.first_without_url:
            without = rows.filter(pc.equal(rows["reason"], str(Reason.NO_URL)))
            notes = [note for note in without["note"].to_pylist() if note]
            self.first_without_url = notes[0] if notes else ""
        bad = ["bad_line", "bad_url"] if self.kind == "links" else ["bad_line"]
        malformed = (
            rows.filter(pc.is_in(rows["reason"], pa.array(bad)))
            .select(["line", "note"])
            .to_pylist()
        )
        self.malformed += len(malformed)
        self.last_line = max(self.last_line, pc.max(rows["line"]).as_py() or 0)
        if malformed:
            self.first_malformed = (
                self.first_malformed or f"line {malformed[0]['line']}: {malformed[0]['note']}"
            )
            self.last_malformed = max(self.last_malformed, malformed[-1]["line"])

    def finish(self) -> None:
        """Find how a dump ends, after all of its rows are counted."""
        if self.kind == "dump" and self.broken is None:
            if not self.lines:
                self.broken = "the file has no lines"
            elif (
                self.ends_within_line
                and self.last_malformed == self.last_line
                and not self._is_another_kind
            ):
                self.broken = f"the file ends in the middle of line {self.last_line:,}"

    @property
    def _advice_to_rename(self) -> str:
        _, has_other_fields, fields = self.first_without_url.partition("but ")
        if not has_other_fields or fields == "none":
            return ""
        return f", but the first has {fields} ({advise_to_rename(fields.split(', '))})"

    @property
    def _is_another_kind(self) -> bool:
        return 2 * self.malformed > self.lines

    @property
    def problem(self) -> str | None:
        """Why the source should not be used as it is: where, what was found, what was expected,
        what to do."""
        if self.broken is not None:
            where = f"after line {self.last_line:,}: " if self.kind != "warc" else ""
            return f"{where}{self.broken}; {self.remedy}"
        if self.overlong:
            over = f"line {self.overlong:,} has over {lines.MAX_LINE_BYTES:,} bytes"
            return f"{over}; expected a record on each line: check what the file is"
        if self._is_another_kind:
            expected = "a URL" if self.kind == "links" else "a submission as a JSON object"
            return (
                f"{self.malformed:,} of {self.lines:,} lines are malformed, the first is "
                f"{self.first_malformed}; "
                f"expected {expected} on each line: check what the file is"
            )
        if self.kind == "links" and self.lines == self.without_url > 0:
            return (
                f"none of {self.lines:,} lines has a URL; expected a field url"
                f"{self._advice_to_rename}: check what the file is"
            )
        return None


def read_source(
    source: Source, uri: str, tally: Tally, allow_damaged: bool
) -> Iterator[pa.RecordBatch]:
    """Batches of schema SUBMISSIONS or BLOCKS; sets what the tally has of the file.

    Raises UserError for a dump in UTF-16, or for a damaged table unless `allow_damaged`.
    """
    with open_source(uri) as file:
        if source.kind not in ("links", "warc"):
            yield from _blocks(file, source, tally)
            return
        is_warc = source.kind == "warc"
        found = (
            _rows_of_archive(file, tally)
            if is_warc
            else _rows_of_table(uri, source.name, tally, allow_damaged)
        )
        for some in _batches(found):
            yield submissions({name: [row.get(name) for row in some] for name in SUBMISSIONS.names})


def _batches(rows: Iterable[dict[str, Any]]) -> Iterator[list[dict[str, Any]]]:
    """Yield the rows in lists that are bounded in number and in bytes: a title may be a text."""
    batch: list[dict[str, Any]] = []
    num_chars = 0
    for row in rows:
        batch.append(row)
        num_chars += sum(map(_num_chars, row.values()))
        if len(batch) == _MAX_BATCH_ROWS or num_chars >= MAX_BATCH_BYTES:
            yield batch
            batch = []
            num_chars = 0
    if batch:
        yield batch


def _num_chars(value: Any) -> int:
    if isinstance(value, str):
        return len(value)
    return sum(map(len, value)) if isinstance(value, list) else 0


def _blocks(file: Any, source: Source, tally: Tally) -> Iterator[pa.RecordBatch]:
    reader = LineReader(file)
    for block in reader:
        if block.first_line == 1 and is_utf16(block.data):
            advice = f"expected UTF-8: convert it (iconv -f UTF-16 -t UTF-8 {source.name})"
            raise UserError(f"{source.uri}, line 1: UTF-16; {advice}")
        yield pa.record_batch(
            [pa.array([block.data], pa.large_binary()), [block.first_line]], schema=BLOCKS
        )
    for line in reader.overlong:
        yield problem(line, Reason.BAD_LINE, f"over {lines.MAX_LINE_BYTES:,} bytes")
    tally.overlong, tally.ends_within_line = (
        min(reader.overlong, default=0),
        reader.ends_within_line,
    )
    tally.broken = reader.source.broken


def _rows_of_table(
    uri: str, name: str, tally: Tally, allow_damaged: bool
) -> Iterator[dict[str, Any]]:
    try:
        yield from link_rows(uri, name)
    except UserError as error:
        if isinstance(error, MissingColumn) and not allow_damaged:
            raise UserError(f"{error}: {advise_to_rename(error.names)}") from error
        if not allow_damaged:
            raise UserError(f"{error}{OR_DAMAGED}") from error
        tally.broken = str(error).removeprefix(uri).strip(" ,:")


def _rows_of_archive(file: Any, tally: Tally) -> Iterator[dict[str, Any]]:
    """The target URI of each HTML response that is no redirect; a "line" is such a response."""
    line, broken, first = 0, 0, ""
    for capture in captures(file, file.size()):
        if isinstance(capture, Broken):
            broken, first = broken + 1, first or str(capture)
            tally.remedy = capture.remedy
            tally.broken = f"{broken:,} broken records, the first is {first}"
            if capture.offset is None:
                tally.broken = str(capture)
        elif capture.status not in (0, *REDIRECTS) and is_html(capture.content_type or ""):
            line += 1
            yield {"line": line, "url": as_text(" ".join(capture.url.split()))}


def problem(line: int, reason: Reason, note: str) -> pa.RecordBatch:
    """A row of schema SUBMISSIONS for a line that is in no block, or for what is lost at the end
    of a source."""
    return submissions({"line": [line], "reason": [str(reason)], "note": [note]})


def rows_of_batch(batch: pa.RecordBatch, source: Source, rules: Rules) -> pa.RecordBatch:
    """The rows (of schema ROWS) of a batch of schema SUBMISSIONS, or BLOCKS with one block."""
    if batch.schema.names == BLOCKS.names:
        batch = read_block(Block(batch["data"][0].as_py(), batch["first_line"][0].as_py()), rules)
    return rows_of(batch, source.number, source.name, rules)
