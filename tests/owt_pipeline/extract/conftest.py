"""Write a `pages/` dataset as the fetch stage does, from pages given as bytes."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import xxhash

from owt_pipeline.formats.warc import payload_digest, response_record
from owt_pipeline.ledger.commit import ShardWriter
from owt_pipeline.storage.folder import Storage
from schemas import DATASETS, PLACES
from tests.owt_pipeline.making import write_dataset

# This is 2026-01-01.
FETCHED_AT = 1_767_225_600

# The body and the content type of a page by its URL.
Pages = Mapping[str, tuple[bytes, str]]


def write_pages(workdir: Path, pages: Pages, num_shards: int = 1) -> None:
    """Write `pages/` below `workdir`, page i in shard i modulo `num_shards`."""
    items = list(pages.items())

    def write(shard: int, writer: ShardWriter) -> None:
        segment = f"warc/part-{shard:05d}/made.warc.gz"
        records = b""
        rows = []
        places = []
        for url, (body, content_type) in items[shard::num_shards]:
            headers = [("Content-Type", content_type)]
            record = response_record(url, FETCHED_AT, "HTTP/1.1 200 OK", headers, body)
            url_id = xxhash.xxh3_64_intdigest(url.encode())
            row = {
                "url_id": url_id,
                "url": url,
                "final_url": url,
                "source": "archive",
                "content_type": content_type,
                "body_bytes": len(body),
                "payload_digest": payload_digest(body),
                "score": 3,
                "created_utc": 1,
                "subreddits": ["a", "b"],
                "status": 200,
                "fetched_at": FETCHED_AT,
                "fetch_ms": 0,
            }
            place = {
                "url_id": url_id,
                "segment": segment,
                "offset": len(records),
                "length": len(record),
            }
            rows.append(row)
            places.append(place)
            records += record
        Storage(str(workdir)).write(segment, records)
        pq.write_table(pa.Table.from_pylist(places, PLACES), writer.open_file(".parquet", "places"))
        writer.enter(len(rows))
        writer.write(pa.RecordBatch.from_pylist(rows, DATASETS["pages"].schema))

    write_dataset(Storage(str(workdir)), "pages", write, num_shards)


@pytest.fixture(scope="session")
def pages_writer() -> Callable[..., None]:
    """The function `write_pages`."""
    return write_pages


@pytest.fixture(scope="session")
def real_pages(testdata: Path) -> dict[str, tuple[bytes, str]]:
    """The pages of WCXB's dev split."""
    from fastwarc.warc import ArchiveIterator, WarcRecordType

    pages = {}
    with open(testdata / "web" / "wcxb-dev.warc.gz", "rb") as file:
        for record in ArchiveIterator(file, record_types=WarcRecordType.response):
            url = record.headers["WARC-Target-URI"]
            pages[url] = (record.reader.read(), record.http_headers["Content-Type"])
    return pages
