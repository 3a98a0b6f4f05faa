"""Reading texts by Parquet row group: what a worker is told is which to read, so no text goes through a pipe."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from owt_pipeline.runtime.shards import DatasetReader, reading
from owt_pipeline.runtime.storage import Storage

_BATCH_ROWS = 1024


def row_groups(source: DatasetReader, shard: int) -> Iterator[tuple[str, int, int]]:
    """(file, number, first row in the shard) of each row group of a shard."""
    first = 0
    for file in source.files("data", shard):
        with reading(source.folder.path(file.path)), source.folder.open(file.path) as opened:
            metadata = pq.ParquetFile(opened).metadata
        for group in range(metadata.num_row_groups):
            yield file.path, group, first
            first += metadata.row_group(group).num_rows


def task(path: str, group: int, rows: Sequence[int] | np.ndarray = ()) -> pa.RecordBatch:
    """What a worker is told: a row group, and which of its rows where not all are meant."""
    return pa.RecordBatch.from_pydict(
        {"path": [path], "group": [group], "rows": pa.array([rows], pa.list_(pa.int64()))}
    )


def task_rows(told: pa.RecordBatch) -> np.ndarray:
    return told["rows"].flatten().to_numpy()


def read_task(told: pa.RecordBatch, folder: Storage, columns: list[str]) -> Iterator[pa.RecordBatch]:
    """The batches of the row group that a task names."""
    path = told["path"][0].as_py()
    with reading(folder.path(path)), folder.open(path) as file:
        yield from pq.ParquetFile(file).iter_batches(_BATCH_ROWS, row_groups=told["group"].to_pylist(), columns=columns)
