"""Live fetching, against hosts that behave and hosts that do not."""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import gzip
import os
import random
import re
import signal
import subprocess
import sys
import time
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path

import brotli
import pytest
import zstandard
from fastwarc.warc import ArchiveIterator
from warcio.archiveiterator import ArchiveIterator as WarcioIterator

from owt_pipeline import progress
from owt_pipeline.engine.runner import run_stage
from owt_pipeline.engine.stage import Runtime
from owt_pipeline.formats.warc import Response
from owt_pipeline.stages.fetch.options import Options
from owt_pipeline.stages.fetch.stage import STAGE
from schemas.manifest import Manifest
from tests.owt_pipeline.fetch.archive_server import AGENT
from tests.owt_pipeline.fetch.conftest import Serve, Write
from tests.owt_pipeline.fetch.constants import constants
from tests.owt_pipeline.fetch.reading import reader, rejects, responses
from tests.owt_pipeline.runs import stage_alone
from tests.servers.pywb import pywb
from tests.servers.web import DOMAIN, PAGE, Request, WebServer

PATIENCE = 300.0
"""Seconds until an event that does not come is a failure, on a machine however busy."""


@contextlib.contextmanager
def options_for(server: WebServer, **options: object) -> Iterator[Options]:
    defaults: dict = {
        "resolve": server.rules, "user_agent": AGENT, "host_delay": 0.0,
        "retries": 1, "max_retry_wait": 3.0, "max_page_bytes": 1_000_000,
    }  # fmt: skip
    with constants({**defaults, **options}) as fetch_options:
        yield Options(**fetch_options)


def fetch(runtime: Runtime, server: WebServer, **options: object) -> Manifest:
    with options_for(server, **options) as fetch_options:
        return run_stage(STAGE, fetch_options, runtime)[0]


def outcome(
    runtime: Runtime, manifest: Manifest
) -> tuple[dict[str, Response], dict[str, tuple[str, str]]]:
    """Pages and (reason, detail) of rejects, by canonical URL."""
    return responses(runtime, manifest), rejects(runtime, manifest)


async def page(request: Request) -> None:
    await request.answer()


def test_a_page_is_kept_as_it_was_sent(serve: Serve, write_urls: Write) -> None:
    body = "<html><p>Äpfel</p></html>".encode("latin-1")

    async def apples(request: Request) -> None:
        if request.path.startswith("/old"):
            await request.redirect("/new?q=%C3%A4")
        else:
            await request.answer(
                gzip.compress(body),
                Content_Encoding="gzip",
                Content_Type="text/html; charset=ISO-8859-1",
                X_A="b",
            )

    runtime = write_urls([f"http://user:pw@apples.{DOMAIN}/old#fragment"], num_shards=1)
    earliest = int(time.time())
    manifest = fetch(runtime, serve({"apples": apples}))
    ((url, response),) = outcome(runtime, manifest)[0].items()
    assert url == f"https://apples.{DOMAIN}/old"
    assert response.url == f"http://apples.{DOMAIN}/new?q=%C3%A4"
    assert (response.status, response.body, response.charset) == (200, body, "iso-8859-1")
    assert ("X-A", "b") in response.headers
    assert ("Content-Encoding", "gzip") in response.headers
    (row,) = reader(runtime, manifest).table().to_pylist()
    assert (row["source"], row["final_url"], row["body_bytes"]) == ("live", response.url, len(body))
    assert earliest <= row["fetched_at"] <= time.time()
    assert row["subreddits"] == ["news"]
    path = runtime.workdir.path(reader(runtime, manifest).files("warc")[0].path)
    warcinfo, _, redirect_record, response_record = (
        dict(record.headers) for record in ArchiveIterator(path, parse_http=False)
    )
    assert warcinfo["WARC-Type"] == "warcinfo"
    assert [redirect_record["WARC-Target-URI"], response_record["WARC-Target-URI"]] == [
        f"http://apples.{DOMAIN}/old",
        response.url,
    ]
    assert [redirect_record["WARC-IP-Address"], response_record["WARC-IP-Address"]] == [
        "127.0.0.1"
    ] * 2
    with open(path, "rb") as stream:
        info, _, *bodies = [
            r.content_stream().read() for r in WarcioIterator(stream, check_digests="raise")
        ]
    assert bodies == [b"", body]
    assert b"\r\nrobots: obey (RFC 9309)\r\n" in info
    assert f"\r\nhttp-header-user-agent: {AGENT}\r\n".encode() in info


async def some_of_each(request: Request) -> None:
    """Pages in all encodings, behind redirects, as servers on the web send them."""
    if request.path.startswith("/old"):
        await request.answer(
            b"moved " * (100 if "long" in request.path else 1), "301 Moved", Location="/gzip"
        )
        return
    body = {"gzip": gzip.compress, "zstd": zstandard.compress, "br": brotli.compress}.get(
        request.path[1:], bytes
    )(PAGE)
    if request.path in ("/gzip", "/chunked"):
        chunks = b"%x\r\n%s\r\n%x\r\n%s\r\n0\r\n\r\n" % (10, body[:10], len(body) - 10, body[10:])
        encoding = "gzip" if request.path == "/gzip" else ""
        await request.answer(
            chunks, Content_Length="", Transfer_Encoding="chunked", Content_Encoding=encoding
        )
    else:
        await request.answer(
            body, Content_Encoding=request.path[1:] if request.path != "/plain" else ""
        )


def _undated(response_by_url: dict[str, Response]) -> dict[str, Response]:
    return {url: dataclasses.replace(response, date=0) for url, response in response_by_url.items()}


WARCIO_WITH_BROTLI = """
import brotli, warcio.bufferedreaders, warcio.cli
class Decompressor:
    unused_data = None
    def __init__(self):
        self.decompress = brotli.Decompressor().process
warcio.bufferedreaders.BufferedReader.DECOMPRESSORS["br"] = Decompressor
warcio.cli.main()
"""
"""warcio 1.8 sets an attribute of brotli's decompressor; that of brotli 1.2 has no further
attributes."""


def test_other_tools_and_later_runs_read_our_warc_files(
    serve: Serve, write_urls: Write, tmp_path: Path
) -> None:
    paths = ["old", "old-long", "plain", "gzip", "chunked", "zstd", "br"]
    urls = [f"http://some.{DOMAIN}/{path}" for path in paths]
    runtime = write_urls(urls, num_shards=1)
    manifest = fetch(runtime, serve({"some": some_of_each}))
    response_by_url = responses(runtime, manifest)
    assert {
        url.rpartition("/")[2]: page.body for url, page in response_by_url.items()
    } == dict.fromkeys(paths, PAGE)
    (file,) = (Path(runtime.workdir.uri) / "warc").glob("*/*.warc.gz")
    check = [sys.executable, "-c", WARCIO_WITH_BROTLI, "check", "-v", str(file)]
    checked = subprocess.run(check, capture_output=True, text=True, check=True).stdout
    kinds = [record.headers["WARC-Type"] for record in ArchiveIterator(str(file), parse_http=False)]
    assert kinds == ["warcinfo", "resource", *["response"] * (len(paths) + 2)]
    assert checked.count("digest pass") == len(kinds)
    ids = [record.record_id for record in ArchiveIterator(str(file), parse_http=False)]
    assert len(set(ids)) == len(ids)
    assert all(
        record.verify_block_digest() for record in ArchiveIterator(str(file), parse_http=False)
    )
    later = write_urls(urls, "later", num_shards=1)
    later_response_by_url = responses(
        later, run_stage(STAGE, Options(pages_from=(str(file),)), later)[0]
    )
    # The target of redirects was answered several times, perhaps in two seconds: the later run
    # takes any of them.
    assert _undated(later_response_by_url) == _undated(response_by_url)
    with pywb(tmp_path / "pywb", {"pages": file}) as server:
        for path in paths[2:]:
            with urllib.request.urlopen(
                f"{server}/pages/2026mp_/http://some.{DOMAIN}/{path}"
            ) as answer:
                body = answer.read()
                # pywb leaves it to the browser to decompress Zstandard.
                body = zstandard.decompress(body) if path == "zstd" else body
                assert b"Some words. Some words." in body, path


def command(workdir: str, server: WebServer, host_delay: float = 0.0) -> list[str]:
    return [
        *stage_alone("fetch"), workdir, "--quiet", "--resolve", *server.rules,
        "--user_agent", AGENT, "--host_delay", str(host_delay), "--max_page_bytes", "1000000",
    ]  # fmt: skip


def wait_until(condition: Callable[[], bool]) -> None:
    end = time.monotonic() + PATIENCE
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.01)


def test_ctrl_c_ends_a_crawl_at_once(serve: Serve, write_urls: Write) -> None:
    async def slow(request: Request) -> None:
        await asyncio.sleep(0.5)
        await request.answer()

    server = serve({"slow": slow, "other": slow})
    runtime = write_urls(
        [f"http://{host}.{DOMAIN}/{p}" for host in ("slow", "other") for p in range(100)]
    )
    with subprocess.Popen(
        command(runtime.workdir.uri, server), stderr=subprocess.PIPE, text=True
    ) as process:
        wait_until(lambda: sum(server.requests.values()) > 3)
        os.kill(process.pid, signal.SIGINT)
        _, errors = process.communicate(timeout=120)
    assert sum(server.requests.values()) < 200
    assert process.returncode == 130
    assert (
        errors.strip().splitlines()[-1]
        == "owt: error: interrupted; run the same command again to continue"
    )


def test_a_full_disk_is_one_clear_error(serve: Serve, write_urls: Write) -> None:
    server = serve({"host": page})
    runtime = write_urls([f"http://host.{DOMAIN}/{p}" for p in range(400)], num_shards=1)
    limited = ["bash", "-c", 'ulimit -f 16; exec "$@"', "-", *command(runtime.workdir.uri, server)]
    result = subprocess.run(limited, capture_output=True, text=True, timeout=60)
    assert result.returncode == 1, result.stderr
    assert result.stderr.strip().splitlines()[-1].startswith("owt: error: ")
    assert "Traceback" not in result.stderr
    assert fetch(runtime, server).counts.left == 400


def scrambled(seed: str) -> bytes:
    """A valid response of some kind with a few bytes changed, cut or repeated."""
    choose = random.Random(seed)
    body = choose.choice(
        [PAGE, gzip.compress(PAGE), b"5\r\n<p>ab\r\n0\r\n\r\n", b"", choose.randbytes(200)]
    )
    headers = [
        "Content-Type: text/html; "
        "charset=utf-8", f"Content-Length: {len(body)}", "Content-Encoding: gzip",
        "Transfer-Encoding: chunked", "Location: /elsewhere", "Connection: close", "Set-Cookie: "
        "a=b; Path=/; \x01",
        "Retry-After: 0", "Refresh: 0; url=/x", "Upgrade: websocket", "Content-Encoding: deflate, "
        "br",
        "Content-Length: 5", "Transfer-Encoding: gzip, chunked", "Trailer: X", "X-\xff: \xfe",
    ]  # fmt: skip
    status = choose.choice(
        ["200 OK", "200", "301 Moved", "404 Not Found", "503 Busy", "101 Switching", "600 What"]
    )
    lines = [
        f"HTTP/1.{choose.choice('01')} {status}",
        *choose.sample(headers, choose.randrange(6)),
        "",
        "",
    ]
    data = bytearray("\r\n".join(lines).encode("latin-1") + body)
    for _ in range(choose.randrange(6)):
        start = choose.randrange(len(data)) if data else 0
        end = start + choose.choice([1, 1, 1, 4, 50])
        data[start:end] = choose.choice(
            [b"", choose.randbytes(1), data[start:end] * 3, b"\r\n", b"\x00", b": "]
        )
    return bytes(data)


def test_whatever_a_server_sends_is_a_page_or_has_a_reason(serve: Serve, write_urls: Write) -> None:
    async def send(request: Request) -> None:
        await request.send(scrambled(f"{request.host}{request.path}"))
        request.writer.close()

    hosts = [f"h{i}" for i in range(40)]
    server = serve(dict.fromkeys(hosts, send))
    runtime = write_urls([f"http://{host}.{DOMAIN}/{p}" for host in hosts for p in range(20)])
    manifest = fetch(runtime, server, retries=0, host_failures=1000)
    response_by_url, reject_by_url = outcome(runtime, manifest)
    assert len(response_by_url) + len(reject_by_url) == 800
    assert {"connect", "bad_response", "http_404"} <= {
        reason for reason, _ in reject_by_url.values()
    }


def test_a_log_reports_finished_pages_now_and_then(
    serve: Serve, write_urls: Write, monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:  # fmt: skip
    monkeypatch.setattr(progress, "LOG_INTERVAL_SECONDS", 0.5)
    progress.configure(quiet=False, live=False)
    runtime = write_urls([f"http://{host}.{DOMAIN}/{p}" for host in ("a", "b") for p in range(6)])
    with caplog.at_level("INFO", logger="owt"):
        fetch(runtime, serve({"a": page, "b": page}), host_delay=0.5)
    pattern = r"fetch: (\d+)/12 rows, .*, [01]/2 shards"
    done = [int(match[1]) for match in re.finditer(pattern, caplog.text)]
    assert len(done) >= 2
    assert done == sorted(done)
