"""The exchange: rows that parts send to each other are in files; only handles of these rows go
through the runner.

A part of one step sends rows to keys of the next step (`ShardWriter.send`). All that it sends is in
one file, the rows of one key together as an Arrow IPC stream, with an index at the end. The runner
groups the handles by key. They have about 100 bytes each, so the runner's traffic and memory do not
depend on the size of the rows; FnApiRunner's GroupByKey needs four times the bytes it groups. The
files also outlive the job: a job that is submitted again continues with them.
"""

from __future__ import annotations

import contextlib
import os
import struct
import tempfile
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

import msgspec
import numpy as np
import pyarrow as pa

from owt_pipeline.ledger.dataset import batch_of, reading
from owt_pipeline.storage.disk import HashingFile
from owt_pipeline.storage.folder import REQUESTS_AT_ONCE, Storage, at_once

SLICES = "slices"
"""Kind of the file with the rows that a part sent."""

SLICE_BYTES = 32 << 20
"""Target size of a slice: the rows of a key are divided into slices of about this size, each
read by one request."""
_READ_BYTES = 4 * SLICE_BYTES  # read at once, in up to 16 slices
_WAITING_BYTES = 64 << 20  # rows are sorted by key once they reach this size
_ALIGNMENT = 64  # of Arrow's buffers, which are used in place
_TAIL = struct.Struct("<QQ")  # offset and length of the index
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
    """Writes rows by key into one file, those of a key in one slice, or in several of 32 MiB or
    more.

    Rows that exceed the memory limit wait in temporary files, sorted by key, which are merged at
    the end. So the number of slices does not grow with the number of rows.
    """

    def __init__(self, file: HashingFile):
        self._file = file
        self._waiting: dict[pa.Schema, list[tuple[np.ndarray, pa.RecordBatch]]] = {}
        self._waiting_bytes = 0
        self._sorted: dict[pa.Schema, list[_Sorted]] = {}
        self._index: list[tuple[int, int, int, int]] = []
        self._buffer = pa.allocate_buffer(0)

    def send(self, key: int | np.ndarray, rows: pa.RecordBatch) -> None:
        """Send rows to `key`; with an array (rows,), each row to its own key."""
        if rows.num_rows:
            keys = (
                key.astype(np.int64) if isinstance(key, np.ndarray) else np.full(rows.num_rows, key)
            )
            self._file.rows += rows.num_rows
            self._waiting.setdefault(rows.schema, []).append((keys, rows))
            self._waiting_bytes += rows.nbytes
            if self._waiting_bytes >= _WAITING_BYTES:
                self._sort(spill=True)

    def close(self) -> None:
        """Write the slices, and the index."""
        self._sort(spill=False)
        for pieces in self._sorted.values():
            for key in np.unique(np.concatenate([piece.keys for piece in pieces])).tolist():
                rows = pa.concat_tables([piece.rows_of(key) for piece in pieces]).combine_chunks()
                step = -(-len(rows) // max(1, rows.nbytes // SLICE_BYTES))
                for start in range(0, len(rows), step):
                    some = rows.slice(start, step)
                    self._index.append((key, *self._write(some.to_batches()), len(some)))
        offset, length = self._write([batch_of(self._index, _INDEX)])
        self._file.write(_TAIL.pack(offset, length))

    def _sort(self, spill: bool) -> None:
        for schema, waiting in self._waiting.items():
            keys = np.concatenate([keys for keys, _ in waiting])
            table = pa.Table.from_batches([rows for _, rows in waiting]).combine_chunks()
            if (keys[1:] < keys[:-1]).any():
                order = np.argsort(keys, kind="stable")
                keys, table = keys[order], table.take(pa.array(order))
            rows = _spilled(table, self._file) if spill else table
            self._sorted.setdefault(schema, []).append(_Sorted.of(keys, rows))
        self._waiting, self._waiting_bytes = {}, 0

    def _write(self, batches: Sequence[pa.RecordBatch]) -> tuple[int, int]:
        self._file.write(b"\0" * (-self._file.bytes % _ALIGNMENT))
        start = self._file.bytes
        size = pa.MockOutputStream()
        _write_stream(size, batches)
        if (
            self._buffer.size < size.size()
        ):  # otherwise reused: new memory costs more than the copy into it
            self._buffer = pa.allocate_buffer(size.size())
        _write_stream(pa.FixedSizeBufferWriter(self._buffer), batches)
        self._file.write(
            memoryview(self._buffer)[: size.size()]
        )  # one call instead of Arrow's dozen
        return start, self._file.bytes - start


@dataclass(frozen=True)
class _Sorted:
    """Rows sorted by key: those of `keys[i]` are `rows[starts[i]:starts[i + 1]]`."""

    keys: np.ndarray
    starts: np.ndarray
    rows: pa.Table

    @classmethod
    def of(cls, keys: np.ndarray, rows: pa.Table) -> _Sorted:
        found, starts = np.unique(keys, return_index=True)
        return cls(found, np.append(starts, len(keys)), rows)

    def rows_of(self, key: int) -> pa.Table:
        place = int(np.searchsorted(self.keys, key))
        if place == len(self.keys) or self.keys[place] != key:
            return self.rows.slice(0, 0)
        return self.rows.slice(self.starts[place], self.starts[place + 1] - self.starts[place])


def _spilled(table: pa.Table, file: HashingFile) -> pa.Table:
    """The same rows, memory-mapped from an unnamed file next to `file`: a killed process leaves
    nothing behind."""
    with tempfile.NamedTemporaryFile(dir=os.path.dirname(file.path)) as spill:
        with pa.ipc.new_file(spill.name, table.schema) as writer:
            writer.write_table(table)
        return pa.ipc.open_file(pa.memory_map(spill.name)).read_all()


def _write_stream(sink: pa.NativeFile, batches: Sequence[pa.RecordBatch]) -> None:
    with pa.ipc.new_stream(sink, batches[0].schema) as stream:
        for batch in batches:
            stream.write_batch(batch)


def read_index(work: Storage, path: str) -> list[tuple[int, Slice]]:
    """The (key, slice) pairs of a part's file, in the order written; raises UserError if the
    file is damaged."""
    with reading(work, path):
        size = work.size(path)
        offset, length = _TAIL.unpack(work.read_range(path, size - _TAIL.size, _TAIL.size))
        with pa.ipc.open_stream(work.read_range(path, offset, length)) as stream:
            rows = stream.read_all().to_pylist()
    return [(row.pop("key"), Slice("", path, **row)) for row in rows]


def read_slices(work: Storage, slices: Iterable[Slice]) -> Iterator[pa.Table]:
    """The rows of each slice, in order, as one or more tables: memory-mapped from a local disk,
    otherwise read 16 at once.

    Raises UserError if a file is damaged.
    """
    slices = [slice for slice in slices if slice.length]
    if work.is_local:
        with contextlib.ExitStack() as stack:
            maps: dict[str, pa.MemoryMappedFile] = {}
            for slice in slices:
                with reading(work, slice.path):
                    if slice.path not in maps:
                        maps[slice.path] = stack.enter_context(pa.memory_map(work.path(slice.path)))
                    maps[slice.path].seek(slice.offset)
                    yield from _tables(maps[slice.path].read_buffer(slice.length))
        return
    while slices:
        ends = np.cumsum([slice.length for slice in slices[:REQUESTS_AT_ONCE]])
        number = max(1, int(np.searchsorted(ends, _READ_BYTES)))
        some, slices = slices[:number], slices[number:]
        buffers = iter(
            at_once(lambda slice: work.read_range(slice.path, slice.offset, slice.length), some)
        )
        for slice, buffer in zip(
            some, buffers, strict=True
        ):  # an exhausted iterator holds no buffers
            with reading(work, slice.path):
                yield from _tables(pa.py_buffer(buffer))


def gather(work: Storage, slices: Iterable[Slice], schema: pa.Schema) -> pa.Table:
    """All rows of some slices as one table with contiguous columns; `schema` is that of the
    rows."""
    return pa.concat_tables([schema.empty_table(), *read_slices(work, slices)]).combine_chunks()


def partition_of(hashes: np.ndarray, partitions: int) -> np.ndarray:
    """The partition of each uint64 hash: the upper 32 bits, divided into equal ranges."""
    return ((hashes >> np.uint64(32)) * np.uint64(partitions)) >> np.uint64(32)


def _tables(buffer: pa.Buffer) -> Iterator[pa.Table]:
    source = pa.BufferReader(buffer)
    while source.tell() < buffer.size:
        yield pa.ipc.open_stream(source).read_all()
        source.seek(min(buffer.size, source.tell() + -source.tell() % _ALIGNMENT))
