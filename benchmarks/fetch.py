r"""How many pages per second are fetched, next to a bare aiohttp loop and 64 threads of requests?

    .venv/bin/python benchmarks/fetch.py [--hosts 200] [--pages 300] [--page_bytes 30000] \
        [--repeats 3]
    .venv/bin/python benchmarks/fetch.py --calls [--hosts 50] [--pages 60]
    .venv/bin/python benchmarks/fetch.py --memory [--urls 1000000]

A separate process serves prepared pages for all hosts on loopback; its CPU time is printed. All
clients fetch the same pages of the same hosts in the same order, in turns. The figures are medians
over the repeats, also of ratios.

- `fetch` is the complete stage: robots.txt, limits, host queues, WARC files and rows on disk,
  checksums. Its CPU time includes our other processes.
- The peers read, decode and drop the bodies. They are a bare aiohttp loop, the same loop that also
  writes a WARC file, and requests with THREADS threads.

The stage and the loop with a WARC file each have the number of connections with which they are
fastest on a tenth of the pages. Pages are sent in gzip first, as nearly all servers do, and then
uncompressed.

Then the CPU time of the event loop's thread for a page is measured, in our client and in a bare
loop on the same terms: the same requests in the same order with the same headers and limits of
time, and no cookies. Neither decodes a body, which our threads do later. The time is only printed,
since it depends on the machine. The goal is 1.4 times the bare loop.

Exits 1 if, by the wall clock, the stage reaches less than 0.8 of the bare loop or 4 times the
threads for pages in gzip, or less than 0.5 of the bare loop for uncompressed pages.

`--calls` counts the calls of Python functions in both loops, which do not depend on the machine.
Exits 1 if our client makes more than 1.3 times the calls of the bare loop.

`--memory` fetches the URLs of one shard, 50 for each host. The responses are a tiny page or 404.
Exits 1 if the stage's processes together take 500 MB at any time.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Coroutine, Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median
from typing import Any

import pyarrow as pa
from page_server import CODINGS, serving
from peers.page_loops import (
    CONNECTIONS,
    DOMAIN,
    THREADS,
    bare_aiohttp,
    bare_loop,
    fetch_by_threads,
)

from owt_pipeline import progress
from owt_pipeline.engine.runner import run_stage
from owt_pipeline.engine.stage import Runtime
from owt_pipeline.pipeline import STAGES
from owt_pipeline.stages.fetch.answers import FetchedResponse
from owt_pipeline.stages.fetch.web.live import Fetcher
from owt_pipeline.storage.folder import Storage

NUMBERS_TRIED = (50, 200, 800)
URLS_PER_HOST = 50

# The limits of the exit status.
MIN_RATIO_IN_GZIP = 0.8
MIN_RATIO_TO_THREADS = 4
MIN_RATIO_UNCOMPRESSED = 0.5
MAX_MEMORY_BYTES = 500e6
MAX_CALL_RATIO = 1.3

USER_AGENT = "bench/1.0 (+mailto:bench@bench.test)"


@dataclass
class Measurements:
    """The rates and CPU times of each repeat of a client.

    Attributes:
      rates: pages per second.
      cpu: CPU seconds of the client for a page, without the server's.
      server_cpu: CPU seconds of the server for a page.
    """

    rates: list[float] = field(default_factory=list)
    cpu: list[float] = field(default_factory=list)
    server_cpu: list[float] = field(default_factory=list)


def main() -> int:
    """Measure the speed for both codings, or the memory; return the exit status."""
    arguments = parse_arguments()
    progress.configure(quiet=True, live=False)
    if arguments.memory:
        return measure_memory(arguments.urls)
    if arguments.calls:
        return measure_calls(arguments)
    is_good = True
    for coding in CODINGS:
        is_good &= measure_speed(arguments, coding)
    return 0 if is_good else 1


def parse_arguments() -> argparse.Namespace:
    """Return the arguments of the command line."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--hosts", type=int, default=200, metavar="N")
    parser.add_argument(
        "--pages", type=int, default=300, metavar="N", help="pages a host (default: 300)"
    )
    parser.add_argument("--page_bytes", type=int, default=30_000, metavar="N")
    parser.add_argument("--repeats", type=int, default=3, metavar="N")
    parser.add_argument("--calls", action="store_true", help="count calls instead")
    parser.add_argument("--memory", action="store_true", help="measure memory instead")
    parser.add_argument(
        "--urls", type=int, default=1_000_000, metavar="N", help="with --memory (default: 1000000)"
    )
    return parser.parse_args()


def measure_calls(arguments: argparse.Namespace) -> int:
    """Print the calls of Python functions for a page in both loops; return the exit status."""
    with serving(arguments.page_bytes, "gzip") as (port, _):
        urls = make_urls(arguments, port)
        ours, bare = (count_calls(run) / len(urls) for run in loops_over(urls))
    ratio = ours / bare
    print(
        f"{len(urls):,} pages on {arguments.hosts} hosts: {ours:.0f} calls a page in the client, "
        f"{bare:.0f} in the bare loop: {ratio:.2f} times"
    )
    return 0 if ratio <= MAX_CALL_RATIO else 1


def count_calls(run: Callable[[], Coroutine[Any, Any, int]]) -> int:
    """Return how often Python functions are called while `run` fetches in an event loop."""
    num_calls = 0

    def count(_frame: Any, event: str, _argument: Any) -> None:
        nonlocal num_calls
        num_calls += event == "call"

    sys.setprofile(count)
    try:
        assert asyncio.run(run())
    finally:
        sys.setprofile(None)
    return num_calls


def make_urls(arguments: argparse.Namespace, port: int) -> list[str]:
    """Return one page of every host after another, so that all clients can keep connections."""
    urls = []
    for page in range(arguments.pages):
        urls += [f"http://h{host}.{DOMAIN}:{port}/{page}" for host in range(arguments.hosts)]
    return urls


def measure_speed(arguments: argparse.Namespace, coding: str) -> bool:
    """Print the pages per second of all clients; return whether ours reaches the limits."""
    page_bytes = arguments.page_bytes
    num_hosts = arguments.hosts
    with serving(page_bytes, coding) as (port, server), tempfile.TemporaryDirectory() as work:
        urls = make_urls(arguments, port)
        collected = Path(work) / "collected"
        collect(urls, collected, num_shards=4)
        sample = urls[: max(len(urls) // 10, num_hosts)]
        collected_sample = Path(work) / "sample"
        collect(sample, collected_sample, num_shards=4)
        warc = Path(work) / "bare.warc.gz"
        best_for_fetch = find_best_number(lambda number: fetch(collected_sample, number))
        best_for_bare = find_best_number(
            lambda number: asyncio.run(bare_aiohttp(sample, warc, number))
        )
        bare = "aiohttp, bare"
        bare_with_warc = f"aiohttp, bare, with a WARC file, {best_for_bare} connections"
        threads = f"requests, {THREADS} threads"
        clients: dict[str, Callable[[], int]] = {
            "fetch": lambda: fetch(collected, best_for_fetch),
            bare: lambda: asyncio.run(bare_aiohttp(urls)),
            bare_with_warc: lambda: asyncio.run(bare_aiohttp(urls, warc, best_for_bare)),
            threads: lambda: fetch_by_threads(urls),
        }
        results = {name: Measurements() for name in clients}
        for repeat in range(arguments.repeats):
            for name, run in clients.items():
                # The threads take longer than all others together, so they run only once.
                if repeat and name == threads:
                    continue
                started = time.perf_counter()
                cpu_started = cpu_seconds(os.getpid())
                server_started = cpu_seconds(server)
                num_pages = run() // page_bytes
                assert num_pages == len(urls), f"{name}: {num_pages}"
                rate = num_pages / (time.perf_counter() - started)
                server_cpu = (cpu_seconds(server) - server_started) / num_pages
                all_cpu = (cpu_seconds(os.getpid()) - cpu_started) / num_pages
                results[name].rates.append(rate)
                results[name].server_cpu.append(server_cpu)
                # The server is a child of this process.
                results[name].cpu.append(all_cpu - server_cpu)
        loop_micros = [measure_loop_micros(urls) for _ in range(arguments.repeats)]

    print(
        f"{len(urls):,} pages of {page_bytes:,} bytes on {num_hosts} hosts, sent {CODINGS[coding]}"
    )
    print(f"fetch with {best_for_fetch} connections")
    print("| | pages/s | CPU time a page | the server's | `fetch` | in CPU time |")
    print("|---|---:|---:|---:|---:|---:|")
    ratios = {}
    ours = results["fetch"]
    for name, result in results.items():
        ratios[name] = median_ratio(ours.rates, result.rates)
        cpu_ratio = median_ratio(result.cpu, ours.cpu)
        print(
            f"| {name} | {median(result.rates):,.0f} | {1e6 * median(result.cpu):,.0f} µs "
            f"| {1e6 * median(result.server_cpu):,.0f} µs | {ratios[name]:.2f} | {cpu_ratio:.2f} |",
            flush=True,
        )
    our_micros, bare_micros = zip(*loop_micros, strict=True)
    print(
        f"event loop's thread, a page: {median(our_micros):,.0f} µs of CPU time in the client, "
        f"{median(bare_micros):,.0f} µs in the bare loop: "
        f"{median_ratio(our_micros, bare_micros):.2f} times",
        flush=True,
    )
    if coding == "gzip":
        return ratios[bare] >= MIN_RATIO_IN_GZIP and ratios[threads] >= MIN_RATIO_TO_THREADS
    return ratios[bare] >= MIN_RATIO_UNCOMPRESSED


def find_best_number(run: Callable[[int], int]) -> int:
    """Return the number of connections with which `run` takes the least time."""
    seconds = {}
    for number in NUMBERS_TRIED:
        started = time.perf_counter()
        run(number)
        seconds[number] = time.perf_counter() - started
    return min(seconds, key=lambda number: seconds[number])


def median_ratio(dividends: Sequence[float], divisors: Sequence[float]) -> float:
    """Return the median ratio over the repeats that both have."""
    # CPU time is counted in ticks of 10 ms, so a small one may be 0.
    ratios = [
        dividend / max(divisor, 1e-9)
        for dividend, divisor in zip(dividends, divisors, strict=False)
    ]
    return median(ratios)


def measure_memory(num_urls: int) -> int:
    """Print the peak memory of `fetch` and its processes over one shard; return the exit status."""
    num_hosts = num_urls // URLS_PER_HOST
    with serving(200, "identity") as (port, _), tempfile.TemporaryDirectory() as work:
        workdir = Path(work) / "run"
        urls = (make_memory_url(number, num_hosts, port) for number in range(num_urls))
        collect(urls, workdir, num_shards=1)
        command = [sys.executable, "-m", "owt_pipeline", "run", str(workdir), "--quiet"]
        command += ["--until", "fetch", "--links", f"{workdir}.txt", "--host_delay", "0"]
        command += ["--resolve", f"*.{DOMAIN}=127.0.0.1", "--allowed_ports", str(port)]
        command += ["--user_agent", USER_AGENT]
        started = time.monotonic()
        peak = 0.0
        peak_of_main = 0.0
        with subprocess.Popen(command) as process:
            while process.poll() is None:
                sizes = [resident_bytes(pid) for pid in process_tree(process.pid)]
                peak = max(peak, sum(sizes))
                peak_of_main = max(peak_of_main, sizes[0])
                time.sleep(0.5)
        seconds = time.monotonic() - started
        assert process.returncode == 0
        entries = [*Storage(str(workdir / "pages")).list(), *Storage(str(workdir / "warc")).list()]
        num_bytes = sum(entry.bytes for entry in entries)
    print(
        f"{num_urls:,} URLs of {num_hosts:,} hosts in one shard: {seconds:,.0f} s, "
        f"{num_bytes / 1e6:,.0f} MB of pages/ and warc/"
    )
    print(
        f"peak memory: {peak / 1e6:.0f} MB, of which the main process {peak_of_main / 1e6:.0f} MB"
    )
    return 0 if peak < MAX_MEMORY_BYTES else 1


def make_memory_url(number: int, num_hosts: int, port: int) -> str:
    """Return a URL. The server responds to each third URL with 404."""
    folder = "gone/" if number % 3 == 0 else ""
    return f"http://h{number % num_hosts}.{DOMAIN}:{port}/{folder}{number}"


def collect(urls: Iterable[str], folder: Path, num_shards: int) -> None:
    """Make a run with the URLs in urls/."""
    with open(f"{folder}.txt", "w") as file:
        file.writelines(f"{url}\n" for url in urls)
    stage = STAGES["collect"]
    options = stage.options(links=(f"{folder}.txt",), num_shards=num_shards)
    run_stage(stage, options, Runtime(Storage(str(folder))))


def fetch(collected: Path, connections: int) -> int:
    """Run the complete stage in a copy of a run that has collected; return the bytes of bodies."""
    options = make_fetch_options(connections)
    with tempfile.TemporaryDirectory(dir=collected.parent) as folder:
        workdir = shutil.copytree(collected, Path(folder) / "run")
        manifest, _ = run_stage(STAGES["fetch"], options, Runtime(Storage(str(workdir))))
    return manifest.stats["body_bytes"]


def make_fetch_options(connections: int) -> Any:
    """Return the options of the stage, without a pause between requests to a host."""
    return STAGES["fetch"].options(
        resolve=(f"*.{DOMAIN}=127.0.0.1",),
        user_agent=USER_AGENT,
        host_delay=0.0,
        connections=connections,
    )


class DroppingRecorder:
    """A recorder that counts the pages it gets and drops them."""

    is_last_try = False

    def __init__(self) -> None:
        self.num_pages = 0

    async def take(self, _url_id: int, fetched: Any) -> None:
        """Count a page."""
        self.num_pages += isinstance(fetched, FetchedResponse)


def measure_loop_micros(urls: Sequence[str]) -> tuple[float, float]:
    """Return the µs of CPU time of the event loop's thread for a page: our client's, a bare loop's.

    The bare loop runs on the same terms.
    """
    micros = []
    for run in loops_over(urls):
        started = time.thread_time()
        assert asyncio.run(run())
        micros.append(1e6 * (time.thread_time() - started) / len(urls))
    return micros[0], micros[1]


def loops_over(urls: Sequence[str]) -> Sequence[Callable[[], Coroutine[Any, Any, int]]]:
    """Return our client's loop and the bare loop, which return the number or bytes of pages."""
    options = make_fetch_options(CONNECTIONS)
    hosts = [url.split("/")[2].partition(":")[0] for url in urls]
    rows = pa.table(
        {"url_id": pa.array(range(len(urls)), pa.uint64()), "posted_url": urls, "host": hosts}
    )

    async def run_client() -> int:
        client = Fetcher(options)
        recorder = DroppingRecorder()
        try:
            await client.fetch_all(rows, recorder, None)  # type: ignore[arg-type]
        finally:
            await client.close()
        return recorder.num_pages

    return run_client, lambda: bare_loop(urls, options)


def process_tree(root: int) -> list[int]:
    """Return the ids of a process and its descendants, with the process first."""
    parent_by_pid = {}
    for entry in os.listdir("/proc"):
        if entry.isdigit():
            with contextlib.suppress(OSError):
                parent_by_pid[int(entry)] = int(read_stat(int(entry))[1])
    pids = [root]
    # The list grows while it is read, so that the children of children follow.
    for pid in pids:
        pids += [child for child, parent in parent_by_pid.items() if parent == pid]
    return pids


def cpu_seconds(root: int) -> float:
    """Return the CPU seconds of a process and its descendants, also of those that have ended."""
    num_ticks = 0
    for pid in process_tree(root):
        with contextlib.suppress(OSError):
            # The ticks of user and system, and the same of children that have ended.
            num_ticks += sum(map(int, read_stat(pid)[11:15]))
    return num_ticks / os.sysconf("SC_CLK_TCK")


def read_stat(pid: int) -> list[str]:
    """Return the fields of /proc/PID/stat after the name of the program."""
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()


def resident_bytes(pid: int) -> float:
    """Return the memory of a process. Shared memory is divided among its users."""
    with contextlib.suppress(OSError):
        for line in Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines():
            if line.startswith("Pss:"):
                return 1024.0 * int(line.split()[1])
    return 0.0


if __name__ == "__main__":
    sys.exit(main())
