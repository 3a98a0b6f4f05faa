"""Duplicates: how many, how alike, and whether one would have decided the same."""

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
            *_domains(found["domains"]),
            element("h3", "The largest clusters"),
            *([_cluster(cluster) for cluster in clusters["largest"]] or [absent("There are none.")]),
            element("h3", "Removals to read"),
            *_removals(found["removals"]),
        ]
    )


def _domains(rows: Sequence[Stats]) -> list[Markup]:
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
