"""decisions: what was found, exact and near, goes back to the shards of the documents that go."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from owt_pipeline.dedupe.collection import SKETCHES, Collection
from owt_pipeline.dedupe.decisions import decide, largest_clusters
from owt_pipeline.dedupe.places import shard_of
from owt_pipeline.dedupe.step_files import one_batch, read_step, scatter
from owt_pipeline.dedupe.verification import PROVEN
from owt_pipeline.engine.commit import ShardWriter
from owt_pipeline.engine.storage import Storage
from schemas import DATASETS


def decide_all(
    key: int,
    writer: ShardWriter,
    *,
    partitions: range,
    groups: range,
    work: Storage,
    by_shard: Storage,
    num_shards: int,
) -> None:
    """Tell each shard its decisions; write the largest clusters."""
    near = read_step(work / "proofs", groups) if groups else PROVEN.empty_table()
    decided = decide(read_step(work / "exact", partitions), near)
    scatter(writer, by_shard, decided, shard_of(decided["place"].to_numpy()), num_shards)
    writer.write(largest_clusters(decided))


def write_decisions(
    shard: int, writer: ShardWriter, *, decisions: Storage, collection: Collection, keep_sketches: bool
) -> None:
    """Write the shard's decisions by url_id; and count, by themselves, its documents that none of them names."""
    schema = DATASETS["duplicates"].schema
    rows = read_step(decisions, [shard]).select(schema.names).cast(schema).sort_by("url_id").combine_chunks()
    documents = collection.hashes(shard)["url_id"].to_numpy()
    writer.enter(len(rows))
    writer.write(one_batch(rows.to_batches(), schema))
    rules = rows["rule"].to_pylist()
    writer.count(
        {
            "exact": rules.count("exact"),
            "near": rules.count("near"),
            "stay": int((~np.isin(documents, rows["url_id"].to_numpy())).sum()),
        }
    )
    if keep_sketches:
        sketches = collection.sketches(shard)
        stay = pc.invert(pc.is_in(sketches["url_id"], rows["url_id"].combine_chunks()))
        file, count = writer.open_file(".arrow", SKETCHES)
        with pa.ipc.new_file(file, sketches.schema) as kept:
            kept.write_table(sketches.filter(stay).combine_chunks())
        count[0] = pc.sum(stay).as_py() or 0
