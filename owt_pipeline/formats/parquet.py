"""The rows of Parquet files that other programs wrote, as Python can have them.

Dates become strings, since Python has none of nanoseconds or after the year 9999. A column of times
in an unknown time zone becomes None. A string that is not UTF-8 is an error that names its column.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from owt_pipeline.formats.completeness import check_is_complete

_MAX_BATCH_ROWS = 64
_MAX_BATCH_BYTES = 4 << 20


def parquet_rows(
    file: pq.ParquetFile,
    columns: Sequence[str],
    *,
    reads_bytes: bool = False,
) -> Iterator[dict[str, Any]]:
    """Yield each row as a dictionary.

    With `reads_bytes`, columns of bytes are read as strings, since some
    programs write strings so. Raises pa.ArrowException or OSError for a damaged file, also for a
    string that is not UTF-8.
    """
    num_rows = 0
    for batch in bounded_batches(file, columns):
        plain = _plain_batch(batch, reads_bytes)
        for name, column in zip(plain.schema.names, plain, strict=True):
            try:
                # A full validation decodes the strings.
                column.validate(full=True)
            except pa.ArrowInvalid as error:
                rows = f"rows {num_rows + 1} to {num_rows + plain.num_rows}"
                raise OSError(
                    f"column {name}, {rows}: {error}; write the column again, as UTF-8"
                ) from error
        num_rows += plain.num_rows
        yield from plain.to_pylist()


def bounded_batches(file: pq.ParquetFile, columns: Sequence[str]) -> Iterator[pa.RecordBatch]:
    """Yield the rows of a file in batches of a few megabytes; of long rows a few, since all rows of
    a batch are in memory.

    Raises pa.ArrowException or OSError for a damaged file, also for one with fewer rows than a row
    group declares, and for an encrypted column.
    """
    # One row group after the other: those with long rows do not slow the others.
    for number in range(file.num_row_groups):
        group = file.metadata.row_group(number)
        batches = file.iter_batches(
            batch_size=_rows_within_bytes(group),
            row_groups=[number],
            columns=list(columns),
        )
        num_rows = 0
        for batch in batches:
            num_rows += batch.num_rows
            yield batch
        # Arrow ends without an error if a column has fewer values than the row group declares.
        check_is_complete(f"row group {number}", num_rows, group.num_rows, "rows")


def _rows_within_bytes(group: pq.RowGroupMetaData) -> int:
    """Return how many rows of a row group are read at a time.

    The metadata of a single column is not read, because Arrow ends the process if the column is
    encrypted.
    """
    row_bytes = group.total_byte_size // max(group.num_rows, 1)
    return min(max(_MAX_BATCH_BYTES // max(row_bytes, 1), 1), _MAX_BATCH_ROWS)


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


def _plain(kind: pa.DataType) -> pa.DataType:
    """Return a type whose values Python can have: dates become strings, dictionaries values."""
    if pa.types.is_dictionary(kind):
        return _plain(kind.value_type)
    if pa.types.is_timestamp(kind) or pa.types.is_date(kind) or pa.types.is_time(kind):
        return pa.string()
    if pa.types.is_duration(kind):
        return pa.int64()
    if pa.types.is_struct(kind):
        return pa.struct([field.with_type(_plain(field.type)) for field in kind])
    if pa.types.is_map(kind):
        key_field = kind.key_field.with_type(_plain(kind.key_type))
        return pa.map_(key_field, kind.item_field.with_type(_plain(kind.item_type)))
    if pa.types.is_list(kind) or pa.types.is_large_list(kind) or pa.types.is_fixed_size_list(kind):
        return pa.large_list(kind.value_field.with_type(_plain(kind.value_type)))
    return kind


def _is_of_bytes(kind: pa.DataType) -> bool:
    types = pa.types
    has_offsets = types.is_binary(kind) or types.is_large_binary(kind) or types.is_binary_view(kind)
    return has_offsets or types.is_fixed_size_binary(kind)


def _has_time_zone(kind: pa.DataType) -> bool:
    if pa.types.is_timestamp(kind):
        return kind.tz is not None
    return any(_has_time_zone(kind.field(number).type) for number in range(kind.num_fields))
