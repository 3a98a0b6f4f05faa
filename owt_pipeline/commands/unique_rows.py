"""One Parquet file of the records of several files, without some of them, in bounded memory."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import islice, pairwise
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from owt_pipeline.errors import UserError, raise_unless_damage
from owt_pipeline.formats.files import format_of
from owt_pipeline.formats.parquet import bounded_batches
from owt_pipeline.formats.records import read_records
from owt_pipeline.storage.folder import folder_of, open_source
from schemas.quantities import pluralize

_BATCH_ROWS = 64

# Batches wait for as many bytes, since a row group of a few rows would be read slowly.
_ROW_GROUP_BYTES = 32 << 20


def write_unique(paths: Sequence[str], removed: np.ndarray, target: str, num_expected: int) -> None:
    """Write the records of files as one Parquet file without the removed ones.

    The columns of Parquet files keep their types. A field that not all records have is null in the
    others.

    Args:
      paths: paths or URIs of the files, in the order in which their records are numbered.
      removed: int64, the numbers of the records to leave out, from 0, ascending.
      target: path or URI of the result, which appears when it is complete.
      num_expected: how many records the files had when they were compared.

    Raises UserError if a file cannot be read or has changed, or a field has several types.
    """
    folder, name = folder_of(target)
    try:
        # The schemas are read first, since a later record may have more fields.
        schema = pa.unify_schemas(list(_schemas_of(paths)), promote_options="permissive")
        with folder.spool() as file:
            with pq.ParquetWriter(file, schema, compression="zstd") as writer:
                num_rows = _write_batches(_batches_of(paths, schema), removed, writer)
            if num_rows != num_expected:
                raise UserError(
                    f"the files changed meanwhile: they had {pluralize(num_expected, 'record')} "
                    f"when they were compared and {num_rows:,} when they were copied: run the "
                    "command again while no program changes them"
                )
            file.publish(name)
    except (pa.ArrowException, OverflowError) as error:
        raise UserError(
            f"--unique: the records cannot be written as one Parquet file: {error}; leave the "
            "option out; --out writes which records to drop"
        ) from error
    finally:
        # No hidden file stays in the user's folder.
        folder.remove_dead_spools()


def _schemas_of(paths: Sequence[str]) -> Iterator[pa.Schema]:
    for path in paths:
        if format_of(path) == "parquet":
            with open_source(path) as source:
                yield pq.ParquetFile(source).schema_arrow
            continue
        schema = pa.schema([])
        for rows in _rows_of(path):
            fields = pa.schema(pa.array(rows).type)
            schema = pa.unify_schemas([schema, fields], promote_options="permissive")
        yield schema


def _batches_of(paths: Sequence[str], schema: pa.Schema) -> Iterator[pa.Table]:
    """Yield the records of the files as tables with a schema."""
    for path in paths:
        if format_of(path) != "parquet":
            for rows in _rows_of(path):
                yield pa.Table.from_pylist(rows, schema)
            continue
        try:
            with open_source(path) as source:
                file = pq.ParquetFile(source)
                for batch in bounded_batches(file, file.schema_arrow.names):
                    tables = [schema.empty_table(), pa.Table.from_batches([batch])]
                    yield pa.concat_tables(tables, promote_options="permissive")
        except OSError as error:
            raise_unless_damage(error, path)
            raise UserError(f"{path} cannot be read as Parquet: {error}") from error


def _rows_of(path: str) -> Iterator[list[Any]]:
    records = read_records(path, path, format_of(path), columns=None)
    while rows := [record.fields for record in islice(records, _BATCH_ROWS)]:
        yield rows


def _write_batches(
    batches: Iterator[pa.Table], removed: np.ndarray, writer: pq.ParquetWriter
) -> int:
    num_rows = num_waiting_bytes = 0
    waiting: list[pa.Table] = []
    for batch in batches:
        start, end = np.searchsorted(removed, [num_rows, num_rows + batch.num_rows])
        # Slices cost no copy, and Arrow cannot filter columns of every type.
        gaps = [-1, *(removed[start:end] - num_rows).tolist(), batch.num_rows]
        for before, after in pairwise(gaps):
            waiting.append(batch.slice(before + 1, after - before - 1))
        num_rows += batch.num_rows
        num_waiting_bytes += batch.nbytes
        if num_waiting_bytes >= _ROW_GROUP_BYTES:
            writer.write_table(pa.concat_tables(waiting))
            waiting = []
            num_waiting_bytes = 0
    if waiting:
        writer.write_table(pa.concat_tables(waiting))
    return num_rows
