"""The sections of the page, each from its part of stats.json."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from typing import Any

from owt_pipeline.report.markup import Markup, element, folded, joined, number, table
from owt_pipeline.report.sections.comparison import comparison
from owt_pipeline.report.sections.documents import documents, dropped
from owt_pipeline.report.sections.duplicates import duplicates
from owt_pipeline.report.sections.fetching import fetching
from owt_pipeline.report.sections.filters import filters
from owt_pipeline.report.sections.funnel import funnel
from owt_pipeline.report.sections.lengths import lengths
from owt_pipeline.report.sections.likeness import likeness
from owt_pipeline.report.sections.rankings import domains, languages, scores, subreddits, years
from owt_pipeline.report.sections.sampler import sampler

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
