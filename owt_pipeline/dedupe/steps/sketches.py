"""sketches: the texts that are left once exact copies are gone are read for all that is to be known of them."""

from __future__ import annotations

from functools import partial

import numpy as np
import pyarrow as pa

from owt_pipeline.dedupe.sketches import Sketcher
from owt_pipeline.dedupe.step_files import one_batch, read_step
from owt_pipeline.dedupe.steps.row_groups import read_task, tasks
from owt_pipeline.runtime import progress
from owt_pipeline.runtime.shards import DatasetReader, ShardWriter
from owt_pipeline.runtime.storage import Storage
from owt_pipeline.runtime.workers import map_batches


def sketch_shard(
    shard: int,
    writer: ShardWriter,
    *,
    source: DatasetReader,
    hashes: Storage,
    exact_rows: Storage,
    sketcher: Sketcher,
    workers: int,
) -> None:
    """Write the sketches of a shard's documents, those left out that go as exact duplicates."""
    hashed = read_step(hashes, [shard])
    stay = np.ones(len(hashed), bool)
    stay[read_step(exact_rows, [shard])["row"].to_numpy()] = False
    hashed = one_batch(hashed.filter(pa.array(stay)).combine_chunks().to_batches(), hashed.schema)
    writer.count({"sketched": len(hashed)})
    work, done = partial(_sketch_rows, folder=source.folder, sketcher=sketcher), 0
    for _, sketches in map_batches(work, tasks(source, shard, workers, np.flatnonzero(stay)), workers):
        known = hashed.slice(done, sketches.num_rows)
        writer.write(pa.RecordBatch.from_arrays([*known.columns, *sketches.columns], schema=sketcher.stored_schema))
        done += sketches.num_rows
        progress.advance(sketches.num_rows)


def _sketch_rows(told: pa.RecordBatch, folder: Storage, sketcher: Sketcher) -> pa.RecordBatch:
    return one_batch([sketcher.sketch(batch["text"]) for batch in read_task(told, folder, ["text"])], sketcher.schema)
