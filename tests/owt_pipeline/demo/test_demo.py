"""The complete job over real HTTP, compared with the expected outcome of every link."""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from pathlib import Path

import pytest

from owt_pipeline.cli import main
from owt_pipeline.commands.verify import verify
from owt_pipeline.demo.command import run_stages
from owt_pipeline.formats.urls import BadURL, canonical_url
from owt_pipeline.ledger.dataset import DatasetReader
from owt_pipeline.storage.folder import Storage
from schemas import Reason

pytestmark = pytest.mark.slow

# Each link has its URL, the reasons for which it may be rejected (none for a document of the
# corpus), and its cluster of duplicates. One link of a cluster is kept.
EXPECTED_LINES = Path(__file__).with_name("expected.tsv").read_text().splitlines()
EXPECTED = [line.split("\t") for line in EXPECTED_LINES]
KEPT = "kept"


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run of the demo with one worker, made once."""
    folder = tmp_path_factory.mktemp("demo")
    assert run_stages(folder, workers=1) == 0
    return folder


@pytest.mark.parametrize("name", ["manifest.json", "config.toml", "ledger/manifest.json"])
def test_the_demo_leaves_other_folders_alone(
    name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    path = tmp_path / "mine" / name
    path.parent.mkdir(parents=True)
    path.write_text("mine")
    assert main(["demo", "mine"]) == 1
    error = capsys.readouterr().err
    assert "mine has other files than a demo" in error
    assert "give a new folder, as in `owt demo demo-run`" in error
    assert [file for file in tmp_path.rglob("*") if file.is_file()] == [path]
    assert path.read_text() == "mine"


def outcomes(workdir: Storage) -> dict[str, str]:
    """Return the outcome of each URL: KEPT, or the reason for its rejection."""
    outcome_by_url: dict[str, str] = {}
    for name in ("urls", "pages", "documents", "clean", "corpus", "tokens"):
        dataset = DatasetReader.open(workdir, name)
        rejects = dataset.table(kind="rejects", columns=["url", "reason"])
        for row in rejects.to_pylist():
            # Another link with the same URL may be kept.
            if row["url"] and row["reason"] not in (Reason.REPEATED_URL, Reason.SEEN_BEFORE):
                outcome_by_url[row["url"]] = row["reason"]
    corpus = DatasetReader.open(workdir, "corpus").table(columns=["url"])
    for url in corpus["url"].to_pylist():
        outcome_by_url.setdefault(url, KEPT)
    return outcome_by_url


def canonical(url: str) -> str:
    """Return the canonical form of a URL, or a bad URL as it is."""
    try:
        return canonical_url(url)
    except BadURL:
        return url


def test_every_link_ends_as_expected(finished: Path) -> None:
    outcome_by_url = outcomes(Storage(str(finished)))
    clusters: dict[str, list[str]] = defaultdict(list)
    for url, reasons, cluster in EXPECTED:
        outcome = outcome_by_url.get(canonical(url), "nowhere in the run")
        allowed = [KEPT] * (not reasons or bool(cluster)) + reasons.split(",")
        assert outcome in allowed, url
        if cluster:
            clusters[cluster].append(outcome)
    assert [cluster for cluster, members in clusters.items() if members.count(KEPT) != 1] == []
    assert Counter(outcome_by_url.values())[KEPT] >= 150


def test_the_run_verifies(finished: Path) -> None:
    for finding in verify(Storage(str(finished))):
        assert finding.problems == []


def test_the_readme_shows_rows_of_the_demo(finished: Path) -> None:
    readme = (Path(__file__).resolve().parents[3] / "README.md").read_text()
    corpus = DatasetReader.open(Storage(str(finished)), "corpus").table()
    said = re.search(
        r"of the demo's (\d+) rows, in (\w+) of (\d+) columns:\n\n(.*?)\n\n", readme, re.DOTALL
    )
    assert said is not None
    assert int(said[1]) == corpus.num_rows
    assert int(said[3]) == corpus.num_columns
    head, _, *lines = [
        [cell.strip(" `") for cell in line.strip("|").split("|")] for line in said[4].splitlines()
    ]
    rows = corpus.select(head).to_pylist()
    shown = [[str(value or "") for value in row.values()] for row in rows]
    for line in lines:
        assert line in shown


def test_a_second_demo_in_the_same_folder_makes_nothing(finished: Path) -> None:
    """The server has another port, which shapes no bytes."""
    log_before = (finished / "run-log.jsonl").read_bytes()
    assert run_stages(finished, workers=2) == 0
    assert (finished / "run-log.jsonl").read_bytes() == log_before
