"""Shard k of the corpus from shard k of the clean documents and shard k of the decisions."""

from __future__ import annotations

from collections import Counter

import pyarrow as pa
import pyarrow.compute as pc

from owt_pipeline.engine.commit import ShardWriter
from owt_pipeline.engine.dataset import DatasetReader
from owt_pipeline.export.apply import Policy, apply_decisions, forget
from owt_pipeline.export.card import LANGUAGE
from owt_pipeline.export.takedowns import Takedowns


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
        assert isinstance(outcome.kept, pa.RecordBatch)
        writer.add(remaining.kept.num_rows, outcome)
        writer.count(_sizes(outcome.kept))


def _sizes(documents: pa.RecordBatch) -> dict[str, int]:
    """What the dataset's card tells of these documents."""
    languages = Counter(documents["language"].to_pylist())
    return {
        "characters": pc.sum(pc.utf8_length(documents["text"])).as_py() or 0,
        "text_bytes": pc.sum(pc.binary_length(documents["text"])).as_py() or 0,
        "words": pc.sum(documents["n_words"]).as_py() or 0,
        **{f"{LANGUAGE}{code}": count for code, count in languages.items() if code},
    }
