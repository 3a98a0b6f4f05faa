"""Shard k of the corpus from shard k of the clean documents and shard k of the decisions."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from owt_pipeline.engine.commit import ShardWriter
from owt_pipeline.engine.dataset import DatasetReader, Outcome, rejects_batch
from owt_pipeline.export.card import LANGUAGE
from owt_pipeline.export.takedowns import Takedowns
from schemas import Reason


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
    """What the dataset's card says of these documents."""
    languages = Counter(documents["language"].to_pylist())
    return {
        "characters": pc.sum(pc.utf8_length(documents["text"])).as_py() or 0,
        "text_bytes": pc.sum(pc.binary_length(documents["text"])).as_py() or 0,
        "words": pc.sum(documents["n_words"]).as_py() or 0,
        **{f"{LANGUAGE}{code}": count for code, count in languages.items() if code},
    }


RULES = ("exact", "near")

_REASONS = {"exact": Reason.EXACT_DUPLICATE, "near": Reason.NEAR_DUPLICATE}


@dataclass(frozen=True)
class Policy:
    """Which decisions to apply.

    Attributes:
      rules: those of these rules.
      min_similarity: those of at least this similarity.
    """

    rules: tuple[str, ...] = RULES
    min_similarity: float = 0.0

    def choose(self, decisions: pa.Table) -> pa.Table:
        """The rows of `decisions` (dataset `duplicates`) that are to be applied."""
        of_rule = pc.is_in(decisions["rule"], pa.array(self.rules, pa.string()))
        return decisions.filter(pc.and_(of_rule, pc.greater_equal(decisions["similarity"], self.min_similarity)))


def forget(documents: pa.RecordBatch, takedowns: Takedowns) -> Outcome:
    """Reject the documents that `takedowns` names; keep the others as they are."""
    named = dict(takedowns.of(documents["url_id"].to_numpy(), documents["url"]))
    gone = np.zeros(documents.num_rows, bool)
    gone[list(named)] = True
    ids, urls = documents["url_id"], documents["url"]
    return Outcome(
        documents.filter(pa.array(~gone)),
        rejects_batch((ids[row].as_py(), urls[row].as_py(), Reason.FORGOTTEN, named[row]) for row in named),
    )


def apply_decisions(documents: pa.RecordBatch, decisions: pa.Table) -> Outcome:
    """Reject the documents that `decisions` (dataset `duplicates`) remove; keep the others as they are."""
    position = pc.index_in(documents["url_id"], decisions["url_id"].combine_chunks())
    gone = pc.is_valid(position)
    rejected = documents.filter(gone)
    why = decisions.take(position.filter(gone))
    rows = zip(
        rejected["url_id"].to_pylist(),
        rejected["url"].to_pylist(),
        *(why[name].to_pylist() for name in ("rule", "kept_url_id", "similarity")),
        strict=True,
    )
    return Outcome(
        documents.filter(pc.invert(gone)),
        rejects_batch(
            (url_id, url, _REASONS[rule], f"kept {kept} similarity {similarity:.4f}")
            for url_id, url, rule, kept, similarity in rows
        ),
    )
