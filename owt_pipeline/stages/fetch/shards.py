"""The stage's work once there is some: the sources by its options, and shards of `pages/`, whose URLs are asked of the
sources, in order."""

from __future__ import annotations

import contextlib
import importlib.metadata
import logging
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from operator import attrgetter
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from owt_pipeline import progress
from owt_pipeline.formats.warc import warcinfo_record
from owt_pipeline.ledger.commit import ShardWriter, shard_name
from owt_pipeline.ledger.dataset import DatasetReader, rejects_batch, replace_columns
from owt_pipeline.ledger.exchange import Slice, gather
from owt_pipeline.stages.fetch.answers import INDEXED, Answer, NoPage, Page
from owt_pipeline.stages.fetch.archives import Archives, Lookup, summary
from owt_pipeline.stages.fetch.cc_index import (
    CAPTURE,
    FOUND,
    WANTED_WITH,
    captures_by_url,
    list_files,
    match,
    send_keys,
)
from owt_pipeline.stages.fetch.cc_records import BulkClient
from owt_pipeline.stages.fetch.journal import Journal
from owt_pipeline.stages.fetch.retried import outcomes_that_stay
from owt_pipeline.stages.fetch.sources import LiveClient, Source, ask_source, shared_loop
from owt_pipeline.stages.fetch.wayback import WaybackClient
from owt_pipeline.storage.folder import expand_globs
from schemas import DATASETS, Reason
from schemas.reasons import TEMPORARY

if TYPE_CHECKING:
    from owt_pipeline.engine.stage import StageRun
    from owt_pipeline.stages.fetch.stage import Options
    from schemas.manifest import ShardRecord

logger = logging.getLogger("owt")

PAGES = DATASETS["pages"].schema

URL_COLUMNS = ["url_id", "url", "score", "created_utc", "subreddits"]
"""The columns of urls/ that `write_answers` needs."""

MISSING = pa.schema([("url_id", pa.uint64()), ("shard", pa.uint32())])
"""A URL that no source has yet."""

_WRITE_BYTES = 1 << 20
_INDEXED_OF = attrgetter(*INDEXED)


def prepare(run: StageRun) -> None:
    options: Options = run.options
    if "archive" in options.order:
        run.properties["archives"] = expand_globs(options.pages_from, "--pages_from")
    if options.cc_index:
        run.properties["cc_files"] = list_files(options)


def send_missing(run: StageRun, shard: int, slices: Sequence[Slice], writer: ShardWriter, number: int) -> None:
    """Ask the sources before the gathered source `number`, and send it the URLs that none of them has. `slices` are the
    captures that Common Crawl has, if it is one of them."""
    source = run.options.gathered[number]
    names = run.options.order[: run.options.order.index(source)]
    with _lookup(run, shard, names) as lookup:
        asking = _Asking(run, shard, lookup, captures_by_url(gather(run.work, slices, FOUND)))
        asking.ask(names, others_follow=True)
    batches = run.inputs["urls"].batches(shard, columns=WANTED_WITH, rows=1 << 14)
    missing = (batch.filter(pa.array(~np.isin(batch["url_id"].to_numpy(), asking.found))) for batch in batches)
    if source == "commoncrawl":
        send_keys(run, shard, missing, writer)
        return
    for batch in missing:
        writer.send(0, replace_columns(batch, MISSING, shard=np.full(batch.num_rows, shard)))


def ask_gathered(run: StageRun, key: int, slices: Sequence[Slice], writer: ShardWriter, number: int) -> None:
    """Ask a gathered source for what the shards have sent: keys of a part of Common Crawl's index, or, in the one part
    that makes all requests to the Wayback Machine, URLs."""
    if run.options.gathered[number] == "commoncrawl":
        match(run, key, slices, writer)
        return
    missing = gather(run.work, slices, MISSING)
    with shared_loop(_online(run)):  # held for all shards, so that the delay is kept
        for shard in missing["shard"].unique().sort().to_pylist():
            _Asking(run, shard, None).ask_for("wayback", missing.filter(pc.equal(missing["shard"], shard))["url_id"])


def fetch_part(run: StageRun, shard: int, slices: Sequence[Slice], writer: ShardWriter) -> None:
    """Write a shard of pages/. `slices` are the captures that Common Crawl has, if it is the last gathered source."""
    options: Options = run.options
    with _lookup(run, shard, options.order) as lookup:
        asking = _Asking(run, shard, lookup, captures_by_url(gather(run.work, slices, FOUND)))
        asking.ask(options.order)
        pa.default_memory_pool().release_unused()  # the URLs' memory
        warcinfo = _warcinfo(run) if {"live", "wayback"} & set(options.order) else b""  # archives' pages have theirs
        writer.count({"round": run.root.rounds.get(str(shard), 0)} if str(shard) in run.root.rounds else {})
        write_answers(writer, sorted_urls(run.inputs["urls"], shard, URL_COLUMNS), asking.answers, warcinfo)


def finish(run: StageRun, _: Sequence[ShardRecord]) -> None:
    if "cc_files" in run.properties:
        for record in (
            found for step in ("bounds", "ask_1", "gather_1", "ask_2", "gather_2") for found in run.read_records(step)
        ):
            for name, count in record.stats.items():
                run.stats[f"cc_{name}"] = run.stats.get(f"cc_{name}", 0) + count
        run.properties["commoncrawl"] = {
            "index": run.options.cc_index,
            "crawls": list(run.options.cc_crawls),
            "files": len(run.properties.pop("cc_files")),
        }
    if "archives" in run.properties:
        run.properties["archives"] = summary(Archives(run))
        for archive in run.properties["archives"]:
            if "problem" in archive:
                logger.warning("fetch: %s: %s", archive["name"], archive["problem"])
            elif not archive["responses"]:
                logger.warning("fetch: %s holds no response to a request: is it a WARC or ARC file?", archive["name"])


def _online(run: StageRun) -> dict[str, Source]:
    """The sources on the network, by name."""
    options: Options = run.options
    clients = {"live": LiveClient, "commoncrawl": BulkClient, "wayback": WaybackClient}
    return {name: Source(clients[name], options) for name in options.order if name in clients}


def _warcinfo(run: StageRun) -> bytes:
    """The first record of a WARC file: who fetched its pages, how, and with which settings."""
    fields = {
        "software": f"owt-pipeline/{importlib.metadata.version('owt-pipeline')}",
        "format": "WARC File Format 1.1",
        "conformsTo": "http://iipc.github.io/warc-specifications/specifications/warc-format/warc-1.1/",
        **({"robots": "obey (RFC 9309)"} if "live" in run.options.order else {}),
        "http-header-user-agent": run.options.user_agent,
        "description": f"pages of {run.num_shards} shards, plan {run.name}",
    }
    return warcinfo_record(int(run.started), fields)


@contextlib.contextmanager
def _lookup(run: StageRun, shard: int, names: Sequence[str]) -> Iterator[Lookup | None]:
    """The captures of a shard's URLs in the archive files; None if these are not among the sources `names`."""
    if "archive" not in names:
        yield None
        return
    table = run.inputs["urls"].table(shard, columns=["url_id", "host"])
    ids, hosts = table["url_id"].combine_chunks().to_numpy(), table["host"].unique().to_pylist()
    with Archives(run).lookup(ids, hosts) as lookup:
        yield lookup


class _Asking:
    """Asks the sources for a shard's URLs; journals and attempts are in the run's folder `work`.

    Attributes:
      found: ids of the URLs that have a page in the sources asked so far, or whose outcome stays.
    """

    def __init__(
        self,
        run: StageRun,
        shard: int,
        lookup: Lookup | None,
        captures: Mapping[int, list[dict[str, Any]]] = MappingProxyType({}),
    ):
        """`captures` are those in Common Crawl's columnar index, as by `captures_by_url`."""
        self._run, self._shard, self._lookup, self._captures = run, shard, lookup, captures
        self._online = _online(run)
        self._journals: dict[str, Journal] = {}
        self._stay = outcomes_that_stay(run, shard)
        self.found = self._stay.ids if self._stay is not None else np.array([], np.uint64)
        progress.advance(len(self.found))

    def ask(self, names: Sequence[str], others_follow: bool = False) -> None:
        """Ask sources, each for the URLs that the earlier ones do not have."""
        for number, name in enumerate(names):
            last = not any(later in self._online for later in names[number + 1 :])  # on the network
            if name in self._online:
                self._ask_online(name, last, only_known=name == "wayback")
            elif self._lookup is not None and (others_follow or not last):
                pages = self._archived(self._lookup)
                progress.advance(len(pages))
                self.found = np.union1d(self.found, pages)

    def answers(self, batch: pa.RecordBatch) -> Iterator[Answer]:
        """The answer of each URL of a batch: the first source's page, or why no source has one."""
        ids, order = batch["url_id"].to_pylist(), self._run.options.order
        journaled = {name: journal.answers(ids) for name, journal in self._journals.items()}
        stay = self._stay.answers(batch["url_id"]) if self._stay is not None else {}
        for url_id, url, created in zip(ids, batch["url"].to_pylist(), batch["created_utc"].to_pylist(), strict=True):
            known = {name: next(answers) for name, answers in journaled.items()}
            if url_id in stay:
                yield stay[url_id]
                continue
            no_pages: dict[str, NoPage] = {}
            for name in order:
                answer = self._lookup.answer(url, created) if name == "archive" and self._lookup else known[name]
                assert answer is not None
                if isinstance(answer, Page):
                    yield answer
                    break
                no_pages[name] = answer
            else:
                yield nowhere(no_pages)
        if not self._journals:
            progress.advance(batch.num_rows)

    def ask_for(self, name: str, url_ids: pa.ChunkedArray) -> None:
        """Ask a source on the network for some URLs of the shard."""
        ids = self._run.inputs["urls"].table(self._shard, columns=["url_id"])["url_id"].to_numpy()
        self.found = np.setdiff1d(ids, url_ids.to_numpy())
        self._ask_online(name, last=True)

    def _ask_online(self, name: str, last: bool, only_known: bool = False) -> None:
        """Ask a source on the network for the URLs that neither an earlier source nor its journal has; or, with
        `only_known`, for none.

        `last` says whether it is the last such source, so that any answer counts as progress.
        """
        work = self._run.work
        journal = self._journals[name] = Journal(work / "journal" / shard_name(self._shard) / name)

        def answered(answers: int, pages: int) -> None:
            progress.advance(answers if last else pages)

        def missing() -> pa.Table:
            known, columns = np.union1d(journal.ids, self.found), self._online[name].client.columns
            table = self._without(np.union1d(known, journal.postponed), columns)
            if not table.num_rows and len(journal.postponed):  # at the end, temporary failures once more
                table = self._without(known, columns)
            return _with_captures(table, self._captures) if name == "commoncrawl" else table

        answered(len(journal), len(journal.pages))
        if not only_known and missing().num_rows:
            with shared_loop(self._online) as loop:
                client, attempts, file = loop.crawl.clients[name], work / "attempts" / name, f"{self._shard:05d}"
                have_answered = self._stay.final_urls() if self._stay is not None else []
                loop.run(ask_source(client, attempts, file, journal, missing, answered, have_answered))
        self.found = np.union1d(self.found, journal.pages)

    def _without(self, known: np.ndarray, columns: Sequence[str]) -> pa.Table:
        """The shard's URLs without the known ones, in one chunk: a copy, so that the original is freed."""
        batches = self._run.inputs["urls"].batches(self._shard, columns=list(columns), rows=1 << 16)
        if len(known):
            batches = (batch.filter(pa.array(~np.isin(batch["url_id"].to_numpy(), known))) for batch in batches)
        schema = pa.schema([DATASETS["urls"].schema.field(name) for name in columns])
        return pa.Table.from_batches(batches, schema).combine_chunks()

    def _archived(self, lookup: Lookup) -> np.ndarray:
        """The ids of URLs, other than those found, with a page in the archive files."""
        known = set(self.found.tolist())
        pages = [
            url_id
            for batch in self._run.inputs["urls"].batches(self._shard, columns=["url_id", "url", "created_utc"])
            for url_id, url, created in zip(*(column.to_pylist() for column in batch.columns), strict=True)
            if url_id not in known and isinstance(lookup.answer(url, created), Page)
        ]
        return np.array(pages, np.uint64)


def _with_captures(urls: pa.Table, captures: Mapping[int, list[dict[str, Any]]]) -> pa.Table:
    """The URLs, with a column of the captures of each."""
    found = [captures.get(url_id, []) for url_id in urls["url_id"].to_pylist()]
    return urls.append_column("captures", pa.array(found, pa.list_(CAPTURE)))


def nowhere(no_pages: dict[str, NoPage]) -> NoPage:
    """Why no source has a page, from the answer of each: a temporary reason first, since that source may have the page;
    then one that says more than that an archive lacks the URL, and the live web's. The detail has all of them.
    """
    if len(no_pages) == 1:
        return next(iter(no_pages.values()))

    def rank(name: str) -> tuple[bool, ...]:
        reason = no_pages[name].reason
        return reason not in TEMPORARY, reason == Reason.NOT_ARCHIVED, name != "live"

    detail = "; ".join(f"{name}: {answer.reason}, {answer.detail}" for name, answer in no_pages.items())
    return NoPage(no_pages[min(no_pages, key=rank)].reason, detail)


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

    `answers` returns the answer of each row of a batch, in order. The WARC file begins with `warcinfo`.
    """
    warc = writer.open_file(".warc.gz", "warc")
    warc.write(warcinfo)
    warc.rows += bool(warcinfo)
    for batch in urls:
        taken: list[int] = []
        created = batch["created_utc"].to_pylist()
        indexed: list[tuple[Any, ...]] = []
        rejected = []
        waiting: list[bytes] = []  # written together, which is faster than page by page
        end = written = warc.tell()
        for index, answer in enumerate(answers(batch)):
            if isinstance(answer, Page):
                taken.append(index)
                end += sum(map(len, answer.redirects))
                days = _days(created[index], answer.fetched_at)
                indexed.append((*_INDEXED_OF(answer), days, end, len(answer.record)))
                end += len(answer.record)
                waiting += [*answer.redirects, answer.record]
                if end - written > _WRITE_BYTES:
                    written += warc.write(b"".join(waiting))
                    waiting.clear()
                warc.rows += len(answer.redirects) + 1
            else:
                url_id, url = batch["url_id"][index].as_py(), batch["url"][index].as_py()
                rejected.append((url_id, url, answer.reason, answer.detail))
        warc.write(b"".join(waiting))
        names = (*INDEXED, "days_after_submission", "warc_offset", "warc_length")
        columns = {name: [page[place] for page in indexed] for place, name in enumerate(names)}
        writer.count({f"from_{source}": count for source, count in Counter(columns["source"]).items()})
        writer.count({"body_bytes": sum(columns["body_bytes"])} if taken else {})
        writer.enter(batch.num_rows)
        writer.write(replace_columns(batch.take(pa.array(taken, pa.int64())), PAGES, **columns))
        writer.reject(rejects_batch(rejected))


def _days(submitted: int | None, captured: int) -> int | None:
    """Days from a submission to a capture, rounded; None if a date is unknown or out of range."""
    if submitted is None or not captured:
        return None
    days = round((captured - submitted) / 86_400)
    return days if abs(days) < 1 << 31 else None
