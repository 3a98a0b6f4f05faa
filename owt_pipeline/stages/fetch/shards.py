"""The stage's work once there is some: the sources by its options, and shards of `pages/`, whose
URLs are asked of the sources, in order."""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from owt_pipeline import progress
from owt_pipeline.engine.stage import Summary, recorded_of
from owt_pipeline.errors import UserError
from owt_pipeline.ledger.commit import ShardWriter
from owt_pipeline.ledger.dataset import empty, rejects_batch, replace_columns
from owt_pipeline.ledger.exchange import Slice, gather
from owt_pipeline.stages.fetch.answers import INDEXED, FetchFailure
from owt_pipeline.stages.fetch.archives.commoncrawl import (
    FOUND,
    WANTED_WITH,
    BulkClient,
    captures_by_url,
    list_files,
    match,
    send_keys,
)
from owt_pipeline.stages.fetch.archives.kinds import kind_of
from owt_pipeline.stages.fetch.archives.search import Capture
from owt_pipeline.stages.fetch.archives.warc_files import Archives, summary
from owt_pipeline.stages.fetch.archives.wayback import WaybackClient
from owt_pipeline.stages.fetch.options import (
    ONLINE,
    SHARDS_TOGETHER,
    archives_of,
    digest_of_source,
)
from owt_pipeline.stages.fetch.recorder import (
    SEGMENT_BYTES,
    Client,
    Recorder,
    ShardLease,
    Superseded,
    share,
    until_stopped,
    with_client,
)
from owt_pipeline.stages.fetch.segments import SegmentReader, check_nothing_lost, isin_sorted
from owt_pipeline.stages.fetch.web.live import Fetcher
from owt_pipeline.storage.folder import expand_globs
from owt_pipeline.version import __version__
from schemas import DATASETS, PLACES, Reason
from schemas.reasons import TEMPORARY

if TYPE_CHECKING:
    from owt_pipeline.engine.stage import StageRun
    from owt_pipeline.stages.fetch.options import Options
    from schemas.manifest import ShardRecord

logger = logging.getLogger("owt")

PAGES = DATASETS["pages"].schema

MISSING = pa.schema([("url_id", pa.uint64()), ("shard", pa.uint32())])
"""A URL that no source has yet."""

_WRITTEN_AT_ONCE = 1 << 14
"""Rows of a shard in memory when it is written; for each so many, the answers in all of its
segments are read."""


def set_up(run: StageRun) -> Summary:
    options: Options = run.options
    recorded = recorded_of(run.stage, run.before)
    properties: dict[str, Any] = {}
    if "archive" in options.order:
        files = properties["archives"] = expand_globs(options.pages_from, "--pages_from")
        for archive in archives_of(options, recorded):
            if archive["uri"] not in files:
                where = archive.get("uri", archive["name"])
                raise UserError(
                    f"--pages_from: {where} is gone, and pages are to be made from it: restore it"
                )
    if options.cc_index:
        properties["cc_files"] = list_files(options)
    properties["digests"] = {
        name: digest_of_source(options, name, recorded) for name in options.order
    }
    return Summary(properties=properties)


def send_missing(
    run: StageRun, shard: int, slices: Sequence[Slice], writer: ShardWriter, number: int
) -> None:
    """Ask the sources before the gathered source `number`, and send it the URLs that neither
    they nor it has answered. `slices` are the captures that Common Crawl has, if it is one of
    them."""
    source = run.options.gathered[number]
    asking = ShardFetcher(run, shard, captures_by_url(gather(run.work, slices, FOUND)))
    asking.ask(run.options.order[: run.options.order.index(source)])
    known = np.union1d(asking.found, asking.answered(source).ids)  # ascending
    batches = run.inputs["urls"].batches(shard, columns=WANTED_WITH, rows=1 << 14)
    missing = (
        batch.filter(pa.array(~isin_sorted(batch["url_id"].to_numpy(), known))) for batch in batches
    )
    if source == "commoncrawl":
        send_keys(run, shard, missing, writer)
        return
    for batch in missing:
        writer.send(0, replace_columns(batch, MISSING, shard=np.full(batch.num_rows, shard)))


def ask_gathered(
    run: StageRun, key: int, slices: Sequence[Slice], writer: ShardWriter, number: int
) -> None:
    """Ask a gathered source for what the shards have sent: keys of a part of Common Crawl's
    index, or, in the one part that makes all requests to the Wayback Machine, URLs."""
    if run.options.gathered[number] == "commoncrawl":
        match(run, key, slices, writer)
        return
    missing = gather(run.work, slices, MISSING)

    async def ask(client: WaybackClient) -> None:  # one for all shards, so that the delay is kept
        for shard in missing["shard"].unique().sort().to_pylist():
            ids = missing.filter(pc.equal(missing["shard"], shard))["url_id"].to_numpy()
            await ShardFetcher(run, shard).ask_online("wayback", client, ids)

    with_client(partial(WaybackClient, run.options), ask)


def fetch_part(run: StageRun, shard: int, slices: Sequence[Slice], writer: ShardWriter) -> None:
    """Write a shard of pages/. `slices` are the captures that Common Crawl has, if it is the
    last gathered source."""
    asking = ShardFetcher(run, shard, captures_by_url(gather(run.work, slices, FOUND)))
    asking.ask(run.options.order)
    pa.default_memory_pool().release_unused()  # the URLs' memory
    writer.count(
        {"round": run.root.rounds.get(str(shard), 0)} if str(shard) in run.root.rounds else {}
    )
    columns = {"url_id", "url", "created_utc"}.union(PAGES.names).intersection(
        DATASETS["urls"].schema.names
    )
    answered = {name: asking.answered(name) for name in run.options.order}
    write_shard(writer, asking.ids, lambda ids: asking.urls(ids, sorted(columns)), answered)


def finish(run: StageRun, _: Sequence[ShardRecord]) -> Summary:
    properties: dict[str, Any] = {}
    if "cc_files" in run.properties:
        properties["commoncrawl"] = {
            "index": run.options.cc_index,
            "crawls": list(run.options.cc_crawls),
            "files": len(run.properties["cc_files"]),
        }
    if "archives" in run.properties:
        properties["archives"] = summary(Archives(run))
        for archive in properties["archives"]:
            if "problem" in archive:
                logger.warning("fetch: %s: %s", archive["name"], archive["problem"])
            elif not archive["responses"]:
                name = archive["name"]
                logger.warning(
                    "fetch: %s holds no response to a request: is it %s?", name, kind_of(name).name
                )
    return Summary(properties=properties)


def _about(run: StageRun, source: str) -> dict[str, str]:
    """The fields of a segment's warcinfo record: who fetched its pages, and how."""
    return {
        "software": f"owt-pipeline/{__version__}",
        "format": "WARC File Format 1.1",
        "conformsTo": "http://iipc.github.io/warc-specifications/specifications/warc-format/warc-1.1/",
        **({"robots": "obey (RFC 9309)"} if source == "live" else {}),
        **({"http-header-user-agent": run.options.user_agent} if source in ONLINE else {}),
        "description": f"answers of the source {source}",
    }


class ShardFetcher:
    """Asks the sources for a shard's URLs, each for those of which the sources before it have no
    page.

    Attributes:
      ids: of the shard's URLs.
      found: those of the URLs that have a page in the sources asked so far, or keep it in a retry.
    """

    def __init__(
        self,
        run: StageRun,
        shard: int,
        captures: Mapping[int, list[Capture]] = MappingProxyType({}),
    ):
        """`captures` are those in Common Crawl's columnar index, as by `captures_by_url`."""
        self._run, self._shard, self._captures = run, shard, captures
        self.ids = run.inputs["urls"].ids(shard)
        self._answered: dict[str, SegmentReader] = {}
        self.found = self._settled()

    def _settled(self) -> np.ndarray:
        """Ids of URLs that have a page because a later source was asked when an earlier one
        failed for a while."""
        found, asked = np.array([], np.uint64), self.ids
        for name in self._run.options.order if self._run.root.rounds.get(str(self._shard)) else ():
            answered = self.answered(name)
            found = np.union1d(found, np.intersect1d(asked, answered.pages))
            asked = np.intersect1d(asked, np.union1d(answered.ids, answered.failed_before))
        return found

    def answered(self, name: str) -> SegmentReader:
        """What a source has answered."""
        if name not in self._answered:
            prefix = f"{name}-{self._run.properties['digests'][name]}"
            self._answered[name] = SegmentReader(
                self._run.workdir, self._run.root, self._shard, prefix, self.ids
            )
        return self._answered[name]

    def ask(self, names: Sequence[str]) -> None:
        """Ask sources; the Wayback Machine is not asked here, since one part makes all requests
        to it."""
        clients: dict[str, Callable[..., Client]] = {
            "live": Fetcher,
            "commoncrawl": partial(BulkClient, captures=self._captures),
        }
        for name in names:
            is_last, answered = name == names[-1], self.answered(name)
            _advance(is_last, len(answered.ids), len(answered.pages))
            if name == "archive":
                asyncio.run(self._ask_archives(is_last))
            elif name in clients and len(self._missing(answered, self.ids)):
                options = share(self._run.options, min(SHARDS_TOGETHER, len(self._run.plan.make)))
                with_client(
                    partial(clients[name], options),
                    partial(self.ask_online, name, ids=self.ids, is_last=is_last),
                )
            self.found = np.union1d(self.found, answered.pages)

    def _missing(self, answered: SegmentReader, ids: np.ndarray) -> np.ndarray:
        """Those of the URLs `ids` that neither this source nor an earlier one has answered."""
        return ids[~isin_sorted(ids, np.union1d(answered.ids, self.found))]

    async def ask_online(
        self, name: str, client: Client, ids: np.ndarray, is_last: bool = True
    ) -> None:
        """Ask a source on the network for those of the URLs `ids` that neither it nor an earlier
        source has answered.

        `is_last` says whether it is the last one, so that any answer counts as progress.
        """
        check_nothing_lost(self._run, self._shard, name)
        answered, advance = self.answered(name), partial(_advance, is_last)
        while len(self._missing(answered, ids)):
            attempt = ShardLease(answered.workdir, answered.folder)
            resumed = attempt.begin() or len(answered.ids) > 0
            try:
                answered.load()
                missing = self._missing(answered, ids)
                first = missing[~isin_sorted(missing, answered.postponed)]
                wanted = (
                    first if len(first) else missing
                )  # at the end, temporary failures once more
                writer = answered.writer(_about(self._run, name), is_last=not len(first))
                if len(wanted):
                    async with Recorder(writer, attempt, advance) as recorder:
                        urls, before = (
                            self.urls(wanted, client.columns),
                            answered if resumed else None,
                        )
                        await until_stopped(recorder, client.ask(urls, recorder, before))
            except Superseded:
                await attempt.wait_for_other()
            finally:
                attempt.end()
            answered.load()

    async def _ask_archives(self, is_last: bool) -> None:
        """Look for the URLs in the archive files. The same files give the same segments, also
        after a kill."""
        answered = self.answered("archive")
        urls = self.urls(
            self._missing(answered, self.ids), ("url_id", "host", "url", "created_utc")
        )
        if not len(urls):
            return
        urls = urls.sort_by("url_id")
        writer = answered.writer(_about(self._run, "archive"), date=0)
        archives = Archives(self._run)
        archives.look_up(urls["url_id"].to_numpy(), urls["host"].unique().to_pylist())
        for url_id, _, url, created in zip(
            *(column.to_pylist() for column in urls.columns), strict=True
        ):
            answer = await archives.answer(url, created)
            writer.append(url_id, answer)
            if isinstance(answer, FetchFailure):
                _advance(is_last, 1, 0, {str(answer.reason): 1})
            else:
                _advance(is_last, 1, 1)
            if writer.bytes >= SEGMENT_BYTES:
                writer.flush()
        writer.flush()
        answered.load()

    def urls(self, ids: np.ndarray, columns: Sequence[str]) -> pa.Table:
        """The shard's URLs with these ids, in one chunk: a copy, so that the original is freed."""
        batches = self._run.inputs["urls"].batches(self._shard, columns=list(columns), rows=1 << 14)
        ids = np.sort(ids)
        batches = (
            batch.filter(pa.array(isin_sorted(batch["url_id"].to_numpy(), ids)))
            for batch in batches
        )
        schema = pa.schema([DATASETS["urls"].schema.field(name) for name in columns])
        return pa.Table.from_batches(batches, schema).combine_chunks()


def _advance(
    is_last: bool, answers: int, pages: int, failures: Mapping[str, int] | None = None
) -> None:
    """Show progress: a URL is done once it has a page, or an answer of the last source."""
    if is_last:
        progress.advance(answers, failures)
    else:
        progress.advance(pages)


def merge_failures(no_pages: dict[str, FetchFailure]) -> FetchFailure:
    """Why no source has a page, from the answer of each: a temporary reason first, since that
    source may have the page; then one that says more than that an archive lacks the URL, and the
    live web's. The detail has all of them.
    """
    if len(no_pages) == 1:
        return next(iter(no_pages.values()))

    def rank(name: str) -> tuple[bool, ...]:
        reason = no_pages[name].reason
        return reason not in TEMPORARY, reason == Reason.NOT_ARCHIVED, name != "live"

    detail = "; ".join(
        f"{name}: {answer.reason}, {answer.detail}" for name, answer in no_pages.items()
    )
    return FetchFailure(no_pages[min(no_pages, key=rank)].reason, detail)


def write_shard(
    writer: ShardWriter,
    ids: np.ndarray,
    read: Callable[[np.ndarray], pa.Table],
    answered: Mapping[str, SegmentReader],
) -> None:
    """Write the shard: its pages and where they lie, and its rejects.

    `ids` are those of its URLs, which `read` reads, and `answered` what each source has answered,
    in order: the first page counts, or why no source has one. Memory holds _WRITTEN_AT_ONCE rows.
    """
    writer.enter(len(ids))
    file = writer.open_file(".parquet", "places")
    with pq.ParquetWriter(file, PLACES, compression="zstd") as places:
        for some in np.array_split(np.sort(ids), -(-len(ids) // _WRITTEN_AT_ONCE) or 1):
            pages = _write_rows(
                writer,
                read(some).sort_by("url_id"),
                {n: each.rows(some) for n, each in answered.items()},
            )
            file.rows += len(pages)
            places.write_table(pages.select(PLACES.names).cast(PLACES))
    writer.refer(file for each in answered.values() for file in each.segments)


def _write_rows(writer: ShardWriter, urls: pa.Table, answers: Mapping[str, pa.Table]) -> pa.Table:
    """Write the rows of some URLs; returns the answers that are pages, in order of `url_id`, as
    are both arguments."""
    found, tables = np.array([], np.uint64), []
    for rows in answers.values():
        rows = rows.filter(rows["reason"].is_null())
        rows = rows.filter(pa.array(~np.isin(rows["url_id"].to_numpy(), found)))
        tables.append(rows)
        found = np.union1d(found, rows["url_id"].to_numpy())
    pages = pa.concat_tables(tables).sort_by("url_id").combine_chunks()
    has_page = np.isin(urls["url_id"].to_numpy(), found)
    (batch,) = urls.filter(pa.array(has_page)).combine_chunks().to_batches() or [empty(urls.schema)]
    columns = {name: pages[name].combine_chunks() for name in INDEXED}
    columns["days_after_submission"] = _days(batch["created_utc"], pages["fetched_at"])
    writer.write(replace_columns(batch, PAGES, **columns))
    writer.count(
        {f"from_{source}": count for source, count in Counter(pages["source"].to_pylist()).items()}
    )
    writer.count({"body_bytes": pc.sum(pages["body_bytes"]).as_py()} if len(pages) else {})
    rejected = urls.filter(pa.array(~has_page))
    whys = {name: _no_pages(rows) for name, rows in answers.items()}
    rejects = []
    for url_id, url in zip(
        rejected["url_id"].to_pylist(), rejected["url"].to_pylist(), strict=True
    ):
        why = merge_failures({name: no_pages[url_id] for name, no_pages in whys.items()})
        rejects.append((url_id, url, why.reason, why.detail))
    writer.reject(rejects_batch(rejects))
    return pages


def _no_pages(rows: pa.Table) -> dict[int, FetchFailure]:
    """The answers that are no pages, by url_id."""
    rows = rows.filter(rows["reason"].is_valid()).select(["url_id", "reason", "detail"])
    return {
        each["url_id"]: FetchFailure(Reason.of(each["reason"]), each["detail"])
        for each in rows.to_pylist()
    }


def _days(submitted: pa.Array, captured: pa.ChunkedArray) -> pa.Array:
    """Days from each submission to the capture, rounded; null if a date is unknown or out of
    range."""
    is_known = submitted.is_valid().to_numpy(zero_copy_only=False) & (captured.to_numpy() != 0)
    days = np.rint((captured.to_numpy() - submitted.fill_null(0).to_numpy().astype(float)) / 86_400)
    is_known &= np.abs(days) < 1 << 31
    return pa.array(np.where(is_known, days, 0).astype(np.int32), mask=~is_known)
