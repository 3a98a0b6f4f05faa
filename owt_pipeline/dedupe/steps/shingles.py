"""shingles: the candidates' texts are read again, for the sets that their similarity is exactly computed from."""

from __future__ import annotations

import numpy as np
import pyarrow as pa

from owt_pipeline.dedupe.collection import Collection
from owt_pipeline.dedupe.parts import read_part
from owt_pipeline.dedupe.places import places
from owt_pipeline.dedupe.sketches import Sketcher
from owt_pipeline.dedupe.step_files import read_step
from owt_pipeline.dedupe.verification import candidates_schema
from owt_pipeline.engine import progress
from owt_pipeline.engine.commit import ShardWriter
from owt_pipeline.engine.storage import Storage


def shingle_candidates(
    number: int, writer: ShardWriter, *, collection: Collection, candidates: Storage, sketcher: Sketcher
) -> None:
    """Write a part's candidates with their shingle sets, one record batch a group, in the order of the groups."""
    part = collection.parts[number]
    mine = read_step(candidates, [part.shard])
    start, end = np.searchsorted(mine["row"].to_numpy(), [part.first, part.first + part.rows])
    rows, component, group = (mine[name].to_numpy()[start:end] for name in ("row", "component", "group"))
    known = collection.sketches_of(number, rows, ["precedence", "url_id", *sketcher.band_columns])
    bands = np.column_stack([known[name].to_numpy() for name in sketcher.band_columns])
    sets: list[np.ndarray] = []
    for batch in read_part(part, collection.find(part.shard)[0].clean.workdir, ["text"], rows):
        sets += sketcher.shingle_sets(batch["text"])
        progress.advance(batch.num_rows)
    order = np.argsort(group, kind="stable")
    for members in np.split(order, np.flatnonzero(np.diff(group[order])) + 1):
        arrays = [
            pa.array(component[members]),
            *(pa.array(known[name].to_numpy()[members]) for name in ("precedence", "url_id")),
            pa.array(places(part.shard, rows[members])),
            pa.FixedSizeListArray.from_arrays(pa.array(bands[members].ravel()), bands.shape[1]),
            _list_array([sets[i] for i in members]),
        ]
        writer.write(pa.RecordBatch.from_arrays(arrays, schema=candidates_schema(bands.shape[1])))
        writer.flush()


def _list_array(sets: list[np.ndarray]) -> pa.ListArray:
    """A column of lists of uint64."""
    offsets = np.concatenate([[0], np.cumsum([len(one) for one in sets])])
    return pa.ListArray.from_arrays(pa.array(offsets.astype(np.int32)), pa.array(np.concatenate(sets)))
