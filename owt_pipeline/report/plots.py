"""The page's plots as figures of plotly.js; their colours come from the page's style sheet."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from owt_pipeline.report.markup import number, percent

Figure = dict[str, Any]

_BARS, _BAR_PIXELS, _MARGIN_PIXELS = 20, 22, 70


def plots(stats: Mapping[str, Any]) -> dict[str, Figure]:
    """The figures of stats.json by the id of their place in the page; those without data are left out."""
    fetch, duplicates = stats["fetch"], stats["duplicates"]
    found = {
        "plot-funnel": _funnel(stats["funnel"]),
        "plot-domains": _ranking(stats["domains"]["top"], "domain"),
        "plot-subreddits": _ranking(stats["subreddits"]["top"], "subreddit"),
        "plot-years": _grouped(stats["years"], "year"),
        "plot-languages": _grouped(_frequent(stats["languages"]), "language"),
        "plot-scores": _scores(stats["scores"]),
        "plot-similarities": _similarities(duplicates),
        "plot-clusters": _clusters(duplicates),
        "plot-answers": _answers(fetch),
    }
    for name, unit in (("tokens", "tokens"), ("words", "words"), ("characters", "characters")):
        found[f"plot-{name}"] = _histogram(stats["lengths"][name], unit, "documents")
    if fetch:
        found["plot-milliseconds"] = _histogram(fetch["milliseconds"], "milliseconds", "pages")
        found["plot-body_bytes"] = _histogram(fetch["body_bytes"], "bytes", "pages")
    return {name: figure for name, figure in found.items() if figure is not None}


def _figure(traces: Sequence[Figure], *, height: int = 340, **layout: Any) -> Figure:
    """`meta` of a trace is the number of its colour."""
    return {"data": list(traces), "layout": {"height": height, **layout}}


def _axis(title: str, **more: Any) -> Figure:
    return {"title": {"text": title}, "fixedrange": True, "automargin": True, **more}


def _counts(title: str, counts: Sequence[int]) -> Figure:
    """An axis of whole numbers."""
    return _axis(title, rangemode="tozero", **({"dtick": 1} if max(counts, default=0) <= 5 else {}))


def _log_axis(title: str, low: int, high: int) -> Figure:
    """A logarithmic axis with ticks at 1, 2, 5, 10, …; plotly's own label but the decades in full."""
    steps = (1, 2, 5) if high < 1000 * low else (1,)
    ticks = [step * 10**decade for decade in range(len(str(high))) for step in steps]
    ticks = [tick for tick in ticks if low <= tick <= high]
    labels = [next((f"{t // u}{name}" for u, name in ((10**6, "M"), (1000, "k")) if t >= u), str(t)) for t in ticks]
    return _axis(title, type="log", tickmode="array", tickvals=ticks, ticktext=labels)


def _names() -> Figure:
    """The axis of horizontal bars, the first on top."""
    return _axis("", type="category", autorange="reversed", dtick=1, showgrid=False)


def _funnel(stages: Sequence[Mapping[str, Any]]) -> Figure | None:
    flow = [stage for stage in stages if stage["dataset"] != "duplicates"]  # it decides; export applies
    if not flow:
        return None
    names = ["entered", *(stage["stage"] for stage in flow)]
    counts = [flow[0]["entered"], *(stage["left"] for stage in flow)]
    shares = [count / counts[0] if counts[0] else None for count in counts]
    trace = {
        "type": "bar",
        "orientation": "h",
        "meta": 1,
        "y": names,
        "x": counts,
        "text": [number(count) for count in counts],
        "textposition": "auto",
        "customdata": [percent(share) for share in shares],
        "hovertemplate": "%{y}: %{x:,} (%{customdata} of what entered)<extra></extra>",
    }
    height = _MARGIN_PIXELS + 34 * len(names)
    return _figure([trace], height=height, yaxis=_names(), xaxis=_axis("rows that went on"))


def _ranking(rows: Sequence[Mapping[str, Any]], key: str) -> Figure | None:
    rows = rows[:_BARS]
    if not rows:
        return None
    of_urls = not any(row["documents"] for row in rows)
    trace = {
        "type": "bar",
        "orientation": "h",
        "meta": 1,
        "y": [row[key] for row in rows],
        "x": [row["urls"] if of_urls else row["documents"] for row in rows],
        "customdata": [[number(row["urls"]), percent(row["survival"])] for row in rows],
        "hovertemplate": "%{y}: %{x:,}<br>%{customdata[0]} URLs collected, %{customdata[1]} kept<extra></extra>",
    }
    return _figure(
        [trace],
        height=_MARGIN_PIXELS + _BAR_PIXELS * len(rows),
        yaxis=_names(),
        xaxis=_axis("URLs" if of_urls else "documents"),
    )


_LABELS = {
    "urls": "collected",
    "pages": "fetched",
    "documents": "declared",
    "clean": "clean",
    "corpus": "in the corpus",
}


def _grouped(rows: Sequence[Mapping[str, Any]], key: str) -> Figure | None:
    if not rows:
        return None
    datasets = [name for name in rows[0] if name != key]
    traces = [
        {
            "type": "bar",
            "meta": number_,
            "name": _LABELS[dataset],
            "x": [str(row[key]) for row in rows],
            "y": [row[dataset] for row in rows],
            "hovertemplate": f"%{{x}}: %{{y:,}} {_LABELS[dataset]}<extra></extra>",
        }
        for number_, dataset in enumerate(datasets, start=1)
    ]
    return _figure(
        traces,
        barmode="group",
        xaxis=_axis(key, type="category", showgrid=False),
        yaxis=_axis("rows", rangemode="tozero"),
    )


def _frequent(rows: Sequence[Mapping[str, Any]]) -> list[Mapping[str, Any]]:
    return sorted(rows, key=lambda row: -max(v for v in row.values() if isinstance(v, int)))[:_BARS]


def score_label(row: Mapping[str, Any]) -> str:
    if row["low"] is None:
        return f"≤ {row['high']}"
    if row["high"] is None:
        return f"≥ {row['low']}"
    return str(row["low"]) if row["low"] == row["high"] else f"{row['low']}–{row['high']}"


def _scores(rows: Sequence[Mapping[str, Any]]) -> Figure | None:
    rows = [row for row in rows if row["survival"] is not None]
    if not rows:
        return None
    trace = {
        "type": "bar",
        "meta": 1,
        "x": [score_label(row) for row in rows],
        "y": [row["survival"] for row in rows],
        "customdata": [[row["urls"], row["corpus"]] for row in rows],
        "hovertemplate": "score %{x}: %{y:.1%} of %{customdata[0]:,} URLs "
        "(%{customdata[1]:,} documents)<extra></extra>",
    }
    return _figure(
        [trace],
        xaxis=_axis("score", type="category", showgrid=False),
        yaxis=_axis("survived to the corpus", tickformat=".0%"),
    )


def _histogram(distribution: Mapping[str, Any], unit: str, what: str) -> Figure | None:
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
    marks = [(q, distribution["percentiles"][q]) for q in ("5", "50", "95")]
    shapes = [
        {
            "type": "line",
            "x0": value,
            "x1": value,
            "yref": "paper",
            "y0": 0,
            "y1": 1,
            "line": {"dash": "dot", "width": 1},
        }
        for _, value in marks
        if value
    ]
    return _figure(
        [trace],
        bargap=0,
        shapes=shapes,
        xaxis=_log_axis(f"{unit} (dotted: 5 %, 50 %, 95 %)", bins[0][0], bins[-1][1]),
        yaxis=_axis(what),
    )


def _similarities(duplicates: Mapping[str, Any]) -> Figure | None:
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
    threshold = duplicates["lsh"]["threshold"]
    line = {"type": "line", "x0": threshold, "x1": threshold, "yref": "paper", "y0": 0, "y1": 1}
    return _figure(
        [observed, expected],
        shapes=[{**line, "line": {"dash": "dot", "width": 1}}],
        xaxis=_axis("similarity (dotted: the threshold)", range=[0, 1.02]),
        yaxis=_counts("documents removed", [row["count"] for row in bins]),
        yaxis2=_axis(
            "probability", overlaying="y", side="right", range=[0, 1.05], showgrid=False, tickmode="linear", dtick=0.2
        ),
    )


def _clusters(duplicates: Mapping[str, Any]) -> Figure | None:
    sizes = duplicates.get("clusters", {}).get("sizes")
    if not sizes:
        return None
    trace = {
        "type": "bar",
        "meta": 1,
        "x": list(sizes),
        "y": list(sizes.values()),
        "width": min(0.8, 0.1 * len(sizes)),
        "hovertemplate": "%{y:,} clusters of %{x} documents<extra></extra>",
    }
    return _figure(
        [trace],
        xaxis=_axis("documents in the cluster", type="category", showgrid=False),
        yaxis=_counts("clusters", list(sizes.values())),
    )


def _answers(fetch: Mapping[str, Any]) -> Figure | None:
    if not fetch:
        return None
    pages, failures = fetch["statuses"], fetch["failures"]
    names = [*(f"status {status}" for status in pages), *failures]
    counts = [*pages.values(), *failures.values()]
    trace = {
        "type": "bar",
        "orientation": "h",
        "meta": 1,
        "y": names,
        "x": counts,
        "hovertemplate": "%{y}: %{x:,} URLs<extra></extra>",
    }
    return _figure(
        [trace],
        height=_MARGIN_PIXELS + _BAR_PIXELS * len(names),
        yaxis=_names(),
        xaxis=_axis("URLs"),
    )
