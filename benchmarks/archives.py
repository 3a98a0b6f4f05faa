"""Looking up URLs in Common Crawl's columnar index next to DuckDB, and reading their records.

    .venv/bin/python benchmarks/archives.py [--rows 1000000] [--urls 100000] [--pages 2000]

Creates the index of a crawl with all published columns in `--files` Parquet files on the disk, and
its WARC files, which a process on loopback serves; there is no delay between requests. Half of the
URLs are in the index. First they are only looked up (their captures have status 404), then
`--pages` records are read as well. DuckDB looks the same URLs up in the same files, on one core.
Prints the measurements, then an estimate for a real crawl from these rates and published sizes.

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
SPAN = 1_547_000_000, 1_548_500_000

REAL = {"files": 300, "index_bytes": 300e9, "rows": 2.6e9, "urls": 2e6, "found": 0.5}
"""A crawl as it is published (commoncrawl.org/columnar-index), and a month's dead links: half of
them are in it."""


@dataclass(frozen=True)
class Measured:
    """Of one run: seconds, CPU seconds of this process, requests for records and their bytes,
    and the manifest."""

    wall: float
    cpu: float
    totals: Counter[str]
    stats: dict[str, int]


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument(
        "--rows", type=int, default=1_000_000, metavar="N", help="captures (default: 1,000,000)"
    )
    parser.add_argument(
        "--files", type=int, default=24, metavar="N", help="of the index (default: 24)"
    )
    parser.add_argument(
        "--urls", type=int, default=100_000, metavar="N", help="looked up (default: 100,000)"
    )
    parser.add_argument(
        "--pages", type=int, default=2000, metavar="N", help="read (default: 2,000)"
    )
    parser.add_argument("--serve", metavar="DIR", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.serve:
        serve(Path(arguments.serve))
        return 0
    with tempfile.TemporaryDirectory(prefix="archives-") as temporary:
        folder = Path(temporary)
        lookups, pages = make_archive(folder / "data", arguments)
        command = [sys.executable, __file__, "--serve", str(folder / "data")]
        with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as server:
            assert server.stdout is not None
            url = server.stdout.readline().strip()
            try:
                join = measure(folder, "join", lookups[: arguments.urls], url)
                records = measure(folder, "records", pages, url)
            finally:
                server.terminate()
        index = sorted((folder / "data").rglob("*.parquet"))
        size, share = sum(file.stat().st_size for file in index), needed_share(index[0])
        peer = by_duckdb(index, lookups[: arguments.urls])
    report(arguments, join, records, size, share)
    print(
        f"DuckDB: {peer[1]:,} of the {arguments.urls:,} URLs found on the disk, CPU {peer[0]:.1f} s"
    )
    if (found := records.stats["from_commoncrawl"]) != arguments.pages:
        print(f"FAILED: {found:,} of {arguments.pages:,} pages found")
        return 1
    return 0


def report(
    arguments: argparse.Namespace, join: Measured, read: Measured, size: int, share: float
) -> None:
    print(f"index: {arguments.rows:,} captures, {arguments.files} files, {size / 1e6:,.0f} MB, "
          f"of which {share:.0%} in the columns that are read")  # fmt: skip
    print(f"join: {arguments.urls:,} URLs in {join.wall:.1f} s, {arguments.urls / join.wall:,.0f} "
    f"URLs/s, CPU "
          f"{join.cpu:.1f} s")  # fmt: skip
    print(f"records: {arguments.pages:,} pages in {read.wall:.1f} s, {read.totals['requests']:,} "
    f"requests, "
          f"{read.totals['bytes'] / 1e6:,.1f} MB")  # fmt: skip
    core_hours = REAL["rows"] / arguments.rows * join.cpu / 3600
    records, index_bytes = round(REAL["urls"] * REAL["found"]), REAL["index_bytes"] * share
    print(f"\nA real crawl on paper ({REAL['files']:.0f} files, {REAL['index_bytes'] / 1e9:,.0f} "
    f"GB) and "
          f"{REAL['urls']:,.0f} URLs, {REAL['found']:.0%} of them in it: at most "
          f"{index_bytes / 1e9:,.0f} GB read in "
          f"{core_hours:,.1f} core hours, {index_bytes / 12.5e6 / 3600:,.1f} h at 100 Mbit/s; "
          f"{records:,.0f} records "
          f"take {records * 0.1 / 3600:,.1f} h at --cc_delay 0.1, from one address")  # fmt: skip


def measure(folder: Path, name: str, urls: list[str], server: str) -> Measured:
    """Look URLs up in a separate run."""
    runtime = Runtime(Storage(str(folder / name)))
    (folder / f"{name}.txt").write_text("".join(f"{url}\n" for url in urls))
    collect = STAGES["collect"]
    run_stage(collect, collect.options(links=(str(folder / f"{name}.txt"),), num_shards=4), runtime)
    options = Options(
        sources=("commoncrawl",),
        user_agent="benchmark/1 (+mailto:me@example.org)",
        cc_index=str(folder / "data" / INDEX),
        cc_data=f"{server}/data",
        cc_crawls=(CRAWL,),
        cc_delay=0.0,
    )
    urllib.request.urlopen(f"{server}/reset").close()
    wall, cpu = time.perf_counter(), time.process_time()
    manifest = run_stage(STAGE, options, runtime)[0]
    wall, cpu = time.perf_counter() - wall, time.process_time() - cpu
    with urllib.request.urlopen(f"{server}/totals") as answer:
        totals = Counter(json.load(answer))
    return Measured(wall, cpu, totals, manifest.stats)


def by_duckdb(index: list[Path], urls: list[str]) -> tuple[float, int]:
    """(CPU seconds, URLs found) of the same join on the files themselves."""
    import duckdb

    wanted = pa.table({"url": urls})  # found by its name in the query
    started = time.process_time()
    connection = duckdb.connect(config={"threads": 1})
    query = "select count(*) from read_parquet(?) semi join wanted using (url)"
    found = connection.execute(query, [list(map(str, index))]).fetchone()[0]
    del wanted
    return time.process_time() - started, found


def make_archive(folder: Path, arguments: argparse.Namespace) -> tuple[list[str], list[str]]:
    """Write the index and the WARC files; returns (URLs to look up, URLs of pages)."""
    random = np.random.default_rng(0)
    sites = np.sort(random.choice(10_000_000, arguments.rows // 20, replace=False))
    site = np.sort(random.choice(sites, arguments.rows))
    gone = set(random.choice(arguments.rows, arguments.urls // 2, replace=False).tolist())
    paged = {
        int(row) for row in random.choice(arguments.rows, 2 * arguments.pages, replace=False)
    } - gone
    paged = set(sorted(paged)[: arguments.pages])
    lookups, pages = [], []
    warc, warcs = bytearray(), f"crawl-data/{CRAWL}/segments/1/warc/{CRAWL}-00000.warc.gz"
    body = (
        b"<html><body>"
        + b"".join(b"<p>Paragraph %d of a page.</p>" % n for n in range(400))
        + b"</body></html>"
    )
    bounds = np.linspace(0, arguments.rows, arguments.files + 1).astype(int)
    for number in range(arguments.files):
        rows = []
        for row in range(bounds[number], bounds[number + 1]):
            name = f"site{site[row]:07d}"
            path = f"/articles/{row % 7919:04d}/what-happened-on-day-{row:08d}.html"
            url = f"https://www.{name}.com{path}"
            capture = captured(name, path, url, row, random)
            if row in gone:
                capture["fetch_status"] = 404
                lookups.append(url)
            elif row in paged:
                record = response_record(
                    url, SPAN[0] + row, "HTTP/1.1 200 OK", [("Content-Type", "text/html")], body
                )
                capture |= {
                    "warc_filename": warcs,
                    "warc_record_offset": len(warc),
                    "warc_record_length": len(record),
                }
                warc += record
                pages.append(url)
            rows.append(capture)
        rows.sort(key=lambda row: row[KEY])
        path = folder / f"{INDEX}/crawl={CRAWL}/subset=warc/part-{number:05d}.gz.parquet"
        path.parent.mkdir(parents=True, exist_ok=True)
        pq.write_table(pa.Table.from_pylist(rows), path, compression="gzip", row_group_size=1 << 20)
    (folder / warcs).parent.mkdir(parents=True)
    (folder / warcs).write_bytes(warc)
    lookups += [
        f"https://absent{n:07d}.com/articles/{n}.html" for n in range(arguments.urls - len(lookups))
    ]
    return random.permutation(lookups).tolist(), pages


def captured(
    name: str, path: str, url: str, row: int, random: np.random.Generator
) -> dict[str, Any]:
    """A row of the index with all published columns."""
    return {
        KEY: f"com,{name}){path}",
        "url": url,
        "url_host_name": f"www.{name}.com",
        "url_host_tld": "com",
        "url_host_2nd_last_part": name,
        "url_host_3rd_last_part": "www",
        "url_host_4th_last_part": None,
        "url_host_5th_last_part": None,
        "url_host_registry_suffix": "com",
        "url_host_registered_domain": f"{name}.com",
        "url_host_private_suffix": "com",
        "url_host_private_domain": f"{name}.com",
        "url_host_name_reversed": f"com.{name}.www",
        "url_protocol": "https",
        "url_port": None,
        "url_path": path,
        "url_query": None,
        "fetch_time": pa.scalar(SPAN[0] + row, pa.timestamp("s")).as_py(),
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


def needed_share(file: Path) -> float:
    """The share of the index that has to be read: the needed columns of row groups with a wanted
    key."""
    metadata, sizes = pq.read_metadata(file), Counter[bool]()
    for group in range(metadata.num_row_groups):
        for column in range(metadata.num_columns):
            chunk = metadata.row_group(group).column(column)
            sizes[chunk.path_in_schema in (KEY, *CAPTURE_COLUMNS, "content_truncated")] += (
                chunk.total_compressed_size
            )
    return sizes[True] / sizes.total()


def serve(folder: Path) -> None:
    """Serve `/data/FILE` by range, and count requests and bytes."""
    totals, lock = Counter[str](), threading.Lock()
    server = ThreadingHTTPServer(("127.0.0.1", 0), partial(Handler, folder, totals, lock))
    print(f"http://127.0.0.1:{server.server_port}", flush=True)
    server.serve_forever()


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    wbufsize = 1 << 16

    def __init__(self, folder: Path, totals: Counter[str], lock: threading.Lock, *arguments: Any):
        self.folder, self.totals, self.lock = folder, totals, lock
        super().__init__(*arguments)

    def do_GET(self) -> None:
        parts = urlsplit(self.path)
        if parts.path in ("/totals", "/reset"):
            body = json.dumps(self.totals).encode()
            if parts.path == "/reset":
                self.totals.clear()
            self._send(200, body)
        else:
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

    def log_message(self, *arguments: object) -> None: ...


if __name__ == "__main__":
    sys.exit(main())
