"""The sections of the page, each from its part of stats.json."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from typing import Any

from owt_pipeline.report.markup import Markup, element, folded, joined, link, markup, number, percent, table
from owt_pipeline.report.plots import score_label

Stats = Mapping[str, Any]

# Gokaslan and Cohen's OpenWebText, tokenized with GPT-2's BPE: what a corpus of this kind looks like.
_OPENWEBTEXT = "OpenWebText has 1,128 tokens a document and 4.40 bytes a token."
_FOLDED_AFTER = 10


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
    return [(name, title, content(stats)) for name, title, content in _SECTIONS]


def _plot(name: str, caption: str) -> Markup:
    return element("figure", element("div", id=f"plot-{name}", class_="plot"), element("figcaption", caption))


def _absent(what: str) -> Markup:
    return element("p", what, class_="absent")


def _funnel(stats: Stats) -> Markup:
    stages = stats["funnel"]
    flow = table(
        ["stage", "in", "out", "kept", "MB"],
        [(s["stage"], s["entered"], s["left"], percent(s["share"]), f"{number(s['bytes'] / 1e6, 1)}") for s in stages],
    )
    why = [
        joined([element("h3", stage["stage"]), *(_reason(stage, row) for row in stage["rejected"])])
        for stage in stages
        if stage["rejected"]
    ]
    return joined(
        [
            _plot("funnel", "What each stage let through."),
            flow,
            element("p", "What went in came out, or was rejected for one of these reasons; open one for some URLs."),
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
    if not row["sample"]:
        note = "decided here, applied by export: see there" if stage["dataset"] == "duplicates" else "no sample"
        return folded(title, element("p", note))
    items = (element("li", link(r["url"]), " ", element("small", r["detail"] or "")) for r in row["sample"])
    return folded(title, element("ol", *items))


def _domains(stats: Stats) -> Markup:
    return _ranking(stats["domains"], "domain", "domains", "No document has a URL.")


def _subreddits(stats: Stats) -> Markup:
    return _ranking(stats["subreddits"], "subreddit", "subreddits", "No document was posted on Reddit.")


def _ranking(ranked: Stats, key: str, many: str, absent: str) -> Markup:
    if not ranked["top"]:
        return _absent(absent)
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
            _plot(many, f"The most frequent {many}."),
            folded(f"The first {len(ranked['top'])}", listed),
        ]
    )


def _years(stats: Stats) -> Markup:
    if not stats["years"]:
        return _absent("No document was posted on Reddit.")
    rows = stats["years"]
    columns = list(rows[0])
    note = "By the year of the first submission: how much of each year's links could still be fetched, and was kept."
    return joined([_plot("years", note), folded("As a table", table(columns, [_year(row) for row in rows]))])


def _year(row: Stats) -> list[Any]:
    return [str(row["year"]), *list(row.values())[1:]]


def _languages(stats: Stats) -> Markup:
    rows = stats["languages"]
    if not rows:
        return _absent("No language is known.")
    note = "Declared is what the page says of itself, none where it says nothing; from clean on, what was detected."
    listed = table(list(rows[0]), [list(row.values()) for row in rows])
    return joined([_plot("languages", note), folded("As a table", listed)])


def _scores(stats: Stats) -> Markup:
    rows = stats["scores"]
    if not any(row["survival"] is not None for row in rows):
        return _absent("No document was posted on Reddit.")
    listed = table(
        ["score", "URLs", "documents", "survived"],
        [(score_label(r), r.get("urls"), r.get("corpus"), percent(r["survival"])) for r in rows],
    )
    note = "Which share of the URLs of each score are in the corpus."
    return joined([_plot("scores", note), folded("As a table", listed)])


def _lengths(stats: Stats) -> Markup:
    lengths, tokens = stats["lengths"], stats["tokens"]
    if not lengths["tokens"]["count"]:
        return _absent("The corpus is empty.")
    kinds = ("tokens", "words", "characters", "bytes")
    quantiles = list(lengths["tokens"]["percentiles"])
    rows = [
        (kind, lengths[kind]["sum"], number(lengths[kind]["mean"], 1), lengths[kind]["minimum"],
         *(lengths[kind]["percentiles"][q] for q in quantiles), lengths[kind]["maximum"])
        for kind in kinds
    ]  # fmt: skip
    splits = ", ".join(
        f"{split}: {number(s['tokens'])} tokens of {number(s['documents'])} documents"
        for split, s in tokens["splits"].items()
    )
    used = f"{number(tokens['vocabulary_used'])} of {number(tokens['vocabulary'])} token ids occur"
    mean = number(lengths["tokens"]["mean"], 1)
    return joined(
        [
            element(
                "p", f"{mean} tokens a document, {number(tokens['bytes_per_token'], 2)} bytes a token. {_OPENWEBTEXT}"
            ),
            element("p", f"{splits}. {used} ({percent(tokens['vocabulary_used_share'])})."),
            *(_plot(kind, f"Documents by their length in {kind}.") for kind in kinds[:3]),
            element("p", "A document's length; percentiles to within 0.4 %."),
            table(["", "all", "mean", "least", *(f"{q} %" for q in quantiles), "most"], rows),
        ]
    )


def _duplicates(stats: Stats) -> Markup:
    found = stats["duplicates"]
    if not found:
        return _absent("Duplicates were not looked for.")
    lsh, clusters = found["lsh"], found["clusters"]
    said = (
        f"Of {number(found['examined'])} documents {number(found['exact'])} are exact copies and "
        f"{number(found['near'])} near-duplicates ({percent(found['share'])} together), "
        f"in {number(clusters['count'])} clusters."
    )
    how = (
        f"Near means a verified similarity of at least {lsh['threshold']}. Candidates are pairs that agree in one of "
        f"{lsh['bands']} bands of {lsh['rows']} MinHash values; the curve is the probability that a pair is compared."
    )
    largest = [
        folded(
            Markup(f"{number(cluster['size'])} documents: {markup(cluster['kept']['url'] or 'without a URL')}"),
            element("p", "Stays: ", link(cluster["kept"]["url"])),
            element("ol", *(_removed(member) for member in cluster["removed"])),
        )
        for cluster in clusters["largest"]
    ]
    return joined(
        [
            element("p", said),
            element("p", how),
            _plot("similarities", "Similarities of the near-duplicates found, and the LSH curve."),
            _plot("clusters", "How large the clusters are."),
            element("h3", "The largest clusters"),
            *(largest or [_absent("There are none.")]),
        ]
    )


def _removed(member: Stats) -> Markup:
    return element("li", link(member["url"]), " ", element("small", f"{member['rule']}, {member['similarity']:.4f}"))


def _fetch(stats: Stats) -> Markup:
    fetch = stats["fetch"]
    if not fetch:
        return _absent("Nothing was fetched: the text was imported.")
    sources = ", ".join(f"{number(count)} from {source}" for source, count in fetch["sources"].items())
    rows = [(f"status {status}", count) for status, count in fetch["statuses"].items()]
    rows += list(fetch["failures"].items())
    timed = _plot("milliseconds", "From the request to the last byte, of pages fetched live.")
    return joined(
        [
            element("p", f"Pages: {sources or 'none'}."),
            _plot("answers", "Pages by their status; URLs without a page by the reason."),
            folded("As a table", table(["answer", "URLs"], rows)),
            timed if fetch["milliseconds"]["count"] else _absent("Nothing was fetched live, so there are no times."),
            _plot("body_bytes", "Length of the pages, decoded."),
        ]
    )


def _documents(stats: Stats) -> Markup:
    if not stats["documents"]:
        return _absent("No documents are shown.")
    shown = [folded(_title(row), *_document(row)) for row in stats["documents"]]
    return joined([element("p", "Some documents of the corpus, at random."), *shown])


def _title(row: Stats) -> Markup:
    return joined([row["title"] or row["url"] or row["url_id"], element("small", f"{number(row['n_words'])} words")])


def _document(row: Stats) -> list[Markup]:
    cut = "…" if row["characters"] > len(row["text"]) else ""
    about = f"score {number(row['score'])}, language {row['language'] or 'unknown'}"
    return [element("p", link(row["url"]), " ", element("small", about)), element("pre", row["text"] + cut)]


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
    ("funnel", "From submissions to tokens", _funnel),
    ("domains", "Domains", _domains),
    ("subreddits", "Subreddits", _subreddits),
    ("years", "Years", _years),
    ("languages", "Languages", _languages),
    ("scores", "Score and survival", _scores),
    ("lengths", "Lengths", _lengths),
    ("duplicates", "Duplicates", _duplicates),
    ("fetch", "Fetching", _fetch),
    ("documents", "Documents", _documents),
    ("settings", "Settings", _settings),
]
