"""The report as one HTML file that needs nothing else: style, plots and plotly.js are in it."""

from __future__ import annotations

import json
from collections.abc import Mapping
from importlib.resources import files
from typing import Any

from plotly.offline import get_plotlyjs

from owt_pipeline.report.markup import Markup, element, joined
from owt_pipeline.report.plots.all import plots
from owt_pipeline.report.sections.all import sections, tiles

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
