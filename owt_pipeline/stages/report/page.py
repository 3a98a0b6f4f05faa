"""The report as one self-contained HTML file: page.html with its values, style, scripts and charts.

The charts are JSON, which page.js passes to Chart.js in the colours of the style sheet.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from importlib.resources import files
from typing import Any

from schemas.quantities import format_bytes, format_percent
from schemas.settings import to_toml

Stats = Mapping[str, Any]

_RARE_SHARE, _ALWAYS_SHOWN = 0.001, 5
_LARGEST = 3
_LEAST_LIKE = 0.8
"""A warning is shown if a ratio to OpenWebText's figure is below this, or above its inverse."""


def page(stats: Stats) -> str:
    """index.html from the figures of stats.json."""
    from jinja2 import Environment, FunctionLoader, StrictUndefined  # slow to import

    environment = Environment(
        loader=FunctionLoader(_own),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters |= {
        "number": number,
        "percent": format_percent,
        "size": format_bytes,
        "breakable": _breakable,
    }
    environment.filters |= {"cell": cell, "settings_toml": settings_toml, "readable": readable}
    environment.globals |= {"raw": _own}
    figures = {name: figure for name, figure in stats["figures"].items() if figure["rows"]}
    drawn = {name: list(charts(name, figure)) for name, figure in figures.items()}
    return environment.get_template("page.html").render(
        stats=stats,
        figures=figures,
        drawn={
            name: [(key, chart["title"]) for key, chart in some] for name, some in drawn.items()
        },
        charts={key: chart for some in drawn.values() for key, chart in some},
        stages=stages(stats),
        losses=largest_losses(stats),
        unlike=[row for row in stats["figures"]["webtext"]["rows"] if not _is_like(row["share"])],
    )


def _is_like(ratio: float | None) -> bool:
    return not ratio or _LEAST_LIKE <= ratio <= 1 / _LEAST_LIKE


def _own(name: str) -> str:
    return (files("owt_pipeline.stages.report") / name).read_text(encoding="utf-8")


HINTS = dict(line.split(": ", 1) for line in _own("hints.txt").splitlines())
"""What to do about a frequent reason, or why it is normal."""


def stages(stats: Stats) -> list[dict[str, Any]]:
    """Return the funnel as drawn: duplicates, which dedupe finds and export removes, are shown
    once, at dedupe, with examples.

    Each entry gets a `width` in percent of the rows that entered the first stages. It is linear,
    since a reader compares the lengths as shares.
    """
    flow = list(stats["funnel"])
    found_at = {stage["dataset"]: k for k, stage in enumerate(flow)}
    if {"duplicates", "corpus"} <= found_at.keys():
        dedupe, export = flow[found_at["duplicates"]], flow[found_at["corpus"]]
        applied = {
            row["reason"]: row for row in export["rejected"] if row["reason"].endswith("_duplicate")
        }
        others = [row for row in export["rejected"] if row["reason"] not in applied]
        flow[found_at["duplicates"]] = {**dedupe, "rejected": list(applied.values())}
        flow[found_at["corpus"]] = {**export, "rejected": others}
    most = max((stage["entered"] for stage in flow), default=0)
    found = []
    for stage in flow:
        rows = [{**row, "width": _width(row["count"], most)} for row in stage["rejected"]]
        rare = [row for row in rows[_ALWAYS_SHOWN:] if (row["share"] or 0) < _RARE_SHARE]
        often = rows[: len(rows) - len(rare)]
        found.append(
            {**stage, "width": _width(stage["left"], most), "rejected": often, "rare": rare}
        )
    return found


def settings_toml(stats: Stats) -> str:
    """The options that shaped the run, as the settings file of `owt run`."""
    tables = []
    for entry in stats["settings"].values():
        read = [f"# read {source['name']}" for source in entry["sources"] if "name" in source]
        shown = [
            f"{name} = {to_toml(value)}"
            for name, value in entry["options"].items()
            if not isinstance(value, dict)
        ]
        tables.append("\n".join([f"[{entry['stage']}]", *read, *shown]))
    return "\n\n".join(tables)


def _width(count: int, most: int) -> float:
    return round(100 * count / most, 2) if most else 0


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


def _breakable(name: str) -> list[str]:
    """The parts of a name, between which a line may break: after a dot, a slash or an
    underscore."""
    return re.split(r"(?<=[./_])", name)


def cell(value: Any, column: str) -> str:
    """A value of a figure's table."""
    if isinstance(value, str) or value is None:
        return value or "–"
    if column.endswith(("share", "survival")):
        return format_percent(value)
    if column in ("year", "years"):
        return str(value)
    return number(value, 0 if isinstance(value, int) else 2 if abs(value) < 100 else 1)


Chart = dict[str, Any]
"""`title`, `labels` along x, `series` of values (None for no value), `x`, and whether `stacked`,
`percent`, `small`."""

# The lengths of documents have four columns for each doubling: 80 up to a million.
_MAX_LABELS = 100


def charts(name: str, figure: Stats) -> Iterator[tuple[str, Chart]]:
    """(key, chart) of a figure, by the last line of its query's head; none for `table`.

    `bars LABEL: COLUMN ...` draws columns; before LABEL may stand `stacked`, and `shares` for
    `bars` where values are shares. `by COLUMN` at the end draws one small chart for each value of
    that column.
    """
    if figure["chart"] == "table":
        return
    before, _, after = figure["chart"].partition(":")
    *kind, label = before.split()
    series, _, by = after.partition(" by ")
    groups: dict[str, list[Stats]] = {}
    for row in figure["rows"]:
        groups.setdefault(row[by] if by else figure["sentence"], []).append(row)
    for number_of, (title, rows) in enumerate(groups.items()):
        some = rows[:_MAX_LABELS]
        chart: Chart = {
            "title": title,
            "labels": [str(row[label]) for row in some],
            "series": [
                {"name": readable(key), "values": [row[key] for row in some]}
                for key in series.split()
            ],
            "x": title if by else readable(label),
            "stacked": "stacked" in kind,
            "percent": "shares" in kind,
            "small": bool(by),
        }
        yield (f"{name}-{number_of}" if by else name), chart


def readable(column: str) -> str:
    """A column's name in words."""
    return column.replace("_", " ")
