"""Real submissions and real pages become tokens."""

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
    """A finished run of two real dumps and a WARC file."""
    folder = tmp_path_factory.mktemp("real") / "run"
    dumps = [testdata / "reddit/RS_wcxb-dev.zst", testdata / "reddit/RS_2013-top.zst"]
    pages = testdata / "web/wcxb-dev.warc.gz"
    sources = ["--dumps", *dumps, "--pages_from", pages]
    print(run_owt("run", folder, "--workers", 2, *sources))
    return folder


def counts(run: Path, dataset: str) -> Counts:
    """Return the counts of a dataset."""
    return manifest_of(run, dataset).counts


def ids(run: Path, dataset: str) -> Counter[int]:
    """Return how often each id occurs in a folder."""
    occurrences: Counter[int] = Counter()
    for file in (run / dataset).glob("part-*.parquet"):
        table = pq.read_table(file, columns=["url_id"])
        occurrences.update(table["url_id"].to_pylist())
    return occurrences


def test_every_submission_is_accounted_for(run: Path, testdata: Path) -> None:
    """Each link of the dump is a row of urls/ or a reject.

    The links are counted from the dump itself. Its other posts are rejects.
    """
    path = testdata / "reddit/RS_wcxb-dev.zst"
    decompressor = zstandard.ZstdDecompressor(max_window_size=2**31)
    with open(path, "rb") as file:
        lines = decompressor.stream_reader(file).read().splitlines()
    submissions = [orjson.loads(line) for line in lines]
    # The other dump has 99,294 submissions.
    assert counts(run, "urls").entered == len(submissions) + 99_294
    collected = ids(run, "urls")
    rejected = ids(run, "ledger/urls/rejects")
    assert max(collected.values()) == 1
    for submission in submissions:
        identifier = id_of(canonical_url(submission["url"]))
        assert collected[identifier] or rejected[identifier], submission["url"]
        if submission["over_18"] or submission["score"] < 3:
            assert rejected[identifier], submission["url"]
    assert sum(collected.values()) + sum(rejected.values()) == counts(run, "urls").entered


def test_the_run_verifies_and_most_pages_become_tokens(run: Path) -> None:
    assert "no problems found" in run_owt("verify", run)
    num_pages = counts(run, "pages").left
    num_documents = counts(run, "documents").left
    num_kept = counts(run, "corpus").left
    assert num_pages > 900
    assert num_documents > 0.95 * num_pages
    assert num_kept > 0.6 * num_documents
    assert counts(run, "tokens").left == num_kept
    assert json.loads((run / "report/stats.json").read_text())
    assert (run / "report/index.html").stat().st_size > 10_000
