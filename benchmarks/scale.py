"""What a run takes at scale.

    python benchmarks/scale.py requests
    python benchmarks/scale.py shards [--shards 65535]
    python benchmarks/scale.py flink --dump RS.zst --pages PAGES.warc.gz

`requests`: what a part asks of a bucket. The demo's pages are run with 4 and with 16 shards in an emulator of Cloud
Storage (fake-gcs-server, `make .venv-servers/installed`) behind a proxy that counts; what is more is the parts'.

`shards`: a dataset of very many shards: `owt collect`, the same when all is finished, and `owt verify`.

`flink`: on the Flink of the tests (`make test-engines` installs it), on this machine. First the complete job for some
links, with two TaskManagers. Then extract, which is bound by the CPU, on copies of the pages with one and with two: how
many seconds of parts there were in a second of the job, and how much of the CPU the JVMs took.
"""

from __future__ import annotations

import argparse
import contextlib
import http.server
import os
import re
import resource
import shutil
import subprocess
import sys
import tempfile
import threading
import time
import urllib.error
import urllib.request
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar

import zstandard
from extraction import copies

from owt_pipeline.stages import ORDER, load
from owt_pipeline.storage.folder import Storage

if TYPE_CHECKING:
    from tests.engines.engines import WorkerPool


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
        request = urllib.request.Request(self.emulator + self.path, body or None, headers, method=self.command)
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
        self.send_header("Content-Length", headers["Content-Length"] if self.command == "HEAD" else str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    do_GET = do_POST = do_PUT = do_DELETE = do_PATCH = do_HEAD = _pass_on

    def log_message(self, *_: object) -> None:
        pass


def count_requests(arguments: argparse.Namespace) -> int:
    from tests.servers.gcs import gcs_bucket

    owt = [sys.executable, "-m", "owt_pipeline"]
    steps = sum(len(load(stage).steps) for stage in ORDER)
    found: dict[int, Counter[str]] = {}
    with tempfile.TemporaryDirectory(prefix="requests-") as folder, gcs_bucket() as bucket:
        subprocess.run([*owt, "demo", "--write_inputs", folder], check=True, stdout=subprocess.DEVNULL)
        Counting.emulator = os.environ["STORAGE_EMULATOR_HOST"]
        proxy = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Counting)
        threading.Thread(target=proxy.serve_forever, daemon=True).start()
        environment = os.environ | {"STORAGE_EMULATOR_HOST": f"http://127.0.0.1:{proxy.server_port}"}
        for num_shards in (4, 16):
            Counting.counts.clear()
            run = ["run", f"{bucket}/{num_shards}", "--num_shards", str(num_shards), "--workers", "1"]
            inputs = ["--dumps", f"{folder}/RS_demo.zst", "--pages_from", f"{folder}/demo.warc.gz"]
            subprocess.run([*owt, *run, *inputs], check=True, env=environment, stdout=subprocess.DEVNULL)
            found[num_shards] = Counter(Counting.counts)
            print(f"{num_shards} shards: {dict(found[num_shards])}", flush=True)
    for kind in ("read", "written", "deleted"):
        more = (found[16][kind] - found[4][kind]) / 12
        print(f"{kind:8} {more:6.1f} a shard, {more / steps:4.1f} a part: {steps} steps")
    return 0


def many_shards(arguments: argparse.Namespace) -> int:
    with tempfile.TemporaryDirectory(prefix="shards-") as folder:
        urls = Path(folder, "urls.txt")
        urls.write_text("".join(f"https://host-{n}.example/{n}\n" for n in range(3 * arguments.shards)))
        collect = ["collect", f"{folder}/run", "--links", urls, "--num_shards", arguments.shards]
        for name, command in {
            "owt collect": collect,
            "again, when all is finished": collect,
            "owt verify, every byte": ["verify", f"{folder}/run"],
        }.items():
            started = time.perf_counter()
            owt(*command)
            print(f"{name}: {time.perf_counter() - started:.1f} s", flush=True)
    memory = resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss / 1024
    print(f"{arguments.shards:,} shards, a process takes {memory:.0f} MiB at most")
    return 0


def on_flink(arguments: argparse.Namespace) -> int:
    from tests.engines.engines import worker_pool

    with tempfile.TemporaryDirectory(prefix="flink-") as name:
        folder, dump, pages = Path(name), Path(name) / "RS_links.zst", Path(name) / "copies.warc.gz"
        lines = zstandard.open(arguments.dump, "rb").read().splitlines(keepends=True)
        dump.write_bytes(zstandard.compress(b"".join(lines[: arguments.submissions])))
        with pages.open("wb") as out:
            out.writelines(copies(Path(arguments.pages), arguments.copies))
        (folder / "pool").mkdir()
        owt("run", folder / "fetched", "--until", "fetch", "--warcs", pages, "--pages_from", pages)
        with worker_pool(folder / "pool") as pool:
            inputs = ["--num_shards", 8, "--dumps", dump, "--pages_from", arguments.pages]
            job(folder / "complete", 2, pool, ["run", *inputs], Storage(f"{folder}/run"))
            found = []
            for slots in (1, 2):
                workdir = shutil.copytree(folder / "fetched", folder / f"of-{slots}")
                found.append(job(folder / f"with-{slots}", slots, pool, ["extract"], Storage(str(workdir))))
    print(f"two TaskManagers: {found[1] / found[0]:.2f} times the part-seconds per second of one")
    return 0


def job(folder: Path, slots: int, pool: WorkerPool, command: Sequence[object], workdir: Storage) -> float:
    """Run a job on a Flink of its own; prints what it took, and returns its part-seconds per second."""
    from tests.engines.conftest import metrics
    from tests.engines.engines import flink

    folder.mkdir()
    with flink(folder, slots) as engine:
        before = cpu_seconds(pool.process.pid), sum(cpu_seconds(p.pid) for p in engine.processes.values())
        owt(command[0], workdir, *command[1:], *engine.flags, *pool.flags)
        workers, jvms = cpu_seconds(pool.process.pid), sum(cpu_seconds(p.pid) for p in engine.processes.values())
        jobs = engine.rest_api("/jobs/overview")["jobs"]
    workers, jvms, seconds = workers - before[0], jvms - before[1], sum(job["duration"] for job in jobs) / 1000
    parts = sum(stage.get("part_milliseconds_sum", 0) for stage in metrics(workdir).values()) / 1000
    rows = sum(stage.get("rows_in", 0) for stage in metrics(workdir).values())
    print(
        f"{command[0]}, {slots} TaskManagers: {len(jobs)} job, {seconds:.1f} s, {rows:,} rows in, "
        f"{parts:.1f} s of parts ({parts / seconds:.2f} a second); "
        f"CPU {workers:.0f} s in workers, {jvms:.0f} s in JVMs "
        f"({jvms / (workers + jvms):.0%})",
        flush=True,
    )
    return parts / seconds


def owt(*arguments: object) -> None:
    subprocess.run([sys.executable, "-m", "owt_pipeline", *map(str, arguments)], check=True, stderr=subprocess.DEVNULL)


def cpu_seconds(root: int) -> float:
    """Of a process and all that it has started, those that have ended included."""
    ticks, parents = {}, {}
    for entry in Path("/proc").iterdir():
        with contextlib.suppress(OSError):
            if entry.name.isdigit():
                fields = (entry / "stat").read_text().rpartition(")")[2].split()
                parents[int(entry.name)], ticks[int(entry.name)] = int(fields[1]), sum(map(int, fields[11:15]))
    found = [root]
    for pid in found:
        found += [child for child, parent in parents.items() if parent == pid]
    return sum(ticks.get(pid, 0) for pid in found) / os.sysconf("SC_CLK_TCK")


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    commands = parser.add_subparsers(required=True)
    commands.add_parser("requests").set_defaults(run_command=count_requests)
    command = commands.add_parser("shards")
    command.add_argument("--shards", type=int, default=65_535)
    command.set_defaults(run_command=many_shards)
    command = commands.add_parser("flink")
    command.add_argument("--dump", required=True)
    command.add_argument("--pages", required=True)
    command.add_argument("--submissions", type=int, default=536, help="of the dump")
    command.add_argument("--copies", type=int, default=14, help="of each page, to extract")
    command.set_defaults(run_command=on_flink)
    arguments = parser.parse_args(argv)
    return int(arguments.run_command(arguments))


if __name__ == "__main__":
    sys.exit(main())
