"""Documents to read: some that were kept, some that each filter dropped."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from owt_pipeline.report.markup import Markup, absent, element, folded, joined, link, number

Stats = Mapping[str, Any]


def documents(stats: Stats) -> Markup:
    if not stats["documents"]:
        return absent("No documents are shown.")
    shown = [
        _document(row, f"{number(row['n_words'])} words", f"score {number(row['score'])}, language {row['language']}")
        for row in stats["documents"]
    ]
    return joined([element("p", "Documents of the corpus, at random."), *shown])


def dropped(stats: Stats) -> Markup:
    rows = stats["filters"]["dropped"]
    if not rows:
        return absent("No filter dropped a document, or none are shown.")
    said = "Documents that each filter of clean dropped, at random, as they were extracted."
    return joined([element("p", said), *(_filter(row) for row in rows)])


def _filter(row: Stats) -> Markup:
    head = element("h3", element("code", row["reason"]), ": ", row["meaning"])
    return joined([head, *(_document(shown, shown["detail"] or "", "") for shown in row["documents"])])


def _document(row: Stats, beside: str, about: str) -> Markup:
    title = joined([row["title"] or row["url"] or row["url_id"], element("small", beside)])
    cut = "…" if row["characters"] > len(row["text"]) else ""
    return folded(
        title, element("p", link(row["url"]), " ", element("small", about)), element("pre", row["text"] + cut)
    )
