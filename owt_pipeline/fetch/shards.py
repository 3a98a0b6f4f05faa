"""One shard of `pages/`: every URL of the shard asked of the sources, in order, and written."""

from __future__ import annotations

import contextlib
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa

from owt_pipeline.engine import progress
from owt_pipeline.engine.batches import rejects_batch, replace_columns
from owt_pipeline.engine.commit import ShardWriter, record_name, shard_name
from owt_pipeline.engine.dataset import DatasetReader
from owt_pipeline.engine.storage import Storage
from owt_pipeline.fetch.answers import INDEXED, Answer, NoPage, Page
from owt_pipeline.fetch.archives import Archives, Lookup
from owt_pipeline.fetch.journal import Journal
from owt_pipeline.fetch.sources import Source, ask_under_claim, shared_loop
from schemas import DATASETS, Reason

PAGES = DATASETS["pages"].schema

URL_COLUMNS = ["url_id", "url", "score", "created_utc", "subreddits"]
"""What `write_answers` needs of urls/."""

_WRITE_BYTES = 1 << 20


@dataclass(frozen=True)
class Sources:
    """Where pages come from.

    Attributes:
      order: their names, in the order in which they are asked.
      archives: for `archive`.
      online: all others, by name.
      on_cluster: whether a host's shards may be the business of several processes.
      warcinfo: the record that the WARC file begins with; none for pages from archives alone.
    """

    order: tuple[str, ...]
    archives: Archives | None
    online: Mapping[str, Source]
    on_cluster: bool = False
    warcinfo: bytes = b""


def fetch_shard(shard: int, writer: ShardWriter, urls: DatasetReader, sources: Sources, work: Storage) -> None:
    """Write shard `shard` of pages/; journals and claims are in `work`."""
    with contextlib.ExitStack() as stack:
        lookup = stack.enter_context(_lookup(sources.archives, urls, shard)) if sources.archives else None
        journals: dict[str, Journal] = {}
        found = np.array([], np.uint64)  # URLs whose page some source has: the later ones are not asked for it
        online = [name for name in sources.order if name in sources.online]
        for name in sources.order:
            if name in online:
                journal = journals[name] = Journal(work / "journal" / shard_name(shard) / name)
                _ask_online(name, shard, urls, sources, journal, work, found, last=name == online[-1])
                pages = journal.pages
            elif lookup is not None and len(journals) < len(online):
                pages = _archived(lookup, urls, shard, found)
                progress.advance(len(pages))
            else:
                continue
            found = np.union1d(found, pages)

        def answers(batch: pa.RecordBatch) -> Iterator[Answer]:
            ids = batch["url_id"].to_pylist()
            journaled = {name: journal.answers(ids) for name, journal in journals.items()}
            for url_id, created in zip(ids, batch["created_utc"].to_pylist(), strict=True):
                known = {name: next(answers) for name, answers in journaled.items()}
                told: dict[str, NoPage] = {}
                for name in sources.order:
                    answer = lookup.answer(url_id, created) if name == "archive" and lookup else known[name]
                    assert answer is not None
                    if isinstance(answer, Page):
                        yield answer
                        break
                    told[name] = answer
                else:
                    yield nowhere(told)
            if not journals:
                progress.advance(batch.num_rows)

        pa.default_memory_pool().release_unused()  # of the URLs that were asked for
        write_answers(writer, sorted_urls(urls, shard, URL_COLUMNS), answers, sources.warcinfo)


def nowhere(told: dict[str, NoPage]) -> NoPage:
    """Why no source has a page, given what each told: the live web's reason first, and one that says more than that
    an archive lacks the URL; the detail has them all.
    """
    if len(told) == 1:
        return next(iter(told.values()))
    reason = min(told, key=lambda name: (told[name].reason == Reason.NOT_ARCHIVED, name != "live"))
    detail = "; ".join(f"{name}: {answer.reason}, {answer.detail}" for name, answer in told.items())
    return NoPage(told[reason].reason, detail)


def _ask_online(
    name: str,
    shard: int,
    urls: DatasetReader,
    sources: Sources,
    journal: Journal,
    work: Storage,
    found: np.ndarray,
    last: bool,
) -> None:
    """Ask a source on the network for what neither an earlier source nor its journal has.

    `last` says whether no other such source comes after it, so that its answers are the end of a URL.
    """

    def answered(answers: int, pages: int) -> None:
        """Say how many more URLs are done with: all that have an answer, or those with a page, if others are asked."""
        progress.advance(answers if last else pages)

    def missing() -> pa.Table:
        return _missing(urls, shard, sources.online[name].columns, np.union1d(journal.ids, found))

    answered(len(journal), len(journal.pages))
    if not missing().num_rows:
        return
    with shared_loop(sources.online, sources.on_cluster) as loop:
        claims = work / "claims" / name
        loop.run(ask_under_claim(loop.crawl, name, claims, record_name(shard), journal, missing, answered))


def _missing(urls: DatasetReader, shard: int, columns: Sequence[str], known: np.ndarray) -> pa.Table:
    """The shard's URLs but for the known ones, in one piece: a copy, whose original goes with this call."""
    batches = urls.batches(shard, columns=list(columns), rows=1 << 16)
    if len(known):
        batches = (batch.filter(pa.array(~np.isin(batch["url_id"].to_numpy(), known))) for batch in batches)
    schema = pa.schema([DATASETS["urls"].schema.field(name) for name in columns])
    return pa.Table.from_batches(batches, schema).combine_chunks()


def _lookup(archives: Archives, urls: DatasetReader, shard: int) -> Lookup:
    table = urls.table(shard, columns=["url_id", "host"])
    return archives.lookup(table["url_id"].combine_chunks().to_numpy(), table["host"].unique().to_pylist())


def _archived(lookup: Lookup, urls: DatasetReader, shard: int, found: np.ndarray) -> np.ndarray:
    """The ids of URLs, other than those `found`, whose page is in the archives."""
    known = set(found.tolist())
    pages = [
        url_id
        for batch in urls.batches(shard, columns=["url_id", "created_utc"])
        for url_id, created in zip(batch["url_id"].to_pylist(), batch["created_utc"].to_pylist(), strict=True)
        if url_id not in known and isinstance(lookup.answer(url_id, created), Page)
    ]
    return np.array(pages, np.uint64)


def sorted_urls(urls: DatasetReader, shard: int, columns: list[str], rows: int = 1024) -> Iterator[pa.RecordBatch]:
    """A shard's rows in order of url_id, in batches; `columns` holds `url_id`."""
    ids = urls.table(shard, columns=["url_id"])["url_id"].combine_chunks().to_numpy()
    if (ids[1:] > ids[:-1]).all():
        yield from urls.batches(shard, columns=columns, rows=rows)
    else:
        yield from urls.table(shard, columns=columns).sort_by("url_id").to_batches(max_chunksize=rows)


def write_answers(
    writer: ShardWriter,
    urls: Iterable[pa.RecordBatch],
    answers: Callable[[pa.RecordBatch], Iterable[Answer]],
    warcinfo: bytes,
) -> None:
    """Write the shard: its WARC file, index and rejects, in the order of `urls` (batches with URL_COLUMNS).

    `answers` gives the answer of each row of a batch, in order. The WARC file begins with `warcinfo`.
    """
    warc, records = writer.open_file(".warc.gz", "warc")
    warc.write(warcinfo)
    records[0] += bool(warcinfo)
    for batch in urls:
        taken: list[int] = []
        created = batch["created_utc"].to_pylist()
        columns: dict[str, list[Any]] = {
            name: [] for name in (*INDEXED, "days_after_submission", "warc_offset", "warc_length")
        }
        rejected = []
        waiting: list[bytes] = []  # written together: a page at a time costs more in calls than in bytes
        end = written = warc.tell()
        for index, answer in enumerate(answers(batch)):
            if isinstance(answer, Page):
                taken.append(index)
                end += sum(map(len, answer.redirects))
                for name in INDEXED:
                    columns[name].append(getattr(answer, name))
                columns["days_after_submission"].append(_days(created[index], answer.fetched_at))
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


def _days(submitted: int | None, captured: int) -> int | None:
    """From a submission to a capture, rounded; None where a date is unknown, or of no calendar."""
    if submitted is None or not captured:
        return None
    days = round((captured - submitted) / 86_400)
    return days if abs(days) < 1 << 31 else None
