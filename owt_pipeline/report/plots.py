"""The page's plots as figures of plotly.js."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from owt_pipeline.report.charts import (
    BARS,
    Figure,
    axis,
    bars,
    categories,
    clusters,
    columns,
    figure,
    histogram,
    label,
    occurrences,
    ranking,
    signal,
    similarities,
    two_histograms,
)
from owt_pipeline.report.markup import number, percent, span

Rows = Sequence[Mapping[str, Any]]


def plots(stats: Mapping[str, Any]) -> dict[str, Figure]:
    """The figures of stats.json by the id of their place in the page; those without data are left out."""
    fetch, duplicates, compared = stats["fetch"], stats["duplicates"], stats["comparison"]
    found = {
        "funnel": _funnel(stats["funnel"]),
        "domains": _most_frequent(stats["domains"]["top"], "domain"),
        "subreddits": _most_frequent(stats["subreddits"]["top"], "subreddit"),
        "years": _grouped(stats["years"], "year"),
        "languages": _grouped(_frequent(stats["languages"]), "language"),
        "scores": _scores(stats["scores"]),
        **{name: histogram(stats["lengths"][name], name, "documents") for name in ("tokens", "words", "characters")},
        "occurrences": occurrences(stats["tokens"]),
        "lost": _lost(stats["filters"]["lost"]),
        "similarities": similarities(duplicates),
        "clusters": clusters(duplicates),
        "removed-domains": _removed_domains(duplicates.get("domains", [])),
        **{f"signal-{k}": signal(row) for k, row in enumerate(stats["filters"]["signals"])},
        "sampler": _sampler(stats["sampler"]),
        "sites": _sites(stats["likeness"]["sites"]),
    }
    if fetch:
        found["answers"] = _answers(fetch)
        found["milliseconds"] = histogram(fetch["milliseconds"], "milliseconds", "pages")
        found["body_bytes"] = histogram(fetch["body_bytes"], "bytes", "pages")
        found["fetched-domains"] = _outcomes(fetch["domains"][:BARS], "domain", ranking)
        found["ages"] = _outcomes(fetch["ages"], "years", _upright)
    if compared:
        names = ("this run", label(compared["other"]))
        found["compared-tokens"] = two_histograms(compared["token_histograms"], names, "tokens")
    return {f"plot-{name}": drawn for name, drawn in found.items() if drawn is not None}


def _funnel(stages: Rows) -> Figure | None:
    flow = [stage for stage in stages if stage["dataset"] != "duplicates"]  # it decides; export applies
    if not flow:
        return None
    values = [flow[0]["entered"], *(stage["left"] for stage in flow)]
    trace = bars(
        ["entered", *(stage["stage"] for stage in flow)],
        values,
        "%{y}: %{x:,} (%{customdata} of what entered)",
        text=[number(value) for value in values],
        textposition="auto",
        cliponaxis=False,
        customdata=[percent(value / values[0] if values[0] else None) for value in values],
    )
    return ranking([trace], "rows that went on", pixels=34)


def _most_frequent(rows: Rows, key: str) -> Figure | None:
    rows = rows[:BARS]
    if not rows:
        return None
    of_urls = not any(row["documents"] for row in rows)
    trace = bars(
        [row[key] for row in rows],
        [row["urls"] if of_urls else row["documents"] for row in rows],
        "%{y}: %{x:,}<br>%{customdata[0]} URLs collected, %{customdata[1]} kept",
        customdata=[[number(row["urls"]), percent(row["survival"])] for row in rows],
    )
    return ranking([trace], "URLs" if of_urls else "documents")


_LABELS = {
    "urls": "collected",
    "pages": "fetched",
    "documents": "declared",
    "clean": "clean",
    "corpus": "in the corpus",
}


def _grouped(rows: Rows, key: str) -> Figure | None:
    if not rows:
        return None
    datasets = [name for name in rows[0] if name != key]
    traces = [
        columns(
            [row[key] for row in rows],
            [row[dataset] for row in rows],
            f"%{{x}}: %{{y:,}} {_LABELS[dataset]}",
            meta=place,
            name=_LABELS[dataset],
        )
        for place, dataset in enumerate(datasets, start=1)
    ]
    return figure(traces, barmode="group", xaxis=categories(key), yaxis=axis("rows", rangemode="tozero"))


def _frequent(rows: Rows) -> Rows:
    return sorted(rows, key=lambda row: -max(v for v in row.values() if isinstance(v, int)))[:BARS]


def _scores(rows: Rows) -> Figure | None:
    rows = [row for row in rows if row["survival"] is not None]
    if not rows:
        return None
    trace = columns(
        [span(row["low"], row["high"]) for row in rows],
        [row["survival"] for row in rows],
        "score %{x}: %{y:.1%} of %{customdata[0]:,} URLs (%{customdata[1]:,} documents)",
        customdata=[[row["urls"], row["corpus"]] for row in rows],
    )
    return figure([trace], xaxis=categories("score"), yaxis=axis("survived to the corpus", tickformat=".0%"))


def _lost(rows: Rows) -> Figure | None:
    if not rows:
        return None
    trace = bars(
        [row["reason"] for row in rows],
        [row["tokens"] for row in rows],
        "%{y}: %{x:,} tokens of %{customdata[0]} documents, %{customdata[1]}",
        customdata=[[number(row["documents"]), percent(row["share"])] for row in rows],
    )
    return ranking([trace], "tokens lost")


def _removed_domains(rows: Rows) -> Figure | None:
    rows = rows[:BARS]
    if not rows:
        return None
    trace = bars(
        [row["domain"] for row in rows],
        [row["share"] for row in rows],
        "%{y}: %{customdata[0]:,} of %{customdata[1]:,} documents removed, %{x:.1%}",
        customdata=[[row["removed"], row["documents"]] for row in rows],
    )
    return ranking([trace], "share of its documents removed", tickformat=".0%", rangemode="tozero")


def _answers(fetch: Mapping[str, Any]) -> Figure:
    names = [*(f"status {status}" for status in fetch["statuses"]), *fetch["failures"]]
    values = [*fetch["statuses"].values(), *fetch["failures"].values()]
    return ranking([bars(names, values, "%{y}: %{x:,} URLs")], "URLs")


_OUTCOMES = (
    ("gone", ("http_404", "http_410")),
    ("no answer", ("dns", "connect", "tls", "timeout")),
    ("not archived", ("not_archived",)),
)


def _outcomes(rows: Rows, key: str, lay_out: Callable[[list[Figure], str], Figure]) -> Figure | None:
    """Shares of the URLs of each row: a page, gone, no answer, not archived, another reason."""
    if not rows:
        return None
    shown = [("page", [row["pages"] for row in rows])]
    for name, reasons in _OUTCOMES:
        shown.append((name, [sum(row["failures"].get(reason, 0) for reason in reasons) for row in rows]))
    urls = [row["urls"] for row in rows]
    shown.append(
        ("another reason", [all_ - sum(some) for all_, *some in zip(urls, *(v for _, v in shown), strict=True)])
    )
    draw = bars if lay_out is ranking else columns
    share = "%{x:.1%}" if lay_out is ranking else "%{y:.1%}"
    name_of = "%{y}" if lay_out is ranking else "%{x} years"
    traces = [
        draw(
            [row[key] for row in rows],
            [round(value / all_, 6) for value, all_ in zip(values, urls, strict=True)],
            f"{name_of}: {name} {share}, %{{customdata[0]:,}} of %{{customdata[1]:,}} URLs",
            meta=place,
            name=name,
            customdata=[list(pair) for pair in zip(values, urls, strict=True)],
        )
        for place, (name, values) in zip((3, 2, 4, 5, 1), shown, strict=True)
        if any(values)
    ]
    drawn = lay_out(traces, "share of its URLs" if key == "domain" else "years from the submission to the capture")
    drawn["layout"]["barmode"] = "stack"
    drawn["layout"]["xaxis" if lay_out is ranking else "yaxis"].update(tickformat=".0%", range=[0, 1])
    return drawn


def _upright(traces: list[Figure], title: str) -> Figure:
    return figure(traces, xaxis=categories(title), yaxis=axis("share of the URLs"))


def _sampler(mixture: Mapping[str, Any]) -> Figure | None:
    """How much of what is shown comes of documents of each length."""
    if not mixture:
        return None
    rows = mixture["rows"]
    names = [span(row["at_least"], None if row["below"] is None else row["below"] - 1) for row in rows]
    shares = {
        "of the documents": [row["documents"] for row in rows],
        "of the tokens, packed": [row["packed"]["tokens"] for row in rows],
        "of the tokens, longbiased": [row["longbiased"]["tokens"] if row["longbiased"] else None for row in rows],
    }
    traces = [
        columns(names, values, f"%{{x}} tokens: %{{y:.1%}} {name}", meta=place, name=name)
        for place, (name, values) in enumerate(shares.items(), start=1)
    ]
    return figure(
        traces, barmode="group", xaxis=categories("tokens of the document"), yaxis=axis("share", tickformat=".0%")
    )  # fmt: skip


def _sites(sites: Mapping[str, Any] | None) -> Figure | None:
    """The reference's first sites: their rank there and their rows here."""
    if not sites:
        return None
    rows = sites["top"]
    whole = {row["dataset"]: row["rows"] for row in sites["datasets"]}
    of = "corpus" if any(row.get("corpus") for row in rows) else "urls"
    listed = sum(row["reference"] for row in rows)
    here = sum(row.get(of, 0) for row in rows)
    if not here or not whole:
        return None
    traces = [
        bars(
            [row["site"] for row in rows],
            [round(row[key] / total, 6) for row in rows],
            f"%{{y}}: %{{x:.1%}} of {what} from these sites (%{{customdata:,}})",
            meta=place,
            name=name,
            customdata=[row[key] for row in rows],
        )
        for place, (key, total, name, what) in enumerate(
            (("reference", listed, label(sites["reference"]), "the listed URLs"), (of, here, f"{of}/", f"{of}/")), 1
        )
    ]
    drawn = ranking(traces, "share among these sites", pixels=26, tickformat=".0%")
    drawn["layout"]["barmode"] = "group"
    return drawn
