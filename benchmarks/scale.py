"""What does a run cost that is very small, very wide, or in a bucket?

    python benchmarks/scale.py small
    python benchmarks/scale.py requests
    python benchmarks/scale.py shards [--shards 65535]

`small` measures the fixed cost of a run: 8 of the demo's pages from their WARC file to the report,
the same command when all is finished, and the import of Beam, which is a part of the first. It
prints the fastest of five.

`requests` counts the requests of a part to a bucket. The demo's pages are run with 4 and with 16
shards in an emulator of Cloud Storage (fake-gcs-server, `make .venv-servers/installed`), behind a
proxy that counts. The requests of a run that the second has more belong to its additional parts.

`shards` measures a dataset of very many shards: `collect`, the same when all is finished, `owt
verify` of every byte, and the peak memory of a process.
"""

from __future__ import annotations

import argparse
import http.server
import itertools
import os
import re
import resource
import subprocess
import sys
import tempfile
import threading
import time
import urllib.error
import urllib.request
from collections import Counter
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import ClassVar

from fastwarc.warc import ArchiveIterator, WarcRecordType

from owt_pipeline.pipeline import STAGES

NUM_SMALL_RUNS = 5
NUM_SMALL_PAGES = 8
FEW_SHARDS = 4
MANY_SHARDS = 16
# The headers of a connection, which the proxy writes itself.
CONNECTION_HEADERS = ("content-length", "transfer-encoding", "connection", "date")


class CountingProxy(http.server.BaseHTTPRequestHandler):
    """Passes requests on to an emulator, and counts them."""

    protocol_version = "HTTP/1.1"
    emulator = ""
    counts: ClassVar[Counter[str]] = Counter()

    def _pass_on(self) -> None:
        self.counts[self._kind()] += 1
        body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
        headers = {name: value for name, value in self.headers.items() if name.lower() != "host"}
        request = urllib.request.Request(
            self.emulator + self.path, body or None, headers, method=self.command
        )
        try:
            with urllib.request.urlopen(request) as response:
                self._respond(response.status, response.headers, response.read())
        except urllib.error.HTTPError as error:
            self._respond(error.code, error.headers, error.read())

    def _kind(self) -> str:
        """Return `read`, `written` or `deleted`."""
        if self.command == "DELETE" or self.path.startswith("/batch/"):
            return "deleted"
        is_listing = re.search(r"/o/?([?]|$)", self.path)
        # Cloud Storage bills a listing like a write.
        if self.command == "GET" and not is_listing:
            return "read"
        return "written"

    def _respond(self, status: int, headers: Mapping[str, str], body: bytes) -> None:
        self.send_response(status)
        for name, value in headers.items():
            if name.lower() not in CONNECTION_HEADERS:
                self.send_header(name, value)
        # The response to HEAD declares the length of a body that it does not have.
        is_head = self.command == "HEAD"
        self.send_header("Content-Length", headers["Content-Length"] if is_head else str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    do_GET = do_POST = do_PUT = do_DELETE = do_PATCH = do_HEAD = _pass_on

    def log_message(self, *_: object) -> None:
        """Write no log."""


def count_requests(arguments: argparse.Namespace) -> int:
    """Print the requests of runs with few and many shards, and of a shard and a part."""
    from tests.servers.gcs import gcs_bucket

    counts_by_shards: dict[int, Counter[str]] = {}
    with tempfile.TemporaryDirectory(prefix="requests-") as folder, gcs_bucket() as bucket:
        run_owt("demo", "--write_inputs", folder)
        CountingProxy.emulator = os.environ["GOOGLE_BASE_URL"]
        proxy = http.server.ThreadingHTTPServer(("127.0.0.1", 0), CountingProxy)
        threading.Thread(target=proxy.serve_forever, daemon=True).start()
        environment = dict(os.environ)
        environment["GOOGLE_BASE_URL"] = f"http://127.0.0.1:{proxy.server_port}"
        for num_shards in (FEW_SHARDS, MANY_SHARDS):
            CountingProxy.counts.clear()
            command = [sys.executable, "-m", "owt_pipeline", "run", f"{bucket}/{num_shards}"]
            command += ["--num_shards", str(num_shards), "--workers", "1"]
            command += ["--dumps", f"{folder}/RS_demo.zst"]
            command += ["--pages_from", f"{folder}/demo.warc.gz"]
            subprocess.run(command, check=True, env=environment, stdout=subprocess.DEVNULL)
            counts_by_shards[num_shards] = Counter(CountingProxy.counts)
            print(f"{num_shards} shards: {dict(counts_by_shards[num_shards])}", flush=True)

    num_steps = sum(len(stage.steps) for stage in STAGES.values())
    for kind in ("read", "written", "deleted"):
        num_more = counts_by_shards[MANY_SHARDS][kind] - counts_by_shards[FEW_SHARDS][kind]
        per_shard = num_more / (MANY_SHARDS - FEW_SHARDS)
        per_part = per_shard / num_steps
        print(f"{kind:8} {per_shard:6.1f} a shard, {per_part:4.1f} a part: {num_steps} steps")
    return 0


def measure_small_run(arguments: argparse.Namespace) -> int:
    """Print the seconds of a run of few pages, of the finished run, and of Beam's import."""
    with tempfile.TemporaryDirectory(prefix="small-") as folder:
        run_owt("demo", "--write_inputs", folder)
        with open(f"{folder}/demo.warc.gz", "rb") as warc:
            responses = ArchiveIterator(warc, record_types=WarcRecordType.response)
            first_responses = itertools.islice(responses, NUM_SMALL_PAGES)
            urls = [record.headers["WARC-Target-URI"] for record in first_responses]
        Path(folder, "urls.txt").write_text("\n".join(urls))
        inputs = ["--links", f"{folder}/urls.txt", "--pages_from", f"{folder}/demo.warc.gz"]

        def run_pages(number: int) -> None:
            run_owt("run", f"{folder}/{number}", *inputs, "--workers", 1)

        def import_beam(number: int) -> None:
            run_quietly(sys.executable, "-c", "import apache_beam")

        print_fastest(f"{NUM_SMALL_PAGES} URLs to the report", run_pages)
        print_fastest("the same, finished", run_pages)
        print_fastest("import apache_beam", import_beam)
    return 0


def print_fastest(name: str, work: Callable[[int], None]) -> None:
    """Call `work` with 0 to NUM_SMALL_RUNS - 1; print the seconds of the fastest call."""
    all_seconds = []
    for number in range(NUM_SMALL_RUNS):
        started = time.perf_counter()
        work(number)
        all_seconds.append(time.perf_counter() - started)
    print(f"{name}: {min(all_seconds):.2f} s", flush=True)


def measure_many_shards(arguments: argparse.Namespace) -> int:
    """Print the seconds and the memory of commands over a dataset of many shards."""
    with tempfile.TemporaryDirectory(prefix="shards-") as folder:
        links = Path(folder, "urls.txt")
        with links.open("w") as file:
            for number in range(3 * arguments.shards):
                file.write(f"https://host-{number}.example/{number}\n")
        collect = ["run", f"{folder}/run", "--until", "collect", "--links", links]
        collect += ["--num_shards", arguments.shards]
        commands = {
            "collect": collect,
            "again, when all is finished": collect,
            "owt verify, every byte": ["verify", f"{folder}/run"],
        }
        for name, command in commands.items():
            started = time.perf_counter()
            run_owt(*command)
            print(f"{name}: {time.perf_counter() - started:.1f} s", flush=True)
    peak_mib = resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss / 1024
    print(f"{arguments.shards:,} shards, a process takes {peak_mib:.0f} MiB at most")
    return 0


def run_owt(*arguments: object) -> None:
    """Run `owt`, without its output."""
    run_quietly(sys.executable, "-m", "owt_pipeline", *arguments)


def run_quietly(*command: object) -> None:
    """Run a command, without its output."""
    subprocess.run(
        [*map(str, command)], check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    )


def main() -> int:
    """Run the measurement that the command line names; return the exit status."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    commands = parser.add_subparsers(required=True)
    commands.add_parser("small").set_defaults(run_command=measure_small_run)
    commands.add_parser("requests").set_defaults(run_command=count_requests)
    shards = commands.add_parser("shards")
    shards.add_argument("--shards", type=int, default=65_535)
    shards.set_defaults(run_command=measure_many_shards)
    arguments = parser.parse_args()
    return int(arguments.run_command(arguments))


if __name__ == "__main__":
    sys.exit(main())
