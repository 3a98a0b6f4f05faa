"""Reading texts by Parquet row group: what a worker is told is which rows to read, so no text goes through a pipe."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from owt_pipeline.dedupe.memory import keep_freed_memory
from owt_pipeline.runtime.shards import DatasetReader, reading
from owt_pipeline.runtime.storage import Storage

_BATCH_ROWS = 1024


@dataclass(frozen=True)
class RowGroup:
    """A row group of a shard: its file, its number there, and its first row in the shard."""

    path: str
    number: int
    first: int
    rows: int


def row_groups(source: DatasetReader, shard: int) -> list[RowGroup]:
    """The row groups of a shard, in order."""
    groups, first = [], 0
    for file in source.files("data", shard):
        with reading(source.folder.path(file.path)), source.folder.open(file.path) as opened:
            metadata = pq.ParquetFile(opened).metadata
        for number in range(metadata.num_row_groups):
            groups.append(RowGroup(file.path, number, first, metadata.row_group(number).num_rows))
            first += groups[-1].rows
    return groups


def tasks(source: DatasetReader, shard: int, workers: int, rows: np.ndarray | None = None) -> Iterator[pa.RecordBatch]:
    """What workers are told to read: row by row of a shard, or those of `rows` (sorted), a row group at a time.

    Those row groups that are left when each worker had as many as the others are shared among all: so they end
    about together, at the cost of decompressing these more than once.
    """
    groups = row_groups(source, shard)
    left = len(groups) % workers
    for i, group in enumerate(groups):
        parts = math.ceil(workers / left) if i >= len(groups) - left else 1
        mine = np.arange(group.rows)
        if rows is not None:
            mine = rows[slice(*np.searchsorted(rows, [group.first, group.first + group.rows]))] - group.first
        for part in np.array_split(mine, parts):
            if len(part):
                told = {"path": [group.path], "number": [group.number], "first": [group.first]}
                yield pa.RecordBatch.from_pydict({**told, "rows": pa.array([part], pa.list_(pa.int64()))})


def first_row(told: pa.RecordBatch) -> int:
    """The row in the shard of the first document of a task."""
    return int(told["first"][0].as_py() + told["rows"].flatten()[0].as_py())


def read_task(told: pa.RecordBatch, folder: Storage, columns: list[str]) -> Iterator[pa.RecordBatch]:
    """The rows that a task names, in batches."""
    keep_freed_memory()
    path, rows, first = told["path"][0].as_py(), told["rows"].flatten().to_numpy(), 0
    with reading(folder.path(path)), folder.open(path) as file:
        group = told["number"].to_pylist()
        for batch in pq.ParquetFile(file).iter_batches(_BATCH_ROWS, row_groups=group, columns=columns):
            mine = rows[slice(*np.searchsorted(rows, [first, first + batch.num_rows]))] - first
            first += batch.num_rows
            if len(mine) == batch.num_rows:
                yield batch
            elif len(mine):
                yield batch.take(pa.array(mine))
            if first > rows[-1]:
                return
