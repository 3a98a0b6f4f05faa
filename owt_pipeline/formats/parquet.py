"""The rows of Parquet files that other programs wrote, as Python can have them.

A column of dates or times becomes strings, since Python has none of nanoseconds or after the year
9999. A string that is not UTF-8 is an error that names its column.
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
    string that is not UTF-8, and ValueError or OverflowError for a time within a structure that
    Python does not have.
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
    """Return the batch with values that Python can have, decoded from dictionaries."""
    columns = {}
    for name, column in zip(batch.schema.names, batch, strict=True):
        if pa.types.is_dictionary(column.type):
            column = column.dictionary_decode()
        if pa.types.is_temporal(column.type) and not pa.types.is_duration(column.type):
            column = column.cast(pa.string())
        elif reads_bytes and _is_of_bytes(column.type):
            # What is not UTF-8 is found by the full validation.
            options = pc.CastOptions(target_type=pa.large_string(), allow_invalid_utf8=True)
            column = pc.cast(column, options=options)
        columns[name] = column
    return pa.RecordBatch.from_arrays(list(columns.values()), names=list(columns))


def _is_of_bytes(kind: pa.DataType) -> bool:
    types = pa.types
    has_offsets = types.is_binary(kind) or types.is_large_binary(kind) or types.is_binary_view(kind)
    return has_offsets or types.is_fixed_size_binary(kind)
