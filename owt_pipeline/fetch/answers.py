"""What became of a URL: a page, or the reason why there is none."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, fields
from typing import Any

import pyarrow as pa

from owt_pipeline.engine.batches import rejects_batch, replace_columns
from owt_pipeline.engine.commit import ShardWriter
from owt_pipeline.engine.dataset import DatasetReader
from owt_pipeline.fetch.acceptance import refuse_body, refuse_head
from owt_pipeline.fetch.warc import Response, payload_digest
from schemas import DATASETS, Reason

PAGES = DATASETS["pages"].schema

_WRITE_BYTES = 1 << 20

URL_COLUMNS = ["url_id", "url", "score", "created_utc", "subreddits"]
"""What `write_answers` needs of urls/."""


@dataclass(frozen=True)
class Page:
    """A page: its index row, but for what comes from urls/ and from its place in the WARC file, and its record.

    The fields are those of `DATASETS["pages"]`; `record` is the WARC record as one gzip member,
    `redirects` are those of the redirects that led there.
    """

    source: str
    final_url: str
    status: int
    content_type: str | None
    fetched_at: int
    fetch_ms: int
    body_bytes: int
    payload_digest: str
    record: bytes
    redirects: tuple[bytes, ...] = ()


@dataclass(frozen=True)
class NoPage:
    """Why there is no page."""

    reason: Reason
    detail: str


Answer = Page | NoPage

INDEXED = tuple(field.name for field in fields(Page) if field.name not in ("record", "redirects"))
"""The fields of a page that are columns of its index."""


def judge(
    response: Response, source: str, fetch_ms: int, record: Callable[[str], bytes], payload: bytes | None = None
) -> Answer:
    """The page that a final response is, or why it is none.

    `record` makes its WARC record, given the digest of `payload`: of the body in it, where that is encoded.
    """
    refusal = refuse_head(response.status, response.content_type) or refuse_body(response.content_type, response.body)
    if refusal is not None:
        return NoPage(*refusal)
    digest = payload_digest(response.body if payload is None else payload)
    return Page(
        source=source,
        final_url=response.url,
        status=response.status,
        content_type=response.content_type,
        fetched_at=response.date,
        fetch_ms=fetch_ms,
        body_bytes=len(response.body),
        payload_digest=digest,
        record=record(digest),
    )


def sorted_urls(urls: DatasetReader, shard: int, columns: list[str], rows: int = 1024) -> Iterator[pa.RecordBatch]:
    """A shard's rows in order of url_id, in batches; `columns` holds `url_id`."""
    ids = urls.table(shard, columns=["url_id"])["url_id"].combine_chunks().to_numpy()
    if (ids[1:] > ids[:-1]).all():
        yield from urls.batches(shard, columns=columns, rows=rows)
    else:
        yield from urls.table(shard, columns=columns).sort_by("url_id").to_batches(max_chunksize=rows)


def write_answers(
    writer: ShardWriter, urls: Iterable[pa.RecordBatch], answers: Callable[[pa.RecordBatch], Iterable[Answer]]
) -> None:
    """Write the shard: its WARC file, index and rejects, in the order of `urls` (batches with URL_COLUMNS).

    `answers` gives the answer of each row of a batch, in order.
    """
    warc, records = writer.open_file(".warc.gz", "warc")
    for batch in urls:
        taken: list[int] = []
        columns: dict[str, list[Any]] = {name: [] for name in (*INDEXED, "warc_offset", "warc_length")}
        rejected = []
        waiting: list[bytes] = []  # written together: a page at a time costs more in calls than in bytes
        end = written = warc.tell()
        for index, answer in enumerate(answers(batch)):
            if isinstance(answer, Page):
                taken.append(index)
                end += sum(map(len, answer.redirects))
                for name in INDEXED:
                    columns[name].append(getattr(answer, name))
                columns["warc_offset"].append(end)
                columns["warc_length"].append(len(answer.record))
                end += len(answer.record)
                waiting += [*answer.redirects, answer.record]
                if end - written > _WRITE_BYTES:
                    written += warc.write(b"".join(waiting))
                    waiting.clear()
                records[0] += len(answer.redirects) + 1
            else:
                url_id, url = batch["url_id"][index].as_py(), batch["url"][index].as_py()
                rejected.append((url_id, url, answer.reason, answer.detail))
        warc.write(b"".join(waiting))
        writer.count({f"from_{source}": count for source, count in Counter(columns["source"]).items()})
        writer.count({"body_bytes": sum(columns["body_bytes"])} if taken else {})
        writer.enter(batch.num_rows)
        writer.write(replace_columns(batch.take(pa.array(taken, pa.int64())), PAGES, **columns))
        writer.reject(rejects_batch(rejected))
