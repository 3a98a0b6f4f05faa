"""A crawl of 3,000 URLs, a third of which misbehave, is stopped, killed, and continued."""

from __future__ import annotations

import signal
import subprocess
import time
from pathlib import Path

import pytest

from owt_pipeline.ledger.dataset import DatasetReader
from owt_pipeline.storage.folder import Storage
from tests.owt_pipeline.fetch.misbehaviour import NO_PAGES
from tests.owt_pipeline.runs import manifest_of, owt, run_owt
from tests.servers.web import DOMAIN, ROBOTS, Request, WebServer

NUM_GOOD_HOSTS = 200
PAGES_PER_HOST = 10

MISBEHAVIOURS = {
    name: way
    for ways in NO_PAGES.values()
    for name, way in ways.items()
    if name not in ("self-signed", "plain-http-at-https", "refused", "takes-no-connection")
}


class CountingServer(WebServer):
    """A server of good hosts, and of hosts that misbehave."""

    def __init__(self) -> None:
        self.num_pages = 0
        good = {f"good{number}": self._send_page for number in range(NUM_GOOD_HOSTS)}
        super().__init__({**good, **MISBEHAVIOURS})

    async def _send_page(self, request: Request) -> None:
        self.num_pages += 1
        await request.answer()


@pytest.mark.long
@pytest.mark.timeout(1800)
def test_a_crawl_that_is_stopped_and_killed_has_each_page(tmp_path: Path) -> None:
    bad_hosts = ["refused", "takes-no-connection", *MISBEHAVIOURS][: NUM_GOOD_HOSTS // 2]
    good_urls = [
        f"http://good{host}.{DOMAIN}/{page}"
        for page in range(PAGES_PER_HOST)
        for host in range(NUM_GOOD_HOSTS)
    ]
    bad_urls = [
        f"http://{host}.{DOMAIN}/p{page}" for page in range(PAGES_PER_HOST) for host in bad_hosts
    ]
    links = tmp_path / "links.txt"
    links.write_text("\n".join(bad_urls + good_urls))
    with CountingServer() as server:
        words = ["run", tmp_path / "run", "--until", "fetch", "--links", links]
        words += ["--num_shards", 4, "--timeout", 4, "--max_page_bytes", 1_000_000]
        words += ["--user_agent", "TestBot/1.0 (+mailto:test@bad.test)", "--resolve", *server.rules]
        for number, num_pages in ((signal.SIGTERM, 600), (signal.SIGKILL, 1300)):
            with subprocess.Popen(owt(*words), stderr=subprocess.DEVNULL) as process:
                while server.num_pages < num_pages:
                    assert process.poll() is None
                    time.sleep(0.1)
                process.send_signal(number)
            assert process.returncode != 0
        subprocess.run(owt(*words), stderr=subprocess.DEVNULL, check=True)
        num_requests = [
            number
            for (host, path), number in server.requests.items()
            if host.startswith("good") and path != ROBOTS
        ]
    reader = DatasetReader(Storage(str(tmp_path / "run")), manifest_of(tmp_path / "run", "pages"))
    pages = reader.table().to_pylist()
    rejects = reader.table(kind="rejects").to_pylist()
    urls = [row["url"].replace("https", "http") for row in pages]
    assert sorted(urls) == sorted(good_urls)
    ids = [row["url_id"] for row in [*pages, *rejects]]
    assert len(ids) == len(set(ids)) == len(good_urls) + len(bad_urls)
    # A kill loses only what was fetched since the last segment, seconds before it.
    num_repeated = sum(number > 1 for number in num_requests)
    assert num_repeated < len(num_requests) / 2
    run_owt("verify", tmp_path / "run")
