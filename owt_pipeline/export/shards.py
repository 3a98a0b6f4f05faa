"""Shard k of the corpus from shard k of the clean documents and shard k of the decisions."""

from __future__ import annotations

import pyarrow as pa

from owt_pipeline.export.apply import Policy, apply_decisions, forget
from owt_pipeline.forget.takedowns import Takedowns
from owt_pipeline.runtime.shards import DatasetReader, ShardWriter


def export_shard(
    shard: int,
    writer: ShardWriter,
    *,
    source: DatasetReader,
    decisions: DatasetReader,
    policy: Policy,
    takedowns: Takedowns,
) -> None:
    """Hold the shard's decisions in memory, and pass its documents by them and by the list of takedowns."""
    chosen = policy.choose(decisions.table(shard))
    for batch in source.batches(shard, rows=1024):
        remaining = forget(batch, takedowns)
        assert isinstance(remaining.kept, pa.RecordBatch)
        writer.reject(remaining.rejects)
        writer.enter(remaining.rejects.num_rows)
        outcome = apply_decisions(remaining.kept, chosen)
        writer.add(remaining.kept.num_rows, outcome)
