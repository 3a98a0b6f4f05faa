"""What a run takes at scale.

    python benchmarks/scale.py small
    python benchmarks/scale.py requests
    python benchmarks/scale.py shards [--shards 65535]

`small`: the fixed cost of a run: 8 of the demo's pages from its WARC file to the report, and the
same when all is finished, next to the import of Beam alone; the fastest of five.

`requests`: what a part asks of a bucket. The demo's pages are run with 4 and with 16 shards in an
emulator of Cloud Storage (fake-gcs-server, `make .venv-servers/installed`) behind a proxy that
counts; what is more is the parts'.

`shards`: a dataset of very many shards: `collect`, the same when all is finished, and `owt verify`.
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
from functools import partial
from pathlib import Path
from typing import ClassVar

from fastwarc.warc import ArchiveIterator, WarcRecordType

from owt_pipeline.pipeline import STAGES


class Counting(http.server.BaseHTTPRequestHandler):
    """Passes requests on to an emulator, and counts them."""

    protocol_version = "HTTP/1.1"
    emulator = ""
    counts: ClassVar[Counter[str]] = Counter()

    def _pass_on(self) -> None:
        body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
        kind = "read" if self.command == "GET" else "written"
        if self.command == "GET" and re.search(r"/o/?([?]|$)", self.path):
            kind = "written"  # a listing, which costs as much
        elif self.command == "DELETE" or self.path.startswith("/batch/"):
            kind = "deleted"
        self.counts[kind] += 1
        headers = {name: value for name, value in self.headers.items() if name.lower() != "host"}
        request = urllib.request.Request(
            self.emulator + self.path, body or None, headers, method=self.command
        )
        try:
            with urllib.request.urlopen(request) as answer:
                self._answer(answer.status, answer.headers, answer.read())
        except urllib.error.HTTPError as error:
            self._answer(error.code, error.headers, error.read())

    def _answer(self, status: int, headers: Mapping[str, str], body: bytes) -> None:
        self.send_response(status)
        for name, value in headers.items():
            if name.lower() not in ("content-length", "transfer-encoding", "connection", "date"):
                self.send_header(name, value)
        self.send_header(
            "Content-Length",
            headers["Content-Length"] if self.command == "HEAD" else str(len(body)),
        )
        self.end_headers()
        self.wfile.write(body)

    do_GET = do_POST = do_PUT = do_DELETE = do_PATCH = do_HEAD = _pass_on

    def log_message(self, *_: object) -> None:
        pass


def count_requests(arguments: argparse.Namespace) -> int:
    from tests.servers.gcs import gcs_bucket

    owt = [sys.executable, "-m", "owt_pipeline"]
    steps = sum(len(stage.steps) for stage in STAGES.values())
    found: dict[int, Counter[str]] = {}
    with tempfile.TemporaryDirectory(prefix="requests-") as folder, gcs_bucket() as bucket:
        subprocess.run(
            [*owt, "demo", "--write_inputs", folder], check=True, stdout=subprocess.DEVNULL
        )
        Counting.emulator = os.environ["GOOGLE_BASE_URL"]
        proxy = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Counting)
        threading.Thread(target=proxy.serve_forever, daemon=True).start()
        environment = os.environ | {"GOOGLE_BASE_URL": f"http://127.0.0.1:{proxy.server_port}"}
        for num_shards in (4, 16):
            Counting.counts.clear()
            run = [
                "run",
                f"{bucket}/{num_shards}",
                "--num_shards",
                str(num_shards),
                "--workers",
                "1",
            ]
            inputs = ["--dumps", f"{folder}/RS_demo.zst", "--pages_from", f"{folder}/demo.warc.gz"]
            subprocess.run(
                [*owt, *run, *inputs], check=True, env=environment, stdout=subprocess.DEVNULL
            )
            found[num_shards] = Counter(Counting.counts)
            print(f"{num_shards} shards: {dict(found[num_shards])}", flush=True)
    for kind in ("read", "written", "deleted"):
        more = (found[16][kind] - found[4][kind]) / 12
        print(f"{kind:8} {more:6.1f} a shard, {more / steps:4.1f} a part: {steps} steps")
    return 0


def small_run(arguments: argparse.Namespace) -> int:
    with tempfile.TemporaryDirectory(prefix="small-") as folder:
        owt("demo", "--write_inputs", folder)
        with open(f"{folder}/demo.warc.gz", "rb") as warc:
            records = ArchiveIterator(warc, record_types=WarcRecordType.response)
            urls = [record.headers["WARC-Target-URI"] for record in itertools.islice(records, 8)]
        Path(folder, "urls.txt").write_text("\n".join(urls))
        given = [
            "--links",
            f"{folder}/urls.txt",
            "--pages_from",
            f"{folder}/demo.warc.gz",
            "--workers",
            1,
        ]
        for name, command in {
            "8 URLs to the report": lambda n: owt("run", f"{folder}/{n}", *given),
            "the same, finished": lambda n: owt("run", f"{folder}/{n}", *given),
            "import apache_beam": lambda n: quietly(sys.executable, "-c", "import apache_beam"),
        }.items():
            print(f"{name}: {min(timed(partial(command, n)) for n in range(5)):.2f} s", flush=True)
    return 0


def timed(call: Callable[[], object]) -> float:
    started = time.perf_counter()
    call()
    return time.perf_counter() - started


def many_shards(arguments: argparse.Namespace) -> int:
    with tempfile.TemporaryDirectory(prefix="shards-") as folder:
        urls = Path(folder, "urls.txt")
        urls.write_text(
            "".join(f"https://host-{n}.example/{n}\n" for n in range(3 * arguments.shards))
        )
        collect = [
            "run",
            f"{folder}/run",
            "--until",
            "collect",
            "--links",
            urls,
            "--num_shards",
            arguments.shards,
        ]
        for name, command in {
            "collect": collect,
            "again, when all is finished": collect,
            "owt verify, every byte": ["verify", f"{folder}/run"],
        }.items():
            print(f"{name}: {timed(partial(owt, *command)):.1f} s", flush=True)
    memory = resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss / 1024
    print(f"{arguments.shards:,} shards, a process takes {memory:.0f} MiB at most")
    return 0


def owt(*arguments: object) -> None:
    quietly(sys.executable, "-m", "owt_pipeline", *arguments)


def quietly(*command: object) -> None:
    subprocess.run(
        [*map(str, command)], check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    )


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    commands = parser.add_subparsers(required=True)
    commands.add_parser("small").set_defaults(run_command=small_run)
    commands.add_parser("requests").set_defaults(run_command=count_requests)
    command = commands.add_parser("shards")
    command.add_argument("--shards", type=int, default=65_535)
    command.set_defaults(run_command=many_shards)
    arguments = parser.parse_args()
    return int(arguments.run_command(arguments))


if __name__ == "__main__":
    sys.exit(main())
