"""The records of JSON Lines, Parquet, CSV and plain text files, one at a time.

Import, tables of links, evaluation sets and near-duplicates read them.

A JSON text may have what the standard does not allow but programs write: half of a surrogate pair,
which becomes a question mark, NaN and Infinity. Dates of Parquet become strings, since Python has
none of nanoseconds or after the year 9999.
"""

from __future__ import annotations

import codecs
import contextlib
import io
import json
import os
import shlex
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, BinaryIO

import orjson
import pyarrow as pa
import pyarrow.parquet as pq

from owt_pipeline.errors import UserError, raise_unless_damage
from owt_pipeline.formats.batches import strings_of
from owt_pipeline.formats.delimited import DelimitedTable
from owt_pipeline.formats.files import (
    COMPRESSED,
    find_files,
    format_of,
    texts_of_option,
)
from owt_pipeline.formats.lines import Decompressed, wide_encoding
from owt_pipeline.formats.parquet import parquet_rows
from owt_pipeline.formats.plain_text import articles, paragraphs
from owt_pipeline.storage.folder import describe_source, folder_of, open_source

MAX_RECORD_BYTES = 256 << 20
"""A longer line or text file is rejected as a bad record, since records are held in memory."""

SPLITS = ("file", "blank_lines", "wikitext", "lines")
"""How a plain text file is split: not at all, at blank lines, into the articles of WikiText, or
at every line end."""

# Lines that are too long are skipped in pieces of this size.
_SKIPPED_BYTES = 1 << 24


@dataclass(frozen=True)
class Record:
    """One record of a file.

    Attributes:
      where: the file and its line (JSON Lines, CSV, text) or row (Parquet), counted from 1.
      fields: the record's fields; None if it cannot be read.
      problem: why it cannot be read.
    """

    where: str
    fields: Mapping[str, Any] | None
    problem: str | None = None


def names_below_common_folder(paths: Iterable[str]) -> dict[str, str]:
    """Return the name of each file (path or URI) relative to the folder that all are in."""
    absolute = {path: _absolute(path) for path in sorted(paths)}
    if not absolute:
        return {}
    folder = os.path.commonpath([os.path.dirname(path) for path in absolute.values()])
    return {
        path: os.path.relpath(absolute_path, folder) for path, absolute_path in absolute.items()
    }


def _absolute(path: str) -> str:
    return "/" + path if "://" in path else os.path.abspath(path)


class MissingColumn(UserError):
    """A table lacks the column that it must have."""


def describe_file(
    path: str, name: str, recorded: Mapping[str, Any] | None = None
) -> dict[str, Any]:
    """Return what identifies a file of records in a key, as `describe_source`, and its `uri`.

    In a bucket, too, uncompressed formats are hashed completely, since they have no checksum.
    """
    entry = describe_source(path, recorded)
    if "seen" not in entry and not path.endswith(
        (*(f".{ending}" for ending in COMPRESSED), ".parquet")
    ):
        folder, file = folder_of(path)
        entry = {"bytes": entry["bytes"], "sha256": folder.sha256(file)}
    return {**entry, "name": name, "uri": path}


def parse_json(data: bytes) -> Any:
    """Return the value of a JSON text in UTF-8; raise ValueError for any other text."""
    try:
        return orjson.loads(data)
    except orjson.JSONDecodeError:
        pass
    try:
        # Python's parser takes NaN, Infinity and half of a surrogate pair.
        value = json.loads(data.decode())
        return json.loads(json.dumps(value, ensure_ascii=False).encode(errors="replace"))
    except RecursionError as error:
        raise ValueError("too many arrays or objects in each other") from error


def read_records(
    path: str,
    name: str,
    kind: str,
    *,
    columns: Iterable[str] | None,
    required: Iterable[str] = (),
    split_text: str = "file",
) -> Iterator[Record]:
    """Yield the records of one file, in order.

    Args:
      path: path or URI.
      name: what to call the file in `Record.where`.
      kind: one of FORMATS. A record of `text` has the single field `text`; those of `csv` are
        strings, named by the first row.
      columns: top-level columns to read from a Parquet file, in capitals or not; missing ones are
        ignored. Their bytes are strings, as some programs write them. None for all columns.
      required: a Parquet or CSV file must have at least one of these columns, in capitals or not.
      split_text: how a text file is split, one of SPLITS; files and articles are returned byte for
        byte.

    Raises:
      UserError: the file cannot be read, is damaged, or is not Parquet although `kind` is.
    """
    if kind == "parquet":
        chosen = None if columns is None else {column.lower() for column in columns}
        yield from _parquet_records(path, name, chosen, required)
        return
    with open_decompressed(path) as file:
        encoding = wide_encoding(file.peek(64))
        if encoding is not None and (kind != "text" or split_text == "lines"):
            raise UserError(
                f"{path}, line 1: {encoding}; expected UTF-8: convert it (iconv -f {encoding} -t "
                f"UTF-8 {name})"
            )
        if kind == "jsonl":
            yield from _json_records(file, path, name)
        elif kind == "csv":
            yield from _csv_records(file, path, name, required)
        elif split_text == "file":
            content = file.read(MAX_RECORD_BYTES + 1)
            yield _text_record(content, f"{name}:1", len(content))
        elif split_text == "lines":
            for number, line in enumerate(lines_of(file), start=1):
                yield _text_record(line.rstrip(b"\r\n"), f"{name}:{number}", len(line))
        else:
            split = articles if split_text == "wikitext" else paragraphs
            for piece in split(lines_of(file), MAX_RECORD_BYTES):
                yield _text_record(piece.content, f"{name}:{piece.line}", piece.num_bytes)


def texts_of_files(patterns: Sequence[str], text_field: str, what: str) -> Iterator[pa.Array]:
    """Yield the texts of files in bounded arrays of strings, with null for a missing text.

    Args:
      patterns: files, folders and globs.
      text_field: a name as in `field_value`.
      what: the name of the option or function, for errors.

    Raises:
      UserError: a file cannot be read; a record lacks the field, or its value is not a text.
    """
    return strings_of(_texts_of_records(patterns, text_field, what))


def _texts_of_records(patterns: Sequence[str], text_field: str, what: str) -> Iterator[str | None]:
    columns = {text_field, text_field.partition(".")[0]}
    for path in find_files(patterns, texts_of_option(what)):
        for record in read_records(path, path, format_of(path), columns=columns):
            fields = record.fields or {}
            text = field_value(fields, text_field, ...)
            if text is None or isinstance(text, str):
                yield text
                continue
            if record.problem is not None:
                problem = record.problem
            elif text is ...:
                problem = f"no field {text_field!r}; it has {', '.join(fields)}"
            else:
                problem = f"{text_field!r} is {type(text).__name__}, not text"
            raise UserError(f"{record.where}: {problem}")


def field_value(fields: Mapping[str, Any], name: str, absent: Any = None) -> Any:
    """Return the value of field `name`, or `absent`; `a.b` is field b of field a."""
    if name in fields:
        return fields[name]
    outer_name, dot, inner_name = name.partition(".")
    inner = fields.get(outer_name)
    if not dot or not isinstance(inner, Mapping):
        return absent
    return field_value(inner, inner_name, absent)


def _json_records(file: BinaryIO, path: str, name: str) -> Iterator[Record]:
    is_first = True
    for number, line in enumerate(lines_of(file), start=1):
        where = f"{name}:{number}"
        if len(line) > MAX_RECORD_BYTES:
            yield Record(where, None, f"longer than {MAX_RECORD_BYTES} bytes")
        elif line := line.removeprefix(codecs.BOM_UTF8).strip():
            if is_first:
                _check_is_json_lines(line, path)
                is_first = False
            try:
                fields = parse_json(line)
            except ValueError as error:
                yield Record(where, None, f"not JSON: {error}")
            else:
                if isinstance(fields, dict):
                    yield Record(where, fields)
                else:
                    yield Record(where, None, f"not a JSON object, but {_kind(fields)}")


def _check_is_json_lines(first_line: bytes, path: str) -> None:
    """Raise UserError for an array, and for an object over several lines."""
    value: Any = None
    with contextlib.suppress(ValueError):
        value = parse_json(first_line)
    is_array = isinstance(value, list) and any(isinstance(item, dict) for item in value)
    is_part = value is None and first_line.startswith((b"[", b"{"))
    if not is_array and not (is_part and first_line.endswith((b"[", b"{", b","))):
        return
    lines = shlex.quote(f"{path.removesuffix('.json')}-lines.jsonl")
    raise UserError(
        f"{path} is JSON over several lines, or an array; expected JSON Lines, an object on each "
        "line: convert it (jq -c 'if type == \"array\" then .[] else . end' "
        f"{shlex.quote(path)} > {lines})"
    )


def _csv_records(
    file: io.BufferedReader, path: str, name: str, required: Iterable[str]
) -> Iterator[Record]:
    """Yield the rows after the first, which names the columns."""
    table = DelimitedTable(file, path, MAX_RECORD_BYTES)
    if table.names:
        _require(path, table.names, required)
    for row in table:
        where = f"{name}:{row.line}"
        if row.problem is not None:
            yield Record(where, None, row.problem)
        else:
            yield Record(where, dict(zip(table.names, row.cells, strict=True)))


def _require(path: str, names: Sequence[str], required: Iterable[str]) -> None:
    """Raise MissingColumn if a file has none of the required columns."""
    columns = list(required)
    if columns and not any(name.lower() in columns for name in names):
        raise MissingColumn(
            f"{path} has no column {' or '.join(columns)}; it has {', '.join(names)[:300]}"
        )


def _kind(value: Any) -> str:
    names = {list: "an array", str: "a string", bool: "true or false", type(None): "null"}
    return names.get(type(value), "a number")


def lines_of(file: BinaryIO) -> Iterator[bytes]:
    """Yield the file's lines; a line over MAX_RECORD_BYTES is cut there and its rest skipped."""
    while line := file.readline(MAX_RECORD_BYTES + 1):
        piece = line
        # A short piece without an end is the end of the file.
        while len(piece) > 1 << 20 and not piece.endswith(b"\n"):
            piece = file.readline(_SKIPPED_BYTES)
        yield line


def _text_record(content: bytes, where: str, size: int) -> Record:
    if size > MAX_RECORD_BYTES:
        return Record(where, None, f"longer than {MAX_RECORD_BYTES} bytes")
    try:
        return Record(where, {"text": content.decode("utf-8-sig")})
    except UnicodeDecodeError as error:
        return Record(where, None, f"not UTF-8 at byte {error.start}; convert it first (iconv)")


def _parquet_records(
    path: str, name: str, columns: set[str] | None, required: Iterable[str] = ()
) -> Iterator[Record]:
    with open_source(path) as source:
        try:
            file = pq.ParquetFile(source)
            names = file.schema_arrow.names
            _require(path, names, required)
            present = [column for column in names if columns is None or column.lower() in columns]
            if not present:
                chosen = ", ".join(sorted(columns or ()))
                raise UserError(
                    f"{path} has none of the columns {chosen}; it has {', '.join(names)}"
                )
            rows = parquet_rows(file, present, reads_bytes=columns is not None)
            for number, fields in enumerate(rows, start=1):
                yield Record(f"{name}:{number}", fields)
        except (pa.ArrowException, OSError, ValueError, OverflowError) as error:
            raise_unless_damage(error, path)
            raise UserError(f"{path} cannot be read as Parquet: {error}") from error


@contextlib.contextmanager
def open_decompressed(path: str) -> Iterator[io.BufferedReader]:
    """Open a plain, gzip, bzip2, xz or zstd file (path or URI) as its content, read in pieces.

    Raises UserError, which names the file, if it is damaged or cut short: users can repair their
    own files, so import does not continue without the end, as collect does for dumps.
    """
    with open_source(path) as source:
        if not source.size() and path.lower().rpartition(".")[2] in COMPRESSED:
            raise UserError(f"{path} is compressed, but has no bytes; download or create it again")
        try:
            yield io.BufferedReader(Decompressed(source, strict=True), 1 << 20)
        except (EOFError, OSError) as error:
            raise_unless_damage(error, path)
            raise UserError(
                f"{path} is damaged or incomplete: {error}; download or create it again"
            ) from error
