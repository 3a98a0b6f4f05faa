"""The outcome of each URL of a shard, from the results of all sources: a row of `pages/` with the
place of its record, or a reject."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from owt_pipeline.ledger.commit import ShardWriter
from owt_pipeline.ledger.dataset import empty, rejects_batch, replace_columns
from owt_pipeline.stages.fetch.answers import INDEXED, FetchFailure
from owt_pipeline.stages.fetch.segments import SegmentReader
from schemas import DATASETS, PLACES, Reason
from schemas.reasons import TEMPORARY

PAGES = DATASETS["pages"].schema

# Rows of a shard in memory when it is written. For each such group, all segments are read.
_MAX_ROWS_IN_MEMORY = 1 << 14

_SECONDS_PER_DAY = 86_400

# Days are 32-bit integers; beyond this they are null.
_MAX_DAYS = 1 << 31


def merge_failures(failures: Mapping[str, FetchFailure]) -> FetchFailure:
    """Return why no source has a page, from the failure of each, by source.

    A temporary reason comes first, since that source may have the page. Of the others, the live
    web's comes first, and that an archive lacks the URL comes last. The detail has all of them.
    """
    if len(failures) == 1:
        return next(iter(failures.values()))

    def rank(source: str) -> tuple[bool, ...]:
        reason = failures[source].reason
        return reason not in TEMPORARY, reason == Reason.NOT_ARCHIVED, source != "live"

    details = [
        f"{source}: {failure.reason}, {failure.detail}" for source, failure in failures.items()
    ]
    first = min(failures, key=rank)
    return FetchFailure(failures[first].reason, "; ".join(details))


def write_outcomes(
    writer: ShardWriter,
    ids: np.ndarray,
    read_urls: Callable[[np.ndarray], pa.Table],
    readers: Mapping[str, SegmentReader],
) -> None:
    """Write a shard: its pages and where they lie, and its rejects.

    Args:
      ids: the ids of its URLs.
      read_urls: returns the rows of urls/ with some of these ids.
      readers: the results of each source, in order. The first page counts.
    """
    writer.enter(len(ids))
    num_groups = max(1, -(-len(ids) // _MAX_ROWS_IN_MEMORY))
    file = writer.open_file(".parquet", "places")
    with pq.ParquetWriter(file, PLACES, compression="zstd") as places:
        for group in np.array_split(np.sort(ids), num_groups):
            urls = read_urls(group).sort_by("url_id")
            results = {source: reader.rows(group) for source, reader in readers.items()}
            pages = _write_group(writer, urls, results)
            file.rows += len(pages)
            places.write_table(pages.select(PLACES.names).cast(PLACES))
    writer.refer(file for reader in readers.values() for file in reader.segments)


def _write_group(writer: ShardWriter, urls: pa.Table, results: Mapping[str, pa.Table]) -> pa.Table:
    """Write the rows and rejects of some URLs; return the results that are pages.

    `results` has the results of each source for these URLs. `urls`, each table of `results` and the
    returned table are sorted by `url_id`.
    """
    pages = _first_pages(results)
    has_page = np.isin(urls["url_id"].to_numpy(), pages["url_id"].to_numpy())
    batches = urls.filter(pa.array(has_page)).combine_chunks().to_batches()
    (batch,) = batches or [empty(urls.schema)]
    columns = {name: pages[name].combine_chunks() for name in INDEXED}
    columns["days_after_submission"] = _days(batch["created_utc"], pages["fetched_at"])
    writer.write(replace_columns(batch, PAGES, **columns))
    num_by_source = Counter(pages["source"].to_pylist())
    writer.count({f"from_{source}": num for source, num in num_by_source.items()})
    if len(pages):
        writer.count({"body_bytes": pc.sum(pages["body_bytes"]).as_py()})
    rejected = urls.filter(pa.array(~has_page)).select(["url_id", "url"])
    failures_by_source = {source: _failures(rows) for source, rows in results.items()}
    rejects = []
    for row in rejected.to_pylist():
        url_id = row["url_id"]
        failure = merge_failures(
            {source: failures[url_id] for source, failures in failures_by_source.items()}
        )
        rejects.append((url_id, row["url"], failure.reason, failure.detail))
    writer.reject(rejects_batch(rejects))
    return pages


def _first_pages(results: Mapping[str, pa.Table]) -> pa.Table:
    """Return the first page of each URL, by the order of the sources, in order of `url_id`."""
    known_ids = np.array([], np.uint64)
    tables = []
    for rows in results.values():
        pages = rows.filter(rows["reason"].is_null())
        pages = pages.filter(pa.array(~np.isin(pages["url_id"].to_numpy(), known_ids)))
        tables.append(pages)
        known_ids = np.union1d(known_ids, pages["url_id"].to_numpy())
    return pa.concat_tables(tables).sort_by("url_id").combine_chunks()


def _failures(rows: pa.Table) -> dict[int, FetchFailure]:
    """Return the results that are not pages, by url_id."""
    failed = rows.filter(rows["reason"].is_valid()).select(["url_id", "reason", "detail"])
    return {
        row["url_id"]: FetchFailure(Reason.of(row["reason"]), row["detail"])
        for row in failed.to_pylist()
    }


def _days(submitted: pa.Array, captured: pa.ChunkedArray) -> pa.Array:
    """Return the days from each submission to the capture, rounded.

    They are null if a date is unknown or the number is out of range.
    """
    seconds = captured.to_numpy() - submitted.fill_null(0).to_numpy().astype(float)
    days = np.rint(seconds / _SECONDS_PER_DAY)
    is_known = submitted.is_valid().to_numpy(zero_copy_only=False) & (captured.to_numpy() != 0)
    is_known &= np.abs(days) < _MAX_DAYS
    return pa.array(np.where(is_known, days, 0).astype(np.int32), mask=~is_known)
