"""Answers of the web that are kept: neither a kill by a signal nor another generation requests their
URLs again."""

from __future__ import annotations

import io
import json
import math
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import NamedTuple

import pytest
from fastwarc.warc import ArchiveIterator

from owt_pipeline.engine.runner import run_stages
from owt_pipeline.engine.stage import Runtime
from owt_pipeline.ledger.dataset import DatasetReader
from owt_pipeline.stages.collect.stage import STAGE as COLLECT
from owt_pipeline.stages.fetch import recorder
from owt_pipeline.stages.fetch.stage import STAGE
from owt_pipeline.storage import lock
from owt_pipeline.storage.folder import Storage
from tests.conftest import REPOSITORY
from tests.owt_pipeline.fetch.conftest import Serve, write_urls_to
from tests.owt_pipeline.fetch.reading import records
from tests.owt_pipeline.fetch.test_live import command, fetch, options_for, wait_until
from tests.owt_pipeline.one_stage import run_alone
from tests.servers.s3 import s3_bucket
from tests.servers.web import DOMAIN, Request

NUM_SHARDS = 2


class Signal(NamedTuple):
    """Where a crawl is killed by a signal, and whether it is a retry."""

    place: str
    is_retry: bool


SIGNALS = [
    Signal("disk", is_retry=False),
    pytest.param(Signal("disk", is_retry=True), marks=pytest.mark.slow),
    pytest.param(Signal("s3", is_retry=False), marks=pytest.mark.slow),
]
# Shorter than in a real run, so that the answers of some segments are kept at the kill.
SEGMENT_SECONDS = 1.0
HOST_DELAY = 0.4


def fetch_with_short_segments(*arguments: str) -> None:
    """Fetch as `owt run --until fetch` does; the main function of a process."""
    recorder.SEGMENT_SECONDS = recorder.BUCKET_SECONDS = SEGMENT_SECONDS
    sys.exit(run_alone("fetch", arguments[0], list(arguments[1:])))


class NotingWeb:
    """Hosts that note when each page is requested, and reset connections while they are down."""

    def __init__(self) -> None:
        self.hosts = [f"h{number}" for number in range(8)]
        self.urls = [f"http://{host}.{DOMAIN}/{page}" for host in self.hosts for page in range(12)]
        self.times_by_url: dict[str, list[float]] = {}
        self.is_up = True

    async def behave(self, request: Request) -> None:
        if not self.is_up and request.host > "h1":
            request.reset()
            return
        url = f"http://{request.host}.{DOMAIN}{request.path}"
        self.times_by_url.setdefault(url, []).append(time.monotonic())
        if request.path.startswith("/7"):
            await request.answer(b"", 404)
        else:
            await request.answer()

    def count(self) -> int:
        """Return the number of requests so far."""
        return sum(map(len, self.times_by_url.values()))

    def mean_gaps(self) -> Iterator[float]:
        """Yield the mean seconds between the requests to each host."""
        for host in self.hosts:
            prefix = f"http://{host}.{DOMAIN}/"
            times = [
                seconds
                for url, times_of_url in self.times_by_url.items()
                if url.startswith(prefix)
                for seconds in times_of_url
            ]
            if len(times) > 1:
                yield (max(times) - min(times)) / (len(times) - 1)

    def requested(self, since: float, until: float) -> set[str]:
        """Return the URLs that were requested in a time."""
        return {
            url
            for url, times in self.times_by_url.items()
            if any(since < seconds < until for seconds in times)
        }


@pytest.mark.slow
@pytest.mark.parametrize("signalled", SIGNALS, ids=lambda row: f"{row.place}-{row.is_retry}")
def test_a_kill_costs_only_the_answers_of_the_last_seconds(
    signalled: Signal, serve: Serve, tmp_path: Path
) -> None:
    web = NotingWeb()
    server = serve(dict.fromkeys(web.hosts, web.behave))
    with ExitStack() as stack:
        uri = str(tmp_path)
        if signalled.place == "s3":
            uri = stack.enter_context(s3_bucket())
        runtime = write_urls_to(f"{uri}/run", web.urls, NUM_SHARDS)
        before: dict[int, bytes] = {}
        arguments = command(runtime.workdir.uri, server, HOST_DELAY)[4:]
        if signalled.is_retry:
            web.is_up = False
            before = records(runtime, fetch(runtime, server, retries=0))
            assert len(before) == 22
            web.is_up = True
            web.times_by_url.clear()
            arguments.append("--retry_failed")
        code = f"from {__name__} import fetch_with_short_segments as f; f(*{arguments!r})"
        started = time.monotonic()
        with subprocess.Popen([sys.executable, "-c", code], cwd=REPOSITORY) as process:
            wait_until(lambda: web.count() > len(web.urls) / 2)
            process.send_signal(signal.SIGKILL)
        killed = time.monotonic()
        num_requests = web.count()
        time.sleep(0.3)
        assert web.count() < num_requests + len(web.hosts), "the crawl goes on"
        if signalled.place == "s3":
            # Else the next run waits ten minutes to see whether this one is alive.
            runtime.workdir.delete(lock.OBJECT)
        # The round of the retry goes on without the flag.
        manifest = fetch(runtime, server, host_delay=HOST_DELAY)
        assert (manifest.counts.left, manifest.counts.rejected) == (88, {"http_404": 8})
        early = web.requested(started, killed - SEGMENT_SECONDS - 1)
        assert early
        assert not early & web.requested(killed, math.inf)
        assert min(web.mean_gaps()) > 0.8 * HOST_DELAY
        after = records(runtime, manifest)
        assert before == {url_id: after[url_id] for url_id in before}
        if signalled.is_retry:
            assert not any(url.startswith(("http://h0.", "http://h1.")) for url in web.times_by_url)
        names = runtime.workdir.names()
        assert not [name for name in names if name.endswith("/attempt") or "/work/" in name]
        for name in names:
            if name.startswith("warc/"):
                stream = io.BytesIO(runtime.workdir.read(name))
                warc_records = ArchiveIterator(stream, parse_http=False)
                assert all(record.verify_block_digest() for record in warc_records)


def write_dump(path: Path, scores: dict[str, int]) -> Path:
    """Write a dump with a submission for each URL."""
    with path.open("w") as file:
        for number, (url, score) in enumerate(scores.items()):
            submission = {"id": f"{path.stem}{number}", "url": url, "score": score}
            file.write(json.dumps({**submission, "created_utc": 1, "subreddit": "news"}) + "\n")
    return path


def test_a_url_in_another_generation_is_not_requested_again(serve: Serve, tmp_path: Path) -> None:
    web = NotingWeb()
    server = serve(dict.fromkeys(web.hosts, web.behave))
    urls = [f"http://h{number}.{DOMAIN}/page" for number in range(6)]
    runtime = Runtime(Storage(str(tmp_path / "grown")), add=True)
    # A score of 1 is too small at first, so the second dump brings these two URLs once more.
    first = write_dump(tmp_path / "RS_0.ndjson", dict(zip(urls[:4], (5, 5, 1, 1), strict=True)))
    second = write_dump(tmp_path / "RS_1.ndjson", dict.fromkeys(urls[2:], 5))

    def fetch_dumps(dumps: list[Path], num_shards: int, min_score: int) -> list[int]:
        """Return the number of rows of each shard of pages/."""
        collecting = COLLECT.options(
            dumps=tuple(map(str, dumps)), num_shards=num_shards, min_score=min_score
        )
        with options_for(server) as fetching:
            run_stages([(COLLECT, collecting), (STAGE, fetching)], runtime)
        return DatasetReader.open(runtime.workdir, "pages").rows_of_shards()

    assert sum(fetch_dumps([first], 2, 3)) == 2
    before = fetch_dumps([first, second], 3, 3)
    assert (sum(before[:2]), sum(before[2:])) == (2, 4)
    assert {url: len(times) for url, times in web.times_by_url.items()} == dict.fromkeys(urls, 1)
    after = fetch_dumps([first, second], 3, 1)
    assert (sum(after[:2]), sum(after[2:])) == (4, 2)
    assert fetch_dumps([first, second], 3, 3) == before
    assert web.count() == len(urls)
