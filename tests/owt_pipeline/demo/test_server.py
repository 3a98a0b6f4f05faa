"""The demo's server, over real HTTP: hosts by name, and each misbehaviour as a client meets it."""

from __future__ import annotations

import asyncio
import html
import http.client
import socket
import subprocess
import sys
import urllib.request
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from dataclasses import dataclass

import aiohttp
import pytest

from owt_pipeline.demo.server import serving
from owt_pipeline.demo.site import Behaviour, Site
from schemas import Reason


@pytest.fixture(scope="module")
def address() -> Iterator[str]:
    with serving() as address:
        yield address


@dataclass
class Reply:
    status: int
    headers: http.client.HTTPMessage
    body: bytes


def get(address: str, url: str, *, timeout: float = 5.0) -> Reply:
    """One GET of a URL from the demo's server, redirects not followed."""
    host, _, path = url.removeprefix("http://").partition("/")
    connection = http.client.HTTPConnection(address, timeout=timeout)
    try:
        connection.putrequest("GET", "/" + path, skip_host=True)
        connection.putheader("Host", host)
        connection.endheaders()
        response = connection.getresponse()
        return Reply(response.status, response.headers, response.read())
    finally:
        connection.close()


def test_every_plain_page_is_served_as_built(address: str, site: Site) -> None:
    for (host, path), answer in site.answers.items():
        if answer.behaviour is Behaviour.PLAIN and not answer.delay:
            reply = get(address, f"http://{host}{path}")
            assert (reply.status, reply.body) == (answer.status, answer.body), (host, path)
            assert reply.headers.get("Location", "") == answer.location
            assert reply.headers["Content-Type"] == answer.content_type


def test_equal_requests_get_equal_bytes(address: str, site: Site) -> None:
    url = site.expectations[0].url
    first, second = get(address, url), get(address, url)
    assert (first.body, first.headers.items()) == (second.body, second.headers.items())


def test_variants_of_a_url_lead_to_the_same_page(address: str, site: Site) -> None:
    forum = next(link.url for link in site.expectations if "viewtopic" in link.url and not link.reasons)
    page = get(address, forum).body
    assert get(address, forum + "&utm_source=reddit&fbclid=1").body == page
    assert get(address, forum.replace("http://", "http://www.")).body == page
    assert get(address, forum.replace("demo.test", "DEMO.test:80")).body == page


def test_an_unknown_host_is_not_served(address: str) -> None:
    assert get(address, "http://example.com/").status == 421
    assert get(address, "http://garden.demo.test/no-such-page").status == 404


def test_robots_are_asked_for_by_host(address: str) -> None:
    assert b"Disallow: /\n" in get(address, "http://hermit.demo.test/robots.txt").body
    assert get(address, "http://courier.demo.test/robots.txt").status == 404


def test_a_busy_page_answers_the_second_time(address: str, site: Site) -> None:
    host, path = next(key for key, answer in site.answers.items() if answer.behaviour is Behaviour.BUSY)
    first = get(address, f"http://{host}{path}")
    assert (first.status, first.headers["Retry-After"]) == (503, "1")
    assert get(address, f"http://{host}{path}").status == 200


def test_a_stalling_page_gives_half_its_body_and_no_more(address: str, site: Site) -> None:
    with pytest.raises((TimeoutError, socket.timeout)):
        get(address, _url(site, Behaviour.STALL), timeout=1.0)


def test_a_resetting_host_resets(address: str, site: Site) -> None:
    with pytest.raises(ConnectionResetError):
        get(address, _url(site, Behaviour.RESET))


def test_an_endless_body_goes_beyond_any_limit(address: str, site: Site) -> None:
    async def read() -> int:
        async with _session(address) as session, session.get(_url(site, Behaviour.ENDLESS)) as response:
            taken = 0
            async for chunk in response.content.iter_chunked(2**16):
                taken += len(chunk)
                if taken > 20 * 2**20:
                    return taken
            return taken

    assert asyncio.run(asyncio.wait_for(read(), 20)) > 20 * 2**20


def test_a_body_announced_as_gzip_is_not_gzip(address: str, site: Site) -> None:
    async def read() -> bytes:
        async with _session(address) as session, session.get(_url(site, Behaviour.BROKEN_GZIP)) as response:
            return await response.read()

    with pytest.raises(aiohttp.ClientPayloadError):
        asyncio.run(asyncio.wait_for(read(), 20))


def test_redirects_end_at_the_article_or_in_a_ring(address: str, site: Site) -> None:
    async def follow(url: str) -> bytes:
        async with _session(address) as session, session.get(url) as response:
            return await response.read()

    moved = [link for link in site.expectations if "/old/" in link.url or "/alias/" in link.url]
    assert len(moved) == 5
    for link in moved:
        assert link.article is not None
        assert link.article.title in html.unescape(asyncio.run(follow(link.url)).decode())
    ring = next(link.url for link in site.expectations if Reason.REDIRECT_LOOP in link.reasons)
    with pytest.raises(aiohttp.TooManyRedirects):
        asyncio.run(follow(ring))


def test_the_server_ends_with_its_context() -> None:
    with serving() as address:
        assert get(address, "http://garden.demo.test/robots.txt").status == 200
    with pytest.raises(OSError, match="refused"):
        urllib.request.urlopen(f"http://{address}/", timeout=2)


def test_no_server_outlives_the_process_that_started_it() -> None:
    command = [sys.executable, "-m", "owt_pipeline.demo.server", "--port", "0"]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as server:
        assert server.stdout is not None
        assert server.stdin is not None
        assert server.stdout.readline().startswith("serving on 127.0.0.1:")
        server.stdin.close()  # as the end of that process does
        assert server.wait(timeout=60) == 0


def _url(site: Site, behaviour: Behaviour) -> str:
    host, path = next(key for key, answer in site.answers.items() if answer.behaviour is behaviour)
    return f"http://{host}{path}"


@asynccontextmanager
async def _session(address: str) -> AsyncIterator[aiohttp.ClientSession]:
    """A client to which every name of the demo is the server's address."""
    host, _, port = address.partition(":")

    class Resolver(aiohttp.abc.AbstractResolver):
        async def resolve(self, name: str, _: int = 0, family: int = socket.AF_INET) -> list[dict[str, object]]:
            return [{"hostname": name, "host": host, "port": int(port), "family": family, "proto": 0, "flags": 0}]

        async def close(self) -> None: ...

    async with aiohttp.ClientSession(connector=aiohttp.TCPConnector(resolver=Resolver())) as session:
        yield session
