"""Lengths of the documents, and the tokens they are made of."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from owt_pipeline.report.markup import Markup, absent, element, joined, number, percent, plot, table

Stats = Mapping[str, Any]


def lengths(stats: Stats) -> Markup:
    found, tokens = stats["lengths"], stats["tokens"]
    if not found["tokens"]["count"]:
        return absent("The corpus is empty.")
    kinds = ("tokens", "words", "characters", "bytes")
    quantiles = list(found["tokens"]["percentiles"])
    rows = [
        (kind, found[kind]["sum"], number(found[kind]["mean"], 1), found[kind]["minimum"],
         *(found[kind]["percentiles"][q] for q in quantiles), found[kind]["maximum"])
        for kind in kinds
    ]  # fmt: skip
    splits = ", ".join(
        f"{split}: {number(s['tokens'])} tokens of {number(s['documents'])} documents"
        for split, s in tokens["splits"].items()
    )
    mean = number(found["tokens"]["mean"], 1)
    used = f"{number(tokens['vocabulary_used'])} of {number(tokens['vocabulary'])} token ids occur"
    return joined(
        [
            element("p", f"{mean} tokens a document, {number(tokens['bytes_per_token'], 2)} bytes a token. {splits}."),
            *(plot(kind, f"Documents by their length in {kind}.") for kind in kinds[:3]),
            element("p", "A document's length; percentiles to within 0.4 %."),
            table(["", "all", "mean", "least", *(f"{q} %" for q in quantiles), "most"], rows),
            element("h3", "The vocabulary"),
            element("p", f"{used} ({percent(tokens['vocabulary_used_share'])})."),
            plot("occurrences", "Token ids by how often they occur in the corpus."),
        ]
    )
