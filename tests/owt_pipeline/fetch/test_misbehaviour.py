"""Hosts that misbehave: each URL has the page or the reason that a user would expect, and `owt
why` shows it."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from owt_pipeline.commands.why import main as why
from owt_pipeline.engine.runner import run_stage
from owt_pipeline.engine.stage import Runtime
from owt_pipeline.formats.urls import canonical_url
from owt_pipeline.ledger.dataset import DatasetReader
from owt_pipeline.stages.fetch.options import Options
from owt_pipeline.stages.fetch.stage import STAGE
from schemas.manifest import Manifest
from tests.owt_pipeline.fetch.conftest import write_urls_to
from tests.owt_pipeline.fetch.constants import constants
from tests.owt_pipeline.fetch.misbehaviour import WAYS
from tests.servers.web import DOMAIN, WebServer

_HTTPS = {"self-signed", "plain-http-at-https"}

URLS = {
    f"{'https' if name in _HTTPS else 'http'}://{name}.{DOMAIN}/": reason
    for name, (_, reason) in WAYS.items()
} | {
    "http://nowhere.invalid/": "dns",
    "http://127.0.0.1/": "blocked_address",
    "http://10.1.2.3/": "blocked_address",
    "http://[::1]/": "blocked_address",
    "http://localhost/": "blocked_address",
    "http://93.184.216.34:22/": "blocked_address",
    # Hosts that --resolve names are allowed on any port.
    f"http://page.{DOMAIN}:22/": None,
}
"""The URLs, and the reason why there is no page; None if there is one."""

CONNECT, SILENCE, PAGE = 3.0, 3.0, 6.0  # seconds
LIMIT = 1_000_000


class Crawl:
    """One run over all hosts that misbehave."""

    def __init__(self, folder: Path):
        server = WebServer({name: answer for name, (answer, _) in WAYS.items()})
        try:
            self.runtime = write_urls_to(folder, URLS, num_shards=2)
            started = time.monotonic()
            self.manifest = _fetch(self.runtime, server)
            self.seconds = time.monotonic() - started
        finally:
            server.close()
        reader = DatasetReader(self.runtime.workdir, self.manifest)
        self.pages = {row["url"]: row for row in reader.table().to_pylist()}
        self.rejects = {row["url"]: row for row in reader.table(kind="rejects").to_pylist()}


def _fetch(runtime: Runtime, server: WebServer) -> Manifest:
    options = Options(
        resolve=server.rules, user_agent="TestBot/1.0 "
        "(+mailto:test@bad.test)", host_delay=0.0, timeout=PAGE,
        max_page_bytes=LIMIT,
    )  # fmt: skip
    limits = {
        "retries": 1,
        "connect_timeout": CONNECT,
        "silence_timeout": SILENCE,
        "max_retry_wait": 3.0,
    }
    with constants(limits):
        return run_stage(STAGE, options, runtime)[0]


@pytest.fixture(scope="module")
def crawl(tmp_path_factory: pytest.TempPathFactory) -> Crawl:
    return Crawl(tmp_path_factory.mktemp("misbehaviour") / "run")


@pytest.mark.parametrize("url", URLS)
def test_each_way_to_misbehave_has_the_reason_a_user_expects(
    crawl: Crawl, url: str, capsys: pytest.CaptureFixture[str]
) -> None:
    canonical = canonical_url(url)
    reject = crawl.rejects.get(canonical)
    assert (reject["reason"] if reject else None) == URLS[url], reject
    assert (canonical in crawl.pages) == (reject is None)
    assert why([crawl.runtime.workdir.uri, url]) == 0
    shown = capsys.readouterr().out
    if reject:
        assert reject["detail"] in shown.replace("\n", " ")
        assert f"{canonical}: rejected by fetch: {reject['reason']}" in shown
        assert not any(
            word in shown for word in ("Error(", "Errno", "<class", "Traceback", " object at ")
        )


def test_the_run_ends_in_time_with_every_url_accounted_for(crawl: Crawl) -> None:
    # Two tries, a backoff, and the requests for robots.txt, of all hosts side by side.
    assert crawl.seconds < 60
    assert crawl.manifest.counts.entered == len(URLS)
    assert crawl.manifest.stats["from_live"] == crawl.manifest.counts.left == len(crawl.pages)
    broken = crawl.rejects[f"https://redirect-to-broken-gzip.{DOMAIN}/"]["detail"]
    assert broken.startswith(
        f"redirected to http://broken-gzip.{DOMAIN}/: the encoded body is damaged"
    )
    limit_ms = 1000 * PAGE + 500
    assert all(row["fetch_ms"] < limit_ms for row in crawl.pages.values())
