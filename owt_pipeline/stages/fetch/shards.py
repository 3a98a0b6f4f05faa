"""The work of the stage's steps: each source in turn is queried for the URLs of a shard."""

from __future__ import annotations

import asyncio
import dataclasses
import logging
import math
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from operator import itemgetter
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from owt_pipeline import progress
from owt_pipeline.engine.generations import key_sources, pages_of
from owt_pipeline.engine.keys import digest_of
from owt_pipeline.engine.stage import Summary
from owt_pipeline.errors import UserError
from owt_pipeline.ledger.commit import ShardWriter
from owt_pipeline.ledger.dataset import replace_columns
from owt_pipeline.ledger.exchange import Slice, gather
from owt_pipeline.stages.fetch.answers import FetchFailure
from owt_pipeline.stages.fetch.archives.commoncrawl import (
    CAPTURES,
    URL_COLUMNS,
    captures_by_url,
    list_files,
    match,
    send_keys,
)
from owt_pipeline.stages.fetch.archives.search import Capture
from owt_pipeline.stages.fetch.archives.warc_files import Archives, counts_of
from owt_pipeline.stages.fetch.options import (
    SHARDS_TOGETHER,
    digest_of_source,
)
from owt_pipeline.stages.fetch.outcomes import PAGES, write_outcomes
from owt_pipeline.stages.fetch.page_sources import files_of_source, page_source
from owt_pipeline.stages.fetch.recorder import (
    SEGMENT_BYTES,
    Client,
    Recorder,
    ShardLease,
    Superseded,
    split_limits,
    until_stopped,
    with_client,
)
from owt_pipeline.stages.fetch.rounds import check_nothing_lost, order_of, segment_prefix
from owt_pipeline.stages.fetch.segments import SegmentReader, SegmentWriter, isin_sorted
from owt_pipeline.storage.folder import is_gone
from owt_pipeline.version import __version__
from schemas import DATASETS

if TYPE_CHECKING:
    from owt_pipeline.engine.stage import StageRun
    from schemas.manifest import ShardRecord

logger = logging.getLogger("owt")

URLS = DATASETS["urls"].schema

MISSING = pa.schema([("url_id", pa.uint64()), ("shard", pa.uint32())])
"""A URL that no source has yet."""

# Ranges of shards: each part that indexes archive files sends a handle to each of them.
_MAX_RANGES = 128

MAX_INDEX_PARTS = 4096
"""Parts that index archive files. Each sends a handle to each of up to 128 ranges of shards."""

# Rows of urls/ that are read at once.
_BATCH_ROWS = 1 << 14


def set_up(run: StageRun) -> Summary:
    """Return the files to read and the digests of the sources, as properties of the run.

    Raises UserError for an index that cannot be listed, and for an archive file that is missing
    although a shard needs pages from it.
    """
    properties: dict[str, Any] = {"digests": []}
    if run.options.cc_index:
        properties["cc_files"] = list_files(run.options)
    # The numbers of the generations that take pages from a file.
    archives: dict[tuple[str, str, str], list[int]] = {}
    for number, generation in enumerate(run.root.generations):
        options = run.stage.options_of_generation(run.options, run.root, number)
        digests = {
            source: digest_of_source(options, source, files_of_source(generation, source))
            for source in options.order
        }
        properties["digests"].append(digests)
        # The numbers of the files must not depend on which of these shards are finished.
        if generation.first < run.plan.num_settled:
            continue
        for name in options.order:
            for source in files_of_source(generation, name):
                file = (source["name"], digest_of(key_sources([source])), source["uri"])
                archives.setdefault(file, []).append(number)
    properties["archives"] = [(uri, numbers) for (*_, uri), numbers in sorted(archives.items())]
    properties["index_parts"] = min(len(archives), MAX_INDEX_PARTS)
    properties["shards_of_range"] = math.ceil(run.num_shards / _MAX_RANGES)
    properties["missing_archives"] = [uri for uri, _ in properties["archives"] if is_gone(uri)]
    if properties["missing_archives"]:
        _check_not_needed(run, properties)
    return Summary(properties=properties)


def _check_not_needed(run: StageRun, properties: Mapping[str, Any]) -> None:
    """Raise UserError if a shard needs pages from an archive file that is missing."""
    plan = msgspec.structs.replace(run.plan, properties=dict(properties))
    prepared = dataclasses.replace(run, plan=plan)
    missing = set(properties["missing_archives"])
    for shard in sorted(run.plan.pending):
        for source in order_of(run, shard):
            files = files_of_source(run.generation_of(shard), source)
            uris = [file["uri"] for file in files if file["uri"] in missing]
            if uris and ShardFetcher(prepared, shard).needs(source):
                raise UserError(
                    f"--pages_from: {uris[0]} is missing, but the run needs pages from it: restore "
                    "it"
                )


def send_missing(
    run: StageRun, shard: int, slices: Sequence[Slice], writer: ShardWriter, number: int
) -> None:
    """Query the sources before the gathered source `number`, and send it the other URLs.

    `slices` are the captures that Common Crawl has, if it is one of the sources before.
    """
    source = run.options.gathered[number]
    fetcher = ShardFetcher(run, shard, captures_by_url(gather(run.work, slices, CAPTURES)))
    order = order_of(run, shard)
    fetcher.query(order[: order.index(source)])
    known_ids = np.union1d(fetcher.ids_with_page, fetcher.reader(source).ids)
    batches = run.inputs["urls"].batches(shard, columns=URL_COLUMNS, rows=_BATCH_ROWS)
    missing = (
        batch.filter(pa.array(~isin_sorted(batch["url_id"].to_numpy(), known_ids)))
        for batch in batches
    )
    if source == "commoncrawl":
        send_keys(run, shard, missing, writer)
        return
    for batch in missing:
        shards = np.full(batch.num_rows, shard)
        writer.send(0, replace_columns(batch, MISSING, shard=shards))


def query_gathered(
    run: StageRun, key: int, slices: Sequence[Slice], writer: ShardWriter, number: int
) -> None:
    """Query a gathered source for all shards.

    To Common Crawl, they send keys of a part of its index. To another source, they send URLs, in
    the one part that makes all requests to it.
    """
    source = run.options.gathered[number]
    if source == "commoncrawl":
        match(run, key, slices, writer)
        return
    missing = gather(run.work, slices, MISSING)

    async def query(client: Client) -> None:
        for shard in missing["shard"].unique().sort().to_pylist():
            is_of_shard = pc.equal(missing["shard"], shard)
            ids = missing.filter(is_of_shard)["url_id"].to_numpy()
            await ShardFetcher(run, shard).query_online(source, client, ids)

    # One client for all shards keeps the delay between requests.
    with_client(partial(page_source(source).load_client(), run.options), query)


def fetch_part(run: StageRun, shard: int, slices: Sequence[Slice], writer: ShardWriter) -> None:
    """Write a shard of pages/.

    `slices` are the captures that Common Crawl has, if it is the last gathered source.
    """
    fetcher = ShardFetcher(run, shard, captures_by_url(gather(run.work, slices, CAPTURES)))
    order = order_of(run, shard)
    fetcher.query(order)
    # The URLs' memory.
    pa.default_memory_pool().release_unused()
    if str(shard) in run.root.rounds:
        writer.count({"round": run.root.rounds[str(shard)]})
    columns = sorted({"url_id", "url", "created_utc", *PAGES.names}.intersection(URLS.names))
    readers = {source: fetcher.reader(source) for source in order}
    write_outcomes(writer, fetcher.ids, lambda ids: fetcher.read_urls(ids, columns), readers)


def finish(run: StageRun, _: Sequence[ShardRecord]) -> Summary:
    """Return what the manifest records of archives and indexes, and warn of damaged files."""
    properties: dict[str, Any] = {}
    if "cc_files" in run.properties:
        properties["commoncrawl"] = {
            "index": run.options.cc_index,
            "crawls": list(run.options.cc_crawls),
            "files": len(run.properties["cc_files"]),
        }
    archives = _archives_read(run)
    if archives:
        properties["archives"] = archives
    return Summary(properties=properties)


def _archives_read(run: StageRun) -> list[dict[str, Any]]:
    """Return counts and damage of the archive files of all generations, and warn of damage.

    Files of published generations, and files that were deleted, are not read again.
    """
    count_by_file: dict[str, dict[str, Any]] = {}
    if run.published is not None:
        for archive in run.published.properties.get("archives", ()):
            count_by_file[archive["digest"]] = archive
    count_by_uri = counts_of(run)
    archives: dict[str, dict[str, Any]] = {}
    for source in pages_of(run.root.generations):
        (identity,) = key_sources([source])
        digest = digest_of(identity)
        count = count_by_uri.get(source["uri"])
        if count is not None and digest not in archives:
            archives[digest] = {"name": source["name"], "digest": digest, **count}
            _warn_of_archive(archives[digest])
        elif digest in count_by_file:
            archives.setdefault(digest, count_by_file[digest])
    return sorted(archives.values(), key=itemgetter("name", "digest"))


def _warn_of_archive(archive: Mapping[str, Any]) -> None:
    name = archive["name"]
    if "problem" in archive:
        logger.warning("fetch: %s: %s", name, archive["problem"])
    elif not archive["responses"]:
        logger.warning("fetch: %s contains no HTTP response; check what the file is", name)


def _warcinfo(run: StageRun, source: str) -> dict[str, str]:
    """Return the fields of a segment's warcinfo record: who fetched its pages, and how."""
    fields = {
        "software": f"owt-pipeline/{__version__}",
        "format": "WARC File Format 1.1",
        "conformsTo": "http://iipc.github.io/warc-specifications/specifications/warc-format/warc-1.1/",
    }
    if page_source(source).obeys_robots:
        fields["robots"] = "obey (RFC 9309)"
    if page_source(source).is_online:
        fields["http-header-user-agent"] = run.options.user_agent
    fields["description"] = f"answers of the source {source}"
    return fields


class ShardFetcher:
    """Queries the sources for a shard's URLs, each for the URLs that still lack a page.

    Attributes:
      ids: the ids of the shard's URLs.
      ids_with_page: the ids with a page in the sources queried so far, or one that is kept in a
        retry; ascending.
    """

    def __init__(
        self,
        run: StageRun,
        shard: int,
        captures: Mapping[int, list[Capture]] = MappingProxyType({}),
    ):
        """Return a fetcher that knows captures in Common Crawl's index, by `captures_by_url`."""
        self._run = run
        self._shard = shard
        self._captures = captures
        self._order = order_of(run, shard)
        self.ids = run.inputs["urls"].ids(shard)
        self._readers: dict[str, SegmentReader] = {}
        self.ids_with_page = self._ids_that_keep_their_page()

    def _ids_that_keep_their_page(self) -> np.ndarray:
        """Return the ids of a retry that have a page of a later source, because an earlier one
        failed temporarily."""
        kept_ids = np.array([], np.uint64)
        if not self._run.root.rounds.get(str(self._shard)):
            return kept_ids
        asked_ids = self.ids
        for source in self._order:
            reader = self.reader(source)
            kept_ids = np.union1d(kept_ids, np.intersect1d(asked_ids, reader.pages))
            had_result = np.union1d(reader.ids, reader.failed_before)
            asked_ids = np.intersect1d(asked_ids, had_result)
        return kept_ids

    def reader(self, source: str) -> SegmentReader:
        """Return the results of a source that are in segments."""
        if source not in self._readers:
            prefix = segment_prefix(self._run, self._shard, source)
            self._readers[source] = SegmentReader(
                self._run.workdir, self._run.root, self._shard, prefix, self.ids
            )
        return self._readers[source]

    def query(self, sources: Sequence[str]) -> None:
        """Query sources, in order.

        Of a gathered source, only what it has answered is read. Common Crawl has answered with
        captures, so their records are requested.
        """
        for source in sources:
            is_last = source == sources[-1]
            reader = self.reader(source)
            _advance(is_last, len(reader.ids), len(reader.pages))
            is_read_only = page_source(source).is_gathered and source != "commoncrawl"
            if not page_source(source).is_online:
                asyncio.run(self._query_archives(source, is_last))
            elif not is_read_only and len(self._missing(reader, self.ids)):
                with_client(
                    self._make_client(source),
                    partial(self.query_online, source, ids=self.ids, is_last=is_last),
                )
            self.ids_with_page = np.union1d(self.ids_with_page, reader.pages)

    def needs(self, source: str) -> bool:
        """Return whether archive files have to be read, since segments lack results of URLs."""
        known_ids = np.union1d(self.ids_with_page, self.reader(source).ids)
        for earlier in self._order[: self._order.index(source)]:
            known_ids = np.union1d(known_ids, self.reader(earlier).pages)
        return not np.isin(self.ids, known_ids).all()

    def _make_client(self, source: str) -> Callable[[], Client]:
        """Return the function that makes the client of a source for this shard."""
        num_together = min(SHARDS_TOGETHER, len(self._run.plan.pending))
        options = split_limits(self._run.options, num_together)
        client = page_source(source).load_client()
        if source == "commoncrawl":
            return partial(client, options, captures=self._captures)
        return partial(client, options)

    def _missing(self, reader: SegmentReader, ids: np.ndarray) -> np.ndarray:
        """Return the ids without a result of this source or a page of an earlier one."""
        return ids[~isin_sorted(ids, np.union1d(reader.ids, self.ids_with_page))]

    async def query_online(
        self, source: str, client: Client, ids: np.ndarray, is_last: bool = True
    ) -> None:
        """Query a source on the network for the missing ones of the URLs `ids`.

        With `is_last`, it is the last source, so any result counts as progress.
        """
        check_nothing_lost(self._run, self._shard, source)
        reader = self.reader(source)
        while len(self._missing(reader, ids)):
            lease = ShardLease(reader.workdir, reader.folder)
            has_holder = lease.begin()
            is_resumed = has_holder or len(reader.ids) > 0
            try:
                reader.load()
                missing = self._missing(reader, ids)
                not_tried = missing[~isin_sorted(missing, reader.postponed)]
                # At the end of the shard, temporary failures are requested once more.
                is_retry = not len(not_tried)
                ids_to_request = missing if is_retry else not_tried
                if len(ids_to_request):
                    writer = reader.writer(_warcinfo(self._run, source), is_last_try=is_retry)
                    earlier_results = reader if is_resumed else None
                    await self._request(
                        client, ids_to_request, writer, lease, earlier_results, is_last
                    )
            except Superseded:
                await lease.wait_for_other()
            finally:
                lease.end()
            reader.load()

    async def _request(
        self,
        client: Client,
        ids: np.ndarray,
        writer: SegmentWriter,
        lease: ShardLease,
        earlier_results: SegmentReader | None,
        is_last: bool,
    ) -> None:
        """Request the URLs `ids`, and write the results; raises Superseded."""
        async with Recorder(writer, lease, partial(_advance, is_last)) as recorder:
            urls = self.read_urls(ids, client.columns)
            await until_stopped(recorder, client.fetch_all(urls, recorder, earlier_results))

    async def _query_archives(self, source: str, is_last: bool) -> None:
        """Look for the URLs in the archive files of a source.

        The same files give the same segments, also after a kill.
        """
        reader = self.reader(source)
        missing = self._missing(reader, self.ids)
        urls = self.read_urls(missing, ("url_id", "url", "created_utc"))
        if not len(urls):
            return
        urls = urls.sort_by("url_id")
        writer = reader.writer(_warcinfo(self._run, source), date=0)
        columns = [urls[name].to_pylist() for name in urls.column_names]
        files = files_of_source(self._run.generation_of(self._shard), source)
        archives = Archives(self._run, self._shard, columns[0], files)
        for url_id, url, created_utc in zip(*columns, strict=True):
            result = await archives.result(url, created_utc)
            writer.append(url_id, result)
            if isinstance(result, FetchFailure):
                _advance(is_last, 1, 0, {str(result.reason): 1})
            else:
                _advance(is_last, 1, 1)
            if writer.bytes >= SEGMENT_BYTES:
                writer.flush()
        writer.flush()
        reader.load()

    def read_urls(self, ids: np.ndarray, columns: Sequence[str]) -> pa.Table:
        """Read the rows of the shard's URLs with these ids, in one chunk.

        It is a copy, so that the memory of the others is freed.
        """
        sorted_ids = np.sort(ids)
        batches = self._run.inputs["urls"].batches(
            self._shard, columns=list(columns), rows=_BATCH_ROWS
        )
        batches_of_ids = (
            batch.filter(pa.array(isin_sorted(batch["url_id"].to_numpy(), sorted_ids)))
            for batch in batches
        )
        schema = pa.schema([URLS.field(name) for name in columns])
        return pa.Table.from_batches(batches_of_ids, schema).combine_chunks()


def _advance(
    is_last: bool, num_results: int, num_pages: int, failures: Mapping[str, int] | None = None
) -> None:
    """Show progress: a URL is done once it has a page, or a result of the last source."""
    if is_last:
        progress.advance(num_results, failures)
    else:
        progress.advance(num_pages)
