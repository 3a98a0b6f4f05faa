"""The report as one HTML file that needs nothing else: style, plots and plotly.js are in it."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from importlib.resources import files
from typing import Any

from plotly.offline import get_plotlyjs

from owt_pipeline.report.corpus_sections import (
    comparison,
    documents,
    domains,
    dropped,
    languages,
    lengths,
    likeness,
    sampler,
    scores,
    subreddits,
    years,
)
from owt_pipeline.report.loss_sections import duplicates, fetching, filters, funnel
from owt_pipeline.report.markup import Markup, element, folded, joined, number, table
from owt_pipeline.report.plots import plots

# The page may run what is in it, and load nothing: not by mistake of ours, nor by a page's title.
_POLICY = "default-src 'none'; script-src 'unsafe-inline'; style-src 'unsafe-inline'; img-src data: blob:"


_SUBTITLE = "What is in the corpus, what was lost where, and whether it is like WebText."


def page(stats: Mapping[str, Any]) -> str:
    """index.html from the figures of stats.json."""
    parts = sections(stats)
    navigation = element("nav", *(element("a", title, href=f"#{name}") for name, title, _ in parts))
    body = joined(
        element("section", element("h2", title), content, id=name, **{"aria-label": title})
        for name, title, content in parts
    )
    figures = json.dumps(plots(stats), ensure_ascii=False, separators=(",", ":")).replace("<", "\\u003c")
    return f"""<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta http-equiv="Content-Security-Policy" content="{_POLICY}">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta name="color-scheme" content="light dark">
<title>Corpus report</title>
<style>
{_own("report.css")}</style>
</head>
<body>
<header>
{element("h1", "Corpus report")}
{element("p", _SUBTITLE, class_="of")}
{tiles(stats)}
{navigation}
</header>
<main>
{body}
</main>
<footer>{element("p", "Every figure of this page is in ", element("code", "stats.json"), " beside it.")}</footer>
<script type="application/json" id="figures">{figures}</script>
<script>{get_plotlyjs()}</script>
<script>
{_own("report.js")}</script>
</body>
</html>
"""


def _own(name: str) -> Markup:
    return Markup((files("owt_pipeline.report") / name).read_text(encoding="utf-8"))


Stats = Mapping[str, Any]


def tiles(stats: Stats) -> Markup:
    """The figures that people look for first."""
    totals, tokens = stats["totals"], stats["tokens"]
    first = stats["funnel"][0]["stage"] if stats["funnel"] else "the first stage"
    shown = [
        (number(totals["entered"]), f"rows entered {first}"),
        (number(totals["documents"]), "documents in the corpus"),
        (f"{number(totals['text_bytes'] / 1e6, 1)} MB", "of text"),
        (number(totals["tokens"]), f"tokens ({tokens.get('tokenizer', '')})"),
        (number(tokens.get("bytes_per_token"), 2), "bytes a token"),
    ]
    return element("ul", *(element("li", element("b", value), " ", what) for value, what in shown), class_="tiles")


def sections(stats: Stats) -> list[tuple[str, str, Markup]]:
    """(id, title, content) of every section; one without data says why."""
    shown = _SECTIONS if stats["comparison"] else [row for row in _SECTIONS if row[0] != "comparison"]
    return [(name, title, content(stats)) for name, title, content in shown]


def _settings(stats: Stats) -> Markup:
    return joined(
        folded(
            f"{entry['stage']} (version {entry['stage_version']})",
            table(["option", "value"], [(key, json.dumps(value)) for key, value in entry["options"].items()]),
            element("p", "Written with ", ", ".join(f"{name} {v}" for name, v in entry["versions"].items()), "."),
        )
        for entry in stats["settings"].values()
    )


_SECTIONS: list[tuple[str, str, Callable[[Stats], Markup]]] = [
    ("funnel", "From submissions to tokens", funnel),
    ("comparison", "Beside the other run", comparison),
    ("likeness", "Likeness to WebText", likeness),
    ("domains", "Domains", domains),
    ("subreddits", "Subreddits", subreddits),
    ("years", "Years", years),
    ("languages", "Languages", languages),
    ("scores", "Score and survival", scores),
    ("lengths", "Lengths and tokens", lengths),
    ("sampler", "What a model is shown", sampler),
    ("fetch", "Fetching", fetching),
    ("filters", "Filters", filters),
    ("duplicates", "Duplicates", duplicates),
    ("documents", "Documents kept", documents),
    ("dropped", "Documents dropped", dropped),
    ("settings", "Settings", _settings),
]
