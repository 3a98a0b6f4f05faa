"""The rows of Parquet files that other programs wrote, as Python can have them.

Dates become strings, since Python has none of nanoseconds or after the year 9999. A string that is
not UTF-8 becomes None, and its field is named; so does a column of times in an unknown time zone.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

_MAX_BATCH_ROWS = 64
_MAX_BATCH_BYTES = 4 << 20

# A text that many rows have is stored once, in a dictionary. So a batch may have this many bytes of
# texts from a column's dictionary. Programs end a dictionary at about a megabyte, so that only
# files with longer texts in one come in smaller batches for that.
_MAX_REPEATED_BYTES = 64 << 20

# The first two fields in the header of a dictionary's page, each an i32: the type, which is 2, and
# the uncompressed size. Numbers are zigzag varints, so 2 is written as 4.
_DICTIONARY_PAGE = re.compile(rb"\x15\x04\x15([\x80-\xff]{0,4}[\x00-\x7f])", re.DOTALL)
_MAX_HEADER_BYTES = 8

_INTACT: frozenset[str] = frozenset()


def parquet_rows(
    source: pa.NativeFile,
    file: pq.ParquetFile,
    columns: Sequence[str],
    *,
    reads_bytes: bool = False,
) -> Iterator[tuple[dict[str, Any], frozenset[str]]]:
    """Yield each row with the names of its fields that are not UTF-8, as `Record` has them.

    `file` reads `source`. With `reads_bytes`, columns of bytes are read as strings, since some
    programs write strings so. Raises pa.ArrowException or OSError for a damaged file.
    """
    for batch in bounded_batches(source, file, columns):
        plain = _plain_batch(batch, reads_bytes)
        try:
            # A full validation decodes the strings.
            plain.validate(full=True)
        except pa.ArrowInvalid:
            yield from _rows_with_invalid_strings(plain)
        else:
            yield from ((fields, _INTACT) for fields in plain.to_pylist())


def bounded_batches(
    source: pa.NativeFile, file: pq.ParquetFile, columns: Sequence[str]
) -> Iterator[pa.RecordBatch]:
    """Yield the rows of a file in batches of a few megabytes; of long rows a few, since all rows of
    a batch are in memory.

    `file` reads `source`. Raises pa.ArrowException or OSError for a damaged file.
    """
    # One row group after the other: those with long rows do not slow the others.
    for number in range(file.num_row_groups):
        group = file.metadata.row_group(number)
        yield from file.iter_batches(
            batch_size=_rows_within_bytes(source, group, columns),
            row_groups=[number],
            columns=list(columns),
        )


def _rows_within_bytes(
    source: pa.NativeFile, group: pq.RowGroupMetaData, columns: Sequence[str]
) -> int:
    """Return how many rows of a row group are read at a time."""
    row_bytes = group.total_byte_size // max(group.num_rows, 1)
    prefixes = tuple(f"{column}." for column in columns)
    repeated_bytes = 0
    for number in range(group.num_columns):
        chunk = group.column(number)
        if f"{chunk.path_in_schema}.".startswith(prefixes):
            repeated_bytes = max(repeated_bytes, _dictionary_bytes(source, chunk))
    num_rows = min(
        _MAX_BATCH_BYTES // max(row_bytes, 1), _MAX_REPEATED_BYTES // max(repeated_bytes, 1)
    )
    return min(max(num_rows, 1), _MAX_BATCH_ROWS)


def _dictionary_bytes(source: pa.NativeFile, chunk: pq.ColumnChunkMetaData) -> int:
    """Return the uncompressed bytes of a column's dictionary in a row group; 0 without one.

    Of a small column, the bytes of the column are returned, which are not fewer.
    """
    if not chunk.has_dictionary_page or chunk.physical_type != "BYTE_ARRAY":
        return 0
    column_bytes = int(chunk.total_uncompressed_size)
    if column_bytes * _MAX_BATCH_ROWS <= _MAX_REPEATED_BYTES:
        return column_bytes
    # The metadata has only the size of the column. The size of a page is in the page's header, a
    # struct in Thrift's compact protocol: field 1 is the type, field 2 the uncompressed size.
    header = source.read_at(_MAX_HEADER_BYTES, chunk.dictionary_page_offset)
    fields = _DICTIONARY_PAGE.match(header)
    if fields is None:
        return column_bytes
    zigzag = 0
    for position, byte in enumerate(fields[1]):
        zigzag |= (byte & 0x7F) << (7 * position)
    return zigzag >> 1


def _plain_batch(batch: pa.RecordBatch, reads_bytes: bool) -> pa.RecordBatch:
    columns = {}
    for field, column in zip(batch.schema, batch, strict=True):
        kind = _plain(field.type)
        if reads_bytes and _is_of_bytes(kind):
            kind = pa.large_string()
        # What is not UTF-8 is found by the full validation.
        options = pc.CastOptions(target_type=kind, allow_invalid_utf8=True)
        try:
            columns[field.name] = pc.cast(column, options=options)
        except (pa.ArrowInvalid, pa.ArrowKeyError, pa.ArrowNotImplementedError):
            # Arrow writes a time as text by its zone's rules, and does not know this zone.
            if not _has_time_zone(field.type):
                raise
            columns[field.name] = pa.nulls(len(column), kind)
    return pa.RecordBatch.from_arrays(list(columns.values()), names=list(columns))


def _plain(kind: pa.DataType, string: pa.DataType | None = None) -> pa.DataType:
    """Return a type whose values Python can have: dates become strings, dictionaries their values.

    Strings become `string`, if it is given.
    """
    if pa.types.is_dictionary(kind):
        return _plain(kind.value_type, string)
    if pa.types.is_timestamp(kind) or pa.types.is_date(kind) or pa.types.is_time(kind):
        return string or pa.string()
    if pa.types.is_string(kind) or pa.types.is_large_string(kind) or pa.types.is_string_view(kind):
        return string or kind
    if pa.types.is_duration(kind):
        return pa.int64()
    if pa.types.is_struct(kind):
        return pa.struct([field.with_type(_plain(field.type, string)) for field in kind])
    if pa.types.is_map(kind):
        return pa.map_(
            kind.key_field.with_type(_plain(kind.key_type, string)),
            kind.item_field.with_type(_plain(kind.item_type, string)),
        )
    if pa.types.is_list(kind) or pa.types.is_large_list(kind) or pa.types.is_fixed_size_list(kind):
        return pa.large_list(kind.value_field.with_type(_plain(kind.value_type, string)))
    return kind


def _is_of_bytes(kind: pa.DataType) -> bool:
    types = pa.types
    has_offsets = types.is_binary(kind) or types.is_large_binary(kind) or types.is_binary_view(kind)
    return has_offsets or types.is_fixed_size_binary(kind)


def _has_time_zone(kind: pa.DataType) -> bool:
    if pa.types.is_timestamp(kind):
        return kind.tz is not None
    return any(_has_time_zone(kind.field(number).type) for number in range(kind.num_fields))


def _rows_with_invalid_strings(
    batch: pa.RecordBatch,
) -> Iterator[tuple[dict[str, Any], frozenset[str]]]:
    """Yield the rows of a plain batch, read as bytes, which are decoded one by one."""
    kinds = {field.name: field.type for field in batch.schema}
    as_bytes = batch.cast(
        pa.schema(
            [field.with_type(_plain(field.type, pa.large_binary())) for field in batch.schema]
        )
    )
    for row in as_bytes.to_pylist():
        undecodable: set[str] = set()
        fields = {
            name: _decoded(value, kinds[name], name, undecodable) for name, value in row.items()
        }
        yield fields, frozenset(undecodable)


def _decoded(value: Any, kind: pa.DataType, name: str, undecodable: set[str]) -> Any:
    """Return the value with its strings decoded; add the names of those that are not UTF-8."""
    if value is None:
        return None
    if pa.types.is_string(kind) or pa.types.is_large_string(kind) or pa.types.is_string_view(kind):
        try:
            return value.decode()
        except UnicodeDecodeError:
            undecodable.add(name)
            return None
    if pa.types.is_struct(kind):
        return {
            field.name: _decoded(value[field.name], field.type, f"{name}.{field.name}", undecodable)
            for field in kind
        }
    if pa.types.is_large_list(kind):
        return [_decoded(item, kind.value_type, name, undecodable) for item in value]
    if pa.types.is_map(kind):
        return [
            (
                _decoded(key, kind.key_type, name, undecodable),
                _decoded(item, kind.item_type, name, undecodable),
            )
            for key, item in value
        ]
    return value
