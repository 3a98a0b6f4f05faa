"""The complete job over real HTTP, compared with the expected outcome of every link."""

from __future__ import annotations

import json
import os
import signal
import threading
from collections import Counter
from pathlib import Path

import ftfy
import pytest

from owt_pipeline.commands.verify import verify
from owt_pipeline.demo import command
from owt_pipeline.demo.command import KEPT, LATER, deviations, run_later, run_stages, verdicts
from owt_pipeline.demo.inputs import CRAWL, all_expectations
from owt_pipeline.demo.site import Site
from owt_pipeline.formats.urls import canonical_url
from owt_pipeline.ledger.dataset import DatasetReader, require_manifest
from owt_pipeline.storage.folder import Storage


@pytest.fixture(scope="module")
def finished(site: Site, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run of the demo with one worker, made once."""
    folder = tmp_path_factory.mktemp("demo")
    assert run_stages(site, folder, workers=1) == 0
    return folder


def test_every_link_ends_as_expected(finished: Path, site: Site) -> None:
    assert deviations(all_expectations(site), Storage(str(finished))) == []


def test_dead_links_come_out_of_common_crawl(finished: Path, site: Site) -> None:
    pages = DatasetReader.open(Storage(str(finished)), "pages").table().to_pylist()
    archived = {row["url"]: row for row in pages if row["source"] == "commoncrawl"}
    assert archived.keys() == {canonical_url(f"http://{host}{path}") for host, path in site.archived}
    assert len(archived) == 3
    corpus = DatasetReader.open(Storage(str(finished)), "corpus").table()["url"].to_pylist()
    assert archived.keys() <= set(corpus)
    assert all(row["crawl"] == CRAWL and row["archive_offset"] is not None for row in archived.values())


def test_the_run_verifies(finished: Path) -> None:
    problems = [problem for finding in verify(Storage(str(finished))) for problem in finding.problems]
    assert problems == []


def test_a_deviation_is_found(finished: Path, site: Site) -> None:
    """The check fails where it should: on a kept page that should have been rejected, and the reverse."""
    from dataclasses import replace

    from schemas import Reason

    kept = next(link for link in site.expectations if not link.reasons)
    rejected = next(link for link in site.expectations if Reason.HTTP_404 in link.reasons)
    wrong = [replace(kept, reasons=(Reason.ROBOTS,)), replace(rejected, reasons=())]
    assert len(deviations(wrong, Storage(str(finished)))) == 2


def test_the_corpus_holds_the_articles_and_their_metadata(finished: Path, site: Site) -> None:
    corpus = DatasetReader.open(Storage(str(finished)), "corpus")
    rows = {row["url"]: row for row in corpus.table().to_pylist()}
    checked = 0
    for link in site.expectations:
        row = rows.get(canonical_url(link.url))
        if row is None or link.article is None:
            continue
        wanted = Counter(ftfy.fix_text(link.article.text).split())
        assert (wanted & Counter(row["text"].split())).total() > 0.9 * wanted.total(), link.url
        assert "â€" not in row["text"], link.url
        for name in ("author", "date", "site_name"):
            assert getattr(link, name) in (None, row[name]), (link.url, name)
        checked += 1
    assert checked >= 150


def test_two_workers_write_the_same_corpus_and_tokens(finished: Path, site: Site, tmp_path: Path) -> None:
    assert run_stages(site, tmp_path, workers=2) == 0
    folders = Storage(str(finished)), Storage(str(tmp_path))
    one, two = (DatasetReader.open(folder, "corpus").table().drop_columns("fetched_at") for folder in folders)
    assert one.equals(two)
    assert len({require_manifest(folder, "tokens").digest for folder in folders}) == 1


def test_a_second_demo_in_the_same_folder_finds_every_stage_finished(finished: Path, site: Site) -> None:
    before = (finished / "run-log.jsonl").read_bytes()
    assert run_stages(site, finished, workers=2) == 0
    assert (finished / "run-log.jsonl").read_bytes() == before


def test_a_second_month_adds_what_is_new_and_nothing_else(finished: Path, site: Site) -> None:
    assert run_later(site, finished, workers=1) == 0
    later = finished / LATER
    assert deviations(site.later_expectations, Storage(str(later))) == []
    assert [problem for finding in verify(Storage(str(later))) for problem in finding.problems] == []
    new = [link for link in site.later_expectations if not link.reasons]
    assert require_manifest(Storage(str(later)), "corpus").counts.left == len(new) >= 5
    reasons = Counter(str(*link.reasons) for link in site.later_expectations)
    assert (reasons["seen_before"], reasons["near_duplicate"]) == (3, 3)


def test_the_funnel_loses_nothing(finished: Path) -> None:
    manifests = list(finished.glob("ledger/*/manifest.json"))
    assert len(manifests) == 8
    for manifest in manifests:
        counts = json.loads(manifest.read_text())["counts"]
        assert counts["entered"] == counts["left"] + sum(counts["rejected"].values())
    kept = [verdict for verdict, _ in verdicts(Storage(str(finished))).values() if verdict == KEPT]
    assert len(kept) >= 150


def test_a_training_that_somebody_else_stopped_does_not_count_as_finished(
    finished: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    pytest.importorskip("torch", reason="the trainer needs torch: pip install torch")
    for name in ("tokens", "ledger"):
        (tmp_path / name).symlink_to(finished / name)
    monkeypatch.setattr(command, "TRAIN_SECONDS", None)
    monkeypatch.setitem(command._TRAINING, "max_steps", 1_000_000)

    def stop() -> None:
        records = tmp_path / "gpt2" / "metrics.jsonl"
        while not records.exists() or not records.stat().st_size:
            if ended.wait(0.1):
                return
        writer = (tmp_path / "gpt2" / ".lock").read_text()
        os.kill(int(writer.split()[1]), signal.SIGTERM)

    ended = threading.Event()
    stopper = threading.Thread(target=stop)
    stopper.start()
    try:
        assert command._train(tmp_path / "tokens", tmp_path / "gpt2") == 1
    finally:
        ended.set()
        stopper.join()
    assert "of 1000000; run the same command again" in capsys.readouterr().out


def test_a_training_that_was_stopped_because_its_time_was_up_is_finished() -> None:
    assert command.training_problem(0, stopped=False, reached=command._TRAINING["max_steps"]) == ""
    assert command.training_problem(0, stopped=True, reached=7) == ""
    assert "at step 0 of" in command.training_problem(0, stopped=True, reached=0)
    assert "at step 7 of" in command.training_problem(0, stopped=False, reached=7)
    assert "exit status -9" in command.training_problem(-9, stopped=True, reached=7)
