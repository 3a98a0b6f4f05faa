"""What the filters took away: the texts with their tokens, and some to read."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from typing import Any

from owt_pipeline.report.figures.shares import share
from owt_pipeline.report.sketches import LogHistogram
from owt_pipeline.report.summaries import Summary
from schemas import Reason
from schemas.manifest import Manifest


def filters(manifests: Mapping[str, Manifest], summary: Summary) -> dict[str, Any]:
    """The figures of what clean/ and corpus/ rejected."""
    kept = summary.histograms.get("tokens/n_tokens", LogHistogram()).total
    reasons = [
        (manifests[name].stage, reason)
        for name in ("clean", "corpus")
        if name in manifests
        for reason, _ in Counter(manifests[name].counts.rejected).most_common()
    ]
    lost = {reason: summary.counters.get(f"lost/{reason}", Counter()) for _, reason in reasons}
    before = kept + sum(counter["tokens"] for counter in lost.values())
    return {
        "lost": [
            {
                "stage": stage,
                "reason": reason,
                **{name: lost[reason][name] for name in ("documents", "characters", "bytes", "tokens")},
                "share": share(lost[reason]["tokens"], before),
            }
            for stage, reason in reasons
            if lost[reason]
        ],
        "dropped": [
            {
                "stage": stage,
                "reason": reason,
                "meaning": Reason.of(reason).description,
                "documents": summary.rows(f"dropped/{reason}"),
            }
            for stage, reason in reasons
            if summary.rows(f"dropped/{reason}")
        ],
        "signals": _signals(manifests["clean"]) if "clean" in manifests else [],
    }


def _signals(clean: Manifest) -> list[dict[str, Any]]:
    """The histograms that `clean` counts of what it measures; `owt_pipeline.clean.signals` says how it names them."""
    rows = []
    signals = dict(clean.properties.get("signals", {}))
    if (least := clean.options.get("min_language_score")) and "language_score" in signals:
        signals["language_score"] = {**signals["language_score"], "minimum": least}
    for name, about in signals.items():
        counts = {
            fate: [clean.stats.get(f"signals.{name}.{fate}.{k}", 0) for k in range(len(about["edges"]) + 1)]
            for fate in ("kept", "dropped")
        }
        if any(map(any, counts.values())):
            rows.append({"signal": name, **about, **counts})
    return rows
