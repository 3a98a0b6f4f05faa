"""Real submissions and real pages, from the dump to a model that learns."""

from __future__ import annotations

import json
import subprocess
import sys
from collections import Counter
from pathlib import Path

import orjson
import pyarrow.parquet as pq
import pytest
import zstandard

from owt_pipeline.formats.urls import canonical_url, url_id
from schemas.manifest import Counts
from tests.owt_pipeline.report import test_figures as figures
from tests.owt_pipeline.report.queries import queries
from tests.owt_pipeline.runs import manifest_of, run_owt

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def run(testdata: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("real") / "run"
    dumps = [testdata / "reddit/RS_wcxb-dev.zst", testdata / "reddit/RS_2013-top.zst"]
    pages = testdata / "web/wcxb-dev.warc.gz"
    given = ["--dumps", *dumps, "--pages_from", pages]
    print(run_owt("run", folder, "--workers", 2, *given))
    return folder


def counts(run: Path, dataset: str) -> Counts:
    return manifest_of(run, dataset).counts


def ids(run: Path, dataset: str) -> Counter[int]:
    files = (run / dataset).glob("part-*.parquet")
    return Counter(i for file in files for i in pq.read_table(file, columns=["url_id"])["url_id"].to_pylist())


def test_every_submission_is_accounted_for(run: Path, testdata: Path) -> None:
    """Counted again, from the dump itself: each link is a row of urls/, or a reject, and none is both or neither."""
    path = testdata / "reddit/RS_wcxb-dev.zst"
    with open(path, "rb") as file:
        lines = zstandard.ZstdDecompressor(max_window_size=2**31).stream_reader(file).read().splitlines()
    submissions = [orjson.loads(line) for line in lines]
    assert counts(run, "urls").entered == len(submissions) + 99_294
    kept = ids(run, "urls")
    rejected = ids(run, "ledger/urls/rejects")
    assert max(kept.values()) == 1
    for submission in submissions:
        identifier = url_id(canonical_url(submission["url"]))
        assert kept[identifier] or rejected[identifier], submission["url"]
        if submission["over_18"] or submission["score"] < 3:
            assert rejected[identifier], submission["url"]
    assert sum(kept.values()) + sum(rejected.values()) == counts(run, "urls").entered


def test_the_run_verifies_and_most_pages_become_tokens(run: Path) -> None:
    assert "no problems found" in run_owt("verify", run)
    pages, documents, corpus = (counts(run, name).left for name in ("pages", "documents", "corpus"))
    assert pages > 900
    assert documents > 0.95 * pages
    assert corpus > 0.6 * documents
    assert counts(run, "tokens").left == corpus
    assert json.loads((run / "report/stats.json").read_text())
    assert (run / "report/index.html").stat().st_size > 10_000


def test_the_report_says_what_duckdb_counts(run: Path) -> None:
    stats, sql = json.loads((run / "report/stats.json").read_bytes()), queries(run)
    for name in figures.COUNTED:
        figures.test_a_figure_has_the_rows_that_are_counted_again(stats, sql, name)
    for check in (
        figures.test_the_funnel_is_what_the_files_hold,
        figures.test_the_totals_are_those_of_the_shards,
        figures.test_removals_show_both_texts,
        figures.test_bars_count_the_rows_of_their_bins,
    ):
        check(stats, sql)


def test_a_model_learns_from_its_tokens(run: Path, tmp_path: Path) -> None:
    pytest.importorskip("torch", reason="training needs torch")
    out = tmp_path / "model"
    command = [sys.executable, "-m", "trainer.train", "--data", run / "tokens", "--out", out]
    options = ["--preset", "tiny", "--max_steps", "50", "--batch_tokens", "1024"]
    done = subprocess.run([*map(str, command), *options], capture_output=True, text=True, timeout=400, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    losses = [r["loss"] for r in map(json.loads, (out / "metrics.jsonl").read_text().splitlines()) if "loss" in r]
    assert len(losses) == 50
    assert sum(losses[-5:]) < 0.9 * sum(losses[:5])
