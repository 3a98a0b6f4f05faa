"""The records of JSON Lines, Parquet, CSV and plain text files, one at a time: for import,
tables of links, evaluation sets and near-duplicates.

A JSON text may have what the standard does not allow but programs write: half of a surrogate pair,
which becomes a question mark, NaN and Infinity. Dates of Parquet become strings, since Python has
none of nanoseconds or after the year 9999.
"""

from __future__ import annotations

import codecs
import contextlib
import io
import itertools
import json
import os
import re
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, BinaryIO

import orjson
import pyarrow as pa
import pyarrow.parquet as pq

from owt_pipeline.errors import UserError
from owt_pipeline.formats.batches import strings_of
from owt_pipeline.formats.delimited import DelimitedTable
from owt_pipeline.formats.lines import Decompressed, is_utf16
from owt_pipeline.formats.parquet import parquet_rows
from owt_pipeline.storage.folder import (
    describe_source,
    each_once,
    expand_globs,
    folder_of,
    open_source,
)

MAX_RECORD_BYTES = 256 << 20
"""A longer line or text file is rejected as a bad record, since records are held in memory."""

FORMATS = ("jsonl", "parquet", "csv", "text")
_EXTENSIONS = {
    "jsonl": "jsonl", "ndjson": "jsonl", "json": "jsonl",
    "parquet": "parquet",
    "csv": "csv", "tsv": "csv",
    "txt": "text", "text": "text", "md": "text",
    # wiki.train.raw and wiki.train.tokens, as WikiText is published
    "raw": "text", "tokens": "text",
}  # fmt: skip
SPLITS = ("file", "blank_lines", "wikitext", "lines")
"""How a plain text file is split: not at all, at blank lines, into the articles of WikiText, or
at every line end."""
_COMPRESSED = ("gz", "zst", "xz", "bz2")
_TITLE = re.compile(
    rb" = (?!=)[^\n]*(?<!=) = \r?\n?"
)  # an article's title; " = = Career = = " is a section's


@dataclass(frozen=True)
class Record:
    """One record of a file.

    Attributes:
      where: the file and its line (JSON Lines, CSV, text) or row (Parquet), counted from 1.
      fields: the record's fields; None if it cannot be read.
      problem: why it cannot be read.
      undecodable: names of the fields whose strings are not UTF-8, `a.b` for field b of field a;
        their values are None.
    """

    where: str
    fields: Mapping[str, Any] | None
    problem: str | None = None
    undecodable: frozenset[str] = frozenset()


def known_format(path: str) -> str | None:
    """`jsonl`, `parquet`, `csv` or `text`, by the file's extension; None for an unknown one."""
    parts = path.rpartition("/")[2].lower().split(".")
    if parts[-1] in _COMPRESSED:
        parts.pop()
    return _EXTENSIONS.get(parts[-1]) if parts else None


def format_of(path: str) -> str:
    """`known_format`; raises UserError for an unknown extension."""
    kind = known_format(path)
    if kind is None:
        known = ", ".join(f".{name}" for name in _EXTENSIONS)
        raise UserError(f"{path}: unknown extension; use one of {known} (owt import: or --format)")
    return kind


def named_files(
    patterns: tuple[str, ...], what: str, *, by_extension: bool = True, known: Collection[str] = ()
) -> tuple[dict[str, str], list[str]]:
    """The name of each file by its path, and the paths left out; names are relative to the
    files' common folder, so they are distinct.

    Of a folder, files of unknown extensions are left out, and plain text next to tables, if
    `by_extension`: in a clone of a dataset repository, that is README.md. `what` is who asks, for
    errors. Files in `known` count even if they are gone.
    """
    named, left_out = list[str](), set[str]()
    for pattern in patterns:
        found = set(expand_globs((pattern,), what, known))
        is_folder = os.path.isdir(pattern) or (
            "://" in pattern and "*" not in pattern and found != {pattern}
        )
        if by_extension and is_folder:
            kinds = {path: known_format(path) for path in found}
            wanted = {"jsonl", "parquet", "csv"} & set(kinds.values()) or {"text"}
            found = {path for path in found if kinds[path] in wanted} or found
            left_out |= kinds.keys() - found
        named += sorted(found)
    paths = each_once(named, what)
    if not paths:
        return {}, []
    return names_below_common_folder(paths), sorted(left_out - set(paths))


def names_below_common_folder(paths: Iterable[str]) -> dict[str, str]:
    """Return the name of each file (path or URI) relative to the folder that all are in."""
    places = {
        path: "/" + path if "://" in path else os.path.abspath(path) for path in sorted(paths)
    }
    folder = os.path.commonpath([os.path.dirname(place) for place in places.values()])
    return {path: os.path.relpath(place, folder) for path, place in places.items()}


_TRAINING_SPLITS = {"train", "training"}
_HELD_OUT_SPLITS = {"test", "testing", "validation", "valid", "val", "dev", "eval", "heldout"}


def held_out_files(patterns: Sequence[str], names: Mapping[str, str]) -> list[str]:
    """Return the files of folders and globs that are named as a test or validation split, next to
    a training split.

    Args:
      patterns: the files, folders and globs that the user named.
      names: the name of each file by its path, as `named_files` returns them.
    """
    words = {path: _words_of_name(name) for path, name in names.items()}
    if not any(_TRAINING_SPLITS & of_file for of_file in words.values()):
        return []
    return [
        path
        for path, of_file in words.items()
        if _HELD_OUT_SPLITS & of_file and not _TRAINING_SPLITS & of_file and path not in patterns
    ]


def _words_of_name(name: str) -> set[str]:
    return set(re.split(r"[^a-z]+", name.lower()))


class MissingColumn(UserError):
    """A table lacks the column that it must have.

    Attributes:
      names: the columns that it has.
    """

    def __init__(self, message: str, names: Sequence[str]):
        super().__init__(message)
        self.names = list(names)


def describe_file(
    path: str, name: str, recorded: Mapping[str, Any] | None = None
) -> dict[str, Any]:
    """Return what identifies a file of records in a key, as `describe_source`, and its `uri`.

    In a bucket, too, uncompressed formats are hashed completely, since they have no checksum.
    """
    entry = describe_source(path, recorded)
    if "seen" not in entry and not path.endswith(
        (*(f".{ending}" for ending in _COMPRESSED), ".parquet")
    ):
        folder, file = folder_of(path)
        entry = {"bytes": entry["bytes"], "sha256": folder.sha256(file)}
    return {**entry, "name": name, "uri": path}


def parse_json(data: bytes) -> Any:
    """The value of a JSON text in UTF-8; raises ValueError if it is none."""
    try:
        return orjson.loads(data)
    except orjson.JSONDecodeError:
        pass
    try:
        value = json.loads(data.decode())  # takes NaN, Infinity and half of a surrogate pair
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
    """The records of one file, in order.

    Args:
      path: path or URI.
      name: what to call the file in `Record.where`.
      kind: one of FORMATS. A record of `text` has the single field `text`; those of `csv` are
        strings, named by the first row.
      columns: top-level columns to read from a Parquet file, in capitals or not; missing ones are
        ignored. None for all.
      required: columns of which a Parquet or CSV file must have at least one, in capitals or not.
      split_text: how a text file is split, one of SPLITS; files and articles are returned byte for
        byte.

    Raises:
      UserError: the file cannot be read, is damaged, or is not Parquet although `kind` says so.
    """
    if kind == "parquet":
        wanted = None if columns is None else {column.lower() for column in columns}
        yield from _parquet_records(path, name, wanted, required)
        return
    with open_decompressed(path) as file:
        if (kind != "text" or split_text == "lines") and is_utf16(file.peek(64)):
            raise UserError(
                f"{path}, line 1: UTF-16; expected UTF-8: convert it (iconv -f UTF-16 -t UTF-8 "
                f"{name})"
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
            yield from _split_records(file, name, split_text == "wikitext")


def texts_of_files(patterns: Sequence[str], text_field: str, what: str) -> Iterator[pa.Array]:
    """The texts of files (paths, globs or URIs), in arrays of strings of bounded size; null
    where a text is missing.

    `text_field` is as in `field_value`, `what` is who asks, for errors. Raises UserError for a file
    that cannot be read, and for a record without the field, or whose field is no text.
    """
    return strings_of(_texts_of_records(patterns, text_field, what))


def _texts_of_records(patterns: Sequence[str], text_field: str, what: str) -> Iterator[str | None]:
    columns = {text_field, text_field.partition(".")[0]}
    for path in expand_globs(tuple(patterns), what):
        for record in read_records(path, path, format_of(path), columns=columns):
            if text_field in record.undecodable:
                raise UserError(f"{record.where}: not UTF-8 in column {text_field!r}")
            text = field_value(record.fields or {}, text_field, ...)
            if not isinstance(text, (str, type(None))):
                missing = f"no field {text_field!r}; it has {', '.join(record.fields or {})}"
                wrong = (
                    missing if text is ... else f"{text_field!r} is {type(text).__name__}, not text"
                )
                raise UserError(f"{record.where}: {record.problem or wrong}")
            yield text


def field_value(fields: Mapping[str, Any], name: str, absent: Any = None) -> Any:
    """The value of field `name`, or `absent`; `a.b` is field b of field a."""
    if name in fields:
        return fields[name]
    head, dot, rest = name.partition(".")
    inner = fields.get(head)
    return field_value(inner, rest, absent) if dot and isinstance(inner, Mapping) else absent


def _json_records(file: BinaryIO, path: str, name: str) -> Iterator[Record]:
    is_first = True
    for number, line in enumerate(lines_of(file), start=1):
        where = f"{name}:{number}"
        if len(line) > MAX_RECORD_BYTES:
            yield Record(where, None, f"longer than {MAX_RECORD_BYTES} bytes")
        elif line := json_text_of(line):
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
    """Raise UserError for one JSON text in place of a text on each line."""
    value: Any = None
    with contextlib.suppress(ValueError):
        value = parse_json(first_line)
    goes_on = value is None and first_line.endswith((b"[", b"{", b","))
    is_array = isinstance(value, list) and any(isinstance(item, dict) for item in value)
    if first_line.startswith(b"[") and (is_array or goes_on):
        raise UserError(
            f"{path} is a JSON array; expected JSON Lines, an object on each line: convert it "
            f"(jq -c '.[]' {path} > {_named_as_lines(path)})"
        )
    if first_line.startswith(b"{") and goes_on:
        raise UserError(
            f"{path} is pretty-printed JSON, with objects over several lines; expected JSON Lines, "
            f"an object on each line: convert it (jq -c . {path} > {_named_as_lines(path)})"
        )


def _named_as_lines(path: str) -> str:
    folder, slash, file = path.rpartition("/")
    return f"{folder}{slash}{file.partition('.')[0]}-lines.jsonl"


def _csv_records(file: BinaryIO, path: str, name: str, required: Iterable[str]) -> Iterator[Record]:
    """Yield the rows after the first, which names the columns."""
    table = DelimitedTable(file, MAX_RECORD_BYTES)
    if table.names:
        _require(path, table.names, required)
    for row in table:
        where = f"{name}:{row.line}"
        if row.problem is not None:
            yield Record(where, None, row.problem)
        else:
            yield Record(where, dict(zip(table.names, row.cells, strict=True)))
    if table.unclosed_line is not None:
        raise UserError(
            f"{path}, line {table.unclosed_line}: the file ends within quotes; expected a closing "
            "quote"
        )


def _require(path: str, names: Sequence[str], required: Iterable[str]) -> None:
    wanted = list(required)
    if wanted and not any(name.lower() in wanted for name in names):
        raise MissingColumn(
            f"{path} has no column {' or '.join(wanted)}; it has {', '.join(names)[:300]}", names
        )


def _kind(value: Any) -> str:
    return {list: "an array", str: "a string", bool: "true or false", type(None): "null"}.get(
        type(value), "a number"
    )


def json_text_of(line: bytes) -> bytes:
    """Return a line without its end and a byte order mark; empty if it has no record."""
    return line.removeprefix(codecs.BOM_UTF8).strip()


def lines_of(file: BinaryIO) -> Iterator[bytes]:
    """Yield the file's lines; a line over MAX_RECORD_BYTES is cut there and its rest skipped."""
    while line := file.readline(MAX_RECORD_BYTES + 1):
        rest = line
        while len(rest) > 1 << 20 and not rest.endswith(b"\n"):
            rest = file.readline(1 << 24)
        yield line


def _split_records(file: BinaryIO, name: str, wikitext: bool) -> Iterator[Record]:
    """Paragraphs separated by blank lines, or WikiText articles; the first article includes the
    blank line before its title. In a file without blank lines, a title alone starts an article."""
    waiting: list[bytes] = []
    start = size = 0
    has_text, after_blank, seen_blank = False, True, False
    for number, line in enumerate(itertools.chain(lines_of(file), [b""]), start=1):
        blank = not line.strip()
        is_title = (
            wikitext and (after_blank or not seen_blank) and has_text and _TITLE.fullmatch(line)
        )
        if waiting and (is_title or not line or (blank and not wikitext)):
            content = b"".join(waiting)
            yield _text_record(
                content if wikitext else content.strip(b"\n"), f"{name}:{start}", size
            )
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
                wanted = ", ".join(sorted(columns or ()))
                raise UserError(
                    f"{path} has none of the columns {wanted}; it has {', '.join(names)}"
                )
            rows = parquet_rows(source, file, present)
            for number, (fields, undecodable) in enumerate(rows, start=1):
                yield Record(f"{name}:{number}", fields, undecodable=undecodable)
        except (pa.ArrowException, OSError) as error:
            raise UserError(f"{path} cannot be read as Parquet: {error}") from error


@contextlib.contextmanager
def open_decompressed(path: str) -> Iterator[io.BufferedReader]:
    """The content of a plain, gzip, bzip2, xz or zstd file (path or URI), read in pieces.

    Raises UserError naming the file if it is damaged or cut short: users can repair their own
    files, so import does not continue without the end, as collect does for dumps.
    """
    with open_source(path) as source:
        if not source.size() and path.lower().rpartition(".")[2] in _COMPRESSED:
            raise UserError(f"{path} is compressed, but has no bytes; download or create it again")
        try:
            yield io.BufferedReader(Decompressed(source, strict=True), 1 << 20)
        except (EOFError, OSError) as error:
            raise UserError(
                f"{path} is damaged or incomplete: {error}; download or create it again"
            ) from error
