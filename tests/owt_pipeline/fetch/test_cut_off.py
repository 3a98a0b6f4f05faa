"""A body that breaks off is a temporary failure. Its URL is requested again at the end of the
shard, and by --retry_failed. Framing is read alike wherever a response is cut into packets."""

from __future__ import annotations

import asyncio
import gc
import gzip
import socket
import struct
from collections.abc import Mapping

import brotli
import pytest
from yarl import URL

from owt_pipeline.stages.fetch.web.client import Client
from owt_pipeline.stages.fetch.web.politeness import Gate, RequestError
from tests.owt_pipeline.fetch.archive_server import AT, Answer, CommonCrawl, Wayback
from tests.owt_pipeline.fetch.conftest import Serve, Write
from tests.owt_pipeline.fetch.reading import rejects, responses
from tests.owt_pipeline.fetch.test_live import fetch, options_for
from tests.owt_pipeline.fetch.test_politeness import Proxy
from tests.servers.web import DOMAIN, PAGE, Behaviour, Request, raw

GZIPPED = gzip.compress(PAGE)
CHUNKED = b"".join(b"%x\r\n%s\r\n" % (len(p), p) for p in (PAGE[:99], PAGE[99:])) + b"0\r\n\r\n"


def response(body: bytes, *headers: str) -> bytes:
    lines = ["HTTP/1.1 200 OK", "Content-Type: text/html", *headers, "", ""]
    return "\r\n".join(lines).encode() + body


LENGTH = f"Content-Length: {len(PAGE)}"
WHOLE = {
    "length": response(PAGE, LENGTH),
    "chunks": response(CHUNKED, "Transfer-Encoding: chunked"),
    "gzip": response(GZIPPED, "Content-Encoding: gzip", f"Content-Length: {len(GZIPPED)}"),
    "gzip-until-close": response(GZIPPED, "Content-Encoding: gzip", "Connection: close"),
    "brotli-until-close": response(brotli.compress(PAGE), "Content-Encoding: br"),
}
"""A complete response of each kind."""


def cut_at(data: bytes, share: float) -> bytes:
    """Return the beginning of a response: its head, and this share of its body."""
    head, end, body = data.partition(b"\r\n\r\n")
    return head + end + body[: int(share * (len(body) - 1))]


def ends(data: bytes, packet: str) -> Behaviour:
    """Return a behaviour that sends bytes, after which the connection ends by FIN or RST."""
    return raw(data, then={"fin": "close", "rst": "reset"}[packet])


def first(way: Behaviour, count: int = 1, path: str = "/") -> Behaviour:
    """Return a behaviour: this one for the first requests of a path, then pages, no robots.txt."""

    async def answer(request: Request) -> None:
        if request.path == path and request.count <= count:
            await way(request)
        elif request.path == "/robots.txt":
            await request.answer(b"", "404 Not Found")
        else:
            await request.answer()

    return answer


@pytest.mark.parametrize("scheme", ["http", "https"])
@pytest.mark.parametrize("packet", ["fin", "rst"])
def test_a_body_cut_off_once_is_a_page_at_the_end_of_the_shard(
    serve: Serve, write_urls: Write, packet: str, scheme: str
) -> None:
    ways = {
        f"{kind}-{share}": first(ends(cut_at(data, share / 10), packet))
        for kind, data in WHOLE.items()
        for share in (0, 3, 9)
        # Without any byte, a body until the end of the connection is complete.
        if share or "until-close" not in kind
    }
    ways["until-close"] = first(ends(response(PAGE[:99]), "rst"))
    server = serve(ways)
    tls = tuple(f"{name}.{DOMAIN}=127.0.0.1:{server.tls_port}" for name in ways)
    options = {"resolve": tls, "verify_tls": False} if scheme == "https" else {}
    runtime = write_urls([f"{scheme}://{name}.{DOMAIN}/" for name in ways], num_shards=1)
    manifest = fetch(runtime, server, **options)
    assert rejects(runtime, manifest) == {}
    assert {page.body for page in responses(runtime, manifest).values()} == {PAGE}


@pytest.mark.parametrize("kind", WHOLE)
def test_a_body_that_breaks_off_twice_is_retried_by_retry_failed(
    serve: Serve, write_urls: Write, kind: str
) -> None:
    server = serve({"cut": first(ends(cut_at(WHOLE[kind], 0.5), "fin"), count=2)})
    runtime = write_urls([f"http://cut.{DOMAIN}/"], num_shards=1)
    manifest = fetch(runtime, server)
    ((reason, detail),) = rejects(runtime, manifest).values()
    assert (reason, "breaks off" in detail) == ("connect", True)
    assert server.requests["cut", "/"] == 2
    manifest = fetch(runtime, server, retry_failed=True)
    assert (manifest.counts.left, manifest.counts.rejected) == (1, {})


@pytest.mark.parametrize("tls", [False, True], ids=["http", "https"])
def test_a_body_cut_off_behind_a_proxy_is_a_page_later(
    serve: Serve, write_urls: Write, tls: bool
) -> None:
    ways = {kind: first(ends(cut_at(data, 0.5), "fin")) for kind, data in WHOLE.items()}
    urls = [f"http{'s' * tls}://{kind}.{DOMAIN}/" for kind in WHOLE]
    with Proxy(serve(ways)) as proxy:
        options = {"resolve": (), "proxy": proxy.proxy_url, "verify_tls": False}
        manifest = fetch(write_urls(urls, num_shards=1), proxy.server, **options)
    assert (manifest.counts.left, manifest.counts.rejected) == (len(WHOLE), {})


ROBOTS = b"User-agent: *\nDisallow: /private\n"


@pytest.mark.parametrize("cut", [1, len(ROBOTS) // 2, len(ROBOTS) - 1])
@pytest.mark.parametrize("coding", ["", "gzip"])
@pytest.mark.parametrize("count", [1, 3])
def test_a_robots_txt_that_breaks_off_is_read_again(
    serve: Serve, write_urls: Write, cut: int, coding: str, count: int
) -> None:
    body = gzip.compress(ROBOTS) if coding else ROBOTS
    headers = (f"Content-Encoding: {coding or 'none'}", f"Content-Length: {len(body)}")
    # The body is half a gzip member, and has the length that was announced.
    if coding:
        headers = (headers[0], f"Content-Length: {cut}")

    async def answer(request: Request) -> None:
        if request.path != "/robots.txt":
            await request.answer()
        elif request.count <= count:
            await ends(response(body[:cut], *headers), "fin")(request)
        else:
            await request.answer(ROBOTS)

    server = serve({"robots-cut": answer})
    urls = [f"http://robots-cut.{DOMAIN}/{path}" for path in ("a", "private")]
    runtime = write_urls(urls, num_shards=1)
    manifest = fetch(runtime, server)
    # It is requested twice in a row, and once more at the end of the shard.
    if count == 3:
        assert manifest.counts.rejected == {"robots_unreachable": 2}
        manifest = fetch(runtime, server, retry_failed=True)
    assert (manifest.counts.left, manifest.counts.rejected) == (1, {"robots": 1})


def test_bodies_that_archives_cut_off_are_requested_again(
    commoncrawl: CommonCrawl, wayback: Wayback, write_urls: Write
) -> None:
    urls = [f"http://a{n}.example/x" for n in range(4)]
    for url in urls:
        commoncrawl.add({url: AT})
    wayback.captures = {(url, AT): b"<p>page" for url in urls}

    def cut_record(path: str, count: int) -> Answer | None:
        if "/warc/" not in path or count > 1:
            return None
        content = commoncrawl.files[path.removeprefix("/data/")]
        headers = {"Content-Range": f"bytes 0-{len(content) - 1}/{len(content)}"}
        return Answer(206, content, headers, sent=len(content) // 2)

    def half_a_gzip(path: str, count: int) -> Answer | None:
        return Answer(200, GZIPPED[:-9], {"Content-Encoding": "gzip"}) if count == 1 else None

    commoncrawl.way, wayback.way = cut_record, half_a_gzip
    for archive in (commoncrawl, wayback):
        runtime = write_urls([(url, AT) for url in urls], type(archive).__name__)
        assert archive.fetch(runtime).counts.left == len(urls)


LENGTH_AND_CHUNKS = ("Transfer-Encoding: chunked", "Content-Length: 7")
FRAMINGS: dict[str, tuple[bytes, str]] = {
    "length": (response(PAGE, LENGTH), "page"),
    "chunks": (response(CHUNKED, "transfer-encoding:Chunked"), "page"),
    "until-close": (response(PAGE), "page"),
    "after-103": (
        b"HTTP/1.1 103 Early Hints\r\nLink: </a>\r\n\r\n" + response(PAGE, LENGTH),
        "page",
    ),
    # RFC 9112 (6.3) lets a client refuse a response whose length is declared twice.
    "te-and-cl": (response(CHUNKED, *LENGTH_AND_CHUNKS), "bad_response"),
    "cl-and-te": (response(CHUNKED, *reversed(LENGTH_AND_CHUNKS)), "bad_response"),
    "te-and-two-cl": (response(CHUNKED, *LENGTH_AND_CHUNKS, LENGTH), "bad_response"),
    "cl-twice": (response(PAGE, LENGTH, LENGTH), "bad_response"),
    "cl-list": (response(PAGE, f"{LENGTH},{len(PAGE)}"), "bad_response"),
    "cl-empty": (response(PAGE, "Content-Length:"), "bad_response"),
    "differing": (response(PAGE, LENGTH, "Content-Length: 7"), "bad_response"),
    "negative": (response(PAGE, "Content-Length: -1"), "bad_response"),
    "no-http": (b"SSH-2.0-OpenSSH_9.6\r\n\r\n", "bad_response"),
}
"""Responses, and the page or the reason for there being none, in packets of any size."""

DAMAGED_BODIES = {
    "bad-chunk": response(b"5\r\nhello\r\nzz\r\n", "Transfer-Encoding: chunked"),
    "chunk-too-long": response(b"2\r\nhello\r\n0\r\n\r\n", "Transfer-Encoding: chunked"),
}
"""Responses that are `bad_response` if head and body come in one packet, otherwise `connect`."""


def in_pieces(data: bytes, size: int) -> Behaviour:
    """Return a behaviour that sends bytes in packets of `size`, and closes the connection."""

    async def way(request: Request) -> None:
        for at in range(0, len(data), size):
            await request.send(data[at : at + size])
            await asyncio.sleep(0.001)
        request.writer.close()

    return way


def outcomes(serve: Serve, responses: Mapping[str, bytes], size: int) -> dict[str, str]:
    """Return whether each response is a page, otherwise the reason of the client's failure."""
    server = serve({name: in_pieces(data, size) for name, data in responses.items()})

    async def outcome(client: Client, name: str) -> str:
        try:
            received = await client.get(
                URL(f"http://{name}.{DOMAIN}/"), lambda *_: False, Gate(0.0, 1)
            )
        except RequestError as failure:
            return str(failure.reason)
        return "page" if received.body == PAGE else repr(received.body)

    async def all_outcomes() -> list[str]:
        with options_for(server, timeout=20.0) as options:
            client = Client(options)
        try:
            return await asyncio.gather(*(outcome(client, name) for name in responses))
        finally:
            await client.close()

    return dict(zip(responses, asyncio.run(all_outcomes()), strict=True))


@pytest.mark.parametrize("size", [7, 64, 100, 1 << 20])
def test_framing_is_read_alike_in_packets_of_any_size(serve: Serve, size: int) -> None:
    responses = {name: data for name, (data, _) in FRAMINGS.items()}
    expected = {name: outcome for name, (_, outcome) in FRAMINGS.items()}
    assert outcomes(serve, responses, size) == expected


@pytest.mark.parametrize("size", [7, 64, 1 << 20])
def test_damaged_chunks_are_a_failure_before_the_time_limit(serve: Serve, size: int) -> None:
    reasons = outcomes(serve, DAMAGED_BODIES, size).values()
    assert set(reasons) <= {"connect", "bad_response"}


def test_a_reset_of_an_idle_connection_is_not_reported(
    serve: Serve, write_urls: Write, caplog: pytest.LogCaptureFixture
) -> None:
    async def reset_later(request: Request) -> None:
        await request.send(response(b"", LENGTH))
        await asyncio.sleep(0.1)
        await request.send(PAGE)
        await asyncio.sleep(0.1)
        request.writer.transport.get_extra_info("socket").setsockopt(
            socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0)
        )
        request.writer.close()

    server = serve({"resets": reset_later})
    urls = [f"http://resets.{DOMAIN}/{number}" for number in range(3)]
    runtime = write_urls(urls, num_shards=1)
    assert fetch(runtime, server, host_delay=0.3).counts.left == 3
    gc.collect()
    assert [record for record in caplog.records if record.name == "asyncio"] == []
