"""Histograms of what documents measure, in the counts that the manifest sums over shards.

A signal's histogram is in the manifest of `clean/` as `stats["signals.NAME.kept.BIN"]` and
`stats["signals.NAME.dropped.BIN"]`, for documents that stay and those that are rejected, for whatever reason; bins
without a document have no key. BIN counts the edges that the value is not below: bin 0 is `value < edges[0]`, bin k
`edges[k - 1] <= value < edges[k]`, the last one `value >= edges[-1]`.

NAME is `FILTER.SIGNAL`, or `words` (split at white space) or `language_score`, of the document itself.
`properties["signals"][NAME]` has the signal's `edges`, its limits `minimum` and `maximum` (null: none), its `filter`
(null: none), whether that is `on`, and the `measured_share` of the documents: all where the filter is on, else a
sample, so that a filter's effect is seen before it is turned on. A document that is too short, too long or in another
language is not measured further.
"""

from __future__ import annotations

import bisect
import math
from collections import Counter
from collections.abc import Collection, Iterable, Mapping
from typing import Any

from owt_pipeline.clean.filters import FILTERS, Limit

_SHARES = (
    *(0.005, 0.01, 0.02, 0.03, 0.05, 0.07, 0.1, 0.12, 0.15, 0.18),
    *(0.2, 0.25, 0.3, 0.4, 0.5, 0.6, 0.67, 0.7, 0.8, 0.9, 0.95, 0.99),
)
_COUNTS = (1, 2, 5, 10, 20, 50, 100, 200, 500, 1_000, 2_000, 5_000, 10_000, 20_000, 50_000, 100_000)
_LENGTHS = (2, 2.5, 3, 3.5, 4, 4.25, 4.5, 4.75, 5, 5.25, 5.5, 6, 7, 8, 10, 12)

LIMITS: dict[str, Limit] = {
    "words": Limit(),
    "language_score": Limit(),
    **{f"{name}.{signal}": limit for name, rule in FILTERS.items() for signal, limit in rule.limits.items()},
}
"""What every signal may be for its document to pass."""

EDGES: dict[str, tuple[float, ...]] = {
    # shares, but for those named below; a signal's limits are edges
    **{
        name: tuple(sorted({*_SHARES, *filter(math.isfinite, (limit.minimum, limit.maximum))}))
        for name, limit in LIMITS.items()
    },
    "words": _COUNTS,
    "gopher_quality.words": _COUNTS,
    "gopher_quality.mean_word_length": _LENGTHS,
    "gopher_quality.stop_words": (1, 2, 3, 4, 5, 6, 7, 8),
    "c4.curly_brackets": _COUNTS,
    "c4.lorem_ipsum": _COUNTS,
    "c4.sentences": (1, 2, 3, *_COUNTS[2:]),
}
"""Edges of the bins of every signal."""


def count(signals: Iterable[tuple[bool, Mapping[str, float]]]) -> Counter[str]:
    """The manifest's counts of documents, each (whether it stays, its signals by name)."""
    counts: Counter[str] = Counter()
    for kept, values in signals:
        fate = "kept" if kept else "dropped"
        for name, value in values.items():
            counts[f"signals.{name}.{fate}.{bisect.bisect_right(EDGES[name], value)}"] += 1
    return counts


def describe(filters: Collection[str], measured_share: float) -> dict[str, dict[str, Any]]:
    """What the manifest's properties say of each signal, where `filters` are on."""
    return {name: _described(name, limit, filters, measured_share) for name, limit in LIMITS.items()}


def _described(name: str, limit: Limit, filters: Collection[str], measured_share: float) -> dict[str, Any]:
    of = name.partition(".")[0] if "." in name else None
    return {
        "filter": of,
        "on": of in filters,
        "measured_share": measured_share if of and of not in filters else 1.0,
        "minimum": limit.minimum if math.isfinite(limit.minimum) else None,
        "maximum": limit.maximum if math.isfinite(limit.maximum) else None,
        "edges": list(EDGES[name]),
    }
