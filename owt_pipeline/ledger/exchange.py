"""Exchange rows between parts through files: only handles of the rows go through the runner.

A part of one step sends rows to keys of the next step (`ShardWriter.send`). All of them are in one
file, the rows of one key together as an Arrow IPC stream, with an index at the end. The runner
groups the handles by key. A handle has about 100 bytes, so the runner's traffic and memory do not
depend on the size of the rows. FnApiRunner's GroupByKey needs four times the bytes that it groups.
The files also outlive the job: a job that is submitted again continues with them.
"""

from __future__ import annotations

import math
import os
import struct
import tempfile
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial

import msgspec
import numpy as np
import pyarrow as pa

from owt_pipeline.ledger.dataset import batch_of, reading
from owt_pipeline.storage.disk import HashingFile
from owt_pipeline.storage.folder import REQUESTS_AT_ONCE, Storage, at_once

SLICES = "slices"
"""Kind of the file with the rows that a part sent."""

SLICE_BYTES = 32 << 20
"""Target size of a slice. The rows of a key are divided into slices of about this size.

One request reads one slice.
"""

# Bytes that are read at once from a bucket, in up to 16 slices.
_READ_BYTES = 4 * SLICE_BYTES

# Rows in memory are sorted by key once they reach this size.
_MAX_WAITING_BYTES = 64 << 20

# Arrow's buffers are used in place, and have to begin at multiples of this.
_ALIGNMENT = 64

# Offset and length of the index, at the end of the file.
_TAIL = struct.Struct("<QQ")

_INDEX = pa.schema([(name, pa.int64()) for name in ("key", "offset", "length", "rows")])


class Slice(msgspec.Struct, frozen=True, array_like=True, order=True, tag=True):
    """A handle of rows for one key in the file of one part.

    Attributes:
      work: name of the plan that the part belongs to; empty if the handle was read from a file's
        index.
      path: path of the file in that folder.
      offset: in bytes.
      length: in bytes; 0 if no rows were sent and the handle only makes the key exist.
      rows: number of rows.
    """

    work: str
    path: str = ""
    offset: int = 0
    length: int = 0
    rows: int = 0


class SliceWriter:
    """Writes rows by key into one file.

    The rows of a key are in one slice, or in several slices of 32 MiB or more.

    Rows that exceed the memory limit wait in temporary files, sorted by key. These are merged at
    the end, so the number of slices does not grow with the number of rows.
    """

    def __init__(self, file: HashingFile):
        self._file = file
        self._waiting: dict[pa.Schema, list[tuple[np.ndarray, pa.RecordBatch]]] = {}
        self._waiting_bytes = 0
        self._sorted: dict[pa.Schema, list[_Sorted]] = {}
        self._index: list[tuple[int, int, int, int]] = []
        self._buffer = pa.allocate_buffer(0)

    def send(self, key: int | np.ndarray, rows: pa.RecordBatch) -> None:
        """Send rows to `key`. An array (rows,) has the key of each row."""
        if not rows.num_rows:
            return
        if isinstance(key, np.ndarray):
            keys = key.astype(np.int64)
        else:
            keys = np.full(rows.num_rows, key)
        self._file.rows += rows.num_rows
        self._waiting.setdefault(rows.schema, []).append((keys, rows))
        self._waiting_bytes += rows.nbytes
        if self._waiting_bytes >= _MAX_WAITING_BYTES:
            self._sort(spill=True)

    def close(self) -> None:
        """Write the slices, and the index."""
        self._sort(spill=False)
        for pieces in self._sorted.values():
            keys = np.unique(np.concatenate([piece.keys for piece in pieces]))
            for key in keys.tolist():
                rows = pa.concat_tables([piece.rows_of(key) for piece in pieces]).combine_chunks()
                self._write_slices(key, rows)
        offset, length = self._write([batch_of(self._index, _INDEX)])
        self._file.write(_TAIL.pack(offset, length))

    def _write_slices(self, key: int, rows: pa.Table) -> None:
        """Write the rows of a key, and add their slices to the index."""
        num_slices = max(1, rows.nbytes // SLICE_BYTES)
        rows_per_slice = math.ceil(len(rows) / num_slices)
        for start in range(0, len(rows), rows_per_slice):
            slice_rows = rows.slice(start, rows_per_slice)
            offset, length = self._write(slice_rows.to_batches())
            self._index.append((key, offset, length, len(slice_rows)))

    def _sort(self, spill: bool) -> None:
        """Sort the waiting rows by key. With `spill`, move them to a temporary file."""
        for schema, waiting in self._waiting.items():
            keys = np.concatenate([keys for keys, _ in waiting])
            table = pa.Table.from_batches([rows for _, rows in waiting]).combine_chunks()
            if (keys[1:] < keys[:-1]).any():
                order = np.argsort(keys, kind="stable")
                keys = keys[order]
                table = table.take(pa.array(order))
            rows = _spilled(table, self._file) if spill else table
            self._sorted.setdefault(schema, []).append(_Sorted.of(keys, rows))
        self._waiting = {}
        self._waiting_bytes = 0

    def _write(self, batches: Sequence[pa.RecordBatch]) -> tuple[int, int]:
        """Write batches as one stream, and return its offset and length in bytes."""
        self._file.write(b"\0" * (-self._file.bytes % _ALIGNMENT))
        start = self._file.bytes
        size = pa.MockOutputStream()
        _write_stream(size, batches)
        # The buffer is reused, because new memory costs more than the copy into it.
        if self._buffer.size < size.size():
            self._buffer = pa.allocate_buffer(size.size())
        _write_stream(pa.FixedSizeBufferWriter(self._buffer), batches)
        # Arrow would write a stream to the file in about a dozen calls. This is one.
        self._file.write(memoryview(self._buffer)[: size.size()])
        return start, self._file.bytes - start


@dataclass(frozen=True)
class _Sorted:
    """Rows sorted by key: the rows of `keys[i]` are `rows[starts[i]:starts[i + 1]]`."""

    keys: np.ndarray
    starts: np.ndarray
    rows: pa.Table

    @classmethod
    def of(cls, keys: np.ndarray, rows: pa.Table) -> _Sorted:
        """Return rows with the sorted keys of each of them."""
        unique_keys, starts = np.unique(keys, return_index=True)
        return cls(unique_keys, np.append(starts, len(keys)), rows)

    def rows_of(self, key: int) -> pa.Table:
        """Return the rows of a key."""
        index = int(np.searchsorted(self.keys, key))
        if index == len(self.keys) or self.keys[index] != key:
            return self.rows.slice(0, 0)
        start = self.starts[index]
        return self.rows.slice(start, self.starts[index + 1] - start)


def _spilled(table: pa.Table, file: HashingFile) -> pa.Table:
    """Return the same rows, memory-mapped from a file next to `file` that is already removed.

    So a killed process leaves nothing behind.
    """
    with tempfile.NamedTemporaryFile(dir=os.path.dirname(file.path)) as spill:
        with pa.ipc.new_file(spill.name, table.schema) as writer:
            writer.write_table(table)
        return pa.ipc.open_file(pa.memory_map(spill.name)).read_all()


def _write_stream(sink: pa.NativeFile, batches: Sequence[pa.RecordBatch]) -> None:
    with pa.ipc.new_stream(sink, batches[0].schema) as stream:
        for batch in batches:
            stream.write_batch(batch)


def read_index(work: Storage, path: str) -> list[tuple[int, Slice]]:
    """Return the (key, slice) pairs of a part's file, in the order written.

    Raises UserError if the file is damaged.
    """
    with reading(work, path):
        size = work.size(path)
        offset, length = _TAIL.unpack(work.read_range(path, size - _TAIL.size, _TAIL.size))
        with pa.ipc.open_stream(work.read_range(path, offset, length)) as stream:
            rows = stream.read_all().to_pylist()
    return [(row.pop("key"), Slice("", path, **row)) for row in rows]


def read_slices(work: Storage, slices: Iterable[Slice]) -> Iterator[pa.Table]:
    """Yield the rows of each slice, in order, as one or more tables.

    Slices are read and not mapped into memory, because a process of Linux can have 65,530 maps, and
    a range has a slice of each part. In a bucket, 16 slices are read at once. Raises UserError if a
    file is damaged.
    """
    with_rows = [slice for slice in slices if slice.length]
    num_together = 1 if work.is_local else REQUESTS_AT_ONCE
    start = 0
    while start < len(with_rows):
        candidates = with_rows[start : start + num_together]
        ends = np.cumsum([slice.length for slice in candidates])
        number = max(1, int(np.searchsorted(ends, _READ_BYTES)))
        start += number
        for tables in at_once(partial(_read_slice, work), candidates[:number]):
            yield from tables


def _read_slice(work: Storage, slice: Slice) -> list[pa.Table]:
    """Return the rows of a slice; raise UserError if they are fewer than it declares."""
    with reading(work, slice.path):
        content = work.read_range(slice.path, slice.offset, slice.length)
        tables = list(_tables(pa.py_buffer(content)))
        num_rows = sum(map(len, tables))
        if num_rows != slice.rows:
            raise pa.ArrowInvalid(f"{num_rows} of {slice.rows} rows")
        return tables


def gather(work: Storage, slices: Iterable[Slice], schema: pa.Schema) -> pa.Table:
    """Return all rows of some slices, of one `schema`, as one table with contiguous columns."""
    return pa.concat_tables([schema.empty_table(), *read_slices(work, slices)]).combine_chunks()


def partition_of(hashes: np.ndarray, partitions: int) -> np.ndarray:
    """Return the partition of each uint64 hash: its upper 32 bits, divided into equal ranges."""
    return ((hashes >> np.uint64(32)) * np.uint64(partitions)) >> np.uint64(32)


def _tables(buffer: pa.Buffer) -> Iterator[pa.Table]:
    """Yield the streams in a buffer, each as a table."""
    source = pa.BufferReader(buffer)
    while source.tell() < buffer.size:
        yield pa.ipc.open_stream(source).read_all()
        source.seek(min(buffer.size, source.tell() + -source.tell() % _ALIGNMENT))
