"""A Common Crawl for tests: WARC files, and their columnar index as it is published."""

from __future__ import annotations

import gzip
from collections.abc import Mapping, Sequence
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from surt import surt

INDEX = "cc-index/table/cc-main/warc"

SCHEMA = pa.schema(
    [
        ("url_surtkey", pa.string()),
        ("url", pa.string()),
        ("url_host_name", pa.string()),
        ("fetch_time", pa.timestamp("ms", "UTC")),
        ("fetch_status", pa.int16()),
        ("content_digest", pa.string()),
        ("content_mime_type", pa.string()),
        ("content_mime_detected", pa.string()),
        ("content_charset", pa.string()),
        ("content_truncated", pa.string()),
        ("warc_filename", pa.string()),
        ("warc_record_offset", pa.int32()),
        ("warc_record_length", pa.int32()),
        ("warc_segment", pa.string()),
    ]
)


def row(
    url: str, moment: int, file: str, offset: int, length: int, **fields: Any
) -> dict[str, Any]:
    """Return a row of the index: of a page, except for `fields`."""
    usual = {
        "url_surtkey": surt(url),
        "url": url,
        "url_host_name": url.split("/")[2],
        "fetch_time": moment * 1000,
        "fetch_status": 200,
        "content_digest": f"{moment:032d}",
        "content_mime_type": "text/html",
        "content_mime_detected": "text/html",
        "content_charset": "UTF-8",
        "content_truncated": None,
        "warc_filename": file,
        "warc_record_offset": offset,
        "warc_record_length": length,
        "warc_segment": "1",
    }
    return {**usual, **fields}


def table(rows: Sequence[Mapping[str, Any]], schema: pa.Schema = SCHEMA) -> pa.Table:
    """Return a table of rows of the index."""
    return pa.Table.from_pylist(list(rows), schema)


def parquet(rows: pa.Table, group_rows: int = 1000, **options: Any) -> bytes:
    """Return the bytes of one file of the index."""
    sink = pa.BufferOutputStream()
    pq.write_table(
        rows, sink, row_group_size=group_rows, compression="gzip", compression_level=1, **options
    )
    return sink.getvalue().to_pybytes()


def publish(files: dict[str, bytes], crawls: Mapping[str, pa.Table], num_files: int = 1) -> None:
    """Add the index of each crawl, with `number` files per subset, to `files`, by name."""
    for crawl, rows in crawls.items():
        is_page = pc.equal(rows["fetch_status"], 200)
        for subset, mask in (("warc", is_page), ("crawldiagnostics", pc.invert(is_page))):
            ordered = rows.filter(mask).sort_by("url_surtkey")
            rows_per_file = -(-len(ordered) // num_files)
            for part in range(num_files if rows_per_file or subset == "warc" else 0):
                name = f"{INDEX}/crawl={crawl}/subset={subset}/part-{part:05d}-c000.gz.parquet"
                files[name] = parquet(ordered.slice(part * rows_per_file, rows_per_file))
        names = "\n".join(name for name in files if f"{INDEX}/crawl={crawl}/" in name)
        files[f"crawl-data/{crawl}/cc-index-table.paths.gz"] = gzip.compress(names.encode())
