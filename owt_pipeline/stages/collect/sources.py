"""Reads dumps, URL lists and WARC files in blocks of lines, checks them, and makes rows of the blocks."""

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
from owt_pipeline.formats.lines import Block
from owt_pipeline.formats.messages import REDIRECTS, is_html
from owt_pipeline.stages.collect.rules import Rules
from owt_pipeline.stages.collect.submissions import SUBMISSIONS, RowMaker, read_block
from schemas import Reason

BLOCKS = pa.schema(
    [pa.field("data", pa.large_binary()), pa.field("first_line", pa.int64()), pa.field("num_lines", pa.int64())]
)
"""A block of lines, as it is sent to a worker process."""

_BLOCK_URLS = 10_000
_BEGINNING_BYTES = 1 << 20


@dataclass(frozen=True)
class Source:
    """One file, or one subreddit.

    Attributes:
      number: its place among all sources.
      kind: `dump` (submissions as JSON, one per line), `list` (URLs, one per line), `warc` or `subreddit`.
      uri: path or URI; name of the subreddit.
      name: its name in the ledger: the file's name without its folder, or `r/SUBREDDIT`.
    """

    number: int
    kind: str
    uri: str
    name: str


class Reader(Protocol):
    """Reads a source in blocks.

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

    def __iter__(self) -> Iterator[Block]: ...


class Tally(msgspec.Struct):
    """Counts of one source.

    Attributes:
      name: name of the source.
      kind: kind of the source.
      lines: lines that are not blank (of a WARC file: HTML responses).
      malformed: lines that a source of its kind must not have: `bad_line` in dumps, `bad_url` in lists.
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
        reason = Reason.BAD_URL if self.kind == "list" else Reason.BAD_LINE
        self.malformed = self.rejected.get(reason, 0)
        if rows["reason"][-1].as_py() == reason:
            self.last_malformed = self.last_line
        if self.malformed and not self.first_malformed:
            first = pc.index(rows["reason"], str(reason)).as_py()
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
            expected = "a URL" if self.kind == "list" else "a submission as a JSON object"
            return (
                f"{self.malformed:,} of {self.lines:,} lines are malformed, the first is {self.first_malformed}; "
                f"expected {expected} on each line: check what the file is, {go_on}"
            )
        return None


def block_batches(reader: Reader, source: Source) -> Iterator[pa.RecordBatch]:
    """Each block of a reader as a batch of schema BLOCKS, without a copy of its data.

    Raises UserError if the beginning of the source is not of its kind.
    """
    for block in reader:
        if block.first_line == 1:
            check_beginning(source, bytes(memoryview(block.data)[:_BEGINNING_BYTES]))
        offsets = pa.array([0, len(block.data)], pa.int64()).buffers()[1]
        data = pa.LargeBinaryArray.from_buffers(pa.large_binary(), 1, [None, offsets, pa.py_buffer(block.data)])
        yield pa.record_batch([data, [block.first_line], [block.num_lines]], schema=BLOCKS)


def check_beginning(source: Source, data: bytes) -> None:
    """Raise UserError for UTF-16, and for a dump that is a JSON array, an API's response, or comments."""
    if source.kind not in ("dump", "list"):
        return
    found = ""
    if data.startswith((b"\xff\xfe", b"\xfe\xff")) or _is_wide(data):
        found = f"UTF-16; expected UTF-8: convert it (iconv -f UTF-16 -t UTF-8 {source.name})"
    elif source.kind == "dump":
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


def _is_wide(data: bytes) -> bool:
    """Whether every other byte of text without a byte-order mark is zero."""
    begin = data[:64]
    return len(begin) >= 8 and (not any(begin[1::2]) or not any(begin[0::2])) and any(begin)


def _object(line: bytes) -> dict[str, Any] | None:
    try:
        found = msgspec.json.decode(line)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        return None
    return found if isinstance(found, dict) else None


def rows_of_block(batch: pa.RecordBatch, source: Source, rules: Rules) -> pa.RecordBatch:
    """The rows (of schema ROWS) of a batch of schema BLOCKS with one block."""
    _, offsets, data = batch["data"].buffers()  # the scalar would be a copy
    start, end = np.frombuffer(offsets, np.int64)[batch["data"].offset :][:2].tolist()
    block = Block(data.slice(start, end - start), batch["first_line"][0].as_py(), batch["num_lines"][0].as_py())
    submissions = read_block(block, rules) if source.kind in ("dump", "subreddit") else _read_urls(block)
    return _row_maker(rules).rows(submissions, source.number, source.name)


def row_of_problem(source: Source, line: int, reason: Reason, note: str) -> pa.RecordBatch:
    """One row, for a line that is in no block, or for what is lost at the end of a broken source."""
    fields = {"line": line, "reason": str(reason), "note": note}
    submissions = pa.Table.from_pylist([fields], schema=SUBMISSIONS)
    return _row_maker(Rules()).rows(submissions, source.number, source.name)


@lru_cache(2)  # it remembers hosts from block to block
def _row_maker(rules: Rules) -> RowMaker:
    return RowMaker(rules)


def _read_urls(block: Block) -> pa.Table:
    """URLs, one per line, without submissions; blank lines and those that begin with `#` are skipped.

    Lines may end in CR alone. A line with a tab in it is a `bad_url`: it has columns, which would become one URL.
    """
    urls, notes, lines = [], [], []
    content = bytes(block.data).decode("utf-8-sig", "replace").replace("\r\n", "\n").replace("\r", "\n")
    for line, text in enumerate(content.split("\n"), block.first_line):
        text = text.strip()
        if text and not text.startswith("#"):
            has_columns = "\t" in text
            urls.append(None if has_columns else text)
            notes.append(f"a tab in {text[:100]!r}" if has_columns else None)
            lines.append(line)
    known = {
        "line": pa.array(lines, pa.int64()),
        "url": pa.array(urls, pa.string()),
        "note": pa.array(notes, pa.string()),
    }
    known["reason"] = pc.if_else(pc.is_valid(known["note"]), str(Reason.BAD_URL), None)
    columns = [known.get(field.name, pa.nulls(len(urls), field.type)) for field in SUBMISSIONS]
    return pa.Table.from_arrays(columns, schema=SUBMISSIONS)


class WarcUrlReader:
    """The target URI of each HTML response that is no redirect, in blocks with one URI per line.

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

    def __iter__(self) -> Iterator[Block]:
        urls, first = self._urls(), 1
        while some := list(islice(urls, _BLOCK_URLS)):
            yield Block("\n".join(some).encode(), first, len(some))
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
