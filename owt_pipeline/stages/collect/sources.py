"""Reads dumps in blocks of lines and WARC files in batches of URLs, checks them, and makes rows of them."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache
from itertools import islice
from typing import Any, Protocol

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from owt_pipeline.errors import UserError
from owt_pipeline.formats import lines
from owt_pipeline.formats.captures import COMPLETE, Broken, captures, what_else
from owt_pipeline.formats.lines import Block, is_utf16
from owt_pipeline.formats.messages import REDIRECTS, is_html
from owt_pipeline.stages.collect.rules import Rules
from owt_pipeline.stages.collect.submissions import SUBMISSIONS, RowMaker, read_block, submissions, texts
from schemas import Reason

BLOCKS = pa.schema(
    [pa.field("data", pa.large_binary()), pa.field("first_line", pa.int64()), pa.field("num_lines", pa.int64())]
)
"""A block of lines, as it is sent to a worker process."""

_BATCH_URLS = 10_000
_BEGINNING_BYTES = 1 << 20


@dataclass(frozen=True)
class Source:
    """One file, or one subreddit.

    Attributes:
      number: its place among all sources.
      kind: `dump` (submissions as JSON, one per line), `links` (a table), `warc` or `subreddit`.
      uri: path or URI; name of the subreddit.
      name: its name in the ledger: the file's name without its folder, or `r/SUBREDDIT`; of a table of links, with
        the folders below the one that all tables have in common.
    """

    number: int
    kind: str
    uri: str
    name: str

    @property
    def link_source(self) -> str:
        """Where its links are found, unless it says so itself."""
        return "reddit" if self.kind in ("dump", "subreddit") else self.kind


class Reader(Protocol):
    """Reads a source in blocks of lines, or in batches of schema SUBMISSIONS.

    Attributes:
      bytes_read: bytes of the file that were read so far.
      bytes_decompressed: bytes so far; 0 if unknown.
      overlong: numbers of lines that are too long to be records and are in no block.
      ends_within_line: after the last block: whether the last line has no end.
      broken: after the last block: where and why the source ends early, or None.
    """

    bytes_decompressed: int
    overlong: list[int]
    ends_within_line: bool

    @property
    def bytes_read(self) -> int: ...

    @property
    def broken(self) -> str | None: ...

    def __iter__(self) -> Iterator[Block] | Iterator[pa.RecordBatch]: ...


class Tally(msgspec.Struct):
    """Counts of one source.

    Attributes:
      name: name of the source.
      kind: kind of the source.
      lines: lines that are not blank (of a table: rows; of a WARC file: HTML responses).
      malformed: lines that a source of its kind must not have: `bad_line`; in tables of links, `bad_url`, too.
      first_malformed: place and problem of the first of them.
      last_malformed: number of the last line of a block that is malformed.
      bytes_read: bytes of the file.
      bytes_decompressed: 0 if unknown.
      broken: where and why the source ends early.
      overlong: number of the first line that is too long to be a record; 0 if there is none.
      last_line: number of the last line that was read.
      rejected: number of lines that are rejected by themselves, by reason.
    """

    name: str
    kind: str
    lines: int = 0
    malformed: int = 0
    first_malformed: str = ""
    last_malformed: int = 0
    bytes_read: int = 0
    bytes_decompressed: int = 0
    broken: str | None = None
    overlong: int = 0
    last_line: int = 0
    rejected: dict[str, int] = {}

    def add(self, rows: pa.RecordBatch) -> None:
        """Count rows of schema ROWS."""
        if not rows.num_rows:
            return
        self.lines += rows.num_rows
        self.last_line = max(self.last_line, rows["line"][-1].as_py())
        for found in rows["reason"].value_counts().to_pylist():
            if found["values"] is not None:
                self.rejected[found["values"]] = self.rejected.get(found["values"], 0) + found["counts"]
        reasons = [str(Reason.BAD_LINE), *([str(Reason.BAD_URL)] if self.kind == "links" else [])]
        self.malformed = sum(self.rejected.get(reason, 0) for reason in reasons)
        if rows["reason"][-1].as_py() in reasons:
            self.last_malformed = self.last_line
        if self.malformed and not self.first_malformed:
            first = pc.index(pc.is_in(rows["reason"], pa.array(reasons)), True).as_py()
            self.first_malformed = f"line {rows['line'][first]}: {rows['note'][first]}"

    @property
    def problem(self) -> str | None:
        """Why the source should not be used as it is: where, what was found, what was expected, what to do."""
        go_on = "or take what can be read with --allow_damaged"
        if self.broken is not None:
            where = f"after line {self.last_line:,}: " if self.kind != "warc" else ""
            return f"{where}{self.broken}; {COMPLETE}"
        if self.overlong:
            over = f"line {self.overlong:,} has over {lines.MAX_LINE_BYTES:,} bytes"
            return f"{over}; expected a record on each line: check what the file is, {go_on}"
        if 2 * self.malformed > self.lines:
            expected = "a URL" if self.kind == "links" else "a submission as a JSON object"
            return (
                f"{self.malformed:,} of {self.lines:,} lines are malformed, the first is {self.first_malformed}; "
                f"expected {expected} on each line: check what the file is, {go_on}"
            )
        if self.kind == "links" and self.lines == self.rejected.get(Reason.NO_URL, 0) > 0:
            return f"none of {self.lines:,} lines has a URL; expected a field url: check what the file is, {go_on}"
        return None


def block_batches(reader: Reader, source: Source) -> Iterator[pa.RecordBatch]:
    """The batches of a reader; each block of lines as a batch of schema BLOCKS, without a copy of its data.

    Raises UserError if the beginning of the source is not of its kind.
    """
    for block in reader:
        if isinstance(block, pa.RecordBatch):
            yield block
            continue
        if block.first_line == 1:
            check_beginning(source, bytes(memoryview(block.data)[:_BEGINNING_BYTES]))
        offsets = pa.array([0, len(block.data)], pa.int64()).buffers()[1]
        data = pa.LargeBinaryArray.from_buffers(pa.large_binary(), 1, [None, offsets, pa.py_buffer(block.data)])
        yield pa.record_batch([data, [block.first_line], [block.num_lines]], schema=BLOCKS)


def check_beginning(source: Source, data: bytes) -> None:
    """Raise UserError for UTF-16, and for a dump that is a JSON array, an API's response, or comments."""
    if source.kind != "dump":
        return
    found = ""
    if is_utf16(data):
        found = f"UTF-16; expected UTF-8: convert it (iconv -f UTF-16 -t UTF-8 {source.name})"
    else:
        text = data.removeprefix(b"\xef\xbb\xbf").lstrip()
        records = [record for record in map(_object, text.split(b"\n")[:100]) if record]
        comments = sum("body" in record and "link_id" in record for record in records)
        if text.startswith(b"["):
            found = f"a JSON array; expected one JSON object per line: convert it (jq -c '.[]' {source.name})"
        elif records and isinstance(records[0].get("data"), list):
            found = f"an API's response; expected one submission a line: convert it (jq -c '.data[]' {source.name})"
        elif 2 * comments > len(records):
            found = "comments; expected submissions, whose dumps are called RS_YYYY-MM and *_submissions: leave it out"
    if found:
        raise UserError(f"{source.uri}, line 1: {found}")


def _object(line: bytes) -> dict[str, Any] | None:
    try:
        found = msgspec.json.decode(line)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        return None
    return found if isinstance(found, dict) else None


def rows_of_block(batch: pa.RecordBatch, source: Source, rules: Rules) -> pa.RecordBatch:
    """The rows (of schema ROWS) of a batch of schema SUBMISSIONS, or BLOCKS with one block."""
    if batch.schema.names == SUBMISSIONS.names:
        return _row_maker(rules).rows(pa.Table.from_batches([batch]), source.number, source.name)
    _, offsets, data = batch["data"].buffers()  # the scalar would be a copy
    start, end = np.frombuffer(offsets, np.int64)[batch["data"].offset :][:2].tolist()
    block = Block(data.slice(start, end - start), batch["first_line"][0].as_py(), batch["num_lines"][0].as_py())
    return _row_maker(rules).rows(read_block(block, rules), source.number, source.name)


def row_of_problem(source: Source, line: int, reason: Reason, note: str) -> pa.RecordBatch:
    """One row, for a line that is in no block, or for what is lost at the end of a broken source."""
    fields = {"line": line, "reason": str(reason), "note": note}
    problem = pa.Table.from_pylist([fields], schema=SUBMISSIONS)
    return _row_maker(Rules()).rows(problem, source.number, source.name)


@lru_cache(2)  # it remembers hosts from block to block
def _row_maker(rules: Rules) -> RowMaker:
    return RowMaker(rules)


class WarcUrlReader:
    """The target URI of each HTML response that is no redirect, in batches of schema SUBMISSIONS.

    A "line" is such a response. The attributes are those of `Reader`.
    """

    def __init__(self, file: Any, size: int):
        self._file, self.bytes_read = file, size
        self.bytes_decompressed = 0  # unknown
        self.overlong: list[int] = []
        self.ends_within_line = False
        self._broken = 0
        self._first = ""

    @property
    def broken(self) -> str | None:
        return f"{self._broken:,} broken records, the first is {self._first}" if self._broken else None

    def __iter__(self) -> Iterator[pa.RecordBatch]:
        urls, first = self._urls(), 1
        while some := list(islice(urls, _BATCH_URLS)):
            yield submissions({"line": range(first, first + len(some)), "url": texts(some)})
            first += len(some)

    def _urls(self) -> Iterator[str]:
        if what := what_else(self._file, self.bytes_read):
            self._broken, self._first = 1, f"no WARC or ARC file but {what}"
            return
        for capture in captures(self._file, self.bytes_read, copy=lambda record: 0):
            if isinstance(capture, Broken):
                self._broken += 1
                self._first = self._first or str(capture)
            elif capture.status not in REDIRECTS and is_html(capture.content_type or ""):
                yield " ".join(capture.url.split())
