"""`--retry_failed`: temporary failures are retried, all other URLs keep their outcome and bytes."""

from __future__ import annotations

import asyncio
import signal
import subprocess
import threading
from typing import Any

import pytest

from owt_pipeline.engine.stage import Runtime
from owt_pipeline.stages.fetch import recorder
from schemas.manifest import Manifest
from tests.owt_pipeline.fetch.archive_server import Answer, CommonCrawl
from tests.owt_pipeline.fetch.bad_server import DOMAIN, Request, Serve
from tests.owt_pipeline.fetch.conftest import Write
from tests.owt_pipeline.fetch.reading import reader, records, rejects
from tests.owt_pipeline.fetch.test_live import command, fetch, page, wait_until

STATUSES = ("429 Too Many Requests", "500 Internal Server Error", "503 Service Unavailable")
OF_TIME = ("fetched_at", "fetch_ms")


class Web:
    """Hosts, some of which fail in different ways until `is_down` is cleared."""

    def __init__(self, serve: Serve):
        self.is_down, self.waits = threading.Event(), 0.0
        self.is_down.set()
        ways = {
            "good": page,
            "gone": self.gone,
            "robots-fails": self.robots,
            "reset": self.reset,
            "slow": self.silent,
        }
        self.server = serve(
            {**ways, **{f"s{status[:3]}": self.status for status in STATUSES}, "moved": self.moved}
        )

    @property
    def urls(self) -> list[str]:
        return [
            f"http://{host}.{DOMAIN}/{number}" for host in self.server.ways for number in range(3)
        ]

    async def gone(self, request: Request) -> None:
        await request.answer(b"", "404 Not Found")

    async def moved(self, request: Request) -> None:
        await (
            page(request)
            if request.path.startswith("/new")
            else request.redirect(f"/new{request.path}")
        )

    async def robots(self, request: Request) -> None:
        if request.path == "/robots.txt":
            await request.answer(b"", "500 Oops" if self.is_down.is_set() else "404 Not Found")
        else:
            await asyncio.sleep(self.waits)
            await request.answer()

    async def reset(self, request: Request) -> None:
        await asyncio.sleep(self.waits)
        await (asyncio.sleep(0, request.reset()) if self.is_down.is_set() else request.answer())

    async def silent(self, request: Request) -> None:
        await asyncio.sleep(3.0 if self.is_down.is_set() else self.waits)
        await request.answer()

    async def status(self, request: Request) -> None:
        number = STATUSES[("s429", "s500", "s503").index(request.host)]
        await (request.answer(b"", number) if self.is_down.is_set() else request.answer())

    def asked(self) -> set[str]:
        return {host for host, path in self.server.requests if path != "/robots.txt"}


def rows(runtime: Runtime, manifest: Manifest) -> list[dict[str, Any]]:
    table = reader(runtime, manifest).table().drop_columns(list(OF_TIME))
    return sorted(table.to_pylist(), key=lambda row: row["url_id"])


def test_only_temporary_failures_are_retried(serve: Serve, write_urls: Write) -> None:
    web = Web(serve)
    runtime, never_down = (
        write_urls(web.urls, num_shards=3),
        write_urls(web.urls, "other", num_shards=3),
    )
    first = fetch(runtime, web.server, retries=0, silence_timeout=0.5)
    before = records(runtime, first)
    assert (first.counts.left, sum(first.counts.rejected.values())) == (6, 21)
    web.server.requests.clear()
    assert fetch(runtime, web.server) == first
    assert not web.asked()
    still = fetch(runtime, web.server, retries=0, silence_timeout=0.5, retry_failed=True)
    assert (still.counts, records(runtime, still)) == (first.counts, before)
    web.is_down.clear()
    web.server.requests.clear()
    second = fetch(runtime, web.server, retry_failed=True)
    assert second.counts.rejected == {"http_404": 3}
    assert web.asked() == {"robots-fails", "reset", "slow", "s429", "s500", "s503"}
    after = records(runtime, second)
    assert before == {url_id: after[url_id] for url_id in before}
    assert rows(runtime, second) == rows(never_down, fetch(never_down, web.server))
    web.server.requests.clear()
    assert fetch(runtime, web.server, retry_failed=True) == second
    assert not web.asked()


@pytest.mark.slow
def test_a_killed_retry_continues_also_without_the_flag(serve: Serve, write_urls: Write) -> None:
    web = Web(serve)
    urls = [f"http://reset.{DOMAIN}/{number}" for number in range(60)] + [
        f"http://good.{DOMAIN}/{n}" for n in range(9)
    ]
    runtime = write_urls(urls, num_shards=1)
    before = records(runtime, fetch(runtime, web.server, retries=0))
    web.is_down.clear()
    web.waits = 0.05
    web.server.requests.clear()
    with subprocess.Popen(
        [*command(runtime.workdir.uri, web.server, 0.25), "--retry_failed"]
    ) as process:
        wait_until(lambda: len(web.server.requests) > 30)
        process.send_signal(signal.SIGKILL)
    second = fetch(runtime, web.server)
    assert (second.counts.left, second.counts.rejected) == (len(urls), {})
    twice = sum(
        count > 1 for (_, path), count in web.server.requests.items() if path != "/robots.txt"
    )
    assert twice <= 4 * (recorder.SEGMENT_SECONDS + 1)
    assert web.asked() == {"reset"}
    after = records(runtime, second)
    assert len(before) == 9
    assert before == {url_id: after[url_id] for url_id in before}


def test_a_failed_archive_is_the_reason_and_is_retried(
    serve: Serve, commoncrawl: CommonCrawl, write_urls: Write
) -> None:
    web, url = Web(serve), f"http://gone.{DOMAIN}/0"
    commoncrawl.add({url: 5})
    runtime = write_urls([url], num_shards=1)
    commoncrawl.way = lambda path, count: Answer(503) if path.endswith("/0.warc.gz") else None
    both: dict[str, Any] = {
        "sources": ("live", "commoncrawl"),
        "resolve": web.server.rules,
        "archive_retries": 0,
    }
    first = commoncrawl.fetch(runtime, **both)
    ((reason, detail),) = rejects(runtime, first).values()
    assert reason == "archive_failed"
    assert detail.startswith("live: http_404, status 404; commoncrawl: archive_failed, ")
    commoncrawl.way = lambda path, count: None
    assert commoncrawl.fetch(runtime, **both, retry_failed=True).counts.left == 1
