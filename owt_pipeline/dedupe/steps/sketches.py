"""sketches: a shard's texts are read, once, for all that is to be known of every document."""

from __future__ import annotations

from functools import partial

import pyarrow as pa

from owt_pipeline.dedupe.sketches import COLUMNS, Sketcher
from owt_pipeline.dedupe.step_files import one_batch
from owt_pipeline.dedupe.steps.row_groups import read_task, tasks
from owt_pipeline.runtime import progress
from owt_pipeline.runtime.shards import DatasetReader, ShardWriter
from owt_pipeline.runtime.storage import Storage
from owt_pipeline.runtime.workers import map_batches


def sketch_shard(shard: int, writer: ShardWriter, *, source: DatasetReader, sketcher: Sketcher, workers: int) -> None:
    """Write the sketches of a shard's documents, row for row."""
    work = partial(_sketch_rows, folder=source.folder, sketcher=sketcher)
    for _, sketches in map_batches(work, tasks(source, shard, workers), workers):
        writer.write(sketches)
        progress.advance(sketches.num_rows)


def _sketch_rows(told: pa.RecordBatch, folder: Storage, sketcher: Sketcher) -> pa.RecordBatch:
    sketches = [sketcher.sketch(batch) for batch in read_task(told, folder, COLUMNS)]
    return one_batch(sketches, sketcher.schema)
