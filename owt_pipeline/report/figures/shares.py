"""Parts of a whole, and distributions, as they are in stats.json."""

from __future__ import annotations

from collections import Counter
from typing import Any

from owt_pipeline.report.sketches import LogHistogram
from owt_pipeline.report.summaries import Summary

PERCENTILES = (1, 5, 10, 25, 50, 75, 90, 95, 99)


def share(part: float, whole: float) -> float | None:
    """`part / whole` to six digits, None of nothing."""
    return round(part / whole, 6) if whole else None


def distribution(summary: Summary, name: str) -> dict[str, Any]:
    """A histogram of `summary` with its percentiles."""
    histogram = summary.histograms.get(name, LogHistogram())
    return {
        "count": histogram.count,
        "sum": histogram.total,
        "mean": round(histogram.total / histogram.count, 2) if histogram.count else None,
        "minimum": histogram.minimum,
        "maximum": histogram.maximum,
        "percentiles": {str(q): histogram.percentile(q) for q in PERCENTILES},
        "histogram": [list(item) for item in histogram.bins()],
    }


def by_key(counter: Counter) -> dict[str, int]:
    """In the order of the keys."""
    return {str(key): counter[key] for key in sorted(counter)}


def by_count(counter: Counter) -> dict[str, int]:
    """The most frequent first, equal ones in the order of their names."""
    return {key: counter[key] for key in sorted(counter, key=lambda key: (-counter[key], key)) if counter[key]}
