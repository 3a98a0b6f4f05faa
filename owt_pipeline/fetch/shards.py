"""One shard of `pages/`: every URL of the shard asked of the sources, in order, and written."""

from __future__ import annotations

import contextlib
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from operator import attrgetter
from typing import Any

import numpy as np
import pyarrow as pa

from owt_pipeline.engine import progress
from owt_pipeline.engine.commit import ShardWriter, record_name, shard_name
from owt_pipeline.engine.dataset import DatasetReader, rejects_batch, replace_columns
from owt_pipeline.engine.storage import Storage
from owt_pipeline.fetch.answers import INDEXED, Answer, NoPage, Page
from owt_pipeline.fetch.archives import Archives, Lookup
from owt_pipeline.fetch.cc_records import CAPTURE
from owt_pipeline.fetch.journal import Journal
from owt_pipeline.fetch.sources import Source, ask_under_claim, shared_loop
from schemas import DATASETS, Reason

PAGES = DATASETS["pages"].schema

URL_COLUMNS = ["url_id", "url", "score", "created_utc", "subreddits"]
"""What `write_answers` needs of urls/."""

_WRITE_BYTES = 1 << 20
_INDEXED_OF = attrgetter(*INDEXED)


@dataclass(frozen=True)
class Sources:
    """Where pages come from.

    Attributes:
      order: their names, in the order in which they are asked.
      archives: for `archive`.
      online: all others, by name.
      on_cluster: whether a host's shards may be the business of several processes.
      captures: of each URL that Common Crawl has, where it was looked up in bulk: the best first, or what they are
        that are no pages. None: it was not.
      crawls: those that were looked through.
      warcinfo: the record that the WARC file begins with; none for pages from archives alone.
    """

    order: tuple[str, ...]
    archives: Archives | None
    online: Mapping[str, Source]
    on_cluster: bool = False
    captures: Mapping[int, tuple[list[dict[str, Any]], str]] | None = None
    crawls: str = ""
    warcinfo: bytes = b""


def fetch_shard(shard: int, writer: ShardWriter, urls: DatasetReader, sources: Sources, work: Storage) -> None:
    """Write shard `shard` of pages/; journals and claims are in `work`."""
    with _lookup(sources.archives, urls, shard) as lookup:
        journals, _ = _ask(sources.order, shard, urls, sources, work, lookup)

        def answers(batch: pa.RecordBatch) -> Iterator[Answer]:
            ids = batch["url_id"].to_pylist()
            journaled = {name: journal.answers(ids) for name, journal in journals.items()}
            for url_id, created in zip(ids, batch["created_utc"].to_pylist(), strict=True):
                known = {name: next(answers) for name, answers in journaled.items()}
                no_pages: dict[str, NoPage] = {}
                for name in sources.order:
                    answer = lookup.answer(url_id, created) if name == "archive" and lookup else known[name]
                    if answer is None and sources.captures is not None:
                        answer = _without_capture(sources, url_id)
                    assert answer is not None
                    if isinstance(answer, Page):
                        yield answer
                        break
                    no_pages[name] = answer
                else:
                    yield nowhere(no_pages)
            if not journals:
                progress.advance(batch.num_rows)

        pa.default_memory_pool().release_unused()  # of the URLs that were asked for
        write_answers(writer, sorted_urls(urls, shard, URL_COLUMNS), answers, sources.warcinfo)


def ask_first(
    names: Sequence[str], shard: int, urls: DatasetReader, sources: Sources, work: Storage, columns: list[str]
) -> Iterator[pa.RecordBatch]:
    """The URLs of a shard of which none of the sources `names` has a page, once these have been asked."""
    with _lookup(sources.archives if "archive" in names else None, urls, shard) as lookup:
        _, found = _ask(names, shard, urls, sources, work, lookup, others_follow=True)
    for batch in urls.batches(shard, columns=columns, rows=1 << 14):
        yield batch.filter(pa.array(~np.isin(batch["url_id"].to_numpy(), found)))


def nowhere(no_pages: dict[str, NoPage]) -> NoPage:
    """Why no source has a page, given what each answered: the live web's reason first, and one that says more than that
    an archive lacks the URL; the detail has them all.
    """
    if len(no_pages) == 1:
        return next(iter(no_pages.values()))
    reason = min(no_pages, key=lambda name: (no_pages[name].reason == Reason.NOT_ARCHIVED, name != "live"))
    detail = "; ".join(f"{name}: {answer.reason}, {answer.detail}" for name, answer in no_pages.items())
    return NoPage(no_pages[reason].reason, detail)


def _ask(
    names: Sequence[str],
    shard: int,
    urls: DatasetReader,
    sources: Sources,
    work: Storage,
    lookup: Lookup | None,
    others_follow: bool = False,
) -> tuple[dict[str, Journal], np.ndarray]:
    """Ask sources, each for what the earlier ones lack: (the journals of those on the network, URLs with a page)."""
    journals: dict[str, Journal] = {}
    found = np.array([], np.uint64)
    for number, name in enumerate(names):
        last = not any(later in sources.online for later in names[number + 1 :])  # on the network
        if name in sources.online:
            journal = journals[name] = Journal(work / "journal" / shard_name(shard) / name)
            _ask_online(name, shard, urls, sources, journal, work, found, last)
            found = np.union1d(found, journal.pages)
        elif lookup is not None and (others_follow or not last):
            pages = _archived(lookup, urls, shard, found)
            progress.advance(len(pages))
            found = np.union1d(found, pages)
    return journals, found


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
        table = _missing(urls, shard, sources.online[name].columns, np.union1d(journal.ids, found))
        return table if name != "commoncrawl" or sources.captures is None else _with_captures(table, sources.captures)

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


def _with_captures(urls: pa.Table, captures: Mapping[int, tuple[list[dict[str, Any]], str]]) -> pa.Table:
    """Those of the URLs that have captures, with a column of them."""
    found = [captures.get(url_id, ([], ""))[0] for url_id in urls["url_id"].to_pylist()]
    urls = urls.append_column("captures", pa.array(found, pa.list_(CAPTURE)))
    return urls.filter(pa.array([bool(each) for each in found], pa.bool_()))


def _without_capture(sources: Sources, url_id: int) -> NoPage:
    """What Common Crawl says of a URL that was not asked for."""
    assert sources.captures is not None
    _, problem = sources.captures.get(url_id, ([], ""))
    return NoPage(Reason.NOT_ARCHIVED, f"no capture of a page in {sources.crawls}" + (problem and f": {problem}"))


@contextlib.contextmanager
def _lookup(archives: Archives | None, urls: DatasetReader, shard: int) -> Iterator[Lookup | None]:
    if archives is None:
        yield None
        return
    table = urls.table(shard, columns=["url_id", "host"])
    with archives.lookup(table["url_id"].combine_chunks().to_numpy(), table["host"].unique().to_pylist()) as lookup:
        yield lookup


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
        indexed: list[tuple[Any, ...]] = []
        columns: dict[str, list[Any]] = {name: [] for name in ("days_after_submission", "warc_offset", "warc_length")}
        rejected = []
        waiting: list[bytes] = []  # written together: a page at a time costs more in calls than in bytes
        end = written = warc.tell()
        for index, answer in enumerate(answers(batch)):
            if isinstance(answer, Page):
                taken.append(index)
                end += sum(map(len, answer.redirects))
                indexed.append(_INDEXED_OF(answer))
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
        columns.update((name, [page[place] for page in indexed]) for place, name in enumerate(INDEXED))
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
