"""Two runs side by side."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from owt_pipeline.report.markup import Markup, absent, element, folded, joined, number, percent, plot, table

Stats = Mapping[str, Any]

_TOTALS = {
    "entered": "rows entered",
    "documents": "documents",
    "text_bytes": "bytes of text",
    "tokens": "tokens",
}


def comparison(stats: Stats) -> Markup:
    found = stats["comparison"]
    names = ["this run", found["other"]]
    totals = [(what, *found["totals"][key], _change(found["totals"][key])) for key, what in _TOTALS.items()]
    sizes = found["bytes_per_token"]
    totals.append(("bytes a token", *(number(size, 2) for size in sizes), _change(sizes)))
    totals.append(("duplicates", *map(percent, found["duplicates"]), ""))
    return joined(
        [
            table(["", *names, "change"], totals),
            element("h3", "Stages"),
            table(
                ["left", *names, *(f"kept, {name}" for name in names)],
                [(row["dataset"], *row["left"], *map(percent, row["share"])) for row in found["stages"]],
            ),
            folded("Rejected, by reason", _rejected(found["rejected"], names)),
            element("h3", "Tokens a document"),
            plot("compared-tokens", "Which share of the documents has how many tokens."),
            folded("Lengths as a table", _lengths(found["lengths"], names)),
            element("h3", "Domains"),
            table(
                ["domain", *names],
                [(row["domain"], *map(percent, row["share"])) for row in found["domains"]],
            )
            if found["domains"]
            else absent("Neither run knows of domains."),
            element("h3", "Settings that differ"),
            table(
                ["stage", "option", *names],
                [(row["stage"], row["option"], *map(json.dumps, row["values"])) for row in found["settings"]],
            )
            if found["settings"]
            else absent("None."),
        ]
    )


def _change(pair: list[float | None]) -> str:
    """How much more or less the first is than the second."""
    ours, theirs = pair
    if ours is None or not theirs:
        return "–"
    return f"{100 * (ours / theirs - 1):+.1f} %"


def _rejected(rows: list[Stats], names: list[str]) -> Markup:
    return table(
        ["stage", "reason", *names, *(f"share, {name}" for name in names)],
        [(row["stage"], row["reason"], *row["count"], *map(percent, row["share"])) for row in rows],
    )


def _lengths(lengths: Stats, names: list[str]) -> Markup:
    rows = []
    for kind, row in lengths.items():
        rows.append((kind, "mean", *(number(value, 1) for value in row["mean"])))
        rows += [(kind, f"{q} %", *pair) for q, pair in row["percentiles"].items()]
    return table(["", "", *names], rows)
