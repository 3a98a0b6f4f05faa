"""How like WebText and OpenWebText the corpus is."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from owt_pipeline.report.markup import Markup, absent, element, folded, joined, number, percent, plot, table

Stats = Mapping[str, Any]

_WHAT = {"tokens_per_document": ("tokens a document", 1), "bytes_per_token": ("bytes a token", 2)}


def likeness(stats: Stats) -> Markup:
    found = stats["likeness"]
    rows = []
    for row in found["lengths"]:
        what, digits = _WHAT[row["what"]]
        rows.append((what, number(row["corpus"], digits), number(row["openwebtext"], digits), percent(row["ratio"])))
    lengths = table(["", "this corpus", "OpenWebText, as published", "of it"], rows)
    sites = found["sites"]
    return joined([lengths, *(_sites(sites) if sites else [absent(_NO_REFERENCE)])])


_NO_REFERENCE = "No list of domains to compare with was given (--reference_domains)."


def _sites(sites: Stats) -> list[Markup]:
    said = (
        f"Beside the {number(sites['listed'])} sites of {sites['reference']}, each host counted for the site it "
        "belongs to. Spearman's rank correlation is over all the sites listed; those that are not here count none."
    )
    correlated = table(
        ["", "rows", "of listed sites", "listed sites present", "rank correlation"],
        [
            (f"{row['dataset']}/", row["rows"], percent(row["of_listed_sites"]), row["sites_present"],
             number(row["rank_correlation"], 3))
            for row in sites["datasets"]
        ],
    )  # fmt: skip
    datasets = [row["dataset"] for row in sites["datasets"]]
    listed = table(
        ["", "site", sites["reference"], *(f"{name}/" for name in datasets)],
        [(place, row["site"], row["reference"], *(row[name] for name in datasets))
         for place, row in enumerate(sites["top"], start=1)],
    )  # fmt: skip
    return [
        element("p", said),
        correlated,
        plot("sites", f"The first {len(sites['top'])} of the list, each side's share among them."),
        folded("As a table", listed),
    ]
