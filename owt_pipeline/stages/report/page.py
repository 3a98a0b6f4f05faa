"""Renders the report as one self-contained HTML file from page.html, its style and its scripts.

The charts are JSON, which page.js passes to Chart.js in the colours of the style sheet.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from importlib.resources import files
from operator import itemgetter
from typing import Any

import tomllib

from owt_pipeline.errors import UserError
from schemas.quantities import format_bytes, format_percent
from schemas.settings import to_toml

Stats = Mapping[str, Any]

# Reasons after the first of a stage are folded if they rejected a smaller share of its rows.
_MIN_SHARE_SHOWN = 0.01
_NUM_ALWAYS_SHOWN = 3

_MAX_LOSSES = 3

# The kind of the sources in the manifest of urls/ that are blocked domains.
_BLOCKED = "blocklist"

OPEN_SECTIONS = frozenset({"funnel", "webtext", "lengths", "thresholds", "duplicates"})
"""The sections that are open when the page is opened.

Together with the titles of the folded ones they take about five screens.
"""

# The page warns if a ratio to OpenWebText's figure is below this, or above its inverse.
_MIN_RATIO_TO_OPENWEBTEXT = 0.8


def page(stats: Stats) -> str:
    """Return index.html from the figures of stats.json."""
    # Slow to import.
    from jinja2 import Environment, FunctionLoader, StrictUndefined

    environment = Environment(
        loader=FunctionLoader(_read_file),
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
        "cell": cell,
        "settings_toml": settings_toml,
        "numeric_columns": numeric_columns,
        "readable": readable,
        "only_bar": only_bar,
    }
    environment.globals |= {"raw": _read_file}
    figures = {name: figure for name, figure in stats["figures"].items() if figure["rows"]}
    charts_by_key: dict[str, Chart] = {}
    titles_by_figure: dict[str, list[tuple[str, str]]] = {}
    for name, figure in figures.items():
        titles_by_figure[name] = []
        for key, chart in charts(name, figure):
            charts_by_key[key] = chart
            titles_by_figure[name].append((key, chart["title"]))
    comparison = stats["figures"]["webtext"]["rows"]
    return environment.get_template("page.html").render(
        stats=stats,
        figures=figures,
        drawn=titles_by_figure,
        open_sections=OPEN_SECTIONS,
        charts=charts_by_key,
        stages=stages(stats),
        losses=largest_losses(stats),
        preset_differences=preset_differences(stats),
        unlike=[row for row in comparison if not _is_like_openwebtext(row["share"])],
    )


def _is_like_openwebtext(ratio: float | None) -> bool:
    if not ratio:
        return True
    return _MIN_RATIO_TO_OPENWEBTEXT <= ratio <= 1 / _MIN_RATIO_TO_OPENWEBTEXT


def _read_file(name: str) -> str:
    """Read a file of the report's package."""
    return (files("owt_pipeline.stages.report") / name).read_text(encoding="utf-8")


HINTS = dict(line.split(": ", 1) for line in _read_file("hints.txt").splitlines())
"""Advice about a frequent reason, or why it is normal, by reason."""


def stages(stats: Stats) -> list[dict[str, Any]]:
    """Return the funnel as the page draws it.

    Dedupe finds duplicates and export removes them. They are shown once, at dedupe, with examples.
    Each entry gets a `width` in percent of the rows that entered the first stages. It is linear,
    since a reader compares the lengths as shares.
    """
    flow = _move_duplicates_to_dedupe(stats["funnel"])
    max_entered = max((stage["entered"] for stage in flow), default=0)
    drawn_stages = []
    for stage in flow:
        rows: list[dict[str, Any]] = []
        for row in stage["rejected"]:
            rows.append({**row, "width": _percent(row["count"], max_entered)})
        rare = [row for row in rows[_NUM_ALWAYS_SHOWN:] if _is_rare(row)]
        drawn_stage = {
            **stage,
            "width": _percent(stage["left"], max_entered),
            # The rows are in the order of their counts, so the rare ones are the last.
            "rejected": rows[: len(rows) - len(rare)],
            "rare": rare,
        }
        drawn_stages.append(drawn_stage)
    return drawn_stages


def _move_duplicates_to_dedupe(funnel: Sequence[Stats]) -> list[dict[str, Any]]:
    stages_by_dataset = {stage["dataset"]: dict(stage) for stage in funnel}
    dedupe = stages_by_dataset.get("duplicates")
    export = stages_by_dataset.get("corpus")
    if dedupe is not None and export is not None:
        rejected = export["rejected"]
        dedupe["rejected"] = [row for row in rejected if _is_duplicate(row)]
        export["rejected"] = [row for row in rejected if not _is_duplicate(row)]
    return list(stages_by_dataset.values())


def _is_duplicate(row: Stats) -> bool:
    return bool(row["reason"].endswith("_duplicate"))


def _is_rare(row: Stats) -> bool:
    # The share is None if no row entered the stage.
    return (row["share"] or 0) < _MIN_SHARE_SHOWN


def settings_toml(stats: Stats) -> str:
    """Return the options that shaped the run, as the settings file of `owt run`."""
    tables: list[str] = []
    for entry in stats["settings"].values():
        lines = [f"[{entry['stage']}]"]
        for source in entry["sources"]:
            if "name" in source:
                lines.append(f"# read {source['name']}")
        for name, value in entry["options"].items():
            if not isinstance(value, dict):
                lines.append(f"{name} = {to_toml(value)}")
        tables.append("\n".join(lines))
    return "\n\n".join(tables)


def preset_differences(stats: Stats) -> dict[str, list[str]]:
    """Return by preset which settings of the run differ, as `[collect] min_score = 5, not 3`."""
    values_by_stage: dict[str, dict[str, Any]] = {}
    for entry in stats["settings"].values():
        blocked = [source["name"] for source in entry["sources"] if source.get("kind") == _BLOCKED]
        values_by_stage[entry["stage"]] = {**entry["options"], "blocked_domains": blocked}
    differences: dict[str, list[str]] = {}
    for file in sorted((files("owt_pipeline") / "presets").iterdir(), key=str):
        lines = differences[file.name.removesuffix(".toml")] = []
        for stage, options in tomllib.loads(file.read_text(encoding="utf-8")).items():
            values = values_by_stage.get(stage, {})
            for name, recommended in options.items():
                if name in values and values[name] != recommended:
                    change = f"{to_toml(values[name])}, not {to_toml(recommended)}"
                    lines.append(f"[{stage}] {name} = {change}")
    return differences


def _percent(part: int, total: int) -> float:
    return round(100 * part / total, 2) if total else 0


def largest_losses(stats: Stats) -> list[dict[str, Any]]:
    """Return the reasons that rejected the most rows, over all stages, with hints."""
    losses: list[dict[str, Any]] = []
    for stage in stages(stats):
        for row in (*stage["rejected"], *stage["rare"]):
            hint = HINTS.get(row["reason"], "")
            losses.append({**row, "stage": stage["stage"], "hint": hint})
    losses.sort(key=itemgetter("count"), reverse=True)
    return losses[:_MAX_LOSSES]


def number(value: float | None, digits: int = 0) -> str:
    """Return a number with thousands separators; a dash for None."""
    if value is None:
        return "–"
    return f"{value:,.{digits}f}"


def _breakable(name: str) -> list[str]:
    """Return the parts of a name, after each of which a line may break.

    A part ends in a dot, a slash or an underscore.
    """
    return re.split(r"(?<=[./_])", name)


def cell(value: Any, column: str) -> str:
    """Return a value of a figure's table as text."""
    if isinstance(value, str) or value is None:
        return value or "–"
    if column.endswith(("share", "survival")):
        return format_percent(value)
    if column in ("year", "years"):
        return str(value)
    # A mean of bytes or milliseconds is a whole number: its digits after the point say nothing.
    if isinstance(value, int) or column.endswith(("bytes", "milliseconds")):
        return number(value)
    num_digits = 2 if abs(value) < 100 else 1
    return number(value, num_digits)


def numeric_columns(rows: Sequence[Stats]) -> set[str]:
    """Return the columns of a figure that have a number in any row."""
    numeric: set[str] = set()
    for row in rows:
        numeric.update(column for column, value in row.items() if isinstance(value, (int, float)))
    return numeric


Chart = dict[str, Any]
"""A chart for page.js: `title`, `labels` along the axis `x`, and `series` of values.

A missing value is None. `stacked`, `percent` and `small` are booleans.
"""

# The lengths of documents have four columns for each doubling: 80 up to a million.
_MAX_LABELS = 100


def charts(name: str, figure: Stats) -> Iterator[tuple[str, Chart]]:
    """Yield the key and the content of each chart of a figure; nothing for `table`.

    The last line at the head of its query is `bars LABEL: COLUMN ...`, which draws columns.
    `stacked` may precede LABEL. `shares` in place of `bars` means that the values are shares.
    `by COLUMN` at the end draws one small chart for each value of that column.
    """
    if figure["chart"] == "table":
        return
    kind_and_label, _, series_and_group = figure["chart"].partition(":")
    *kind, label = kind_and_label.split()
    series, _, group_column = series_and_group.partition(" by ")
    columns = series.split()
    for column in (label, *columns, group_column or label):
        if figure["rows"] and column not in figure["rows"][0]:
            raise UserError(f"the figure {name} draws {column!r}, which its query does not return")

    def draw(title: str, x: str, rows: Sequence[Stats]) -> Chart:
        shown_rows = rows[:_MAX_LABELS]
        chart: Chart = {
            "title": title,
            "labels": [_axis_label(row[label], label) for row in shown_rows],
            "series": [],
            "x": x,
            "stacked": "stacked" in kind,
            "percent": "shares" in kind,
            "small": bool(group_column),
        }
        for column in columns:
            values = [row[column] for row in shown_rows]
            chart["series"].append({"name": readable(column), "values": values})
        return chart

    if not group_column:
        if figure["rows"]:
            yield name, draw(figure["sentence"], readable(label), figure["rows"])
        return
    groups: dict[str, list[Stats]] = {}
    for row in figure["rows"]:
        groups.setdefault(row[group_column], []).append(row)
    for group_number, (title, rows) in enumerate(groups.items()):
        yield f"{name}-{group_number}", draw(title, title, rows)


def _axis_label(value: object, column: str) -> str:
    """Return a value of the axis as text, with thousands separators except in years."""
    if column in ("year", "years"):
        return str(value)
    return re.sub(r"\d{4,}", lambda digits: f"{int(digits[0]):,}", str(value))


def only_bar(chart: Chart) -> str:
    """Return the chart's values as a sentence if it has one bar, which needs no chart; else ""."""
    if len(chart["labels"]) != 1:
        return ""
    values = []
    for series in chart["series"]:
        (value,) = series["values"]
        if value:
            shown = format_percent(value) if chart["percent"] else number(value)
            values.append(f"{shown} {series['name']}")
    return f"{chart['labels'][0]}: {', '.join(values) or 'none'}"


def readable(column: str) -> str:
    """Return a column's name in words."""
    return column.replace("_", " ")
