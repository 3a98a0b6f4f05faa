"""`--retry_failed`: temporary failures are retried, all other URLs keep their outcome and bytes."""

from __future__ import annotations

import asyncio
import threading
from typing import Any

from owt_pipeline.engine.stage import Runtime
from schemas.manifest import Manifest
from tests.owt_pipeline.fetch.archive_server import Answer, CommonCrawl
from tests.owt_pipeline.fetch.conftest import Serve, Write
from tests.owt_pipeline.fetch.reading import reader, records, rejects
from tests.owt_pipeline.fetch.test_live import fetch, page
from tests.servers.web import DOMAIN, ROBOTS, Request

STATUS_BY_HOST = {
    "s429": "429 Too Many Requests",
    "s500": "500 Internal Server Error",
    "s503": "503 Service Unavailable",
}
# The columns whose values depend on when a page was fetched.
COLUMNS_OF_TIME = ["fetched_at", "fetch_ms"]


class Web:
    """Hosts that fail in different ways until `is_down` is cleared, and hosts that do not."""

    def __init__(self, serve: Serve):
        self.is_down = threading.Event()
        self.is_down.set()
        hosts = {
            "good": page,
            "gone": self.missing,
            "robots-fails": self.robots,
            "reset": self.reset,
            "slow": self.silent,
            **dict.fromkeys(STATUS_BY_HOST, self.busy),
            "moved": self.moved,
        }
        self.server = serve(hosts)
        self.urls = [f"http://{host}.{DOMAIN}/{number}" for host in hosts for number in range(3)]

    async def missing(self, request: Request) -> None:
        await request.answer(b"", "404 Not Found")

    async def moved(self, request: Request) -> None:
        if request.path.startswith("/new"):
            await request.answer()
        else:
            await request.redirect(f"/new{request.path}")

    async def robots(self, request: Request) -> None:
        if request.path != ROBOTS:
            await request.answer()
        else:
            await request.answer(b"", 500 if self.is_down.is_set() else 404)

    async def reset(self, request: Request) -> None:
        if self.is_down.is_set():
            request.reset()
        else:
            await request.answer()

    async def silent(self, request: Request) -> None:
        if self.is_down.is_set():
            await asyncio.sleep(3.0)
        await request.answer()

    async def busy(self, request: Request) -> None:
        if self.is_down.is_set():
            await request.answer(b"", STATUS_BY_HOST[request.host])
        else:
            await request.answer()

    def requested_hosts(self) -> set[str]:
        """Return the hosts that had to serve a page."""
        return {host for host, path in self.server.requests if path != ROBOTS}


def rows(runtime: Runtime, manifest: Manifest) -> list[dict[str, Any]]:
    """Return the rows of pages/ without the time of requests, by URL."""
    table = reader(runtime, manifest).table().drop_columns(COLUMNS_OF_TIME)
    return sorted(table.to_pylist(), key=lambda row: row["url_id"])


def test_only_temporary_failures_are_retried(serve: Serve, write_urls: Write) -> None:
    web = Web(serve)
    runtime = write_urls(web.urls, num_shards=3)
    never_down = write_urls(web.urls, "other", num_shards=3)
    first = fetch(runtime, web.server, retries=0, silence_timeout=0.5)
    before = records(runtime, first)
    assert (first.counts.left, sum(first.counts.rejected.values())) == (6, 21)
    web.server.requests.clear()
    assert fetch(runtime, web.server) == first
    assert not web.requested_hosts()
    # Nothing has changed on the web: the same URLs fail once more.
    still = fetch(runtime, web.server, retries=0, silence_timeout=0.5, retry_failed=True)
    assert (still.counts, records(runtime, still)) == (first.counts, before)
    web.is_down.clear()
    web.server.requests.clear()
    second = fetch(runtime, web.server, retry_failed=True)
    assert second.counts.rejected == {"http_404": 3}
    assert web.requested_hosts() == {"robots-fails", "reset", "slow", *STATUS_BY_HOST}
    after = records(runtime, second)
    assert before == {url_id: after[url_id] for url_id in before}
    assert rows(runtime, second) == rows(never_down, fetch(never_down, web.server))
    web.server.requests.clear()
    assert fetch(runtime, web.server, retry_failed=True) == second
    assert not web.requested_hosts()


def test_a_failed_archive_is_the_reason_and_is_retried(
    serve: Serve, commoncrawl: CommonCrawl, write_urls: Write
) -> None:
    web = Web(serve)
    url = f"http://gone.{DOMAIN}/0"
    commoncrawl.add({url: 5})
    runtime = write_urls([url], num_shards=1)
    commoncrawl.way = lambda path, count: Answer(503) if path.endswith("/0.warc.gz") else None
    options: dict[str, Any] = {
        "sources": ("live", "commoncrawl"),
        "resolve": web.server.rules,
        "archive_retries": 0,
    }
    first = commoncrawl.fetch(runtime, **options)
    ((reason, detail),) = rejects(runtime, first).values()
    assert reason == "archive_failed"
    assert detail.startswith("live: http_404, status 404; commoncrawl: archive_failed, ")
    commoncrawl.way = lambda path, count: None
    assert commoncrawl.fetch(runtime, **options, retry_failed=True).counts.left == 1
