"""A Common Crawl made for a test: WARC files, and the columnar index of them as it is published."""

from __future__ import annotations

import gzip
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import pyarrow as pa
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


def row(url: str, moment: int, file: str, offset: int, length: int, **fields: Any) -> dict[str, Any]:
    """A row of the index; those of a page, but for `fields`."""
    usual = {
        "url_surtkey": surt(url), "url": url, "url_host_name": url.split("/")[2], "fetch_time": moment * 1000,
        "fetch_status": 200, "content_digest": f"{moment:032d}", "content_mime_type": "text/html",
        "content_mime_detected": "text/html", "content_charset": "UTF-8", "content_truncated": None,
        "warc_filename": file, "warc_record_offset": offset, "warc_record_length": length, "warc_segment": "1",
    }  # fmt: skip
    return {**usual, **fields}


def filler(count: int) -> list[dict[str, Any]]:
    """Rows of pages that nobody asks for, all over the range of keys."""
    rows = []
    for number in range(count):
        top, site, page = ("com", "de", "net", "org", "uk")[number % 5], number % 997, number // 997
        url = f"https://filler{site}.{top}/articles/{page}.html"
        rows.append(row_of_filler(url, f"{top},filler{site})/articles/{page}.html", number))
    assert all(each["url_surtkey"] == surt(each["url"]) for each in rows[:: max(count // 50, 1)])
    return rows


def row_of_filler(url: str, key: str, number: int) -> dict[str, Any]:
    return {
        "url_surtkey": key, "url": url, "url_host_name": url.split("/")[2], "fetch_time": number * 1000,
        "fetch_status": 200, "content_digest": f"{number:032x}", "content_mime_type": "text/html",
        "content_mime_detected": "text/html", "content_charset": "UTF-8", "content_truncated": None,
        "warc_filename": f"crawl-data/filler/{number % 100}.warc.gz", "warc_record_offset": number,
        "warc_record_length": 1000, "warc_segment": "1",
    }  # fmt: skip


def parquet(rows: Sequence[Mapping[str, Any]], group_rows: int = 1000, schema: pa.Schema = SCHEMA) -> bytes:
    """One file of the index."""
    sink = pa.BufferOutputStream()
    pq.write_table(pa.Table.from_pylist(list(rows), schema), sink, row_group_size=group_rows, compression="gzip")
    return sink.getvalue().to_pybytes()


def publish(
    files: dict[str, bytes], crawls: Mapping[str, Iterable[Mapping[str, Any]]], number: int = 1, group_rows: int = 1000
) -> None:
    """Put the index of each crawl, in `number` files, and the list of these into `files`, by their names."""
    for crawl, rows in crawls.items():
        ordered = sorted(rows, key=lambda row: row["url_surtkey"])
        each = -(-len(ordered) // number)
        names = []
        for part in range(number):
            names.append(f"{INDEX}/crawl={crawl}/subset=warc/part-{part:05d}-c000.gz.parquet")
            files[names[-1]] = parquet(ordered[part * each : (part + 1) * each], group_rows)
        others = [name.replace("subset=warc", "subset=robotstxt") for name in names]
        files[f"crawl-data/{crawl}/cc-index-table.paths.gz"] = gzip.compress("\n".join([*names, *others, ""]).encode())
