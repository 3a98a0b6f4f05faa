"""Real submissions and real pages, from the dump to a model that learns."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path

import orjson
import pyarrow.parquet as pq
import pytest
import zstandard

from owt_pipeline.formats.urls import canonical_url, id_of
from schemas.manifest import Counts
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
    return Counter(
        i for file in files for i in pq.read_table(file, columns=["url_id"])["url_id"].to_pylist()
    )


def test_every_submission_is_accounted_for(run: Path, testdata: Path) -> None:
    """Counted again, from the dump itself: each link is a row of urls/, or a reject, and none is
    both or neither."""
    path = testdata / "reddit/RS_wcxb-dev.zst"
    with open(path, "rb") as file:
        lines = (
            zstandard.ZstdDecompressor(max_window_size=2**31)
            .stream_reader(file)
            .read()
            .splitlines()
        )
    submissions = [orjson.loads(line) for line in lines]
    assert counts(run, "urls").entered == len(submissions) + 99_294
    kept = ids(run, "urls")
    rejected = ids(run, "ledger/urls/rejects")
    assert max(kept.values()) == 1
    for submission in submissions:
        identifier = id_of(canonical_url(submission["url"]))
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
