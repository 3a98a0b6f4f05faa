"""The exchange: rows that go from part to part lie in files; only handles of their places go through the runner.

A part of one step sends rows to keys of the next one (`ShardWriter.send`). All that it sends lies in one file, rows of
one key together as an Arrow IPC stream, and an index at the end says where. The runner groups the handles by key, some
100 bytes each, so what it moves and holds in memory does not depend on how long the rows are: FnApiRunner's GroupByKey
takes four times the bytes it groups. And the files outlive the job: one that is submitted again continues with them.
"""

from __future__ import annotations

import contextlib
import struct
from collections.abc import Iterable, Iterator, Sequence

import msgspec
import numpy as np
import pyarrow as pa

from owt_pipeline.engine.dataset import batch_of, reading
from owt_pipeline.engine.disk import HashingFile
from owt_pipeline.engine.storage import REQUESTS_AT_ONCE, Storage, at_once

SLICES = "slices"
"""Kind of the file with what a part sent."""

_WAITING_BYTES = 64 << 20  # rows are written, sorted by key, once this many bytes wait
_ALIGNMENT = 64  # of Arrow's buffers, which are read where they lie
_TAIL = struct.Struct("<QQ")  # offset and length of the index
_INDEX = pa.schema(
    [("key", pa.int64()), ("path", pa.string()), *((n, pa.int64()) for n in ("offset", "length", "rows"))]
)


class Slice(msgspec.Struct, frozen=True, array_like=True, order=True, tag=True):
    """A handle: rows for one key in the file of one part.

    Attributes:
      work: `StageRun.name`, for whoever works on it; "" where it was read from a file.
      path: of the file in that folder.
      offset: in bytes.
      length: in bytes; 0 where nothing was sent, and the handle only makes the key exist.
      rows: number of rows.
    """

    work: str
    path: str = ""
    offset: int = 0
    length: int = 0
    rows: int = 0


class SliceWriter:
    """Writes rows by key into one file. Rows of a key are in one slice, or in several where there are many rows."""

    def __init__(self, file: HashingFile):
        self._file = file
        self._waiting: dict[int, list[pa.RecordBatch]] = {}
        self._waiting_bytes = 0
        self._index: list[tuple[int, str, int, int, int]] = []
        self._buffer = pa.allocate_buffer(0)

    def send(self, key: int, rows: pa.RecordBatch) -> None:
        """Send rows to `key`."""
        if rows.num_rows:
            self._file.rows += rows.num_rows
            self._waiting.setdefault(key, []).append(rows)
            self._waiting_bytes += rows.nbytes
            if self._waiting_bytes >= _WAITING_BYTES:
                self._flush()

    def forward(self, key: int, slice: Slice) -> None:
        """Pass on to `key` what another part wrote."""
        self._index.append((key, slice.path, slice.offset, slice.length, slice.rows))

    def close(self) -> None:
        """Write what waits, and the index."""
        self._flush()
        offset, length = self._write([batch_of(self._index, _INDEX)])
        self._file.write(_TAIL.pack(offset, length))

    def _flush(self) -> None:
        for key in sorted(self._waiting):
            batches = self._waiting[key]
            table = pa.Table.from_batches(batches).combine_chunks()
            self._index.append((key, "", *self._write(table.to_batches()), len(table)))
        self._waiting, self._waiting_bytes = {}, 0

    def _write(self, batches: Sequence[pa.RecordBatch]) -> tuple[int, int]:
        self._file.write(b"\0" * (-self._file.bytes % _ALIGNMENT))
        start = self._file.bytes
        size = pa.MockOutputStream()
        _write_stream(size, batches)
        if self._buffer.size < size.size():  # else used again: memory that is new costs more than what is copied there
            self._buffer = pa.allocate_buffer(size.size())
        _write_stream(pa.FixedSizeBufferWriter(self._buffer), batches)
        self._file.write(memoryview(self._buffer)[: size.size()])  # one call a slice, where Arrow's pieces are a dozen
        return start, self._file.bytes - start


def _write_stream(sink: pa.NativeFile, batches: Sequence[pa.RecordBatch]) -> None:
    with pa.ipc.new_stream(sink, batches[0].schema) as stream:
        for batch in batches:
            stream.write_batch(batch)


def read_index(work: Storage, path: str) -> list[tuple[int, Slice]]:
    """(key, slice) of all that a part sent, in the order written; raises UserError where the file is damaged."""
    with reading(work.path(path)):
        size = work.size(path)
        offset, length = _TAIL.unpack(work.read_range(path, size - _TAIL.size, _TAIL.size))
        with pa.ipc.open_stream(work.read_range(path, offset, length)) as stream:
            rows = stream.read_all().to_pylist()
    return [(row.pop("key"), Slice("", row.pop("path") or path, **row)) for row in rows]


def read_slices(work: Storage, slices: Iterable[Slice], columns: list[str] | None = None) -> Iterator[pa.Table]:
    """The rows of each slice, in order: mapped into memory where they are on this machine, else read 16 at once.

    Raises UserError where a file is damaged.
    """
    slices = [slice for slice in slices if slice.length]
    if work.is_local:
        with contextlib.ExitStack() as stack:
            maps: dict[str, pa.MemoryMappedFile] = {}
            for slice in slices:
                with reading(work.path(slice.path)):
                    if slice.path not in maps:
                        maps[slice.path] = stack.enter_context(pa.memory_map(work.path(slice.path)))
                    maps[slice.path].seek(slice.offset)
                    yield _table(maps[slice.path].read_buffer(slice.length), columns)
        return
    for start in range(0, len(slices), REQUESTS_AT_ONCE):
        some = slices[start : start + REQUESTS_AT_ONCE]
        buffers = iter(at_once(lambda slice: work.read_range(slice.path, slice.offset, slice.length), some))
        for slice, buffer in zip(some, buffers, strict=True):  # an iterator at its end keeps no buffer
            with reading(work.path(slice.path)):
                yield _table(buffer, columns)


def gather(work: Storage, slices: Iterable[Slice], schema: pa.Schema) -> pa.Table:
    """All rows of some slices as one table, in contiguous columns; `schema` is that of the rows sent."""
    return pa.concat_tables([schema.empty_table(), *read_slices(work, slices)]).combine_chunks()


def by_partition(rows: pa.RecordBatch, hashes: np.ndarray, partitions: int) -> Iterator[tuple[int, pa.RecordBatch]]:
    """(partition, its rows) of rows by uint64 hashes: partition k has the k-th of equal ranges of their upper half."""
    if partitions == 1:
        yield 0, rows
    else:
        yield from by_key(rows, ((hashes >> np.uint64(32)) * np.uint64(partitions)) >> np.uint64(32))


def by_key(rows: pa.RecordBatch, keys: np.ndarray) -> Iterator[tuple[int, pa.RecordBatch]]:
    """(key, its rows) of rows by integer keys, in their order."""
    order = np.argsort(keys, kind="stable")
    keys, ordered = keys[order], rows.take(pa.array(order))
    ends = [*(np.flatnonzero(np.diff(keys)) + 1).tolist(), len(keys)] if len(keys) else []
    for start, end in zip([0, *ends], ends, strict=False):
        yield int(keys[start]), ordered.slice(start, end - start)


def _table(buffer: pa.Buffer | bytes, columns: list[str] | None) -> pa.Table:
    with pa.ipc.open_stream(buffer) as stream:
        table = stream.read_all()
    return table.select(columns) if columns else table
