"""Pages per second over HTTP, beside a bare aiohttp loop and 64 threads of requests.

    .venv/bin/python benchmarks/fetch.py [--hosts 200] [--pages 100] [--page_bytes 30000] [--repeats 2]

A server in a process of its own answers for all hosts on loopback. Ours is the whole stage: robots.txt, limits,
journal, WARC and index on disk, everything checked and sorted. The others read the bodies and drop them: the
bare loop is the ceiling of what aiohttp can do. The fastest of the repeats counts. Exits 1 under 0.7 of
the bare loop, or under 4 times the threads.
"""

from __future__ import annotations

import argparse
import asyncio
import html
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from pydoc_data.topics import topics
from typing import Any

from owt_pipeline.runtime import progress
from owt_pipeline.runtime.stage import Runtime, run_stage
from owt_pipeline.runtime.storage import Storage
from owt_pipeline.stages import load

CONNECTIONS = 200
THREADS = 64
DOMAIN = "bench.test"


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--hosts", type=int, default=200, metavar="N")
    parser.add_argument("--pages", type=int, default=100, metavar="N", help="pages a host (default: 100)")
    parser.add_argument("--page_bytes", type=int, default=30_000, metavar="N")
    parser.add_argument("--repeats", type=int, default=2, metavar="N")
    parser.add_argument("--serve", action="store_true", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.serve:
        asyncio.run(serve(arguments.page_bytes))
        return 0
    command = [sys.executable, __file__, "--serve", "--page_bytes", str(arguments.page_bytes)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as server, tempfile.TemporaryDirectory() as work:
        try:
            assert server.stdout is not None
            port = int(server.stdout.readline())
            # One page of every host after another, so that all can keep their connections alive.
            urls = [f"http://h{h}.{DOMAIN}:{port}/{p}" for p in range(arguments.pages) for h in range(arguments.hosts)]
            runtime = collect(urls, Path(work))
            contestants: dict[str, Callable[[], int]] = {
                "owt fetch": lambda: fetch(runtime),
                "aiohttp, bare": lambda: asyncio.run(bare_aiohttp(urls)),
                f"requests, {THREADS} threads": lambda: requests_pool(urls),
            }
            rates, cpu = dict.fromkeys(contestants, 0.0), dict.fromkeys(contestants, float("inf"))
            for _ in range(arguments.repeats):
                for name, run in contestants.items():
                    started, cpu_started = time.perf_counter(), time.process_time()
                    received = run()
                    assert received == len(urls) * arguments.page_bytes, f"{name}: {received} bytes"
                    rates[name] = max(rates[name], len(urls) / (time.perf_counter() - started))
                    cpu[name] = min(cpu[name], (time.process_time() - cpu_started) / len(urls))
        finally:
            server.kill()
    ours, bare, threads = rates.values()
    print(f"{len(urls):,} pages of {arguments.page_bytes:,} bytes on {arguments.hosts} hosts")
    for name, rate in rates.items():
        print(
            f"{name:22} {rate:8,.0f} pages/s  {1e3 * cpu[name]:6.2f} ms of CPU a page  ours: {ours / rate:5.2f} times"
        )
    return 0 if ours >= 0.7 * bare and ours >= 4 * threads else 1


def collect(urls: Sequence[str], folder: Path) -> Runtime:
    """A working directory with the URLs in urls/."""
    runtime = Runtime(Storage(str(folder)))
    progress.configure(quiet=True)
    (folder / "urls.txt").write_text("\n".join(urls))
    stage = load("collect")
    run_stage(stage, stage.options(url_lists=(str(folder / "urls.txt"),), num_shards=4), runtime)
    return runtime


def fetch(runtime: Runtime) -> int:
    stage = load("fetch")
    options = stage.options(
        resolve=(f"*.{DOMAIN}=127.0.0.1",),
        user_agent="bench/1.0 (+mailto:bench@bench.test)",
        host_delay=0.0,
        host_connections=1,
        connections=CONNECTIONS,
    )
    (runtime.workdir / "pages").delete_all()
    manifest, _ = run_stage(stage, options, runtime)
    return manifest.stats["body_bytes"]


async def bare_aiohttp(urls: Sequence[str]) -> int:
    """As many requests at once as connections, the body read and dropped."""
    import aiohttp
    from aiohttp.abc import AbstractResolver

    class Loopback(AbstractResolver):
        async def resolve(self, host: str, port: int = 0, family: Any = socket.AF_INET) -> list[Any]:
            address = {"hostname": host, "host": "127.0.0.1", "port": port, "family": socket.AF_INET}
            return [{**address, "proto": socket.IPPROTO_TCP, "flags": socket.AI_NUMERICHOST}]

        async def close(self) -> None: ...

    waiting = iter(urls)
    received = 0

    async def work(session: aiohttp.ClientSession) -> None:
        nonlocal received
        for url in waiting:
            async with session.get(url) as response:
                received += len(await response.read())

    connector = aiohttp.TCPConnector(limit=0, resolver=Loopback())
    async with aiohttp.ClientSession(connector=connector) as session:
        await asyncio.gather(*[work(session) for _ in range(CONNECTIONS)])
    return received


def requests_pool(urls: Sequence[str]) -> int:
    """A session a thread, as the earlier scrapers do."""
    import threading
    from unittest import mock

    import requests

    local = threading.local()

    def get(url: str) -> int:
        if not hasattr(local, "session"):
            local.session = requests.Session()
        return len(local.session.get(url, timeout=30).content)

    def loopback(host: str, port: int, *_: Any, **__: Any) -> list[Any]:
        return [(socket.AF_INET, socket.SOCK_STREAM, socket.IPPROTO_TCP, "", ("127.0.0.1", port))]

    with mock.patch("socket.getaddrinfo", loopback), ThreadPoolExecutor(THREADS) as threads:
        return sum(threads.map(get, urls))


async def serve(page_bytes: int) -> None:
    """Answer every request with a page, robots.txt with 404; prints the port."""
    prose = " ".join(topics.values()).split("\n\n")
    text = "\n".join(f'<p class="text">{html.escape(paragraph)}</p>' for paragraph in prose)
    pages = []
    for number in range(64):
        body = f"<html><head><title>Page {number}</title></head><body>{text[number * 5000 :]}".encode()[:page_bytes]
        head = f"HTTP/1.1 200 OK\r\nContent-Type: text/html; charset=utf-8\r\nContent-Length: {len(body)}\r\n\r\n"
        pages.append(head.encode() + body)

    class Protocol(asyncio.Protocol):
        def connection_made(self, transport: Any) -> None:
            self.transport, self.waiting = transport, b""

        def data_received(self, data: bytes) -> None:
            *requests, self.waiting = (self.waiting + data).split(b"\r\n\r\n")
            for request in requests:
                if request.startswith(b"GET /robots.txt"):
                    self.transport.write(b"HTTP/1.1 404 Not Found\r\nContent-Length: 0\r\n\r\n")
                else:
                    self.transport.write(pages[hash(request[:60]) % len(pages)])

    server = await asyncio.get_running_loop().create_server(Protocol, "127.0.0.1", 0, backlog=1024)
    print(server.sockets[0].getsockname()[1], flush=True)
    await server.serve_forever()


if __name__ == "__main__":
    sys.exit(main())
