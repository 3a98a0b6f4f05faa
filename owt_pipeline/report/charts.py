"""Kinds of plotly.js figures, and their parts; their colours come from the page's style sheet."""

from __future__ import annotations

import bisect
from collections.abc import Mapping, Sequence
from html import escape
from typing import Any

from owt_pipeline.report.markup import number


def histogram(distribution: Mapping[str, Any], unit: str, what: str) -> Figure | None:
    """A distribution on a logarithmic axis, with three of its percentiles."""
    bins = [(low, high, count) for low, high, count in distribution["histogram"] if low > 0]
    if not bins:
        return None
    trace = {
        "type": "bar",
        "meta": 1,
        "x": [(low + high) / 2 for low, high, _ in bins],
        "width": [high - low for low, high, _ in bins],
        "y": [count for *_, count in bins],
        "customdata": [f"{number(low)}–{number(high - 1)}" for low, high, _ in bins],
        "hovertemplate": f"%{{customdata}} {unit}: %{{y:,}} {what}<extra></extra>",
    }
    marks = [distribution["percentiles"][q] for q in ("5", "50", "95")]
    return figure(
        [trace],
        bargap=0,
        shapes=[upright(value) for value in marks if value],
        xaxis=log_axis(f"{unit} (dotted: 5 %, 50 %, 95 %)", bins[0][0], bins[-1][1]),
        yaxis=axis(what),
    )


def two_histograms(both: Sequence[Sequence[Sequence[float]]], names: Sequence[str], unit: str) -> Figure | None:
    """The shares that the bins of two runs hold, as steps."""
    if not any(both):
        return None
    traces = []
    for place, (bins, name) in enumerate(zip(both, names, strict=True), start=1):
        shown = _with_empty([(low, high, share) for low, high, share in bins if low > 0])
        traces.append(
            {
                "type": "scatter",
                "mode": "lines",
                "line": {"shape": "hv"},
                "meta": place,
                "name": name,
                "x": [low for low, *_ in shown] + [shown[-1][1]] if shown else [],
                "y": [share for *_, share in shown] + [0] if shown else [],
                "customdata": [f"{number(int(low))}–{number(int(high) - 1)}" for low, high, _ in shown],
                "hovertemplate": f"%{{customdata}} {unit}: %{{y:.1%}}",
            }
        )
    ends = [edge for bins in both for low, high, _ in bins if low > 0 for edge in (low, high)]
    return figure(
        traces, xaxis=log_axis(unit, int(min(ends)), int(max(ends))), yaxis=axis("share of documents", tickformat=".0%")
    )  # fmt: skip


def _with_empty(bins: Sequence[tuple[float, float, float]]) -> list[tuple[float, float, float]]:
    """The bins with what lies between them, of which nothing is counted."""
    filled: list[tuple[float, float, float]] = []
    for low, high, share in bins:
        if filled and filled[-1][1] < low:
            filled.append((filled[-1][1], low, 0))
        filled.append((low, high, share))
    return filled


def similarities(duplicates: Mapping[str, Any]) -> Figure | None:
    """What near-duplicates were found, and what LSH was to find."""
    curve = duplicates.get("lsh", {}).get("curve")
    if not curve:
        return None
    bins = duplicates["similarities"]
    observed = {
        "type": "bar",
        "meta": 1,
        "name": "near-duplicates found",
        "x": [(row["low"] + row["high"]) / 2 for row in bins],
        "width": [row["high"] - row["low"] for row in bins],
        "y": [row["count"] for row in bins],
        "customdata": [[row["low"], row["high"], row["mean_shared_bands"]] for row in bins],
        "hovertemplate": "similarity %{customdata[0]:.2f}–%{customdata[1]:.2f}: %{y:,} documents"
        "<br>%{customdata[2]:.1f} bands shared on average<extra></extra>",
    }
    expected = {
        "type": "scatter",
        "mode": "lines",
        "meta": 2,
        "name": "probability of being compared",
        "yaxis": "y2",
        "x": [similarity for similarity, _ in curve],
        "y": [probability for _, probability in curve],
        "hovertemplate": "a pair of similarity %{x:.2f} is compared with probability %{y:.3f}<extra></extra>",
    }
    return figure(
        [observed, expected],
        shapes=[upright(duplicates["lsh"]["threshold"])],
        xaxis=axis("similarity (dotted: the threshold)", range=[0, 1.02]),
        yaxis=counts("documents removed", [row["count"] for row in bins]),
        yaxis2=axis(
            "probability", overlaying="y", side="right", range=[0, 1.05], showgrid=False, tickmode="linear", dtick=0.2
        ),
    )


def clusters(duplicates: Mapping[str, Any]) -> Figure | None:
    """How large the clusters are."""
    sizes = duplicates.get("clusters", {}).get("sizes")
    if not sizes:
        return None
    trace = columns(
        list(sizes), list(sizes.values()), "%{y:,} clusters of %{x} documents", width=min(0.8, 0.1 * len(sizes))
    )  # fmt: skip
    named, counted = categories("documents in the cluster"), counts("clusters", list(sizes.values()))
    return figure([trace], height=260, xaxis=named, yaxis=counted)


def signal(row: Mapping[str, Any]) -> Figure:
    """What documents measure by one signal, kept and dropped, each bin as wide as the next, with its limits."""
    edges = row["edges"]
    used = [k for k in range(len(edges) + 1) if row["kept"][k] or row["dropped"][k]]
    limits = [_place(edges, row[key], key == "maximum") for key in ("minimum", "maximum") if row[key] is not None]
    low, high = min([used[0], *limits]), max([used[-1] + 1, *limits])
    bins = range(low, high)
    traces = [
        {
            "type": "bar",
            "meta": place,
            "name": fate,
            "x": [k + 0.5 for k in bins],
            "y": [row[fate][k] for k in bins],
            "customdata": [_between(edges, k) for k in bins],
            "hovertemplate": f"%{{customdata}}: %{{y:,}} {fate}<extra></extra>",
        }
        for place, fate in ((1, "kept"), (2, "dropped"))
        if any(row[fate])
    ]
    ticks = range(max(low, 1), min(high, len(edges)) + 1)
    ticks = ticks[:: 1 + len(ticks) // 8]  # so that none is turned
    return figure(
        traces,
        height=220,
        barmode="stack",
        bargap=0.05,
        shapes=[upright(limit) for limit in limits],
        xaxis=axis(
            "", tickmode="array", tickvals=list(ticks), ticktext=[f"{edges[k - 1]:g}" for k in ticks], showgrid=False
        ),
        yaxis=axis("documents"),
    )


def _place(edges: Sequence[float], limit: float, is_maximum: bool) -> int:
    """Where a limit lies between the bins; one that is no edge, at the end of its bin that is allowed."""
    return 1 + edges.index(limit) if limit in edges else bisect.bisect(edges, limit) + is_maximum


def _between(edges: Sequence[float], k: int) -> str:
    """Bin k as a range; its first value is in it, its last one not."""
    if k == 0:
        return f"under {edges[0]:g}"
    return f"{edges[k - 1]:g} to {edges[k]:g}" if k < len(edges) else f"{edges[-1]:g} or more"


def occurrences(tokens: Mapping[str, Any]) -> Figure | None:
    """How many token ids occur how often."""
    bins = tokens.get("occurrences")
    if not bins:
        return None
    never = (tokens["vocabulary"] or 0) - tokens["vocabulary_used"]
    names = ["never", *(_range(low, high - 1) for low, high, _ in bins)]
    trace = columns(names, [never, *(ids for *_, ids in bins)], "%{y:,} token ids occur %{x} times")
    return figure([trace], height=260, xaxis=categories("times the id occurs"), yaxis=axis("token ids"))


def _range(low: int, high: int) -> str:
    return _short(low) if low == high else f"{_short(low)}–{_short(high)}"


def _short(value: int) -> str:
    """To about three digits: 16384 is 16k."""
    return next((f"{value // unit}{name}" for unit, name in ((10**6, "M"), (10**3, "k")) if value >= unit), str(value))


Figure = dict[str, Any]

BARS, _BAR_PIXELS, _MARGIN_PIXELS = 20, 22, 70


def figure(traces: Sequence[Figure], *, height: int = 320, **layout: Any) -> Figure:
    """`meta` of a trace is the number of its colour."""
    return {"data": list(traces), "layout": {"height": height, **layout}}


def label(text: Any) -> str:
    """Text as it is: plotly takes some HTML in labels, and names of hosts and subreddits are anybody's."""
    return escape(str(text), quote=False)


def axis(title: str, **more: Any) -> Figure:
    return {"title": {"text": title}, "fixedrange": True, "automargin": True, **more}


def counts(title: str, values: Sequence[int]) -> Figure:
    """An axis of whole numbers."""
    return axis(title, rangemode="tozero", **({"dtick": 1} if max(values, default=0) <= 5 else {}))


def categories(title: str = "") -> Figure:
    return axis(title, type="category", showgrid=False)


def log_axis(title: str, low: int, high: int) -> Figure:
    """A logarithmic axis with ticks at 1, 2, 5, 10, …; plotly's own label but the decades in full."""
    steps = (1, 2, 5) if high < 1000 * low else (1,)
    ticks = [step * 10**decade for decade in range(len(str(high))) for step in steps]
    ticks = [tick for tick in ticks if low <= tick <= high]
    labels = [next((f"{t // u}{name}" for u, name in ((10**6, "M"), (1000, "k")) if t >= u), str(t)) for t in ticks]
    return axis(title, type="log", tickmode="array", tickvals=ticks, ticktext=labels)


def bars(names: Sequence[Any], values: Sequence[Any], hover: str, **more: Any) -> Figure:
    """Horizontal bars; `hover` is a template of plotly's."""
    trace = {"type": "bar", "orientation": "h", "meta": 1, "y": [label(name) for name in names], "x": list(values)}
    return {**trace, "hovertemplate": f"{hover}<extra></extra>", **more}


def columns(names: Sequence[Any], values: Sequence[Any], hover: str, **more: Any) -> Figure:
    """Vertical bars."""
    trace = {"type": "bar", "meta": 1, "x": [label(name) for name in names], "y": list(values)}
    return {**trace, "hovertemplate": f"{hover}<extra></extra>", **more}


def ranking(traces: Sequence[Figure], title: str, *, pixels: int = _BAR_PIXELS, **xaxis: Any) -> Figure:
    """Horizontal bars, the first on top, as high as there are many."""
    names = {"type": "category", "autorange": "reversed", "dtick": 1, "showgrid": False}
    rows = max((len(trace["y"]) for trace in traces), default=0)
    return figure(
        traces, height=_MARGIN_PIXELS + pixels * rows, yaxis=axis("", **names), xaxis=axis(title, **xaxis)
    )  # fmt: skip


def upright(x: float) -> Figure:
    """A dotted line through the plot, at `x`."""
    return {
        "type": "line", "x0": x, "x1": x, "yref": "paper", "y0": 0, "y1": 1, "line": {"dash": "dot", "width": 1},
    }  # fmt: skip
