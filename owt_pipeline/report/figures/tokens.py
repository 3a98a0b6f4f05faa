"""How long the documents are, and which tokens they are made of."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from owt_pipeline.report.figures.shares import distribution, share
from owt_pipeline.report.sketches import LogHistogram
from owt_pipeline.report.summaries import Summary
from schemas.manifest import Manifest


def lengths(summary: Summary) -> dict[str, Any]:
    """Distributions of the documents' lengths."""
    return {name: distribution(summary, f"corpus/{name}") for name in ("characters", "bytes", "words")} | {
        "tokens": distribution(summary, "tokens/n_tokens")
    }


def tokens(manifests: Mapping[str, Manifest], summary: Summary) -> dict[str, Any]:
    """The tokenizer, the splits, and how often the ids of the vocabulary occur."""
    manifest = manifests.get("tokens")
    if manifest is None:
        return {}
    stats, used = manifest.stats, int((summary.vocabulary > 0).sum())
    total = stats.get("tokens_train", 0) + stats.get("tokens_val", 0)
    tokenizer = manifest.properties.get("tokenizer", {})
    occurrences = LogHistogram()
    occurrences.add(summary.vocabulary[summary.vocabulary > 0])
    return {
        "tokenizer": tokenizer.get("name"),
        "vocabulary": tokenizer.get("vocab_size"),
        "vocabulary_used": used,
        "vocabulary_used_share": share(used, tokenizer.get("vocab_size") or 0),
        "occurrences": [list(item) for item in occurrences.bins(per_octave=1)],
        "splits": {
            split: {"documents": stats.get(f"documents_{split}", 0), "tokens": stats.get(f"tokens_{split}", 0)}
            for split in ("train", "val")
        },
        "bytes_per_token": share(stats.get("text_bytes", 0), total),
    }
