"""The report as one HTML file that needs no other: page.html, filled in, with its style, scripts and charts in it."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from functools import partial
from importlib.resources import files
from math import log10
from typing import Any

from owt_pipeline.report.charts import charts

Stats = Mapping[str, Any]

HINTS = {
    "repeated_url": "Normal: a popular link is posted many times. Its submissions are merged into one row.",
    "self_post": "Normal: posts that hold text of their own link to no page.",
    "low_score": "Lower --min_score to collect more links, at the price of quality.",
    "blocked_domain": "The blocklist decides: --blocked_domains lists your own.",
    "blocked_extension": "Normal: images, videos and archives hold no text to extract.",
    "not_archived": "Add an archive to --sources, or fetch the rest live.",
    "http_404": "Link rot: ask web archives with --sources for what is gone.",
    "http_403": "The sites refuse robots: a clear --user_agent with contact details helps, archives help more.",
    "http_429": "Hosts ask for fewer requests: lower the rate per host.",
    "robots": "The sites forbid it; archives may hold these pages.",
    "dns": "The hosts are gone, or this machine's resolver is overloaded: fetch again to see which.",
    "timeout": "Slow hosts, or a connection with too many requests at once: lower --concurrency.",
    "not_html": "Normal: PDF, images and feeds are not read.",
    "no_text": "Pages without an article, or made by scripts: read the examples, and --extractor's page in the docs.",
    "too_short": "Lower clean's --min_tokens to keep short texts.",
    "wrong_language": "Set --languages to keep more of them.",
    "exact_duplicate": "Normal for link collections: syndicated texts and error pages.",
    "near_duplicate": "Raise dedupe's --threshold to keep texts that differ more than copies do.",
}
"""What to do about a frequent reason, or why nothing has to be done."""

_RARE_SHARE, _ALWAYS_SHOWN = 0.001, 5
_LARGEST = 3


def page(stats: Stats) -> str:
    """index.html from the figures of stats.json."""
    from jinja2 import Environment, FunctionLoader, StrictUndefined  # takes a while

    environment = Environment(
        loader=FunctionLoader(_own), autoescape=True, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True
    )
    environment.filters |= {"number": number, "percent": percent, "json": _json_value, "breakable": _breakable}
    shown = stages(stats)
    most = max((stage["entered"] for stage in shown), default=0)
    environment.globals |= {"raw": _own, "log_width": partial(_width, most=most)}
    template = environment.get_template("page.html")
    return template.render(stats=stats, charts=charts(stats), stages=shown, losses=largest_losses(stats))


def _own(name: str) -> str:
    return (files("owt_pipeline.report") / name).read_text(encoding="utf-8")


def stages(stats: Stats) -> list[dict[str, Any]]:
    """The funnel as it is drawn: dedupe decides and export applies it, so what they remove is shown once, at export.

    Each row gets a `width` in percent on a logarithmic scale, on which one row is visible next to a billion.
    """
    flow = [stage for stage in stats["funnel"] if stage["dataset"] != "duplicates"]
    most = max((stage["entered"] for stage in flow), default=0)
    found = []
    for stage in flow:
        rows = [{**row, "width": _width(row["count"], most)} for row in stage["rejected"]]
        rare = [row for row in rows[_ALWAYS_SHOWN:] if (row["share"] or 0) < _RARE_SHARE]
        found.append(
            {**stage, "width": _width(stage["left"], most), "rejected": rows[: len(rows) - len(rare)], "rare": rare}
        )  # fmt: skip
    return found


def _width(count: int, most: int) -> float:
    return round(100 * log10(1 + count) / log10(1 + most), 2) if most else 0


def largest_losses(stats: Stats) -> list[dict[str, Any]]:
    """The reasons that took most rows, of all stages, with a hint."""
    return sorted(_losses(stats), key=lambda row: -row["count"])[:_LARGEST]


def _losses(stats: Stats) -> Iterator[dict[str, Any]]:
    for stage in stages(stats):
        for row in (*stage["rejected"], *stage["rare"]):
            yield {**row, "stage": stage["stage"], "hint": HINTS.get(row["reason"], "")}


def number(value: float | None, digits: int = 0) -> str:
    """With thousands separated; a dash for None."""
    return "–" if value is None else f"{value:,.{digits}f}"


def percent(share: float | None) -> str:
    if share is None:
        return "–"
    return "<0.1 %" if 0 < share < 0.001 else f"{100 * share:.1f} %"


def _breakable(name: str) -> list[str]:
    """The parts of a name that lines may break between: after a dot, a slash or an underscore."""
    return re.split(r"(?<=[./_])", name)


def _json_value(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False)
