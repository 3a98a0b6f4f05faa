"""Sections of the page on what was lost on the way, and why."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from owt_pipeline.report.markup import (
    Markup,
    absent,
    element,
    folded,
    joined,
    link,
    markup,
    number,
    percent,
    plot,
    table,
)

Stats = Mapping[str, Any]


def funnel(stats: Stats) -> Markup:
    stages = stats["funnel"]
    flow = table(
        ["stage", "in", "out", "kept", "MB"],
        [(s["stage"], s["entered"], s["left"], percent(s["share"]), f"{number(s['bytes'] / 1e6, 1)}") for s in stages],
    )
    why = [
        joined(
            [
                element("h3", f"Rejected by {stage['stage']}", id=f"rejected-{stage['stage']}"),
                *(_reason(stage, row) for row in stage["rejected"]),
            ]
        )
        for stage in stages
        if stage["rejected"]
    ]
    return joined(
        [
            plot("funnel", "What each stage let through; click a bar for what it rejected."),
            flow,
            element(
                "p",
                "What went in came out, or was rejected for one of these reasons; open one for URLs at random. A bar "
                "is the share of what entered its stage.",
            ),
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
    bar = {"class_": "reason", "style": f"--share: {100 * (row['share'] or 0):.2f}%"}
    if not row["sample"]:
        decided = stage["dataset"] == "duplicates"
        note = element("a", "decided here, applied by export", href="#rejected-export") if decided else "no sample"
        return folded(title, element("p", note), **bar)
    items = (element("li", link(r["url"]), " ", element("small", r["detail"] or "")) for r in row["sample"])
    return folded(title, element("ol", *items), **bar)


def fetching(stats: Stats) -> Markup:
    fetch = stats["fetch"]
    if not fetch:
        return absent("Nothing was fetched: the text was imported.")
    sources = ", ".join(f"{number(count)} from {source}" for source, count in fetch["sources"].items())
    rows = [(f"status {status}", count) for status, count in fetch["statuses"].items()]
    rows += list(fetch["failures"].items())
    timed = plot("milliseconds", "From the request to the last byte, of pages fetched live.")
    return joined(
        [
            element("p", f"Pages: {sources or 'none'}."),
            plot("answers", "Pages by their status; URLs without a page by the reason."),
            folded("As a table", table(["answer", "URLs"], rows)),
            timed if fetch["milliseconds"]["count"] else absent("Nothing was fetched live, so there are no times."),
            plot("body_bytes", "Length of the pages, decoded."),
            element("h3", "By domain"),
            *_fetched_domains(fetch["domains"]),
            element("h3", "By the link's age"),
            *_ages(fetch),
        ]
    )


def _fetched_domains(rows: list[Stats]) -> list[Markup]:
    if not rows:
        return [absent("No domain is known.")]
    listed = table(
        ["domain", *_ANSWERED],
        [(row["domain"], *_answered(row)) for row in rows],
    )
    note = "The domains of most URLs: which share of them gave a page. Gone is 404 or 410."
    return [plot("fetched-domains", note), folded(f"The first {len(rows)}, with mean time and size of a page", listed)]


def _ages(fetch: Stats) -> list[Markup]:
    rows = fetch["ages"]
    if not rows:
        return [absent("No link's age is known.")]
    listed = table(
        ["years", *_ANSWERED],
        [(str(row["years"]), *_answered(row)) for row in rows],
    )
    note = f"Link rot: links by their age at the last capture of the run, {fetch['captured']}."
    return [plot("ages", note), folded("As a table, with mean time and size of a page", listed)]


_ANSWERED = ("URLs", "pages", "share", "most often otherwise", "ms", "kB")


def _answered(row: Stats) -> tuple[Any, ...]:
    time, size = number(row["mean_milliseconds"]), _kilobytes(row["mean_body_bytes"])
    return row["urls"], row["pages"], percent(row["share"]), _first(row["failures"]), time, size


def _first(failures: Mapping[str, int]) -> str | None:
    """The most frequent reason."""
    return next((f"{reason} {number(count)}" for reason, count in failures.items()), None)


def _kilobytes(size: float | None) -> str:
    return number(None if size is None else size / 1000, 1)


def filters(stats: Stats) -> Markup:
    return joined([_lost(stats["filters"]["lost"]), element("h3", "Signals"), _signals(stats["filters"]["signals"])])


def _lost(lost: Sequence[Stats]) -> Markup:
    if not lost:
        return absent("No filter dropped a document.")
    listed = table(
        ["stage", "reason", "documents", "characters", "tokens", "share"],
        [
            (r["stage"], r["reason"], r["documents"], r["characters"], r["tokens"], percent(r["share"]))
            for r in lost
        ],
    )  # fmt: skip
    said = (
        "What went with the documents that each filter dropped, in the tokens they would have been; the share is of "
        "all tokens that were lost so or are in the corpus."
    )
    return joined([element("p", said), plot("lost", "Tokens lost to each filter."), listed])


def _signals(signals: Sequence[Stats]) -> Markup:
    if not signals:
        return absent("Nothing was measured: clean/ was written without signals.")
    said = (
        "What the documents measure, whether they were kept or dropped for whatever reason. A dotted line is a limit. "
        "A filter that is off measures a share of the documents, to show what it would drop; what is too short, too "
        "long or in another language is not measured further."
    )
    plots = (plot(f"signal-{k}", _caption(row)) for k, row in enumerate(signals))
    return joined([element("p", said), element("div", *plots, class_="grid")])


def _caption(row: Stats) -> str:
    limits = [f"{said} {row[key]:g}" for key, said in (("minimum", "at least"), ("maximum", "at most"))
              if row[key] is not None]  # fmt: skip
    allowed = f": {', '.join(limits)}" if limits else ""
    measured = "" if row["measured_share"] == 1 else f" (off; measured of {percent(row['measured_share'])})"
    return f"{row['signal']}{allowed}{measured}"


def duplicates(stats: Stats) -> Markup:
    found = stats["duplicates"]
    if not found:
        return absent("Duplicates were not looked for.")
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
    return joined(
        [
            element("p", said),
            element("p", how),
            plot("similarities", "Similarities of the near-duplicates found, and the LSH curve."),
            plot("clusters", "How large the clusters are."),
            element("h3", "Removal by domain"),
            *_removed_domains(found["domains"]),
            element("h3", "The largest clusters"),
            *([_cluster(cluster) for cluster in clusters["largest"]] or [absent("There are none.")]),
            element("h3", "Removals to read"),
            *_removals(found["removals"]),
        ]
    )


def _removed_domains(rows: Sequence[Stats]) -> list[Markup]:
    if not rows:
        return [absent("No domain lost a document.")]
    listed = table(
        ["domain", "documents", "removed", "share"],
        [(row["domain"], row["documents"], row["removed"], percent(row["share"])) for row in rows],
    )
    note = "The domains that lost most documents: which share of theirs repeats another."
    return [plot("removed-domains", note), folded("As a table", listed)]


def _cluster(cluster: Stats) -> Markup:
    return folded(
        Markup(f"{number(cluster['size'])} documents: {markup(cluster['kept']['url'] or 'without a URL')}"),
        element("p", "Stays: ", link(cluster["kept"]["url"])),
        element("ol", *(_removed(member) for member in cluster["removed"])),
    )


def _removed(member: Stats) -> Markup:
    return element("li", link(member["url"]), " ", element("small", f"{member['rule']}, {member['similarity']:.4f}"))


def _removals(rows: Sequence[Stats]) -> list[Markup]:
    if not rows:
        return [absent("Nothing was removed.")]
    said = "Removed documents at random beside the one that stays; what only one of the two has is marked."
    return [element("p", said), *(_removal(row) for row in rows)]


def _removal(row: Stats) -> Markup:
    title = joined(
        [
            element("code", row["rule"]),
            element("span", f"{row['similarity']:.4f}", class_="count"),
            element("span", row["removed"]["url"] or row["removed"]["url_id"], class_="meaning"),
        ]
    )
    heads = [
        element("p", said, " ", link(row[key]["url"])) for key, said in (("removed", "Removed:"), ("kept", "Stays:"))
    ]
    if not row["segments"]:
        return folded(
            title, *heads, absent("The document that stays is of an earlier corpus, so its text is not here.")
        )
    same = all(kind != "differs" for kind, *_ in row["segments"])
    note = [absent("In what is shown they differ by no word, only by what is between the words.")] if same else []
    removed, kept = (_side(row["segments"], side) for side in (0, 1))
    sides = (element("div", head, element("pre", text)) for head, text in zip(heads, (removed, kept), strict=True))
    return folded(title, *note, element("div", *sides, class_="sides"))


def _side(segments: Sequence[Sequence[str]], side: int) -> Markup:
    """One of the two texts: what the other lacks is marked, what both share is cut short."""
    parts = []
    for kind, *texts in segments:
        if kind == "skipped":
            parts.append(element("small", f"… {number(int(texts[side]))} words the same …"))
        elif kind == "differs":
            parts.append(element(("del", "ins")[side], texts[side] or "∅"))
        else:
            parts.append(markup(texts[side]))
    return Markup(" ".join(parts))
