"""One shard of `pages/`: every URL of the shard asked of the sources, in order, and written."""

from __future__ import annotations

import contextlib
import hashlib
import os
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from owt_pipeline.fetch.answers import URL_COLUMNS, Answer, NoPage, Page, sorted_urls, write_answers
from owt_pipeline.fetch.archives import Archives, Lookup
from owt_pipeline.fetch.crawl import crawl, shared_loop
from owt_pipeline.fetch.journal import Journal
from owt_pipeline.fetch.live import Fetcher, LiveOptions
from owt_pipeline.fetch.recorder import Recorder
from owt_pipeline.runtime import progress
from owt_pipeline.runtime.shards import DatasetReader, ShardWriter, shard_name
from owt_pipeline.runtime.storage import Storage

_CRAWL_COLUMNS = ["url_id", "posted_url", "host", "host_shards"]


@dataclass(frozen=True)
class Sources:
    """Where pages come from. Picklable.

    Attributes:
      order: `live` and `warc`, in the order in which they are asked.
      archives: for `warc`.
      live: for `live`.
      spread: whether a host's shards may be the business of several processes.
      journals: the local folder for journals.
    """

    order: tuple[str, ...]
    archives: Archives | None
    live: LiveOptions | None
    spread: bool
    journals: str


def fetch_shard(shard: int, writer: ShardWriter, *, urls: DatasetReader, sources: Sources) -> None:
    """Write shard `shard` of pages/."""
    with contextlib.ExitStack() as stack:
        lookup = stack.enter_context(_lookup(sources.archives, urls, shard)) if sources.archives else None
        journal = None
        if sources.live is not None:
            journal = stack.enter_context(Journal(os.path.join(sources.journals, f"{shard_name(shard)}.journal")))
            archived = _archived(lookup, urls, shard) if lookup and sources.order[0] == "warc" else None
            _crawl_shard(shard, urls, sources, sources.live, journal, archived)

        def answers(batch: pa.RecordBatch) -> Iterator[Answer]:
            ids = batch["url_id"].to_pylist()
            fetched = journal.answers(ids) if journal is not None else iter([None] * len(ids))
            for url_id, created, live in zip(ids, batch["created_utc"].to_pylist(), fetched, strict=True):
                if isinstance(live, Page) or lookup is None:
                    assert live is not None
                    yield live
                else:
                    yield _combined(live, lookup.answer(url_id, created))
            if journal is None:
                progress.advance(batch.num_rows)

        write_answers(writer, sorted_urls(urls, shard, URL_COLUMNS), answers)


def _crawl_shard(
    shard: int,
    urls: DatasetReader,
    sources: Sources,
    live: LiveOptions,
    journal: Journal,
    archived: np.ndarray | None,
) -> None:
    """Fetch what neither an archive nor the journal of an earlier run has."""
    known = journal.ids if archived is None else np.union1d(journal.ids, archived)
    batches = [
        batch.filter(pa.array(~np.isin(batch["url_id"].to_numpy(), known))) if len(known) else batch
        for batch in urls.batches(shard, columns=_CRAWL_COLUMNS, rows=1 << 16)
    ]
    progress.advance(len(known))
    if not any(batch.num_rows for batch in batches):
        return

    with shared_loop(live, Fetcher) as loop, Recorder(journal, progress.advance) as recorder:
        loop.run(crawl(loop.fetcher, pa.Table.from_batches(batches), sources.spread, recorder))


def _lookup(archives: Archives, urls: DatasetReader, shard: int) -> Lookup:
    table = urls.table(shard, columns=["url_id", "host"])
    return archives.lookup(table["url_id"].combine_chunks().to_numpy(), table["host"].unique().to_pylist())


def _archived(lookup: Lookup, urls: DatasetReader, shard: int) -> np.ndarray:
    """The ids of URLs whose page is in the archives."""
    found = [
        url_id
        for batch in urls.batches(shard, columns=["url_id", "created_utc"])
        for url_id, created in zip(batch["url_id"].to_pylist(), batch["created_utc"].to_pylist(), strict=True)
        if isinstance(lookup.answer(url_id, created), Page)
    ]
    return np.array(found, np.uint64)


def _combined(live: Answer | None, archived: Answer) -> Answer:
    """The archive's answer; the reason why there is no live page, where neither has one."""
    if isinstance(live, NoPage) and isinstance(archived, NoPage):
        return NoPage(live.reason, f"{live.detail}; archives: {archived.reason}, {archived.detail}")
    return archived


def journal_folder(work: Storage) -> str:
    """The folder for the journals of a stage whose folder for intermediate steps is `work`.

    It is in `work` itself, where a rerun finds it; for a bucket, which cannot be appended to, in this machine's
    folder for temporary files, by what is being made: a changed option or input must not find another's answers.
    """
    if work.is_local:
        return work.path("journal")
    return os.path.join(tempfile.gettempdir(), "owt-fetch", hashlib.sha256(work.read("plan.json")).hexdigest())
