"""The files between dedupe's steps: Arrow IPC, memory-mapped where they are local."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable, Iterator

import numpy as np
import pyarrow as pa

from owt_pipeline.runtime.shards import ShardWriter, reading, shard_name
from owt_pipeline.runtime.storage import Storage


@contextlib.contextmanager
def open_step(folder: Storage, key: int) -> Iterator[pa.ipc.RecordBatchFileReader]:
    """The file of one key; raises UserError where it cannot be read."""
    name = f"{shard_name(key)}.arrow"
    with reading(folder.path(name)):
        source = pa.memory_map(folder.path(name)) if folder.is_local else folder.open(name)
        with source, pa.ipc.open_file(source) as reader:
            yield reader


def read_step(folder: Storage, keys: Iterable[int], columns: list[str] | None = None) -> pa.Table:
    """The rows of several keys, in their order; `columns` of them."""
    tables = []
    for key in keys:
        with open_step(folder, key) as reader:
            batches = [reader.get_batch(i) for i in range(reader.num_record_batches)]
            table = pa.Table.from_batches(batches, reader.schema)
            tables.append(table.select(columns) if columns else table)
    return pa.concat_tables(tables).combine_chunks()


def write_step_file(folder: Storage, key: int, rows: pa.Table) -> None:
    """Write the file of one key by itself, outside a step's own writer."""
    with folder.create(f"{shard_name(key)}.arrow") as file, pa.ipc.new_file(file, rows.schema) as writer:
        writer.write_table(rows)


def scatter(folder: Storage, rows: pa.Table, shards: np.ndarray, num_shards: int) -> None:
    """Write each shard's rows into a file of its own, one for every shard; `rows` are sorted by shard."""
    bounds = np.searchsorted(shards, np.arange(num_shards + 1))
    for shard in range(num_shards):
        write_step_file(folder, shard, rows.slice(bounds[shard], bounds[shard + 1] - bounds[shard]))


def reduce_to_file(
    key: int,
    batches: list[pa.RecordBatch],
    *,
    folder: Storage,
    records: Storage,
    schema: pa.Schema,
    reduce: Callable[[int, list[pa.RecordBatch], ShardWriter], None],
) -> None:
    """Write the file of one key, and its record, by `reduce(key, batches, writer)`."""
    with ShardWriter(folder, records, key, {"": schema}, file_format="arrow", rejects=False) as writer:
        reduce(key, batches, writer)
