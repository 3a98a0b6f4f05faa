"""Rows of one source in a Parquet file whose row groups hold one bucket each: a shard reads its own rows only."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from typing import IO, Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from owt_pipeline.collect.rows import ROWS

BUFFER_BYTES = 64 << 20
"""Rows wait in memory for this much, then each bucket's go into a row group."""


class BucketWriter:
    """Writes batches of schema ROWS in any order of buckets; memory is bounded by BUFFER_BYTES."""

    def __init__(self, file: IO[bytes] | Any, buffer_bytes: int = BUFFER_BYTES):
        # Statistics of `bucket` are the index by which its row groups are found; the rows are read once and deleted,
        # so the fastest codec is the best.
        self._writer = pq.ParquetWriter(
            file, ROWS, compression="lz4", use_dictionary=["subreddit", "reason"], write_statistics=["bucket"]
        )
        self._buffer_bytes = buffer_bytes
        self._waiting: list[pa.RecordBatch] = []
        self._waiting_bytes = 0

    def write(self, rows: pa.RecordBatch) -> None:
        self._waiting.append(rows)
        self._waiting_bytes += rows.nbytes
        if self._waiting_bytes >= self._buffer_bytes:
            self._flush()

    def close(self) -> None:
        self._flush()
        self._writer.close()

    def _flush(self) -> None:
        if not self._waiting:
            return
        table = pa.Table.from_batches(self._waiting, ROWS)
        buckets = table["bucket"].to_numpy()
        order = np.argsort(buckets, kind="stable")
        table = table.take(order)
        starts = np.flatnonzero(np.diff(buckets[order], prepend=-1))
        for start, end in zip(starts, [*starts[1:], len(order)], strict=True):
            self._writer.write_table(table.slice(start, end - start), row_group_size=int(end - start))
        self._waiting, self._waiting_bytes = [], 0


def read_buckets(file: IO[bytes] | Any, buckets: Collection[int]) -> Iterator[pa.Table]:
    """The row groups of `buckets` in a file of BucketWriter, in its order."""
    parquet = pq.ParquetFile(file)
    column = ROWS.get_field_index("bucket")
    for group in range(parquet.num_row_groups):
        if parquet.metadata.row_group(group).column(column).statistics.min in buckets:
            yield parquet.read_row_group(group)
