"""How fast are URLs looked up in Common Crawl's columnar index, next to DuckDB?

    .venv/bin/python benchmarks/archives.py [--rows 1000000] [--files 24] [--urls 100000] \
        [--pages 2000]

The archive is made up. Its index has `--rows` captures with all published columns, in `--files`
Parquet files on the disk. A process on loopback serves its WARC file without a delay between
requests. Half of the URLs are in the index.

1. The URLs are only looked up: their captures have status 404, so no record is read.
2. `--pages` other URLs are looked up, and their records are read.
3. DuckDB looks the URLs of step 1 up in the same files, on one core.

Prints the measurements, then an estimate for a real crawl from these rates and the published sizes.
Exits 1 if not all pages are found.
"""

from __future__ import annotations

import argparse
import base64
import json
import subprocess
import sys
import tempfile
import threading
import time
import urllib.request
from collections import Counter
from dataclasses import dataclass
from functools import partial
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from owt_pipeline.engine.runner import run_stage
from owt_pipeline.engine.stage import Runtime
from owt_pipeline.formats.warc import response_record
from owt_pipeline.pipeline import STAGES
from owt_pipeline.stages.fetch.archives.commoncrawl import CAPTURE_COLUMNS, KEY
from owt_pipeline.stages.fetch.options import Options
from owt_pipeline.stages.fetch.stage import STAGE
from owt_pipeline.storage.folder import Storage

CRAWL = "CC-MAIN-2019-04"
INDEX = "cc-index/table/cc-main/warc"
WARC = f"crawl-data/{CRAWL}/segments/1/warc/{CRAWL}-00000.warc.gz"
# The time of the first capture, of January 2019.
FIRST_CAPTURE = 1_547_000_000
READ_COLUMNS = (KEY, *CAPTURE_COLUMNS, "content_truncated")

# A crawl as it is published (commoncrawl.org/columnar-index), and the dead links of a month. Half
# of these are in it.
NUM_REAL_FILES = 300
NUM_REAL_INDEX_BYTES = 300e9
NUM_REAL_ROWS = 2.6e9
NUM_REAL_URLS = 2e6
REAL_SHARE_FOUND = 0.5
BYTES_PER_S_AT_100_MBIT = 12.5e6


@dataclass(frozen=True)
class Measurement:
    """One run of fetch.

    Attributes:
      wall_seconds: by the clock.
      cpu_seconds: of this process.
      totals: the requests for records, and their bytes.
      stats: the statistics of the manifest.
    """

    wall_seconds: float
    cpu_seconds: float
    totals: Counter[str]
    stats: dict[str, int]


def main() -> int:
    """Make the archive, measure each step, and print the results; return the exit status."""
    arguments = parse_arguments()
    if arguments.serve:
        serve(Path(arguments.serve))
        return 0
    with tempfile.TemporaryDirectory(prefix="archives-") as temporary:
        folder = Path(temporary)
        data = folder / "data"
        lookups, pages = make_archive(data, arguments)
        lookups = lookups[: arguments.urls]
        command = [sys.executable, __file__, "--serve", str(data)]
        with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as server:
            assert server.stdout is not None
            address = server.stdout.readline().strip()
            try:
                join = measure_fetch(folder, "join", lookups, address)
                records = measure_fetch(folder, "records", pages, address)
            finally:
                server.terminate()
        index_files = sorted(data.rglob("*.parquet"))
        num_index_bytes = sum(file.stat().st_size for file in index_files)
        read_share = measure_read_share(index_files[0])
        duckdb_seconds, num_found_by_duckdb = join_by_duckdb(index_files, lookups)

    print(
        f"index: {arguments.rows:,} captures, {arguments.files} files, "
        f"{num_index_bytes / 1e6:,.0f} MB, of which {read_share:.0%} in the columns that are read"
    )
    print(
        f"join: {arguments.urls:,} URLs in {join.wall_seconds:.1f} s, "
        f"{arguments.urls / join.wall_seconds:,.0f} URLs/s, CPU {join.cpu_seconds:.1f} s"
    )
    print(
        f"records: {arguments.pages:,} pages in {records.wall_seconds:.1f} s, "
        f"{records.totals['requests']:,} requests, {records.totals['bytes'] / 1e6:,.1f} MB"
    )
    print_estimate(join.cpu_seconds / arguments.rows, read_share)
    print(
        f"DuckDB: {num_found_by_duckdb:,} of the {arguments.urls:,} URLs found on the disk, "
        f"CPU {duckdb_seconds:.1f} s"
    )
    num_found = records.stats["from_commoncrawl"]
    if num_found != arguments.pages:
        print(f"FAILED: {num_found:,} of {arguments.pages:,} pages found")
        return 1
    return 0


def parse_arguments() -> argparse.Namespace:
    """Return the arguments of the command line."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument(
        "--rows", type=int, default=1_000_000, metavar="N", help="captures (default: 1,000,000)"
    )
    parser.add_argument(
        "--files", type=int, default=24, metavar="N", help="files of the index (default: 24)"
    )
    parser.add_argument(
        "--urls", type=int, default=100_000, metavar="N", help="looked up (default: 100,000)"
    )
    parser.add_argument(
        "--pages", type=int, default=2000, metavar="N", help="read (default: 2,000)"
    )
    parser.add_argument("--serve", metavar="DIR", help=argparse.SUPPRESS)
    return parser.parse_args()


def print_estimate(cpu_seconds_per_row: float, read_share: float) -> None:
    """Print the cost of a real crawl at these rates."""
    core_hours = NUM_REAL_ROWS * cpu_seconds_per_row / 3600
    num_records = round(NUM_REAL_URLS * REAL_SHARE_FOUND)
    num_bytes_read = NUM_REAL_INDEX_BYTES * read_share
    print(
        f"\nA real crawl on paper ({NUM_REAL_FILES} files, {NUM_REAL_INDEX_BYTES / 1e9:,.0f} GB) "
        f"and {NUM_REAL_URLS:,.0f} URLs, {REAL_SHARE_FOUND:.0%} of them in it: "
        f"at most {num_bytes_read / 1e9:,.0f} GB read in {core_hours:,.1f} core hours, "
        f"{num_bytes_read / BYTES_PER_S_AT_100_MBIT / 3600:,.1f} h at 100 Mbit/s; "
        f"{num_records:,.0f} records take {num_records * 0.1 / 3600:,.1f} h at --cc_delay 0.1, "
        f"from one address"
    )


def measure_fetch(folder: Path, name: str, urls: list[str], address: str) -> Measurement:
    """Look URLs up in a run of their own."""
    runtime = Runtime(Storage(str(folder / name)))
    links = folder / f"{name}.txt"
    links.write_text("".join(f"{url}\n" for url in urls))
    collect = STAGES["collect"]
    run_stage(collect, collect.options(links=(str(links),), num_shards=4), runtime)
    options = Options(
        sources=("commoncrawl",),
        user_agent="benchmark/1 (+mailto:me@example.org)",
        cc_index=str(folder / "data" / INDEX),
        cc_data=f"{address}/data",
        cc_crawls=(CRAWL,),
        cc_delay=0.0,
    )
    urllib.request.urlopen(f"{address}/reset").close()
    wall_started = time.perf_counter()
    cpu_started = time.process_time()
    manifest, _ = run_stage(STAGE, options, runtime)
    wall_seconds = time.perf_counter() - wall_started
    cpu_seconds = time.process_time() - cpu_started
    with urllib.request.urlopen(f"{address}/totals") as response:
        totals = Counter(json.load(response))
    return Measurement(wall_seconds, cpu_seconds, totals, manifest.stats)


def join_by_duckdb(index_files: list[Path], urls: list[str]) -> tuple[float, int]:
    """Return the CPU seconds and the number of URLs found by the same join of DuckDB."""
    import duckdb

    # DuckDB finds the table by the name of this variable.
    wanted = pa.table({"url": urls})
    started = time.process_time()
    connection = duckdb.connect(config={"threads": 1})
    query = "select count(*) from read_parquet(?) semi join wanted using (url)"
    (num_found,) = connection.execute(query, [list(map(str, index_files))]).fetchone()
    del wanted
    return time.process_time() - started, num_found


def make_archive(folder: Path, arguments: argparse.Namespace) -> tuple[list[str], list[str]]:
    """Write the index and the WARC file; return the URLs to look up, and the URLs of pages."""
    random = np.random.default_rng(0)
    # A site has 20 captures on average.
    sites = np.sort(random.choice(10_000_000, arguments.rows // 20, replace=False))
    site_by_row = np.sort(random.choice(sites, arguments.rows))
    missing_rows = set(random.choice(arguments.rows, arguments.urls // 2, replace=False).tolist())
    candidates = random.choice(arguments.rows, 2 * arguments.pages, replace=False).tolist()
    page_rows = set(sorted(set(candidates) - missing_rows)[: arguments.pages])
    paragraphs = b"".join(b"<p>Paragraph %d of a page.</p>" % number for number in range(400))
    body = b"<html><body>" + paragraphs + b"</body></html>"

    lookups = []
    pages = []
    warc = bytearray()
    first_rows = np.linspace(0, arguments.rows, arguments.files + 1).astype(int)
    for number in range(arguments.files):
        captures = []
        for row in range(first_rows[number], first_rows[number + 1]):
            site = f"site{site_by_row[row]:07d}"
            path = f"/articles/{row % 7919:04d}/what-happened-on-day-{row:08d}.html"
            url = f"https://www.{site}.com{path}"
            capture = make_capture(site, path, url, row, random)
            if row in missing_rows:
                capture["fetch_status"] = 404
                lookups.append(url)
            elif row in page_rows:
                headers = [("Content-Type", "text/html")]
                time_of_capture = FIRST_CAPTURE + row
                record = response_record(url, time_of_capture, "HTTP/1.1 200 OK", headers, body)
                capture["warc_filename"] = WARC
                capture["warc_record_offset"] = len(warc)
                capture["warc_record_length"] = len(record)
                warc += record
                pages.append(url)
            captures.append(capture)
        captures.sort(key=lambda capture: capture[KEY])
        file = folder / f"{INDEX}/crawl={CRAWL}/subset=warc/part-{number:05d}.gz.parquet"
        file.parent.mkdir(parents=True, exist_ok=True)
        table = pa.Table.from_pylist(captures)
        pq.write_table(table, file, compression="gzip", row_group_size=1 << 20)
    (folder / WARC).parent.mkdir(parents=True)
    (folder / WARC).write_bytes(warc)
    for number in range(arguments.urls - len(lookups)):
        lookups.append(f"https://absent{number:07d}.com/articles/{number}.html")
    return random.permutation(lookups).tolist(), pages


def make_capture(
    site: str, path: str, url: str, row: int, random: np.random.Generator
) -> dict[str, Any]:
    """Return a row of the index with all published columns."""
    return {
        KEY: f"com,{site}){path}",
        "url": url,
        "url_host_name": f"www.{site}.com",
        "url_host_tld": "com",
        "url_host_2nd_last_part": site,
        "url_host_3rd_last_part": "www",
        "url_host_4th_last_part": None,
        "url_host_5th_last_part": None,
        "url_host_registry_suffix": "com",
        "url_host_registered_domain": f"{site}.com",
        "url_host_private_suffix": "com",
        "url_host_private_domain": f"{site}.com",
        "url_host_name_reversed": f"com.{site}.www",
        "url_protocol": "https",
        "url_port": None,
        "url_path": path,
        "url_query": None,
        "fetch_time": pa.scalar(FIRST_CAPTURE + row, pa.timestamp("s")).as_py(),
        "fetch_status": 200,
        "fetch_redirect": None,
        "content_digest": base64.b32encode(random.bytes(20)).decode(),
        "content_mime_type": "text/html",
        "content_mime_detected": "text/html",
        "content_charset": "UTF-8",
        "content_languages": "eng",
        "content_truncated": None,
        "warc_filename": f"crawl-data/{CRAWL}/segments/1/warc/{row * 7919 % 64000:05d}.gz",
        "warc_record_offset": int(random.integers(1 << 30)),
        "warc_record_length": int(random.integers(1 << 15)),
        "warc_segment": "1547583650000.1",
    }


def measure_read_share(file: Path) -> float:
    """Return the share of a file's bytes that are in the columns that fetch reads.

    Of a real index, only row groups with a requested key have to be read.
    """
    metadata = pq.read_metadata(file)
    num_read = 0
    num_all = 0
    for group in range(metadata.num_row_groups):
        for column in range(metadata.num_columns):
            chunk = metadata.row_group(group).column(column)
            num_all += chunk.total_compressed_size
            if chunk.path_in_schema in READ_COLUMNS:
                num_read += chunk.total_compressed_size
    return num_read / num_all


def serve(folder: Path) -> None:
    """Serve `/data/FILE` by range, and count requests and bytes."""
    totals: Counter[str] = Counter()
    handler = partial(Handler, folder, totals, threading.Lock())
    server = ThreadingHTTPServer(("127.0.0.1", 0), handler)
    print(f"http://127.0.0.1:{server.server_port}", flush=True)
    server.serve_forever()


class Handler(BaseHTTPRequestHandler):
    """Responds with ranges of files; `/totals` and `/reset` have the counts so far."""

    protocol_version = "HTTP/1.1"
    wbufsize = 1 << 16

    def __init__(self, folder: Path, totals: Counter[str], lock: threading.Lock, *arguments: Any):
        self.folder = folder
        self.totals = totals
        self.lock = lock
        super().__init__(*arguments)

    def do_GET(self) -> None:
        """Send the requested range, or the counts."""
        parts = urlsplit(self.path)
        if parts.path in ("/totals", "/reset"):
            body = json.dumps(self.totals).encode()
            if parts.path == "/reset":
                self.totals.clear()
            self._send(200, body)
            return
        first, last = map(int, self.headers["Range"].removeprefix("bytes=").split("-"))
        with open(self.folder / parts.path.removeprefix("/data/"), "rb") as file:
            file.seek(first)
            body = file.read(last - first + 1)
        with self.lock:
            self.totals.update(requests=1, bytes=len(body))
        self._send(206, body)

    def _send(self, status: int, body: bytes) -> None:
        self.send_response(status)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *arguments: object) -> None:
        """Write no log."""


if __name__ == "__main__":
    sys.exit(main())
