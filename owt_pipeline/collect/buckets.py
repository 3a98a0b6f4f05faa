"""Rows of one source in a file that is read bucket by bucket: what a shard needs, and no more.

    | rows of bucket 0 | of 1 | … | of N-1 | rows of bucket 0 | … |   each an Arrow IPC record batch, uncompressed;
                                                                      a run each time the buffer is full
    | N+1 numbers: where each bucket's entries begin | entries: offset and length of each batch, by bucket |
    | N | offset of the line above |

A Parquet file with a row group for each batch would do the same, but its footer is read whole, for every shard.
"""

from __future__ import annotations

import struct
from collections.abc import Collection, Iterator
from typing import IO, Any

import numpy as np
import pyarrow as pa

from owt_pipeline.collect.rows import ROWS

BUFFER_BYTES = 32 << 20
"""Rows wait in memory for this much, then are written by bucket."""

_END = struct.Struct("<qq")


class BucketWriter:
    """Writes batches of schema ROWS, in any order of buckets; memory is bounded by BUFFER_BYTES."""

    def __init__(self, file: IO[bytes] | Any, num_buckets: int, buffer_bytes: int = BUFFER_BYTES):
        self._file, self._num_buckets, self._buffer_bytes = file, num_buckets, buffer_bytes
        self._waiting: list[pa.RecordBatch] = []
        self._waiting_bytes = 0
        self._at = 0
        self._batches: list[tuple[int, int, int]] = []  # bucket, offset, length

    def write(self, rows: pa.RecordBatch) -> None:
        if not rows.num_rows:
            return
        self._waiting.append(rows)
        self._waiting_bytes += rows.nbytes
        if self._waiting_bytes >= self._buffer_bytes:
            self._flush()

    def close(self) -> None:
        """Write what waits, and the index; the file stays open."""
        self._flush()
        entries = np.array(sorted(self._batches), np.int64).reshape(-1, 3)
        starts = np.searchsorted(entries[:, 0], np.arange(self._num_buckets + 1))
        self._file.write(starts.astype("<i8").tobytes())
        self._file.write(np.ascontiguousarray(entries[:, 1:], "<i8").tobytes())
        self._file.write(_END.pack(self._num_buckets, self._at))

    def _flush(self) -> None:
        if not self._waiting:
            return
        table = pa.Table.from_batches(self._waiting, ROWS)
        self._waiting, self._waiting_bytes = [], 0
        order = np.argsort(table["bucket"].to_numpy(), kind="stable")
        rows = table.take(order).combine_chunks().to_batches()[0]
        buckets, starts = np.unique(rows["bucket"].to_numpy(), return_index=True)
        for bucket, start, end in zip(buckets.tolist(), starts, [*starts[1:], len(order)], strict=True):
            data = rows.slice(start, end - start).serialize()
            self._file.write(data)
            self._batches.append((bucket, self._at, data.size))
            self._at += data.size


def read_buckets(file: pa.NativeFile, buckets: Collection[int]) -> Iterator[pa.RecordBatch]:
    """The rows of `buckets` in a file of BucketWriter."""
    size = file.size()
    num_buckets, index = _END.unpack(_read(file, size - _END.size, _END.size))
    for bucket in sorted(buckets):
        first, last = np.frombuffer(_read(file, index + 8 * bucket, 16), "<i8").tolist()
        entries = _read(file, index + 8 * (num_buckets + 1) + 16 * first, 16 * (last - first))
        for offset, length in np.frombuffer(entries, "<i8").reshape(-1, 2).tolist():
            yield pa.ipc.read_record_batch(pa.py_buffer(_read(file, offset, length)), ROWS)


def _read(file: pa.NativeFile, offset: int, length: int) -> bytes:
    file.seek(offset)
    return bytes(file.read(length))
