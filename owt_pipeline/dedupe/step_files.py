"""The files between dedupe's steps: Arrow IPC, memory-mapped where they are local."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable, Iterator, Sequence

import numpy as np
import pyarrow as pa

from owt_pipeline.engine.commit import ShardWriter, shard_name
from owt_pipeline.engine.dataset import reading
from owt_pipeline.engine.storage import Storage
from schemas.manifest import ShardFile

NOTHING = pa.schema([])
"""The schema of a step that writes only files for the shards, besides its own."""


@contextlib.contextmanager
def open_arrow(folder: Storage, name: str) -> Iterator[pa.ipc.RecordBatchFileReader]:
    """An Arrow IPC file; raises UserError where it cannot be read."""
    with reading(folder.path(name)):
        source = pa.memory_map(folder.path(name)) if folder.is_local else folder.open(name)
        with source, pa.ipc.open_file(source) as reader:
            yield reader


def read_arrow(folder: Storage, name: str, columns: list[str] | None = None) -> pa.Table:
    """The rows of an Arrow IPC file; `columns` of them."""
    with open_arrow(folder, name) as reader:
        batches = [reader.get_batch(i) for i in range(reader.num_record_batches)]
        table = pa.Table.from_batches(batches, reader.schema)
        return (table.select(columns) if columns else table).combine_chunks()


def step_file(key: int) -> str:
    return f"{shard_name(key)}.arrow"


def read_step(folder: Storage, keys: Iterable[int], columns: list[str] | None = None) -> pa.Table:
    """The rows of several keys of a step, one or more, in their order."""
    return pa.concat_tables([read_arrow(folder, step_file(key), columns) for key in keys]).combine_chunks()


def scatter(writer: ShardWriter, folder: Storage, rows: pa.Table, shards: np.ndarray, num_shards: int) -> None:
    """Write each shard's rows into a file of its own, one for every shard; `rows` are sorted by shard.

    The files, in a `folder` next to that of the writer's step, are named in its record.
    """
    bounds = np.searchsorted(shards, np.arange(num_shards + 1))
    for shard in range(num_shards):
        count = int(bounds[shard + 1] - bounds[shard])
        with folder.spool() as file:
            with pa.ipc.new_file(file, rows.schema) as arrow:
                arrow.write_table(rows.slice(bounds[shard], count))
            file.publish(step_file(shard), sync=False)
            path = f"../{folder.uri.rpartition('/')[2]}/{step_file(shard)}"
            writer.name_file(ShardFile(path, "scattered", shard, count, file.bytes, file.sha256))


def reduce_to_file(
    key: int,
    batches: list[pa.RecordBatch],
    *,
    folder: Storage,
    records: Storage,
    schema: pa.Schema,
    file_format: str,
    reduce: Callable[[int, list[pa.RecordBatch], ShardWriter], None],
) -> None:
    """Write the file of one key, and its record, by `reduce(key, batches, writer)`."""
    with ShardWriter(folder, records, key, {"": schema}, file_format=file_format, named_by_content=False) as writer:
        reduce(key, batches, writer)


def one_batch(batches: Sequence[pa.RecordBatch], schema: pa.Schema) -> pa.RecordBatch:
    """The rows of all batches as one; none give one without rows."""
    if len(batches) == 1:
        return batches[0]
    if batches:
        return pa.concat_batches(batches)
    return pa.RecordBatch.from_arrays([pa.array([], field.type) for field in schema], schema=schema)
