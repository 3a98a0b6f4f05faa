"""The funnel: what went in, what came out, and why the rest did not."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from owt_pipeline.report.markup import Markup, element, folded, joined, link, number, percent, plot, table

Stats = Mapping[str, Any]


def funnel(stats: Stats) -> Markup:
    stages = stats["funnel"]
    flow = table(
        ["stage", "in", "out", "kept", "MB"],
        [(s["stage"], s["entered"], s["left"], percent(s["share"]), f"{number(s['bytes'] / 1e6, 1)}") for s in stages],
    )
    why = [
        joined(
            [
                element("h3", f"Rejected by {stage['stage']}", id=f"rejected-{stage['stage']}"),
                *(_reason(stage, row) for row in stage["rejected"]),
            ]
        )
        for stage in stages
        if stage["rejected"]
    ]
    return joined(
        [
            plot("funnel", "What each stage let through; click a bar for what it rejected."),
            flow,
            element(
                "p",
                "What went in came out, or was rejected for one of these reasons; open one for URLs at random. A bar "
                "is the share of what entered its stage.",
            ),
            *why,
        ]
    )


def _reason(stage: Stats, row: Stats) -> Markup:
    title = joined(
        [
            element("code", row["reason"]),
            element("span", f"{number(row['count'])} · {percent(row['share'])}", class_="count"),
            element("span", row["meaning"], class_="meaning"),
        ]
    )
    bar = {"class_": "reason", "style": f"--share: {100 * (row['share'] or 0):.2f}%"}
    if not row["sample"]:
        decided = stage["dataset"] == "duplicates"
        note = element("a", "decided here, applied by export", href="#rejected-export") if decided else "no sample"
        return folded(title, element("p", note), **bar)
    items = (element("li", link(r["url"]), " ", element("small", r["detail"] or "")) for r in row["sample"])
    return folded(title, element("ol", *items), **bar)
