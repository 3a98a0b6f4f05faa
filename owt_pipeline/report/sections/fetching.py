"""What became of the URLs that were asked for."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from owt_pipeline.report.markup import Markup, absent, element, folded, joined, number, percent, plot, table

Stats = Mapping[str, Any]


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
            *_domains(fetch["domains"]),
            element("h3", "By the link's age"),
            *_ages(fetch),
        ]
    )


def _domains(rows: list[Stats]) -> list[Markup]:
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
