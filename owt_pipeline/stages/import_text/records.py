"""The records of JSON Lines, Parquet and plain text files, one at a time."""

from __future__ import annotations

import contextlib
import io
import itertools
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, BinaryIO

import orjson
import pyarrow as pa
import pyarrow.parquet as pq

from owt_pipeline.errors import UserError
from owt_pipeline.formats.lines import Decompressor
from owt_pipeline.storage.folder import open_source

MAX_RECORD_BYTES = 256 << 20
"""A longer line or text file is rejected as a bad record, since records are held in memory."""

FORMATS = ("jsonl", "parquet", "text")
_EXTENSIONS = {
    "jsonl": "jsonl", "ndjson": "jsonl", "json": "jsonl",
    "parquet": "parquet",
    "txt": "text", "text": "text", "md": "text",
    "raw": "text", "tokens": "text",  # wiki.train.raw and wiki.train.tokens, as WikiText is published
}  # fmt: skip
SPLITS = ("file", "blank_lines", "wikitext")
"""How a plain text file is split: not at all, at blank lines, or into the articles of WikiText."""
_COMPRESSED = ("gz", "zst", "xz", "bz2")
_TITLE = re.compile(rb" = (?!=)[^\n]*(?<!=) = \r?\n?")  # an article's title; " = = Career = = " is a section's


@dataclass(frozen=True)
class Record:
    """One record of a file.

    Attributes:
      where: the file and its line (JSON Lines, text) or row (Parquet), counted from 1.
      fields: the record's fields; None if it cannot be read.
      problem: why it cannot be read.
    """

    where: str
    fields: Mapping[str, Any] | None
    problem: str | None = None


def format_of(path: str) -> str:
    """`jsonl`, `parquet` or `text`, by the file's extension; raises UserError for an unknown extension."""
    parts = path.rpartition("/")[2].lower().split(".")
    if parts[-1] in _COMPRESSED:
        parts.pop()
    kind = _EXTENSIONS.get(parts[-1])
    if kind is None:
        known = ", ".join(f".{name}" for name in _EXTENSIONS)
        raise UserError(f"{path}: unknown extension; use one of {known} (owt import: or --format)")
    return kind


def read_records(path: str, name: str, kind: str, *, columns: Iterable[str], split_text: str) -> Iterator[Record]:
    """The records of one file, in order.

    Args:
      path: path or URI.
      name: what to call the file in `Record.where`.
      kind: `jsonl`, `parquet` or `text`. A record of `text` has the single field `text`.
      columns: top-level columns to read from a Parquet file; missing ones are ignored.
      split_text: how a text file is split, one of SPLITS; files and articles are returned byte for byte.

    Raises:
      UserError: the file cannot be read, is damaged, or is not Parquet although `kind` says so.
    """
    if kind == "parquet":
        yield from _parquet_records(path, name, set(columns))
        return
    with open_decompressed(path) as file:
        if kind == "jsonl":
            yield from _json_records(file, name)
        elif split_text == "file":
            content = file.read(MAX_RECORD_BYTES + 1)
            yield _text_record(content, f"{name}:1", len(content))
        else:
            yield from _split_records(file, name, split_text == "wikitext")


def _json_records(file: BinaryIO, name: str) -> Iterator[Record]:
    for number, line in enumerate(_lines(file), start=1):
        where = f"{name}:{number}"
        if len(line) > MAX_RECORD_BYTES:
            yield Record(where, None, f"longer than {MAX_RECORD_BYTES} bytes")
        elif line := line.removeprefix(b"\xef\xbb\xbf").strip():
            try:
                fields = orjson.loads(line)
            except orjson.JSONDecodeError as error:
                yield Record(where, None, f"not JSON: {error}")
            else:
                if isinstance(fields, dict):
                    yield Record(where, fields)
                else:
                    yield Record(where, None, f"not a JSON object, but {_kind(fields)}")


def _kind(value: Any) -> str:
    return {list: "an array", str: "a string", bool: "true or false", type(None): "null"}.get(type(value), "a number")


def _lines(file: BinaryIO) -> Iterator[bytes]:
    """The file's lines; a line over MAX_RECORD_BYTES is cut there and its rest skipped."""
    while line := file.readline(MAX_RECORD_BYTES + 1):
        rest = line
        while len(rest) > 1 << 20 and not rest.endswith(b"\n"):
            rest = file.readline(1 << 24)
        yield line


def _split_records(file: BinaryIO, name: str, wikitext: bool) -> Iterator[Record]:
    """Paragraphs separated by blank lines, or WikiText articles; the first article includes the blank line before its
    title. In a file without blank lines, a title alone starts an article."""
    waiting: list[bytes] = []
    start = size = 0
    has_text, after_blank, seen_blank = False, True, False
    for number, line in enumerate(itertools.chain(_lines(file), [b""]), start=1):
        blank = not line.strip()
        is_title = wikitext and (after_blank or not seen_blank) and has_text and _TITLE.fullmatch(line)
        if waiting and (is_title or not line or (blank and not wikitext)):
            content = b"".join(waiting)
            yield _text_record(content if wikitext else content.strip(b"\n"), f"{name}:{start}", size)
            waiting, size, has_text = [], 0, False
        if wikitext or not blank:
            start = start if waiting else number
            size += len(line)
            if size <= MAX_RECORD_BYTES + 1 or not waiting:  # a larger record is rejected anyway
                waiting.append(line)
            has_text = has_text or not blank
        after_blank, seen_blank = blank, seen_blank or blank


def _text_record(content: bytes, where: str, size: int) -> Record:
    if size > MAX_RECORD_BYTES:
        return Record(where, None, f"longer than {MAX_RECORD_BYTES} bytes")
    try:
        return Record(where, {"text": content.decode("utf-8-sig")})
    except UnicodeDecodeError as error:
        return Record(where, None, f"not UTF-8 at byte {error.start}; convert it first (iconv)")


def _parquet_records(path: str, name: str, columns: set[str]) -> Iterator[Record]:
    with open_source(path) as source:
        try:
            file = pq.ParquetFile(source)
            present = [column for column in file.schema_arrow.names if column in columns]
            if not present:
                found = ", ".join(file.schema_arrow.names)
                raise UserError(f"{path} has none of the columns {', '.join(sorted(columns))}; it has {found}")
            number = 0
            for batch in file.iter_batches(batch_size=64, columns=present):
                for fields in batch.to_pylist():
                    number += 1
                    yield Record(f"{name}:{number}", fields)
        except (pa.ArrowException, OSError) as error:
            raise UserError(f"{path} cannot be read as Parquet: {error}") from error


@contextlib.contextmanager
def open_decompressed(path: str) -> Iterator[BinaryIO]:
    """The content of a plain, gzip, bzip2, xz or zstd file (path or URI), read in pieces.

    Raises UserError naming the file if it is damaged or cut short: users can repair their own files, so import does
    not continue without the end, as collect does for dumps.
    """
    with open_source(path) as source:
        try:
            yield io.BufferedReader(_Decompressed(Decompressor(source)), 1 << 20)
        except (EOFError, OSError) as error:
            raise UserError(f"{path} is damaged or incomplete: {error}; download or create it again") from error


class _Decompressed(io.RawIOBase):
    def __init__(self, source: Decompressor):
        self._source, self._pieces, self._ready = source, iter(source), memoryview(b"")

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        if not self._ready:
            self._ready = memoryview(next(self._pieces, b""))
            if not self._ready and self._source.broken is not None:
                raise EOFError(self._source.broken)
        size = min(len(buffer), len(self._ready))
        buffer[:size], self._ready = self._ready[:size], self._ready[size:]
        return size
