"""Sections of the page on what the corpus is: whose pages, when, how long, how like others, and some to read."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from owt_pipeline.report.markup import Markup, absent, element, folded, joined, link, number, percent, plot, span, table

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
            folded("Lengths as a table", _compared_lengths(found["lengths"], names)),
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


def _compared_lengths(lengths: Stats, names: list[str]) -> Markup:
    rows = []
    for kind, row in lengths.items():
        rows.append((kind, "mean", *(number(value, 1) for value in row["mean"])))
        rows += [(kind, f"{q} %", *pair) for q, pair in row["percentiles"].items()]
    return table(["", "", *names], rows)


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


def sampler(stats: Stats) -> Markup:
    found = stats["sampler"]
    if not found:
        return absent("There are no tokens.")
    said = (
        f"What a model sees in an epoch, in samples of {found['context']:,} tokens. The sampler packed shows the "
        f"documents as they are; longbiased takes {percent(found['long_fraction'])} of its samples from those of at "
        f"least {found['long_min_tokens']} tokens. A sample that holds several documents counts for the length of each."
    )
    rows = [
        (
            span(row["at_least"], None if row["below"] is None else row["below"] - 1),
            percent(row["documents"]),
            *(percent(row[name][key]) if row[name] else None for name in ("packed", "longbiased")
              for key in ("samples", "tokens")),
        )
        for row in found["rows"]
    ]  # fmt: skip
    columns = ["tokens", "documents", "packed: samples", "packed: tokens", "longbiased: samples", "longbiased: tokens"]
    return joined(
        [
            element("p", said),
            plot("sampler", "Documents by length, and the share of the tokens shown that are theirs."),
            folded("As a table", table(columns, rows)),
        ]
    )


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
