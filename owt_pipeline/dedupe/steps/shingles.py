"""shingles: the candidates' texts are read again, for the sets that their similarity is exactly computed from."""

from __future__ import annotations

import tempfile
from functools import partial

import numpy as np
import pyarrow as pa

from owt_pipeline.dedupe.collection import Collection
from owt_pipeline.dedupe.places import places
from owt_pipeline.dedupe.sketches import Sketcher
from owt_pipeline.dedupe.step_files import read_step
from owt_pipeline.dedupe.steps.row_groups import read_task, tasks
from owt_pipeline.dedupe.verification import candidates_schema
from owt_pipeline.runtime import progress
from owt_pipeline.runtime.shards import ShardWriter
from owt_pipeline.runtime.storage import Storage
from owt_pipeline.runtime.workers import map_batches


def shingle_candidates(
    shard: int, writer: ShardWriter, *, collection: Collection, candidates: Storage, sketcher: Sketcher, workers: int
) -> None:
    """Write a shard's candidates with their shingle sets, one record batch a group, in the order of the groups."""
    mine = read_step(candidates, [shard])
    if not len(mine):
        return
    corpus, number = collection.find(shard)
    rows, group = mine["row"].to_numpy(), mine["group"].to_numpy()
    known = collection.sketches_of(shard, rows, ["precedence", "url_id", *sketcher.band_columns])
    bands = np.column_stack([known[name].to_numpy() for name in sketcher.band_columns])
    # The sets come in the order of rows and go in that of groups; between, they wait on disk.
    with tempfile.TemporaryFile() as spool:
        lengths = []
        work = partial(_shingle_rows, folder=corpus.clean.folder, sketcher=sketcher)
        for _, sets in map_batches(work, tasks(corpus.clean, number, workers, rows), workers):
            lengths.append(np.diff(sets["shingles"].offsets.to_numpy()))
            spool.write(sets["shingles"].flatten().to_numpy().tobytes())
            progress.advance(sets.num_rows)
        spool.flush()
        offsets = np.concatenate([[0], np.cumsum(np.concatenate(lengths).astype(np.int64))])
        values = np.memmap(spool, np.uint64, "r")  # a candidate has a shingle or more
        order = np.argsort(group, kind="stable")
        for members in np.split(order, np.flatnonzero(np.diff(group[order])) + 1):
            arrays = [
                mine["component"].combine_chunks().take(pa.array(members)),
                *(known[name].combine_chunks().take(pa.array(members)) for name in ("precedence", "url_id")),
                pa.array(places(shard, rows[members])),
                pa.FixedSizeListArray.from_arrays(pa.array(bands[members].ravel()), bands.shape[1]),
                list_array([values[offsets[i] : offsets[i + 1]] for i in members]),
            ]
            writer.write(pa.RecordBatch.from_arrays(arrays, schema=candidates_schema(bands.shape[1])))
            writer.flush()


def _shingle_rows(told: pa.RecordBatch, folder: Storage, sketcher: Sketcher) -> pa.RecordBatch:
    batches = read_task(told, folder, ["text"])
    sets = [one for batch in batches for one in sketcher.shingle_sets(batch["text"])]
    return pa.RecordBatch.from_arrays([list_array(sets)], ["shingles"])


def list_array(sets: list[np.ndarray]) -> pa.ListArray:
    """A column of lists of uint64."""
    offsets = np.concatenate([[0], np.cumsum([len(one) for one in sets])])
    return pa.ListArray.from_arrays(pa.array(offsets.astype(np.int32)), pa.array(np.concatenate(sets)))
