"""hashes: a shard's texts are read for what tells copies of one text, and for who of them would stay."""

from __future__ import annotations

from functools import partial

import pyarrow as pa

from owt_pipeline.dedupe.exact import HASHED, hash_documents
from owt_pipeline.dedupe.step_files import one_batch
from owt_pipeline.dedupe.steps.row_groups import first_row, read_task, tasks
from owt_pipeline.dedupe.survivors import COLUMNS
from owt_pipeline.runtime import progress
from owt_pipeline.runtime.shards import DatasetReader, ShardWriter
from owt_pipeline.runtime.storage import Storage
from owt_pipeline.runtime.workers import map_batches


def hash_shard(shard: int, writer: ShardWriter, *, source: DatasetReader, survivor: str, workers: int) -> None:
    """Write the hashes of a shard's documents, row for row."""
    work = partial(_hash_rows, folder=source.folder, survivor=survivor)
    for _, hashes in map_batches(work, tasks(source, shard, workers), workers):
        writer.write(hashes)
        progress.advance(hashes.num_rows)


def _hash_rows(told: pa.RecordBatch, folder: Storage, survivor: str) -> pa.RecordBatch:
    found, row = [], first_row(told)
    for batch in read_task(told, folder, COLUMNS):
        found.append(hash_documents(batch, row, survivor))
        row += batch.num_rows
    return one_batch(found, HASHED)
