"""One shard of `pages/`: every URL of the shard asked of the sources, in order, and written."""

from __future__ import annotations

from collections.abc import Iterator

import pyarrow as pa

from owt_pipeline.fetch.answers import URL_COLUMNS, Answer, sorted_urls, write_answers
from owt_pipeline.fetch.archives import Archives
from owt_pipeline.runtime import progress
from owt_pipeline.runtime.shards import DatasetReader, ShardWriter


def fetch_shard(
    shard: int, writer: ShardWriter, *, urls: DatasetReader, sources: tuple[str, ...], archives: Archives | None
) -> None:
    """Write shard `shard` of pages/."""
    assert archives is not None
    table = urls.table(shard, columns=["url_id", "host"])
    ids = table["url_id"].combine_chunks().to_numpy()
    with archives.lookup(ids, table["host"].unique().to_pylist()) as lookup:

        def answers(batch: pa.RecordBatch) -> Iterator[Answer]:
            for url_id, created in zip(batch["url_id"].to_pylist(), batch["created_utc"].to_pylist(), strict=True):
                yield lookup.answer(url_id, created)
            progress.advance(batch.num_rows)

        write_answers(writer, sorted_urls(urls, shard, URL_COLUMNS), answers)
