"""The peers of `fetch.py`: loops that fetch pages from a server on loopback and keep no rules.

They run in the process and the environment of `fetch.py`.
"""

from __future__ import annotations

import asyncio
import contextlib
import socket
import threading
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, BinaryIO
from unittest import mock

import aiohttp
import requests
from aiohttp.abc import AbstractResolver, ResolveResult

from owt_pipeline.formats.warc import http_record
from owt_pipeline.stages.fetch.web.client import CONNECT_SECONDS, SILENCE_SECONDS, request_headers

DOMAIN = "bench.test"
CONNECTIONS = 200
THREADS = 64


class Loopback(AbstractResolver):
    """Resolves every name to 127.0.0.1."""

    async def resolve(
        self, host: str, port: int = 0, family: Any = socket.AF_INET
    ) -> list[ResolveResult]:
        """Return the address of loopback."""
        return [
            ResolveResult(
                hostname=host,
                host="127.0.0.1",
                port=port,
                family=socket.AF_INET,
                proto=socket.IPPROTO_TCP,
                flags=socket.AI_NUMERICHOST,
            )
        ]

    async def close(self) -> None:
        """Keep nothing open."""


async def bare_aiohttp(
    urls: Sequence[str], warc: Path | None = None, connections: int = CONNECTIONS
) -> int:
    """Fetch URLs with one request at a time for each connection; return the bytes of bodies.

    Bodies are read and decoded, and then dropped or written to a WARC file.
    """
    remaining_urls = iter(urls)
    num_bytes = 0
    file: BinaryIO | None = None

    async def work(session: aiohttp.ClientSession) -> None:
        nonlocal num_bytes
        for url in remaining_urls:
            async with session.get(url) as response:
                body = await response.read()
                num_bytes += len(body)
                if file is not None:
                    file.write(http_record(url, 0, head_of(response), body))

    connector = aiohttp.TCPConnector(limit=0, resolver=Loopback())
    async with aiohttp.ClientSession(connector=connector) as session:
        with contextlib.ExitStack() as stack:
            file = stack.enter_context(warc.open("wb")) if warc is not None else None
            await asyncio.gather(*[work(session) for _ in range(connections)])
    return num_bytes


async def bare_loop(urls: Sequence[str], options: Any) -> int:
    """Send the requests of our client without its rules; return the bytes of heads and bodies.

    The requests go host by host, robots.txt first. The headers and the limits of time are ours, and
    the heads that a WARC file needs are built, too.
    """
    urls_by_host: dict[str, list[str]] = {}
    for url in urls:
        urls_by_host.setdefault(url.split("/")[2], []).append(url)
    remaining_hosts = iter(urls_by_host.items())
    num_bytes = 0

    async def get(session: aiohttp.ClientSession, url: str) -> int:
        async with session.get(url, allow_redirects=False) as response:
            body = await response.read()
            return len(head_of(response)) + len(body)

    async def work(session: aiohttp.ClientSession) -> None:
        nonlocal num_bytes
        for host, urls_of_host in remaining_hosts:
            await get(session, f"http://{host}/robots.txt")
            for url in urls_of_host:
                size = await get(session, url)
                num_bytes += size

    timeout = aiohttp.ClientTimeout(
        options.timeout, sock_connect=CONNECT_SECONDS, sock_read=SILENCE_SECONDS
    )
    async with aiohttp.ClientSession(
        connector=aiohttp.TCPConnector(limit=0, resolver=Loopback()),
        headers=request_headers(options.user_agent),
        timeout=timeout,
        cookie_jar=aiohttp.DummyCookieJar(),
        auto_decompress=False,
    ) as session:
        await asyncio.gather(*[work(session) for _ in range(CONNECTIONS)])
    return num_bytes


def head_of(response: aiohttp.ClientResponse) -> bytes:
    """Return the head of a response as a WARC file has it."""
    lines = [b"%s: %s\r\n" % field for field in response.raw_headers]
    return b"HTTP/1.1 200 OK\r\n" + b"".join(lines) + b"\r\n"


def fetch_by_threads(urls: Sequence[str]) -> int:
    """Fetch URLs with one session for each thread, as earlier scrapers do.

    Returns the bytes of bodies.
    """
    local = threading.local()

    def get(url: str) -> int:
        if not hasattr(local, "session"):
            local.session = requests.Session()
        return len(local.session.get(url, timeout=30).content)

    def loopback(host: str, port: int, *_: Any, **__: Any) -> list[Any]:
        return [(socket.AF_INET, socket.SOCK_STREAM, socket.IPPROTO_TCP, "", ("127.0.0.1", port))]

    with mock.patch("socket.getaddrinfo", loopback), ThreadPoolExecutor(THREADS) as threads:
        return sum(threads.map(get, urls))
