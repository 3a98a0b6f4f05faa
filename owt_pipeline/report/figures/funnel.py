"""What each stage let through, and why it rejected the rest."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from typing import Any

from owt_pipeline.report.figures.shares import share
from owt_pipeline.report.sketches import LogHistogram
from owt_pipeline.report.summaries import Summary
from schemas import Reason
from schemas.manifest import Manifest


def funnel(manifests: Mapping[str, Manifest], summary: Summary) -> list[dict[str, Any]]:
    """One object a stage in order."""
    return [
        {
            "stage": manifest.stage,
            "dataset": name,
            "entered": manifest.counts.entered,
            "left": manifest.counts.left,
            "share": share(manifest.counts.left, manifest.counts.entered),
            "bytes": manifest.total_bytes,
            "rejected": [
                {
                    "reason": reason,
                    "meaning": Reason.of(reason).description,
                    "count": count,
                    "share": share(count, manifest.counts.entered),
                    "sample": summary.rows(f"{name}/{reason}"),
                }
                for reason, count in Counter(manifest.counts.rejected).most_common()
            ],
        }
        for name, manifest in manifests.items()
    ]


def totals(manifests: Mapping[str, Manifest], summary: Summary) -> dict[str, Any]:
    """What went in, and what came of it."""
    size = summary.histograms.get("corpus/bytes", LogHistogram())
    return {
        "entered": next(iter(manifests.values())).counts.entered if manifests else 0,
        "documents": size.count,
        "text_bytes": size.total,
        "tokens": summary.histograms.get("tokens/n_tokens", LogHistogram()).total,
    }
