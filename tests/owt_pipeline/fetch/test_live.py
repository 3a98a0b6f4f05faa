"""Live fetching against a web that misbehaves."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator

import pytest

from owt_pipeline.fetch.warc import Response, pages, read_record
from owt_pipeline.runtime.shards import DatasetReader
from owt_pipeline.runtime.stage import Runtime, run_stage
from owt_pipeline.stages.fetch import STAGE, Options
from schemas import Manifest
from tests.owt_pipeline.fetch.bad_server import DOMAIN, WAYS, BadServer


@pytest.fixture
def server() -> Iterator[BadServer]:
    server = BadServer()
    yield server
    server.close()


def fetch(runtime: Runtime, server: BadServer, **options: object) -> Manifest:
    defaults: dict = {
        "resolve": server.rules, "user_agent": "TestBot/1.0 (+mailto:test@bad.test)", "host_delay": 0.0,
        "connect_timeout": 1.0, "silence_timeout": 1.0, "page_timeout": 2.0, "retries": 1, "max_retry_wait": 3.0,
        "max_page_bytes": 1_000_000, "max_wire_bytes": 1_000_000, "max_redirects": 5,
    }  # fmt: skip
    return run_stage(STAGE, Options(**{**defaults, **options}), runtime)[0]


def outcome(runtime: Runtime, manifest: Manifest) -> tuple[dict[str, Response], dict[str, tuple[str, str]]]:
    """Pages and (reason, detail) of rejects, by canonical URL."""
    reader = DatasetReader(runtime.workdir / "pages", manifest)
    found = {
        row["url"]: read_record(row["record"])
        for shard in range(reader.num_shards)
        for batch in pages(reader, shard)
        for row in batch.to_pylist()
    }
    rejects = reader.table(kind="rejects").to_pylist()
    return found, {row["url"]: (row["reason"], row["detail"]) for row in rejects}


def test_each_way_to_misbehave_has_the_reason_a_user_expects(
    server: BadServer, write_urls: Callable[..., Runtime]
) -> None:
    expected = {name: reason for name, (_, reason) in WAYS.items()}
    https = {"self-signed", "plain-http-at-https"}
    urls = {f"{'https' if name in https else 'http'}://{name}.{DOMAIN}/": reason for name, reason in expected.items()}
    urls |= {
        "http://nowhere.invalid/": "dns",
        "http://127.0.0.1/": "blocked_address",
        "http://10.1.2.3/": "blocked_address",
        "http://[::1]/": "blocked_address",
        "http://localhost/": "blocked_address",
        f"http://page.{DOMAIN}:22/": None,  # what --resolve names is allowed on any port
        "http://93.184.216.34:22/": "blocked_address",
    }
    runtime = write_urls(urls)
    started = time.monotonic()
    manifest = fetch(runtime, server)
    seconds = time.monotonic() - started
    found, rejects = outcome(runtime, manifest)
    reasons = dict.fromkeys(found) | {url: reason for url, (reason, _) in rejects.items()}
    assert reasons == {url.replace("http://", "https://"): reason for url, reason in urls.items()}
    assert all(detail for _, detail in rejects.values())
    assert manifest.counts.entered == len(urls)
    assert seconds < 20
