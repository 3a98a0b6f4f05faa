"""Domains, subreddits, years, languages and scores: how many rows each has, and what share survives."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from typing import Any

from owt_pipeline.report.figures.shares import share
from owt_pipeline.report.sketches import Candidates, Frequencies
from owt_pipeline.report.summaries import SCORE_EDGES, Details, Summary


def ranked(
    kind: str, summary: Summary, candidates: Mapping[str, Candidates], details: Details, top: int
) -> dict[str, Any]:
    """Keys by their documents in the corpus, with the URLs collected of each."""
    corpus, urls = (details.counts.get(f"{dataset}/{kind}", Counter()) for dataset in ("corpus", "urls"))
    of = corpus or urls
    counted = f"corpus/{kind}" if corpus else f"urls/{kind}"
    total = summary.frequencies[counted].total if counted in summary.frequencies else 0
    first = sorted(of.items(), key=lambda item: (-item[1], item[0]))[:top]
    bound = candidates[counted].bound if counted in candidates else 0
    return {
        "of": counted.partition("/")[0],
        "distinct": {
            dataset: _distinct(summary.frequencies[name], candidates[name], details.counts.get(name, Counter()))
            for dataset, name in (("urls", f"urls/{kind}"), ("corpus", f"corpus/{kind}"))
            if name in candidates
        },
        "exact": all(count >= bound for _, count in first),
        "top": [
            {
                kind: key,
                "documents": corpus[key],
                "share": share(count, total),
                "urls": urls[key] if urls else None,
                "survival": share(corpus[key], urls[key]) if urls else None,
            }
            for key, count in first
        ],
    }


def _distinct(frequencies: Frequencies, candidates: Candidates, counted: Counter) -> dict[str, Any]:
    if candidates.bound == 0:  # then all were counted
        return {"count": sum(count > 0 for count in counted.values()), "exact": True}
    return {"count": frequencies.distinct(), "exact": False}


def years(summary: Summary) -> list[dict[str, Any]]:
    """By the year of a URL's first submission."""
    return _through(summary, "year", ("urls", "pages", "corpus"))


def languages(summary: Summary) -> list[dict[str, Any]]:
    """By the language declared in documents/, detected from clean/ on."""
    return _through(summary, "language", ("documents", "clean", "corpus"))


def scores(summary: Summary) -> list[dict[str, Any]]:
    """Score bins: URLs collected, pages and documents of each, and the share that survived."""
    rows = []
    for row in _through(summary, "score", ("urls", "pages", "corpus")):
        index = row.pop("score")
        high = SCORE_EDGES[index + 1] - 1 if index + 1 < len(SCORE_EDGES) else None
        survival = share(row["corpus"], row["urls"]) if "urls" in row and "corpus" in row else None
        rows.append({"low": SCORE_EDGES[index] if index else None, "high": high, **row, "survival": survival})
    return rows


def _through(summary: Summary, column: str, datasets: tuple[str, ...]) -> list[dict[str, Any]]:
    """How often each value of a column is in each dataset, in the order of the values."""
    present = [dataset for dataset in datasets if f"{dataset}/{column}" in summary.counters]
    keys = sorted({key for dataset in present for key in summary.counters[f"{dataset}/{column}"]})
    return [
        {column: key, **{dataset: summary.counters[f"{dataset}/{column}"][key] for dataset in present}} for key in keys
    ]
