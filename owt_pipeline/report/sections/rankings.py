"""Domains, subreddits, years, languages, scores."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from owt_pipeline.report.markup import Markup, absent, element, folded, joined, number, percent, plot, span, table

Stats = Mapping[str, Any]


def domains(stats: Stats) -> Markup:
    return _ranking(stats["domains"], "domain", "domains", "No document has a URL.")


def subreddits(stats: Stats) -> Markup:
    return _ranking(stats["subreddits"], "subreddit", "subreddits", "No document was posted on Reddit.")


def _ranking(ranked: Stats, key: str, many: str, none: str) -> Markup:
    if not ranked["top"]:
        return absent(none)
    distinct = ", ".join(
        f"{'' if found['exact'] else 'about '}{number(found['count'])} "
        f"{'among the URLs collected' if dataset == 'urls' else 'in the corpus'}"
        for dataset, found in ranked["distinct"].items()
    )
    exact = "" if ranked["exact"] else " The last ones of the list may not be the most frequent."
    rows = (
        (place, row[key], row["documents"], percent(row["share"]), row["urls"], percent(row["survival"]))
        for place, row in enumerate(ranked["top"], start=1)
    )
    listed = table(["", key, "documents", "share", "URLs", "survived"], rows)
    return joined(
        [
            element("p", f"Distinct {many}: {distinct}.{exact}"),
            plot(many, f"The most frequent {many}."),
            folded(f"The first {len(ranked['top'])}", listed),
        ]
    )


def years(stats: Stats) -> Markup:
    rows = stats["years"]
    if not rows:
        return absent("No document was posted on Reddit.")
    note = "By the year of the first submission: how much of each year's links could still be fetched, and was kept."
    listed = table(list(rows[0]), [[str(row["year"]), *list(row.values())[1:]] for row in rows])
    return joined([plot("years", note), folded("As a table", listed)])


def languages(stats: Stats) -> Markup:
    rows = stats["languages"]
    if not rows:
        return absent("No language is known.")
    note = "Declared is what the page says of itself, none where it says nothing; from clean on, what was detected."
    listed = table(list(rows[0]), [list(row.values()) for row in rows])
    return joined([plot("languages", note), folded("As a table", listed)])


def scores(stats: Stats) -> Markup:
    rows = stats["scores"]
    if not any(row["survival"] is not None for row in rows):
        return absent("No document was posted on Reddit.")
    listed = table(
        ["score", "URLs", "documents", "survived"],
        [(span(r["low"], r["high"]), r.get("urls"), r.get("corpus"), percent(r["survival"])) for r in rows],
    )
    note = "Which share of the URLs of each score are in the corpus."
    return joined([plot("scores", note), folded("As a table", listed)])
