"""Holds a run of the demo against the truth: which links did not fare as they should?"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable

from owt_pipeline.collect.urls import BadURL, canonical_url
from owt_pipeline.demo.ground_truth import Fate
from owt_pipeline.engine.dataset import DatasetReader
from owt_pipeline.engine.storage import Storage
from schemas import Reason

KEPT = "kept"
_WITH_REJECTS = ("urls", "pages", "documents", "clean", "corpus", "tokens")


def deviations(fates: Iterable[Fate], workdir: Storage) -> list[str]:
    """One line for each link, or cluster of links, that did not fare as its fate says.

    Raises UserError where a dataset of the run is missing.
    """
    found = verdicts(workdir)
    problems = []
    clusters: dict[str, list[str]] = defaultdict(list)
    for fate in fates:
        verdict, detail = found.get(_canonical(fate.url), ("nowhere in the run", ""))
        expected = [str(reason) for reason in fate.reasons] or [KEPT]
        if fate.cluster:
            clusters[fate.cluster].append(verdict)
            expected.append(KEPT)
        if verdict not in expected:
            problems.append(f"{fate.url}: {verdict} ({detail}), should be {' or '.join(expected)}")
    for cluster, members in clusters.items():
        if members.count(KEPT) != 1:
            problems.append(
                f"{cluster}: {members.count(KEPT)} of {len(members)} kept, should be one: {Counter(members)}"
            )
    return problems


def verdicts(workdir: Storage) -> dict[str, tuple[str, str]]:
    """For each URL of the run: KEPT, or the reason it was rejected for, with the detail."""
    found: dict[str, tuple[str, str]] = {}
    for name in _WITH_REJECTS:
        reader = DatasetReader.open(workdir, name)
        for row in reader.table(kind="rejects", columns=["url", "reason", "detail"]).to_pylist():
            if row["url"] and row["reason"] != Reason.REPEATED_URL:
                found[row["url"]] = (row["reason"], row["detail"] or "")
    corpus = DatasetReader.open(workdir, "corpus")
    for url in corpus.table(columns=["url"])["url"].to_pylist():
        found.setdefault(url, (KEPT, ""))
    return found


def _canonical(url: str) -> str:
    """The URL as rows have it: canonical, or as posted where it has no canonical form."""
    try:
        return canonical_url(url)
    except BadURL:
        return url
