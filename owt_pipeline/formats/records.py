"""The records of JSON Lines, Parquet, CSV and plain text files, one at a time: for import,
tables of links, evaluation sets and near-duplicates.

A JSON text may have what the standard does not allow but programs write: half of a surrogate pair,
which becomes a question mark, NaN and Infinity. Dates of Parquet become strings, since Python has
none of nanoseconds or after the year 9999.
"""

from __future__ import annotations

import contextlib
import csv
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
from owt_pipeline.formats.lines import Decompressed, is_utf16
from owt_pipeline.storage.folder import (
    describe_source,
    each_once,
    expand_globs,
    folder_of,
    open_source,
)

MAX_RECORD_BYTES = 256 << 20
"""A longer line or text file is rejected as a bad record, since records are held in memory."""

_BATCH_ROWS, _BATCH_BYTES = 1024, 4 << 20  # of texts

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
    """

    where: str
    fields: Mapping[str, Any] | None
    problem: str | None = None


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
    places = {
        path: "/" + path if "://" in path else os.path.abspath(path) for path in sorted(paths)
    }
    folder = os.path.commonpath([os.path.dirname(place) for place in places.values()])
    return {path: os.path.relpath(place, folder) for path, place in places.items()}, sorted(
        left_out - set(paths)
    )


def describe_file(path: str, name: str) -> dict[str, Any]:
    """What identifies a file in a key; uncompressed formats have no checksum, so their complete
    content is hashed."""
    entry = describe_source(path)
    if not path.endswith((*(f".{ending}" for ending in _COMPRESSED), ".parquet")):
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
            yield from _json_records(file, name)
        elif kind == "csv":
            yield from _csv_records(file, path, name, required)
        elif split_text == "file":
            content = file.read(MAX_RECORD_BYTES + 1)
            yield _text_record(content, f"{name}:1", len(content))
        elif split_text == "lines":
            for number, line in enumerate(_lines(file), start=1):
                yield _text_record(line.rstrip(b"\r\n"), f"{name}:{number}", len(line))
        else:
            yield from _split_records(file, name, split_text == "wikitext")


def texts_of_files(patterns: Sequence[str], text_field: str, what: str) -> Iterator[pa.Array]:
    """The texts of files (paths, globs or URIs), in arrays of strings of bounded size; null
    where a text is missing.

    `text_field` is as in `field_value`, `what` is who asks, for errors. Raises UserError for a file
    that cannot be read, and for a record without the field, or whose field is no text.
    """
    columns = {text_field, text_field.partition(".")[0]}
    waiting: list[str | None] = []
    size = 0
    for path in expand_globs(tuple(patterns), what):
        for record in read_records(path, path, format_of(path), columns=columns):
            text = field_value(record.fields or {}, text_field, ...)
            if not isinstance(text, (str, type(None))):
                missing = f"no field {text_field!r}; it has {', '.join(record.fields or {})}"
                wrong = (
                    missing if text is ... else f"{text_field!r} is {type(text).__name__}, not text"
                )
                raise UserError(f"{record.where}: {record.problem or wrong}")
            waiting.append(text)
            size += len(text or "")
            if len(waiting) == _BATCH_ROWS or size >= _BATCH_BYTES:
                yield as_strings(waiting)
                waiting, size = [], 0
    if waiting:
        yield as_strings(waiting)


def as_strings(texts: Sequence[str | None]) -> pa.Array:
    """An array of strings; half of a surrogate pair becomes a question mark."""
    try:
        return pa.array(texts, pa.string())
    except (UnicodeEncodeError, pa.ArrowInvalid):
        return pa.array(
            [text and text.encode("utf-8", "replace").decode() for text in texts], pa.string()
        )


def field_value(fields: Mapping[str, Any], name: str, absent: Any = None) -> Any:
    """The value of field `name`, or `absent`; `a.b` is field b of field a."""
    if name in fields:
        return fields[name]
    head, dot, rest = name.partition(".")
    inner = fields.get(head)
    return field_value(inner, rest, absent) if dot and isinstance(inner, Mapping) else absent


def _json_records(file: BinaryIO, name: str) -> Iterator[Record]:
    for number, line in enumerate(_lines(file), start=1):
        where = f"{name}:{number}"
        if len(line) > MAX_RECORD_BYTES:
            yield Record(where, None, f"longer than {MAX_RECORD_BYTES} bytes")
        elif line := line.removeprefix(b"\xef\xbb\xbf").strip():
            try:
                fields = parse_json(line)
            except ValueError as error:
                yield Record(where, None, f"not JSON: {error}")
            else:
                if isinstance(fields, dict):
                    yield Record(where, fields)
                else:
                    yield Record(where, None, f"not a JSON object, but {_kind(fields)}")


def _csv_records(file: BinaryIO, path: str, name: str, required: Iterable[str]) -> Iterator[Record]:
    """The rows after the first, which names the columns; it also says what separates them."""
    csv.field_size_limit(MAX_RECORD_BYTES)
    text = io.TextIOWrapper(file, "utf-8-sig", errors="surrogateescape", newline="")
    first = text.readline(1 << 20)
    separators = [separator for separator in ",\t;" if separator in first] or [
        "\x1f"
    ]  # one column has no separator
    form: dict[str, Any] = {"delimiter": max(separators, key=first.count), "strict": True}
    names = [
        column.strip() for column in next(csv.reader([first], delimiter=form["delimiter"]), [])
    ]
    if names:
        _require(path, names, required)
    rows, line = csv.reader(text, **form), 2
    while True:
        where, problem = f"{name}:{line}", None
        try:
            cells = next(rows, None)
        except csv.Error as error:
            if str(error) == "unexpected end of data":
                raise UserError(
                    f"{path}, line {line}: the file ends within quotes; expected a closing quote"
                ) from None
            cells, problem = [], f"not CSV: {error}"
        line = rows.line_num + 2
        if cells is None:
            return
        if not problem and not _is_unicode(cells):
            problem = "not UTF-8"
        if not problem and cells and len(cells) != len(names):
            problem = f"{len(cells)} cells; the first row names {len(names)} columns"
        if problem:
            yield Record(where, None, problem)
        elif cells:
            yield Record(where, dict(zip(names, cells, strict=True)))


def _require(path: str, names: Sequence[str], required: Iterable[str]) -> None:
    wanted = list(required)
    if wanted and not any(name.lower() in wanted for name in names):
        raise UserError(
            f"{path} has no column {' or '.join(wanted)}; it has {', '.join(names)[:300]}"
        )


def _is_unicode(cells: list[str]) -> bool:
    try:
        "".join(cells).encode()
    except UnicodeEncodeError:
        return False
    return True


def _kind(value: Any) -> str:
    return {list: "an array", str: "a string", bool: "true or false", type(None): "null"}.get(
        type(value), "a number"
    )


def _lines(file: BinaryIO) -> Iterator[bytes]:
    """The file's lines; a line over MAX_RECORD_BYTES is cut there and its rest skipped."""
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
    for number, line in enumerate(itertools.chain(_lines(file), [b""]), start=1):
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
            number = 0
            for batch in file.iter_batches(batch_size=64, columns=present):
                for fields, problem in _rows_of(batch):
                    number += 1
                    yield Record(f"{name}:{number}", fields, problem)
        except (pa.ArrowException, OSError) as error:
            raise UserError(f"{path} cannot be read as Parquet: {error}") from error


def _rows_of(batch: pa.RecordBatch) -> Iterator[tuple[dict[str, Any] | None, str | None]]:
    """Each row, or why Python cannot have it."""
    batch = batch.cast(pa.schema([field.with_type(_plain(field.type)) for field in batch.schema]))
    rows = (
        [batch]
        if _is_valid(batch)
        else [batch.take(pa.array([row])) for row in range(batch.num_rows)]
    )
    for some in rows:
        if len(rows) == 1 or _is_valid(some):
            yield from ((fields, None) for fields in some.to_pylist())
        else:
            bad = [
                field.name
                for field, array in zip(some.schema, some, strict=True)
                if not _is_valid(array)
            ]
            yield None, f"not UTF-8 in column {', '.join(bad)}"


def _is_valid(data: pa.RecordBatch | pa.Array) -> bool:
    try:
        data.validate(full=True)  # which decodes its strings
    except pa.ArrowInvalid:
        return False
    return True


def _plain(kind: pa.DataType) -> pa.DataType:
    """A type whose values Python can have, with a row's own values: dates as strings,
    dictionaries looked up."""
    if pa.types.is_dictionary(kind):
        return _plain(kind.value_type)
    if pa.types.is_timestamp(kind) or pa.types.is_date(kind) or pa.types.is_time(kind):
        return pa.string()
    if pa.types.is_duration(kind):
        return pa.int64()
    if pa.types.is_struct(kind):
        return pa.struct([field.with_type(_plain(field.type)) for field in kind])
    if pa.types.is_map(kind):
        return pa.map_(
            kind.key_field.with_type(_plain(kind.key_type)),
            kind.item_field.with_type(_plain(kind.item_type)),
        )
    if pa.types.is_list(kind) or pa.types.is_large_list(kind) or pa.types.is_fixed_size_list(kind):
        return pa.large_list(kind.value_field.with_type(_plain(kind.value_type)))
    return kind


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
