"""A run in S3 behind a proxy that fails ends with the files of a run on a disk, or is continued."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import urlsplit

import pytest

from owt_pipeline.storage import buckets, lock
from owt_pipeline.storage.folder import Storage
from tests.owt_pipeline.one_process import forget_processes
from tests.owt_pipeline.runs import ask_owt, contents
from tests.owt_pipeline.test_two_events import write_texts
from tests.servers.failing import FAILURES, FailingWay
from tests.servers.s3 import s3_bucket

pytestmark = pytest.mark.slow

_OPTIONS = ["--min_tokens", 64, "--languages", "all", "--val_fraction", 0.3, "--workers", 1]


@pytest.fixture(scope="module")
def texts(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_texts(tmp_path_factory.mktemp("failing") / "first.jsonl", range(8))


@pytest.fixture(scope="module")
def on_disk(texts: Path) -> dict[str, bytes]:
    """Return the files of the run on a disk."""
    run = texts.parent / "run"
    ask_owt("import", run, texts, "--num_shards", 2, "--workers", 1)
    ask_owt("run", run, *_OPTIONS)
    return contents(Storage(str(run)))


@pytest.fixture
def way(monkeypatch: pytest.MonkeyPatch) -> Iterator[FailingWay]:
    """Serve the way to a bucket `bucket`, on which nothing fails yet."""
    forget_processes()
    with s3_bucket():
        server = urlsplit(os.environ["AWS_ENDPOINT_URL"])
        with FailingWay(server.port or 80, 1 << 30) as way:
            monkeypatch.setenv("AWS_ENDPOINT_URL", way.url)
            yield way


@pytest.mark.parametrize("period", [3, 16])
def test_a_run_behind_a_failing_proxy_has_the_same_files(
    way: FailingWay, texts: Path, on_disk: dict[str, bytes], period: int
) -> None:
    way.period = period
    ask_owt("import", "s3://bucket/run", texts, "--num_shards", 2, "--workers", 1)
    ask_owt("run", "s3://bucket/run", *_OPTIONS)
    assert way.num_requests > 10 * period
    way.period = 1 << 30
    assert contents(Storage("s3://bucket/run")) == on_disk


@pytest.mark.parametrize(("num_requests", "failure"), zip([15, 40, 80, 120], FAILURES, strict=True))
def test_a_run_behind_a_failing_proxy_is_one_line_and_continues(
    way: FailingWay,
    texts: Path,
    on_disk: dict[str, bytes],
    num_requests: int,
    failure: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(buckets, "_RETRY_SECONDS", 1.0)
    # The lock could not be released, and the process of the first command has not ended here.
    monkeypatch.setattr(lock, "TERM_SECONDS", 1.0)
    ask_owt("import", "s3://bucket/run", texts, "--num_shards", 2, "--workers", 1)
    way.failures = (failure,)
    way.goes_down_at = way.num_requests + num_requests
    output = ask_owt("run", "s3://bucket/run", *_OPTIONS, code=1)
    assert way.is_down
    (line,) = (line for line in output.splitlines() if line.startswith("owt: error: "))
    assert "s3://bucket" in line
    way.goes_down_at = 1 << 30
    way.is_down = False
    ask_owt("run", "s3://bucket/run", *_OPTIONS)
    assert contents(Storage("s3://bucket/run")) == on_disk
