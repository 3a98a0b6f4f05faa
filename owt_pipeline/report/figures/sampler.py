"""What the trainer's samplers show of short and of long documents."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

from owt_pipeline.report.mixture import realised_mixture
from owt_pipeline.report.sketches import LogHistogram
from owt_pipeline.report.summaries import Summary

CONTEXT, LONG_MIN_TOKENS, LONG_FRACTION = 1024, 512, 0.7  # the trainer's defaults

_MOST_DOCUMENTS = 1 << 20  # a few arrays of 8 bytes each: what a larger corpus shows differs in the fourth digit


def sampler(summary: Summary) -> dict[str, Any]:
    """The mixture that `packed` and `longbiased` realise, by the documents' lengths; empty without documents."""
    lengths = summary.histograms.get("tokens/n_tokens", LogHistogram()).values(_MOST_DOCUMENTS)
    if not len(lengths):
        return {}
    rows = realised_mixture(lengths, CONTEXT, long_min_tokens=LONG_MIN_TOKENS, long_fraction=LONG_FRACTION)
    return {
        "context": CONTEXT,
        "long_min_tokens": LONG_MIN_TOKENS,
        "long_fraction": LONG_FRACTION,
        "rows": [_rounded(asdict(row)) for row in rows],
    }


def _rounded(row: dict[str, Any]) -> dict[str, Any]:
    return {
        key: _rounded(value) if isinstance(value, dict) else round(value, 6) if isinstance(value, float) else value
        for key, value in row.items()
    }
