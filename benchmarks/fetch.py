"""Pages per second over HTTP, compared with a bare aiohttp loop and 64 threads of requests;
memory for a large shard.

    .venv/bin/python benchmarks/fetch.py [--hosts 200] [--pages 300] [--page_bytes 30000]
                                         [--repeats 3]
    .venv/bin/python benchmarks/fetch.py --memory [--urls 1000000]

A separate process serves prepared pages for all hosts on loopback; its CPU time is printed. All
clients fetch the same pages of the same hosts in the same order, in turns. Ours is the complete
stage: robots.txt, limits, host queues, WARC files and rows on disk, checksums. The others read,
decode and drop the bodies. Prints medians over the repeats, also of ratios: in wall-clock time, and
in CPU time, which includes our other processes.

Pages are sent in gzip first, as by nearly all servers, and then uncompressed. Exits 1 if, by the
wall clock, the stage reaches less than 0.8 of the bare loop or 4 times the threads for pages in
gzip, or less than 0.5 of the bare loop for uncompressed pages.

The complete stage and a bare loop that writes a WARC file have each the number of connections with
which it is fastest on a tenth of the pages.

Then the CPU time of the event loop's thread for a page, in our client and in a bare loop on the
same terms: the same requests in the same order with the same headers, limits of time and no
cookies. Neither decodes a body, which our threads do later. It is printed only, since it depends on
the machine; the goal is 1.05 times the bare loop.

With --memory, fetches the URLs of one shard, 50 per host, answered by a tiny page or by 404. Exits
1 if the stage's processes together take 500 MB at any time.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import gzip
import html
import os
import select
import shutil
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from pydoc_data.topics import topics
from statistics import median
from typing import Any, BinaryIO

import aiohttp
import pyarrow as pa
from aiohttp.abc import AbstractResolver, ResolveResult

from owt_pipeline import progress
from owt_pipeline.engine.runner import run_stage
from owt_pipeline.engine.stage import Runtime
from owt_pipeline.formats.warc import http_record
from owt_pipeline.pipeline import STAGES
from owt_pipeline.stages.fetch.answers import FetchedResponse
from owt_pipeline.stages.fetch.web.client import CONNECT_SECONDS, SILENCE_SECONDS, request_headers
from owt_pipeline.stages.fetch.web.live import Fetcher
from owt_pipeline.storage.folder import Storage

CONNECTIONS = 200
_CONNECTIONS_TRIED = (50, 200, 800)
THREADS = 64
DOMAIN = "bench.test"
USER_AGENT = "bench/1.0 (+mailto:bench@bench.test)"
CODINGS = {"gzip": "in gzip", "identity": "as they are"}


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--hosts", type=int, default=200, metavar="N")
    parser.add_argument(
        "--pages", type=int, default=300, metavar="N", help="pages a host (default: 300)"
    )
    parser.add_argument("--page_bytes", type=int, default=30_000, metavar="N")
    parser.add_argument("--repeats", type=int, default=3, metavar="N")
    parser.add_argument("--memory", action="store_true", help="measure memory instead")
    parser.add_argument(
        "--urls", type=int, default=1_000_000, metavar="N", help="with --memory (default: 1000000)"
    )
    parser.add_argument("--serve", choices=CODINGS, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.serve:
        serve(arguments.page_bytes, arguments.serve)
    progress.configure(quiet=True, live=False)
    if arguments.memory:
        return memory(arguments.urls)
    met = [
        speed(arguments.hosts, arguments.pages, arguments.page_bytes, arguments.repeats, way)
        for way in CODINGS
    ]
    return 0 if all(met) else 1


def speed(hosts: int, pages: int, page_bytes: int, repeats: int, coding: str) -> bool:
    """Print the pages per second of all clients; returns whether ours reach the limits."""
    with serving(page_bytes, coding) as (port, server), tempfile.TemporaryDirectory() as work:
        # One page of every host after another, so that all can keep their connections alive.
        urls = [f"http://h{h}.{DOMAIN}:{port}/{p}" for p in range(pages) for h in range(hosts)]
        collected = Path(work) / "collected"
        collect(urls, collected, num_shards=4)
        some_urls = urls[: max(len(urls) // 10, hosts)]
        some_collected = Path(work) / "some"
        collect(some_urls, some_collected, num_shards=4)
        warc = Path(work) / "bare.warc.gz"
        ours_best = fastest(lambda number: fetch(some_collected, number))
        bare_best = fastest(lambda number: asyncio.run(bare_aiohttp(some_urls, warc, number)))
        with_warc = f"aiohttp, bare, with a WARC file, {bare_best} connections"
        contestants: dict[str, Callable[[], int]] = {
            "fetch": lambda: fetch(collected, ours_best),
            "aiohttp, bare": lambda: asyncio.run(bare_aiohttp(urls)),
            with_warc: lambda: asyncio.run(bare_aiohttp(urls, warc, bare_best)),
            f"requests, {THREADS} threads": lambda: requests_pool(urls),
        }
        rates, cpu, served = ({name: [] for name in contestants} for _ in range(3))
        for repeat in range(repeats):
            for name, run in contestants.items():
                if repeat and name.startswith("requests"):
                    continue  # it takes longer than all others together
                started, used = time.perf_counter(), cpu_seconds(os.getpid())
                served_before = cpu_seconds(server)
                pages_read = run() // page_bytes
                assert pages_read == len(urls), f"{name}: {pages_read}"
                rates[name].append(pages_read / (time.perf_counter() - started))
                served[name].append((cpu_seconds(server) - served_before) / pages_read)
                cpu[name].append((cpu_seconds(os.getpid()) - used) / pages_read - served[name][-1])
        loops = [loop_micros(urls) for _ in range(repeats)]
    print(f"{len(urls):,} pages of {page_bytes:,} bytes on {hosts} hosts, sent {CODINGS[coding]}")
    print(f"fetch with {ours_best} connections")
    print("| | pages/s | CPU time a page | the server's | `fetch` | in CPU time |")
    print("|---|---:|---:|---:|---:|---:|")
    ratios = {}
    for name in contestants:
        ratios[name] = median_ratio(rates["fetch"], rates[name])
        in_cpu = median_ratio(cpu[name], cpu["fetch"])
        micros = f"{1e6 * median(cpu[name]):,.0f} µs | {1e6 * median(served[name]):,.0f} µs"
        print(
            f"| {name} | {median(rates[name]):,.0f} | {micros} | {ratios[name]:.2f} | {in_cpu:.2f} "
            f"|",
            flush=True,
        )
    ours, others = zip(*loops, strict=True)
    print(
        f"event loop's thread, a page: {median(ours):,.0f} µs of CPU time in the client, "
        f"{median(others):,.0f} µs in the bare loop: {median_ratio(ours, others):.2f} times",
        flush=True,
    )
    bare, threads = ratios["aiohttp, bare"], ratios[f"requests, {THREADS} threads"]
    return bare >= 0.8 and threads >= 4 if coding == "gzip" else bare >= 0.5


def fastest(run: Callable[[int], int]) -> int:
    """Return the number of connections with which `run` takes the least time."""
    seconds = {}
    for number in _CONNECTIONS_TRIED:
        started = time.perf_counter()
        run(number)
        seconds[number] = time.perf_counter() - started
    return min(seconds, key=lambda number: seconds[number])


def median_ratio(ours: Sequence[float], others: Sequence[float]) -> float:
    """The median ratio over the repeats that both have."""
    return median(
        our / max(other, 1e-9) for our, other in zip(ours, others, strict=False)
    )  # a tick is 10 ms


def memory(count: int) -> int:
    """Peak memory of `fetch` and its processes, over one shard of that many URLs."""
    with serving(200, "identity") as (port, _), tempfile.TemporaryDirectory() as work:
        owt, hosts = [sys.executable, "-m", "owt_pipeline"], count // 50
        urls = (
            f"http://h{n % hosts}.{DOMAIN}:{port}/{'gone/' * (n % 3 == 0)}{n}" for n in range(count)
        )
        collect(urls, workdir := Path(work) / "run", num_shards=1)
        command = [
            *owt, "run", str(workdir), "--until", "fetch", "--links", f"{workdir}.txt", "--quiet",
            "--resolve", f"*.{DOMAIN}=127.0.0.1", "--allowed_ports", str(port), "--host_delay", "0",
            "--user_agent", USER_AGENT,
        ]  # fmt: skip
        started, peak, peak_main = time.monotonic(), 0.0, 0.0
        with subprocess.Popen(command) as process:
            while process.poll() is None:
                sizes = [resident_bytes(pid) for pid in tree(process.pid)]
                peak, peak_main = max(peak, sum(sizes)), max(peak_main, sizes[0])
                time.sleep(0.5)
        seconds = time.monotonic() - started
        assert process.returncode == 0
        written = sum(
            entry.bytes
            for folder in ("pages", "warc")
            for entry in (Storage(str(workdir)) / folder).list()
        )
    took = f"{seconds:,.0f} s, {written / 1e6:,.0f} MB of pages/ and warc/"
    print(f"{count:,} URLs of {hosts:,} hosts in one shard: {took}")
    print(f"peak memory: {peak / 1e6:.0f} MB, of which the main process {peak_main / 1e6:.0f} MB")
    return 0 if peak < 500e6 else 1


def collect(urls: Iterable[str], folder: Path, num_shards: int) -> None:
    """Make a run with the URLs in urls/."""
    with open(f"{folder}.txt", "w") as file:
        file.writelines(f"{url}\n" for url in urls)
    stage = STAGES["collect"]
    options = stage.options(links=(f"{folder}.txt",), num_shards=num_shards)
    run_stage(stage, options, Runtime(Storage(str(folder))))


def fetch(collected: Path, connections: int = CONNECTIONS) -> int:
    """The complete stage in a copy of a run that has collected."""
    stage = STAGES["fetch"]
    options = fetch_options(connections)
    with tempfile.TemporaryDirectory(dir=collected.parent) as folder:
        workdir = shutil.copytree(collected, Path(folder) / "run")
        return run_stage(stage, options, Runtime(Storage(str(workdir))))[0].stats["body_bytes"]


def fetch_options(connections: int) -> Any:
    return STAGES["fetch"].options(
        resolve=(f"*.{DOMAIN}=127.0.0.1",),
        user_agent=USER_AGENT,
        host_delay=0.0,
        connections=connections,
    )


class DroppingRecorder:
    """A recorder that counts what it takes and drops it."""

    is_last_try = False

    def __init__(self) -> None:
        self.pages = 0

    async def take(self, _url_id: int, fetched: Any) -> None:
        self.pages += isinstance(fetched, FetchedResponse)


def loop_micros(urls: Sequence[str]) -> tuple[float, float]:
    """Return the CPU time in µs of the event loop's thread for a page, in our client and in a bare
    loop on the same terms."""
    options = fetch_options(CONNECTIONS)
    hosts = [url.split("/")[2].partition(":")[0] for url in urls]
    rows = pa.table(
        {"url_id": pa.array(range(len(urls)), pa.uint64()), "posted_url": urls, "host": hosts}
    )

    async def ours() -> int:
        client, recorder = Fetcher(options, lambda: len(set(hosts))), DroppingRecorder()
        try:
            await client.fetch_all(rows, recorder, None)  # type: ignore[arg-type]
        finally:
            await client.close()
        return recorder.pages

    micros = []
    for run in (ours, lambda: bare_loop(urls, options)):
        used = time.thread_time()
        assert asyncio.run(run())
        micros.append(1e6 * (time.thread_time() - used) / len(urls))
    return micros[0], micros[1]


class Loopback(AbstractResolver):
    """Every name is at 127.0.0.1."""

    async def resolve(
        self, host: str, port: int = 0, family: Any = socket.AF_INET
    ) -> list[ResolveResult]:
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

    async def close(self) -> None: ...


async def bare_aiohttp(
    urls: Sequence[str], warc: Path | None = None, connections: int = CONNECTIONS
) -> int:
    """One request at a time per connection; bodies are read, decoded and dropped, or written."""
    waiting = iter(urls)
    received = 0
    file: BinaryIO | None = None

    async def work(session: aiohttp.ClientSession) -> None:
        nonlocal received
        for url in waiting:
            async with session.get(url) as response:
                body = await response.read()
                received += len(body)
                if file is not None:
                    file.write(http_record(url, 0, head_of(response), body))

    connector = aiohttp.TCPConnector(limit=0, resolver=Loopback())
    async with aiohttp.ClientSession(connector=connector) as session:
        with contextlib.ExitStack() as stack:
            file = stack.enter_context(warc.open("wb")) if warc is not None else None
            await asyncio.gather(*[work(session) for _ in range(connections)])
    return received


async def bare_loop(urls: Sequence[str], options: Any) -> int:
    """The requests of our client without its rules: host by host, robots.txt first.

    The headers, the limits of time and the heads that a WARC file needs are ours, too.
    """
    by_host: dict[str, list[str]] = {}
    for url in urls:
        by_host.setdefault(url.split("/")[2], []).append(url)
    waiting = iter(by_host.items())
    received = 0

    async def get(session: aiohttp.ClientSession, url: str) -> int:
        async with session.get(url, allow_redirects=False) as response:
            body = await response.read()
            return len(head_of(response)) + len(body)

    async def work(session: aiohttp.ClientSession) -> None:
        nonlocal received
        for host, of_host in waiting:
            await get(session, f"http://{host}/robots.txt")
            for url in of_host:
                received += await get(session, url)

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
    return received


def head_of(response: aiohttp.ClientResponse) -> bytes:
    lines = [b"%s: %s\r\n" % field for field in response.raw_headers]
    return b"HTTP/1.1 200 OK\r\n" + b"".join(lines) + b"\r\n"


def requests_pool(urls: Sequence[str]) -> int:
    """One session per thread, like earlier scrapers."""
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


@contextlib.contextmanager
def serving(page_bytes: int, coding: str) -> Iterator[tuple[int, int]]:
    """(port, process id) of the server, while the block runs."""
    command = [sys.executable, __file__, "--serve", coding, "--page_bytes", str(page_bytes)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as server:
        try:
            assert server.stdout is not None
            yield int(server.stdout.readline()), server.pid
        finally:
            server.kill()


def serve(page_bytes: int, coding: str) -> None:
    """Answer every request with a page, and robots.txt and missing pages with 404; prints the
    port."""
    pages = [response(body, coding) for body in page_bodies(64, page_bytes)]
    missing = b"HTTP/1.1 404 Not Found\r\nContent-Length: 0\r\n\r\n"
    listener = socket.create_server(("127.0.0.1", 0), backlog=4096)
    listener.setblocking(False)
    print(listener.getsockname()[1], flush=True)
    poll = select.epoll()
    poll.register(listener, select.EPOLLIN)
    connections: dict[int, socket.socket] = {}
    while True:
        for fd, _ in poll.poll():
            if fd == listener.fileno():
                connection, _ = listener.accept()
                connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                connections[connection.fileno()] = connection
                poll.register(connection, select.EPOLLIN)
                continue
            connection, request = connections[fd], b""
            with contextlib.suppress(OSError):
                request = connection.recv(1 << 16)
                if request:
                    is_missing = request.startswith((b"GET /robots.txt", b"GET /gone/"))
                    connection.sendall(
                        missing if is_missing else pages[hash(request[:60]) % len(pages)]
                    )
            if not request:
                poll.unregister(fd)
                connections.pop(fd).close()


def response(body: bytes, coding: str) -> bytes:
    headers = "Content-Type: text/html; charset=utf-8\r\n"
    if coding == "gzip":
        headers += "Content-Encoding: gzip\r\n"
        body = gzip.compress(body, 6, mtime=0)  # the usual level of servers
    return f"HTTP/1.1 200 OK\r\n{headers}Content-Length: {len(body)}\r\n\r\n".encode() + body


def page_bodies(count: int, size: int) -> Iterator[bytes]:
    """Different pages of prose below a menu, with that many bytes each; they compress like real
    pages."""
    prose = " ".join(topics.values()).split("\n\n")
    text = "\n".join(f'<p class="text">{html.escape(paragraph)}</p>' for paragraph in prose)
    menu = "\n".join(
        f'<li class="menu-item"><a class="menu-link" href="/topic/{name}">{name}</a></li>'
        for name in topics
    )
    for number in range(count):
        head = f"<html><head><title>Page {number}</title></head><body><ul>{menu}</ul>"
        yield f"{head}{text[number * 5000 :]}".encode()[:size]


def tree(root: int) -> list[int]:
    """A process and its descendants, itself first."""
    parents = {}
    for entry in os.listdir("/proc"):
        if entry.isdigit():
            with contextlib.suppress(OSError):
                stat = Path(f"/proc/{entry}/stat").read_text()
                parents[int(entry)] = int(stat.rpartition(")")[2].split()[1])
    found = [root]
    for pid in found:
        found += [child for child, parent in parents.items() if parent == pid]
    return found


def cpu_seconds(root: int) -> float:
    """CPU seconds of a process and its descendants, ended ones included."""
    ticks = 0
    for pid in tree(root):
        with contextlib.suppress(OSError):
            # Of user and system; and of children that have ended.
            ticks += sum(
                map(int, Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[11:15])
            )
    return ticks / os.sysconf("SC_CLK_TCK")


def resident_bytes(pid: int) -> float:
    """Memory of a process; shared memory is divided among its users."""
    with contextlib.suppress(OSError):
        for line in Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines():
            if line.startswith("Pss:"):
                return 1024.0 * int(line.split()[1])
    return 0.0


if __name__ == "__main__":
    sys.exit(main())
