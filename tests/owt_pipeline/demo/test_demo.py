"""The complete job over real HTTP, compared with the expected outcome of every link."""

from __future__ import annotations

from collections import Counter, defaultdict
from pathlib import Path

import pytest

from owt_pipeline.commands.verify import verify
from owt_pipeline.demo.command import run_stages
from owt_pipeline.formats.urls import BadURL, canonical_url
from owt_pipeline.ledger.dataset import DatasetReader
from owt_pipeline.storage.folder import Storage
from schemas import Reason

pytestmark = pytest.mark.slow

EXPECTED = [
    line.split("\t") for line in Path(__file__).with_name("expected.tsv").read_text().splitlines()
]
"""Of each link: its URL; the reasons it may be rejected for, none for a document of the corpus;
and its cluster of duplicates, of which one is kept."""
KEPT = "kept"


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run of the demo with one worker, made once."""
    folder = tmp_path_factory.mktemp("demo")
    assert run_stages(folder, workers=1) == 0
    return folder


def outcomes(workdir: Storage) -> dict[str, str]:
    """For each URL of the run: KEPT, or the reason it was rejected for."""
    found: dict[str, str] = {}
    for name in ("urls", "pages", "documents", "clean", "corpus", "tokens"):
        for row in (
            DatasetReader.open(workdir, name)
            .table(kind="rejects", columns=["url", "reason"])
            .to_pylist()
        ):
            if row["url"] and row["reason"] not in (Reason.REPEATED_URL, Reason.SEEN_BEFORE):
                found[row["url"]] = row["reason"]
    for url in DatasetReader.open(workdir, "corpus").table(columns=["url"])["url"].to_pylist():
        found.setdefault(url, KEPT)
    return found


def canonical(url: str) -> str:
    try:
        return canonical_url(url)
    except BadURL:
        return url


def test_every_link_ends_as_expected(finished: Path) -> None:
    found = outcomes(Storage(str(finished)))
    clusters: dict[str, list[str]] = defaultdict(list)
    for url, reasons, cluster in EXPECTED:
        outcome = found.get(canonical(url), "nowhere in the run")
        allowed = [KEPT] * (not reasons or bool(cluster)) + reasons.split(",")
        assert outcome in allowed, url
        if cluster:
            clusters[cluster].append(outcome)
    assert [cluster for cluster, members in clusters.items() if members.count(KEPT) != 1] == []
    assert Counter(found.values())[KEPT] >= 150


def test_the_run_verifies(finished: Path) -> None:
    assert [
        problem for finding in verify(Storage(str(finished))) for problem in finding.problems
    ] == []


def test_the_demo_goes_on_in_its_folder(finished: Path) -> None:
    """With another port of the server, which shapes no byte."""
    before = (finished / "run-log.jsonl").read_bytes()
    assert run_stages(finished, workers=2) == 0
    assert (finished / "run-log.jsonl").read_bytes() == before
