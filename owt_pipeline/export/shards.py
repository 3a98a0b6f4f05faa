"""Shard k of the corpus from shard k of the clean documents and shard k of the decisions."""

from __future__ import annotations

from owt_pipeline.export.apply import Policy, apply_decisions
from owt_pipeline.runtime.shards import DatasetReader, ShardWriter


def export_shard(
    shard: int, writer: ShardWriter, *, source: DatasetReader, decisions: DatasetReader, policy: Policy
) -> None:
    """Hold the shard's decisions in memory, and pass its documents by them."""
    chosen = policy.choose(decisions.table(shard))
    for batch in source.batches(shard, rows=1024):
        writer.add(batch.num_rows, apply_decisions(batch, chosen))
