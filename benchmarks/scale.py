"""What a run takes at scale.

    python benchmarks/scale.py requests
    python benchmarks/scale.py sent [--dumps 40] [--shards 1000] [--gigabytes 2]
    python benchmarks/scale.py shards [--shards 65535]
    python benchmarks/scale.py flink --dump RS.zst --pages PAGES.warc.gz

`requests`: what a part asks of a bucket. The demo's pages are run with 4 and with 16 shards in an emulator of Cloud
Storage (fake-gcs-server, `make .venv-servers/installed`) behind a proxy that counts; what is more is the parts'.

`sent`: what collect asks of a bucket for what its sources send to its shards: made-up dumps, each with rows for every
shard, in a run whose bucket is a folder behind a client that counts each request (an upload: one for 32 MiB). The goal
is 2 requests for 8 MiB, and 10 per part. The requests for all of Reddit to the end of 2017 are extrapolated from these
counts.

`shards`: a dataset of very many shards: `owt collect`, the same when all is finished, and `owt verify`.

`flink`: on the Flink of the tests (`make test-engines` installs it), on this machine. First the complete job for some
links, with two TaskManagers. Then extract, which is bound by the CPU, on copies of the pages' shards with one and with
two: how many seconds of parts there were in a second of the job, and how much of the CPU the JVMs took.
"""

from __future__ import annotations

import argparse
import contextlib
import http.server
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
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

import msgspec
import zstandard

from owt_pipeline.engine.runner import run_stage
from owt_pipeline.engine.stage import Runtime
from owt_pipeline.ledger.commit import publish
from owt_pipeline.ledger.exchange import SLICE_BYTES, SliceWriter
from owt_pipeline.ledger.root import swap_root
from owt_pipeline.stages import ORDER, load
from owt_pipeline.storage import folder as storage
from owt_pipeline.storage.buckets import PIECE_BYTES, Failure
from owt_pipeline.storage.disk import Disk
from owt_pipeline.storage.folder import Storage
from schemas.manifest import ROOT, Counts, FileTable, Generation, Manifest, Root, ShardFile, ShardRecord
from schemas.settings import from_table

if TYPE_CHECKING:
    from tests.engines.engines import WorkerPool

SUBMISSIONS = 450_000_000  # on Reddit until the end of 2017, in 151 monthly dumps
DUMPS = 151


def multiply(small: Path, many: Path, name: str, num_shards: int) -> None:
    """Write a run of one dataset of many shards, each with the files of one of a small run's."""
    manifest = Root.from_json((small / ROOT).read_bytes()).datasets[name]
    records = records_of(small, many, manifest, num_shards)
    about = {
        field: getattr(manifest, field) for field in ("dataset", "stage", "stage_version", "properties", "options")
    }
    counts = sum((record.counts for record in records), Counts())
    workdir = Storage(str(many))
    _, version = swap_root(workdir, Root(generations=[Generation("collect", 0, num_shards)]), None, "")
    publish(workdir, records, version=version, num_shards=num_shards, counts=counts, **about)


def records_of(small: Path, many: Path, manifest: Manifest, num_shards: int) -> list[ShardRecord]:
    """The records of many shards, whose files are linked into place."""
    table = FileTable.from_parquet((small / manifest.files.path).read_bytes(), manifest.files.path)
    of_shard: dict[int, list[ShardFile]] = {}
    for file in table.files:
        of_shard.setdefault(file.shard, []).append(file)
    found = []
    for shard in range(num_shards):
        files = []
        for file in of_shard[shard % len(of_shard)]:
            path = file.path.replace(f"part-{file.shard:05d}", f"part-{shard:05d}")
            target = many / path
            if not target.exists():
                target.parent.mkdir(parents=True, exist_ok=True)
                os.link(small / file.path, target)
            files.append(msgspec.structs.replace(file, path=path, shard=shard))
        rows = sum(file.rows for file in files)
        left = sum(file.rows for file in files if file.kind == "data")
        rejected = {"http_404": rows - left} if rows > left else {}
        found.append(ShardRecord(shard, Counts(rows, left, rejected), files))
    return found


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
        self.send_header("Content-Length", str(len(body)))
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
            run = ["run", "--workdir", f"{bucket}/{num_shards}", "--num_shards", str(num_shards), "--workers", "1"]
            inputs = ["--dumps", f"{folder}/RS_demo.zst", "--pages_from", f"{folder}/demo.warc.gz"]
            subprocess.run([*owt, *run, *inputs], check=True, env=environment, stdout=subprocess.DEVNULL)
            found[num_shards] = Counter(Counting.counts)
            print(f"{num_shards} shards: {dict(found[num_shards])}", flush=True)
    for kind in ("read", "written", "deleted"):
        more = (found[16][kind] - found[4][kind]) / 12
        print(f"{kind:8} {more:6.1f} a shard, {more / steps:4.1f} a part: {steps} steps")
    return 0


class CountingBucket(Disk):
    """A bucket that is a folder, with the methods of the client of object stores."""

    folder_of_all = ""
    counts: ClassVar[Counter[str]] = Counter()

    def __init__(self, *_: object) -> None:
        super().__init__(self.folder_of_all)

    def __getattribute__(self, name: str) -> Any:
        if name in ("size", "read", "read_range", "list", "put", "put_if", "delete"):
            self.counts[name] += 1
        return super().__getattribute__(name)

    def put_file(self, name: str, path: str) -> None:
        self.counts["put_file"] += 1 + os.path.getsize(path) // PIECE_BYTES
        super().put_file(name, path)

    def list(self, prefix: str, limit: int | None = None) -> Any:
        return super().list(prefix)

    @classmethod
    def failure(cls, error: Exception) -> Failure | None:
        return Failure("missing", "") if isinstance(error, FileNotFoundError) else None


def count_sent(arguments: argparse.Namespace) -> int:
    stage, sent, close = load("collect"), list[tuple[int, int]](), SliceWriter.close  # (slices, bytes) of each file

    def note(writer: SliceWriter) -> None:
        close(writer)
        sent.append((len(writer._index), writer._file.bytes))

    with tempfile.TemporaryDirectory(prefix="sent-") as folder:
        CountingBucket.folder_of_all = f"{folder}/bucket"
        storage.Bucket = CountingBucket  # type: ignore[misc,assignment]
        SliceWriter.close = note  # type: ignore[method-assign]
        rows = int(arguments.gigabytes * 1e9 / BYTES_SENT / arguments.dumps)
        for number in range(arguments.dumps):
            write_dump(Path(folder) / f"RS_{number:03}.zst", number, rows)
        given = {"dumps": [f"{folder}/RS_*.zst"], "num_shards": arguments.shards}
        options = from_table(stage.options, given, "collect")
        started = time.process_time()
        manifest, _ = run_stage(stage, options, Runtime(Storage("gs://counted/run")))
        cpu = time.process_time() - started
    total = sum(size for _, size in sorted(sent, key=lambda file: -file[1])[: arguments.dumps])
    parts = len(sent) - arguments.dumps + arguments.shards  # a dump's part also sends how often each host is there
    requests, goal = CountingBucket.counts.total(), 2 * total / EIGHT_MIB + 10 * parts
    print(f"{manifest.counts.entered:,} rows of {arguments.dumps} dumps, {total / 1e9:.2f} GB sent to "
          f"{arguments.shards:,} shards, {cpu:.0f} s of the CPU")  # fmt: skip
    print(f"slices in all files: {sum(count for count, _ in sent):,}; requests by kind: "
          f"{dict(sorted(CountingBucket.counts.items()))}")  # fmt: skip
    print(f"{parts:,} parts, {requests:,} requests: {requests / parts:.1f} a part; the goal is {goal:,.0f}")
    of_parts = requests / parts
    for shards in (2_300, 10_000):
        size, parts = SUBMISSIONS * total / manifest.counts.entered, DUMPS + 1 + shards
        groups = min(shards, -(-2 * (DUMPS + shards) // DUMPS))
        expected = of_parts * (parts + groups) + 4 * size / SLICE_BYTES
        print(f"{DUMPS} dumps, {size / 1e9:.0f} GB sent to {shards:,} shards: about {expected:,.0f} requests; "
              f"the goal is {2 * size / EIGHT_MIB + 10 * parts:,.0f}")  # fmt: skip
    return 0 if requests <= goal else 1


BYTES_SENT = 300  # of a row, more or less
EIGHT_MIB = 8 << 20


def write_dump(path: Path, number: int, rows: int) -> None:
    """Submissions of a made-up month, to as many hosts as there are rows for a hundred each."""
    with zstandard.open(path, "wb") as file:
        for row in range(rows):
            identifier = number * rows + row
            fields = {
                "id": f"{identifier:x}", "subreddit": f"s{row % 997}", "score": row % 9, "over_18": False,
                "title": f"A title of about as many characters as titles have, {identifier}, which say what is linked",
                "url": f"https://www.host-{row // 100:06}.org/{identifier % 89}/articles/{identifier:09}.html",
                "created_utc": 1_300_000_000 + number * 2_600_000 + row, "num_comments": row % 31, "is_self": False,
            }  # fmt: skip
            file.write(msgspec.json.encode(fields) + b"\n")


def many_shards(arguments: argparse.Namespace) -> int:
    with tempfile.TemporaryDirectory(prefix="shards-") as folder:
        urls = Path(folder, "urls.txt")
        urls.write_text("".join(f"https://host-{n}.example/{n}\n" for n in range(3 * arguments.shards)))
        collect = ["collect", "--workdir", f"{folder}/run", "--url_lists", urls, "--num_shards", arguments.shards]
        for name, command in {
            "owt collect": collect,
            "again, when all is finished": collect,
            "owt verify, every byte": ["verify", "--workdir", f"{folder}/run"],
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
        folder, dump = Path(name), Path(name) / "RS_links.zst"
        lines = zstandard.open(arguments.dump, "rb").read().splitlines(keepends=True)
        dump.write_bytes(zstandard.compress(b"".join(lines[: arguments.submissions])))
        inputs = ["--dumps", dump, "--pages_from", arguments.pages]
        small = Storage(f"{folder}/small")
        owt("run", "--workdir", small, "--until", "fetch", "--num_shards", 8, *inputs)
        (folder / "pool").mkdir()
        with worker_pool(folder / "pool") as pool:
            job(folder / "complete", 2, pool, ["run", "--num_shards", 8, *inputs], Storage(f"{folder}/run"))
            found = []
            for slots in (1, 2):
                workdir = Storage(f"{folder}/of-{slots}")
                multiply(Path(small.uri), Path(workdir.uri), "pages", 8 * arguments.copies)
                found.append(job(folder / f"with-{slots}", slots, pool, ["extract"], workdir))
    print(f"two TaskManagers: {found[1] / found[0]:.2f} times the part-seconds per second of one")
    return 0


def job(folder: Path, slots: int, pool: WorkerPool, command: Sequence[object], workdir: Storage) -> float:
    """Run a job on a Flink of its own; prints what it took, and returns its part-seconds per second."""
    from tests.engines.conftest import metrics
    from tests.engines.engines import flink

    folder.mkdir()
    with flink(folder, slots) as engine:
        before = cpu_seconds(pool.process.pid), sum(cpu_seconds(p.pid) for p in engine.processes.values())
        owt(*command, "--workdir", workdir, *engine.flags, *pool.flags)
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
    command = commands.add_parser("sent")
    command.add_argument("--dumps", type=int, default=40)
    command.add_argument("--shards", type=int, default=1_000)
    command.add_argument("--gigabytes", type=float, default=2.0, help="sent to the shards, at least")
    command.set_defaults(run_command=count_sent)
    command = commands.add_parser("shards")
    command.add_argument("--shards", type=int, default=65_535)
    command.set_defaults(run_command=many_shards)
    command = commands.add_parser("flink")
    command.add_argument("--dump", required=True)
    command.add_argument("--pages", required=True)
    command.add_argument("--submissions", type=int, default=536, help="of the dump")
    command.add_argument("--copies", type=int, default=48, help="of each shard of pages/, to extract")
    command.set_defaults(run_command=on_flink)
    arguments = parser.parse_args(argv)
    return int(arguments.run_command(arguments))


if __name__ == "__main__":
    sys.exit(main())
