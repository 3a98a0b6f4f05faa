"""The report as one self-contained HTML file: page.html with its values, style, scripts and charts.

The charts are JSON, which page.js passes to Chart.js in the colours of the style sheet.
"""

from __future__ import annotations

import bisect
import json
import re
from collections.abc import Mapping, Sequence
from functools import partial
from importlib.resources import files
from math import log10
from typing import Any

import numpy as np

from schemas.settings import to_toml

Stats = Mapping[str, Any]

_RARE_SHARE, _ALWAYS_SHOWN = 0.001, 5
_LARGEST = 3


def page(stats: Stats) -> str:
    """index.html from the figures of stats.json."""
    from jinja2 import Environment, FunctionLoader, StrictUndefined  # slow to import

    environment = Environment(
        loader=FunctionLoader(_own), autoescape=True, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True
    )
    environment.filters |= {
        "number": number,
        "percent": percent,
        "size": size,
        "json": partial(json.dumps, ensure_ascii=False),
        "breakable": _breakable,
        "settings_toml": settings_toml,
    }
    shown = stages(stats)
    most = max((stage["entered"] for stage in shown), default=0)
    environment.globals |= {"raw": _own, "log_width": partial(_width, most=most)}
    template = environment.get_template("page.html")
    return template.render(stats=stats, charts=charts(stats), stages=shown, losses=largest_losses(stats))


def _own(name: str) -> str:
    return (files("owt_pipeline.stages.report") / name).read_text(encoding="utf-8")


HINTS = dict(line.split(": ", 1) for line in _own("hints.txt").splitlines())
"""What to do about a frequent reason, or why it is normal."""


def stages(stats: Stats) -> list[dict[str, Any]]:
    """The funnel as drawn: duplicates, which dedupe finds and export removes, are shown once, at dedupe, with examples.

    Each entry gets a `width` in percent on a logarithmic scale, on which one row is visible next to a billion.
    """
    flow = list(stats["funnel"])
    found_at = {stage["dataset"]: k for k, stage in enumerate(flow)}
    if {"duplicates", "corpus"} <= found_at.keys():
        dedupe, export = flow[found_at["duplicates"]], flow[found_at["corpus"]]
        applied = {row["reason"]: row for row in export["rejected"] if row["reason"].endswith("_duplicate")}
        others = [row for row in export["rejected"] if row["reason"] not in applied]
        flow[found_at["duplicates"]] = {**dedupe, "rejected": list(applied.values())}
        flow[found_at["corpus"]] = {**export, "rejected": others}
    most = max((stage["entered"] for stage in flow), default=0)
    found = []
    for stage in flow:
        rows = [{**row, "width": _width(row["count"], most)} for row in stage["rejected"]]
        rare = [row for row in rows[_ALWAYS_SHOWN:] if (row["share"] or 0) < _RARE_SHARE]
        shown = rows[: len(rows) - len(rare)]
        found.append({**stage, "width": _width(stage["left"], most), "rejected": shown, "rare": rare})
    return found


def settings_toml(stats: Stats) -> str:
    """The options that shaped the run, as the CONFIG.toml of `owt run`."""
    tables = []
    for entry in stats["settings"].values():
        read = [f"# read {source['name']}" for source in entry["sources"] if "name" in source]
        shown = [
            f"{name} = {to_toml(value)}" for name, value in entry["options"].items() if not isinstance(value, dict)
        ]
        tables.append("\n".join([f"[{entry['stage']}]", *read, *shown]))
    return "\n\n".join(tables)


def _width(count: int, most: int) -> float:
    return round(100 * log10(1 + count) / log10(1 + most), 2) if most else 0


def largest_losses(stats: Stats) -> list[dict[str, Any]]:
    """The reasons that rejected the most rows, over all stages, with hints."""
    losses = [
        {**row, "stage": stage["stage"], "hint": HINTS.get(row["reason"], "")}
        for stage in stages(stats)
        for row in (*stage["rejected"], *stage["rare"])
    ]
    return sorted(losses, key=lambda row: -row["count"])[:_LARGEST]


def number(value: float | None, digits: int = 0) -> str:
    """A number with thousands separators; a dash for None."""
    return "–" if value is None else f"{value:,.{digits}f}"


def percent(share: float | None) -> str:
    if share is None:
        return "–"
    return "<0.1 %" if 0 < share < 0.001 else f"{100 * share:.1f} %"


def size(value: int) -> str:
    """A number of bytes: 17.0 kB, 40.0 GB."""
    power, unit = next((found for found in ((12, "TB"), (9, "GB"), (6, "MB")) if value >= 10 ** found[0]), (3, "kB"))
    return f"{value / 10**power:,.1f} {unit}"


def _breakable(name: str) -> list[str]:
    """The parts of a name, between which a line may break: after a dot, a slash or an underscore."""
    return re.split(r"(?<=[./_])", name)


Chart = dict[str, Any]
"""`labels` along x, `series` of values (None for no value), axis titles, and `marks`: dotted lines at an index."""

_MOST_LANGUAGES = 20


def charts(stats: Stats) -> dict[str, Chart]:
    """The charts of stats.json by name, without those that have no data."""
    fetch, duplicates, compared = stats["fetch"], stats["duplicates"], stats["comparison"]
    found = {
        "years": _through(stats["years"], "year"),
        "languages": _through(_frequent(stats["languages"]), "language"),
        "scores": _scores(stats["scores"]),
        **{name: _histogram(stats["lengths"][name], name, "documents") for name in ("tokens", "words", "characters")},
        "occurrences": _occurrences(stats["tokens"]),
        "sampler": _sampler(stats["sampler"]),
        "training": _training(stats["training"]),
    }
    if duplicates:
        sizes = duplicates["clusters"]["sizes"]
        found["similarities"] = _similarities(duplicates)
        found["clusters"] = _chart(list(sizes), {"clusters": sizes.values()}, "documents in the cluster", "clusters")
    if fetch:
        found["milliseconds"] = _histogram(fetch["milliseconds"], "milliseconds", "pages")
        found["body_bytes"] = _histogram(fetch["body_bytes"], "bytes", "pages")
        found["ages"] = _ages(fetch["ages"])
        found["distances"] = _overlaid(
            {row["source"]: row["days"]["histogram"] for row in fetch["distances"]}, "days", "pages"
        )
    if compared:
        both = dict(zip(("this run", compared["other"]), compared["token_histograms"], strict=True))
        found["compared"] = _overlaid(both, "tokens", "share of documents", percent=True)
    if stats["months"]:
        found |= _months(stats["months"])
    return {name: chart for name, chart in found.items() if chart is not None and chart["labels"]}


def _months(runs: Sequence[Stats]) -> dict[str, Chart]:
    names = [run["run"] for run in runs]

    def chart(y: str, *series: tuple[str, str]) -> Chart:
        return _chart(names, {said: [run[key] or 0 for run in runs] for key, said in series}, "", y, stacked=True)

    return {
        "months-urls": chart("URLs", ("urls", "new"), ("seen_before", "seen before")),
        "months-documents": chart(
            "documents",
            ("documents", "kept"),
            ("repeat_month", "duplicates within the run"),
            ("repeat_past", "duplicates of earlier runs"),
        ),
        "months-tokens": chart("tokens", ("tokens", "new tokens")),
    }


def _chart(labels: Sequence[Any], series: Mapping[str, Sequence[Any]], x: str, y: str, **more: Any) -> Chart:
    """A chart of columns next to each other.

    `more` may have `kind` (line), `stacked`, `percent`, `marks`, `small`, and `floating` (the y axis need not start at
    0).
    """
    shown = [{"name": name, "values": list(values)} for name, values in series.items()]
    return {"labels": [str(label) for label in labels], "series": shown, "x": x, "y": y, **more}


def _histogram(distribution: Stats, unit: str, what: str) -> Chart | None:
    """A distribution whose bins grow with the values: four per octave."""
    bins = _with_empty([row for row in distribution["histogram"] if row[1] > 1])
    lows = [low for low, *_ in bins]
    marks = [
        {"at": bisect.bisect(lows, value) - 1, "name": f"{q} %"}
        for q in ("5", "50", "95")
        if (value := distribution["percentiles"][q])
    ]
    labels, counts = [span(low, high - 1) for low, high, _ in bins], [count for *_, count in bins]
    return _chart(labels, {what: counts}, unit, what, marks=marks)


def _with_empty(bins: Sequence[Sequence[float]]) -> list[tuple[int, int, float]]:
    filled: list[tuple[int, int, float]] = []
    for low, high, count in bins:
        while filled and (start := filled[-1][1]) < low:
            filled.append((start, start + max((1 << start.bit_length() - 1) // 4, 1), 0))
        filled.append((int(low), int(high), count))
    return filled


def _overlaid(distributions: Mapping[str, Sequence[Sequence[float]]], unit: str, what: str, **more: Any) -> Chart:
    edges = {int(low): int(high) for bins in distributions.values() for low, high, _ in bins}
    bins = _with_empty([(low, high, 0) for low, high in sorted(edges.items())])
    series = {}
    for name, rows in distributions.items():
        counted = {int(low): count for low, _, count in rows}
        series[name] = [counted.get(low, 0) for low, *_ in bins]
    return _chart([span(low, high - 1) for low, high, _ in bins], series, unit, what, kind="line", **more)


_DATASETS = {
    "urls": "collected",
    "pages": "fetched",
    "documents": "declared",
    "clean": "clean",
    "corpus": "in the corpus",
}


def _through(rows: Sequence[Stats], key: str) -> Chart:
    series = {_DATASETS[name]: [row[name] for row in rows] for name in (rows[0] if rows else ()) if name != key}
    return _chart([row[key] for row in rows], series, key, "rows")


def _frequent(rows: Sequence[Stats]) -> Sequence[Stats]:
    return sorted(rows, key=lambda row: -max(v for v in row.values() if isinstance(v, int)))[:_MOST_LANGUAGES]


def _scores(rows: Sequence[Stats]) -> Chart | None:
    rows = [row for row in rows if row["survival"] is not None]
    labels, shares = [span(row["low"], row["high"]) for row in rows], [row["survival"] for row in rows]
    return _chart(labels, {"in the corpus": shares}, "score", "share of the URLs", percent=True)


_OUTCOMES = {
    "gone (404, 410)": ("http_404", "http_410"),
    "no answer": ("dns", "connect", "tls", "timeout"),
    "not archived": ("not_archived",),
}


def _ages(rows: Sequence[Stats]) -> Chart:
    counts = {"page": [row["pages"] for row in rows]}
    for name, reasons in _OUTCOMES.items():
        counts[name] = [sum(row["failures"].get(reason, 0) for reason in reasons) for row in rows]
    urls = [row["urls"] for row in rows]
    counts["another reason"] = [total - sum(some) for total, *some in zip(urls, *counts.values(), strict=True)]
    shares = {
        name: [round(value / total, 6) for value, total in zip(values, urls, strict=True)]
        for name, values in counts.items()
        if any(values)
    }
    x = "years from the submission to the capture"
    return _chart([row["years"] for row in rows], shares, x, "share of the URLs", percent=True, stacked=True)


def _similarities(duplicates: Stats) -> Chart | None:
    """The near-duplicates found, and the probability that a pair of such similarity is compared."""
    curve = duplicates["lsh"]["curve"]
    if not curve:
        return None
    found = {row["low"]: row for row in duplicates["similarities"]}
    width = 1 / 50
    threshold = duplicates["lsh"]["threshold"]
    first = int(max(0, min([*found, threshold]) - 0.2) / width)
    lows = [round(k * width, 4) for k in range(first, 50)]
    points = np.array(curve)
    chances = np.interp(np.array(lows) + width / 2, points[:, 0], points[:, 1]).round(4).tolist()
    chart = _chart(
        [f"{low:.2f}" for low in lows],
        {"near-duplicates found": [found[low]["count"] if low in found else 0 for low in lows]},
        "similarity",
        "documents",
        marks=[{"at": bisect.bisect_left(lows, threshold - 1e-9) - 0.5, "name": "threshold"}],
    )
    chart["series"].append({"name": "probability of being compared", "values": chances, "right": True})
    return chart


def _place(edges: Sequence[float], limit: float, is_maximum: bool) -> int:
    """Index of the bin boundary at a limit; if the limit is not an edge, the boundary after the values it allows."""
    return 1 + edges.index(limit) if limit in edges else bisect.bisect(edges, limit) + is_maximum


def _between(edges: Sequence[float], k: int) -> str:
    """Bin k as a range, which includes its first value but not its last."""
    if k == 0:
        return f"under {edges[0]:g}"
    return f"{edges[k - 1]:g} to {edges[k]:g}" if k < len(edges) else f"{edges[-1]:g} or more"


def _occurrences(tokens: Stats | None) -> Chart | None:
    if not tokens or not (bins := tokens["occurrences"]):
        return None
    never = (tokens["vocabulary"] or 0) - tokens["vocabulary_used"]
    labels = ["never", *(span(low, high - 1) for low, high, _ in bins)]
    return _chart(labels, {"token ids": [never, *(ids for *_, ids in bins)]}, "times the id occurs", "token ids")


def _sampler(mixture: Stats | None) -> Chart | None:
    if not mixture:
        return None
    rows = mixture["rows"]
    labels = [span(row["at_least"], None if row["below"] is None else row["below"] - 1) for row in rows]
    series = {"of the documents": [row["documents"] for row in rows]}
    for name in ("packed", "longbiased"):
        series[f"of the tokens, {name}"] = [row[name]["tokens"] if row[name] else None for row in rows]
    return _chart(labels, series, "tokens of the document", "share", percent=True)


def _training(training: Stats | None) -> Chart | None:
    if not training:
        return None
    steps = training["steps"]
    return _chart(
        [step for step, *_ in steps],
        {"training loss": [loss for _, loss, _ in steps], "validation loss": [val for *_, val in steps]},
        "step",
        "loss (nats per token)",
        kind="line",
        floating=True,
    )


def span(low: int | None, high: int | None) -> str:
    """`≤ 0`, `3`, `5–6` or `≥ 5000`."""
    if low is None or high is None:
        return f"≤ {high}" if low is None else f"≥ {short(low)}"
    return short(low) if low == high else f"{short(low)}–{short(high)}"


def short(value: int) -> str:
    """A number from 10,000 on in thousands or millions: 16384 is 16.4k."""
    for unit, name in ((10**6, "M"), (10**3, "k")):
        if abs(value) >= unit and abs(value) >= 10_000:
            return f"{value / unit:.1f}{name}"
    return str(value)
