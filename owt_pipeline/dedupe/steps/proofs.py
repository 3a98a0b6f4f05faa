"""proofs: the components of a group are split until each document that goes is proven to repeat one that stays."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pyarrow as pa

from owt_pipeline.dedupe.step_files import one_batch, open_arrow, read_step, step_file
from owt_pipeline.dedupe.verification import Verifier
from owt_pipeline.runtime import progress
from owt_pipeline.runtime.shards import ShardWriter
from owt_pipeline.runtime.storage import Storage
from owt_pipeline.runtime.workers import map_batches

_CHUNK_SHINGLES = 1 << 19  # of those sent to a worker at once: 4 MB


def verify_group(
    group: int, writer: ShardWriter, *, shingles: Storage, components: Storage, verifier: Verifier, workers: int
) -> None:
    """Write which documents of a group repeat which."""
    where = read_step(components, [0])
    of_group = where.filter(pa.array(where["group"].to_numpy() == group))
    batches = []
    for shard, index in zip(of_group["shard"].to_pylist(), of_group["batch"].to_pylist(), strict=True):
        with open_arrow(shingles, step_file(shard)) as reader:
            batches.append(reader.get_batch(index))
    rows = one_batch(batches, batches[0].schema)
    del batches
    chunks = _whole_components(rows)
    # One chunk is one large component: no worker could help, and it is not to be copied for one.
    results = map_batches(verifier.verify, _taken(rows, chunks), workers if len(chunks) > 1 else 1)
    for chunk, (proven, counts) in results:
        writer.write(proven)
        writer.count(counts)
        progress.advance(chunk.num_rows)


def _whole_components(rows: pa.RecordBatch) -> list[np.ndarray]:
    """The numbers of the rows in chunks of some _CHUNK_SHINGLES that cut no component."""
    component = rows["component"].to_numpy()
    order = np.argsort(component, kind="stable")
    component = component[order]
    size = np.cumsum(rows["shingles"].value_lengths().to_numpy()[order].astype(np.int64))
    ends = np.flatnonzero(np.concatenate([component[1:] != component[:-1], [True]])) + 1
    chunk = size[ends - 1] // _CHUNK_SHINGLES
    return np.split(order, ends[:-1][chunk[1:] != chunk[:-1]])


def _taken(rows: pa.RecordBatch, chunks: list[np.ndarray]) -> Iterator[pa.RecordBatch]:
    if len(chunks) == 1:
        yield rows
        return
    for chunk in chunks:
        yield rows.take(pa.array(chunk))
