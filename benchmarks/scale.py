"""What does a run cost that is very small, very wide, or in a bucket?

    python benchmarks/scale.py small
    python benchmarks/scale.py requests
    python benchmarks/scale.py products [--size 8]
    python benchmarks/scale.py handles [--shards 8192]
    python benchmarks/scale.py driver [--pages 20000]

`small` measures the fixed cost of a run: 8 of the demo's pages from their WARC file to the report,
the same command when all is finished, and the import of Beam, which is a part of the first. It
prints the fastest of five.

`requests` counts the requests of a part to a bucket. The demo's pages are run with 4 and with 16
shards in an emulator of Cloud Storage (fake-gcs-server, `make .venv-servers/installed`), behind a
proxy that counts. The requests of a run that the second has more belong to its additional parts.

`products` doubles two sizes of small runs without Beam's runner, first each and then both, and
counts the calls of functions, which do not depend on how busy the machine is. The cost of both
doublings beyond the sum of each is the cost of a product, such as shards times archive files. It
exits with 1 if a product besides KNOWN_PRODUCTS has more than 15% of the growth.

`handles` makes the handles that dedupe passes to the local runner, without the texts: one for each
shard and each range of hashes. It prints how much memory they take. 8,192 shards have 100 million
documents.

`driver` measures the CPU time that real pages of 12 to 28 kB take in a worker of `extract` and in
the process that gives them out and writes their documents. So many workers of one machine are kept
busy. It exits with 1 if they are fewer than 150.
"""

from __future__ import annotations

import argparse
import http.server
import itertools
import json
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
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import ClassVar

import apache_beam as beam
import msgspec
from fastwarc.warc import ArchiveIterator, WarcRecordType
from page_server import serving

from owt_pipeline.engine.parts import Work, plan_stage
from owt_pipeline.engine.stage import Runtime, StageRun
from owt_pipeline.formats.warc import placed_pages, response_record
from owt_pipeline.ledger.exchange import Slice
from owt_pipeline.pipeline import STAGES
from owt_pipeline.stages.dedupe.steps import num_ranges
from owt_pipeline.stages.extract.pages import extract_batch
from owt_pipeline.storage.folder import Storage

REPOSITORY = Path(__file__).resolve().parents[1]
NUM_SMALL_RUNS = 5
NUM_SMALL_PAGES = 8
# Of dedupe: documents of a shard as a run chooses their number, and bands of its default threshold.
DOCUMENTS_OF_SHARD = 12_200
BANDS = 21
PAGE_BYTES = 2_000
MIN_WORKERS = 150
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


def write_archives(folder: Path, num_urls: int, num_archives: int, host: str = "host") -> None:
    """Write the URLs, each of another host, and WARC files that have their pages."""
    urls = [f"http://{host}-{number}.example/" for number in range(num_urls)]
    folder.mkdir(exist_ok=True)
    Path(folder, "urls.txt").write_text("\n".join(urls))
    header = [("Content-Type", "text/html")]
    for number in range(num_archives):
        records = []
        for url in urls[number::num_archives]:
            records.append(response_record(url, 1, "HTTP/1.1 200 OK", header, b"<p>A page.</p>"))
        Path(folder, f"{number}.warc").write_bytes(b"".join(records))


def write_texts(folder: Path, num_texts: int) -> None:
    """Write different texts with URLs."""
    with Path(folder, "texts.jsonl").open("w") as file:
        for number in range(num_texts):
            words = [f"{number}-{place}" for place in range(20)]
            row = {"url": f"http://host-{number}.example/", "text": " ".join(words)}
            file.write(json.dumps(row) + "\n")


def fetch_archives(folder: Path, num_shards: int, num_archives: int) -> int:
    """Return the calls of a run that fetches pages from archive files."""
    write_archives(folder, num_urls=8 * num_archives, num_archives=num_archives)
    fetch = ["run", folder / "run", "--until", "fetch", "--num_shards", num_shards]
    return count_calls(*fetch, "--links", folder / "urls.txt", "--pages_from", folder / "*.warc")


def add_archives(folder: Path, num_generations: int, num_archives: int) -> int:
    """Return the calls of a run that adds a generation with archive files to earlier ones."""
    calls = 0
    for number in range(num_generations):
        generation = folder / str(number)
        is_last = number == num_generations - 1
        write_archives(generation, 64, num_archives if is_last else 1, host=f"host-{number}")
        fetch = ["run", folder / "run", "--until", "fetch", "--num_shards", 2, "--add"]
        inputs = ["--links", generation / "urls.txt", "--pages_from", generation / "*.warc"]
        calls = count_calls(*fetch, *inputs)
    return calls


def find_duplicates(folder: Path, num_shards: int, num_ranges: int) -> int:
    """Return the calls of a run that compares texts by ranges of hashes."""
    write_texts(folder, num_texts=256)
    count_calls("import", folder / "run", folder / "texts.jsonl", "--num_shards", num_shards)
    dedupe = ["run", folder / "run", "--until", "dedupe", "--min_tokens", 1, "--languages", "all"]
    return count_calls(*dedupe, hashes_of_range=256 * BANDS // num_ranges)


def take_down(folder: Path, num_takedowns: int, num_documents: int) -> int:
    """Return the calls of the command that takes documents down, and rebuilds `corpus/`."""
    write_texts(folder, 32 * num_documents)
    run = ["run", folder / "run", "--until", "export", "--min_tokens", 1, "--languages", "all"]
    count_calls("import", folder / "run", folder / "texts.jsonl", "--num_shards", 2)
    count_calls(*run)
    urls = [f"http://host-{number}.example/" for number in range(8 * num_takedowns)]
    Path(folder, "forget.txt").write_text("\n".join(urls))
    return count_calls("forget", folder / "run", folder / "forget.txt")


def request_later_pages(folder: Path, num_segments: int, num_hosts: int) -> int:
    """Return the calls of a run that requests one page more of each host.

    The host's shard has 16 times `num_segments` segments of earlier pages.
    """
    fetch = ["run", folder / "run", "--until", "fetch", "--num_shards", 1, "--add"]
    fetch += ["--host_delay", 0, "--user_agent", "products/1.0 (+mailto:owner@products.test)"]
    with serving(PAGE_BYTES, "identity") as (port, _):
        fetch += ["--resolve", "*.products.test=127.0.0.1", "--allowed_ports", port]
        hosts = [f"http://h{number}.products.test:{port}" for number in range(num_hosts)]
        earlier = [f"{hosts[page % num_hosts]}/{page}" for page in range(2 * 16 * num_segments)]
        Path(folder, "earlier.txt").write_text("\n".join(earlier))
        # A segment is written as soon as there are two pages.
        count_calls(*fetch, "--links", folder / "earlier.txt", segment_bytes=2 * PAGE_BYTES)
        Path(folder, "later.txt").write_text("\n".join(f"{host}/later" for host in hosts))
        return count_calls(*fetch, "--links", folder / "later.txt")


PRODUCTS = {
    "shards x archive files": fetch_archives,
    "generations x archive files": add_archives,
    "shards x ranges": find_duplicates,
    "takedowns x documents": take_down,
    "segments x hosts": request_later_pages,
}
# Each part sends a handle to each range. Their number is limited (`dedupe/steps.py`).
KNOWN_PRODUCTS = ("shards x ranges",)
# The event loop of fetch makes some calls more or fewer, up to 7% of the smallest growth.
MAX_SHARE_OF_PRODUCT = 0.15

COUNT_CALLS = """
import itertools, sys, threading
from owt_pipeline.cli import main
from owt_pipeline.stages.dedupe import steps
from owt_pipeline.stages.fetch import recorder
from tests.owt_pipeline.one_process import without_runner
steps.MIN_HASHES_OF_RANGE, recorder.SEGMENT_BYTES = map(int, sys.argv[1:3])
calls = itertools.count()
def count(*_): next(calls)
with without_runner():
    threading.setprofile(count)
    sys.setprofile(count)
    code = main(sys.argv[3:])
    sys.setprofile(None)
print("calls", next(calls))
sys.exit(code)
"""


def count_calls(
    *arguments: object, hashes_of_range: int = 1 << 21, segment_bytes: int = 8 << 20
) -> int:
    """Return how often `owt` with one worker calls a function, returns from it or calls C."""
    command = [sys.executable, "-c", COUNT_CALLS, hashes_of_range, segment_bytes, *arguments]
    command += ["--workers", 1, "--quiet"]
    environment = {**os.environ, "PYTHONPATH": str(REPOSITORY)}
    done = subprocess.run(
        [*map(str, command)], stdout=subprocess.PIPE, text=True, check=True, env=environment
    )
    return int(done.stdout.split()[-1])


def measure_products(arguments: argparse.Namespace) -> int:
    """Print the calls of each pair of sizes, doubled; return 1 if a product is not known."""
    print("calls: of the smallest run; more if the first, the second or both sizes are doubled")
    is_known = True
    for name, count_run in PRODUCTS.items():
        calls = []
        for sizes in itertools.product((arguments.size, 2 * arguments.size), repeat=2):
            with tempfile.TemporaryDirectory(prefix="products-") as folder:
                calls.append(count_run(Path(folder), *sizes))
        second, first, both = (more - calls[0] for more in calls[1:])
        product = (both - first - second) / both
        row = f"{name:28}{calls[0]:>11,}{first:>9,}{second:>9,}{both:>9,}"
        print(f"{row}  {product:4.0%} of the growth is a product", flush=True)
        is_known &= product < MAX_SHARE_OF_PRODUCT or name in KNOWN_PRODUCTS
    return int(not is_known)


def write_real_pages(folder: Path, num_pages: int) -> None:
    """Write pages to a WARC file, again under other URLs if there are few, and their URLs."""
    warc = Path(os.environ.get("OWT_TESTDATA", "../shared/data"), "web", "wcxb-dev.warc.gz")
    pages = []
    with warc.open("rb") as file:
        for record in ArchiveIterator(file, record_types=WarcRecordType.response):
            body = record.reader.read()
            if 12_000 <= len(body) <= 28_000:
                pages.append((record.headers["WARC-Target-URI"], body))
    urls = []
    with Path(folder, "pages.warc").open("wb") as file:
        header = [("Content-Type", "text/html")]
        for number, (url, body) in zip(range(num_pages), itertools.cycle(pages)):
            urls.append(f"{url.partition('#')[0].partition('?')[0]}?{number}")
            file.write(response_record(urls[-1], 1, "HTTP/1.1 200 OK", header, body))
    Path(folder, "urls.txt").write_text("\n".join(urls))


def measure_driver(arguments: argparse.Namespace) -> int:
    """Print the CPU time of a page in a worker and in the driver, and their ratio."""
    stage = STAGES["extract"]
    options = stage.options()
    with tempfile.TemporaryDirectory(prefix="driver-") as name:
        folder = Path(name)
        write_real_pages(folder, arguments.pages)
        inputs = ["--links", folder / "urls.txt", "--pages_from", folder / "pages.warc"]
        run_owt("run", folder / "run", "--until", "fetch", "--num_shards", 2, *inputs)
        runtime = Runtime(Storage(str(folder / "run")), workers=2)
        run = plan_stage(stage, options, runtime)
        assert isinstance(run, StageRun)
        work = Work(stage, options, runtime, 0, run.name)
        # The first shard starts the workers, and its first page loads the model in this process.
        work.do(0, ())
        extract_batch(next(placed_pages(run.inputs["pages"], 0, rows=1)), options, run.workdir)
        batches = list(placed_pages(run.inputs["pages"], 1, rows=128))
        started = time.process_time()
        for batch in batches:
            extract_batch(batch, options, run.workdir)
        worker_seconds = time.process_time() - started
        started = time.process_time()
        work.do(1, ())
        driver_seconds = time.process_time() - started
    ratio = worker_seconds / driver_seconds
    num_pages = sum(batch.num_rows for batch in batches)
    print(
        f"{num_pages:,} pages: {1e3 * worker_seconds / num_pages:.2f} ms each in a worker", end=""
    )
    print(
        f", {1e6 * driver_seconds / num_pages:.0f} µs in the driver: {ratio:.0f} workers are busy"
    )
    return 0 if ratio >= MIN_WORKERS else 1


class MakeHandles(beam.DoFn):
    """Makes the handles that the shards of dedupe's first step return, keyed by range."""

    def process(self, num_shards: int) -> Iterator[tuple[int, bytes]]:
        """Yield a handle for each shard and range."""
        num_hashes = num_shards * DOCUMENTS_OF_SHARD * BANDS
        for shard in range(num_shards):
            path = f"sketch/slices/part-{shard:05d}-01234567.slices"
            for key in range(num_ranges(num_hashes)):
                handle = Slice("0123456789abcdef/01234567", path, 1000 * shard + 64 * key, 640, 123)
                yield key, msgspec.msgpack.encode(handle)


def count_handles(handles: tuple[int, Iterable[bytes]]) -> tuple[int, int]:
    """Return a range and the number of its handles."""
    return handles[0], sum(1 for _ in handles[1])


def measure_handles(arguments: argparse.Namespace) -> int:
    """Print the memory that the handles of a run with these shards take in the local runner."""
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    with beam.Pipeline() as pipeline:
        make_handles = beam.ParDo(MakeHandles()).with_output_types(tuple[int, bytes])
        handles = pipeline | beam.Create([arguments.shards]) | make_handles
        handles | beam.GroupByKey() | beam.Map(count_handles)
    grown_bytes = 1024 * (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before)
    num_handles = arguments.shards * num_ranges(arguments.shards * DOCUMENTS_OF_SHARD * BANDS)
    print(f"{num_handles:,} handles, {grown_bytes / num_handles:.0f} bytes each")
    print(f"{grown_bytes / 1e6:,.0f} MB for {arguments.shards * DOCUMENTS_OF_SHARD:,} documents")
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
    products = commands.add_parser("products")
    products.add_argument("--size", type=int, default=8)
    products.set_defaults(run_command=measure_products)
    handles = commands.add_parser("handles")
    handles.add_argument("--shards", type=int, default=8192)
    handles.set_defaults(run_command=measure_handles)
    driver = commands.add_parser("driver")
    driver.add_argument("--pages", type=int, default=20_000)
    driver.set_defaults(run_command=measure_driver)
    arguments = parser.parse_args()
    return int(arguments.run_command(arguments))


if __name__ == "__main__":
    sys.exit(main())
