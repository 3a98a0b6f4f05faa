"""Common Crawl: the captures of many URLs by its columnar index, of which only row groups that
may have one are read, and the records of these captures.

    bounds    the files of the index   -> the least and the greatest key of each, by key
    ask       a shard's URLs           -> the keys of those that no earlier source has, by file
    match     the keys sent to a file  -> the captures of their URLs, by shard

The index has about 300 Parquet files per crawl, each roughly sorted by SURT key
(https://commoncrawl.org/columnar-index).
Which of a URL's captures is taken is decided in its shard, where those of all files meet.
"""

from __future__ import annotations

import asyncio
import calendar
import contextlib
import gzip
import time
import zlib
from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from yarl import URL

from owt_pipeline import progress
from owt_pipeline.errors import UserError
from owt_pipeline.formats.messages import is_html
from owt_pipeline.formats.urls import id_of, tracking_pattern, unescaped
from owt_pipeline.ledger.dataset import batch_of
from owt_pipeline.ledger.exchange import Slice, gather
from owt_pipeline.stages.fetch.answers import Answer, FetchFailure, Origin
from owt_pipeline.stages.fetch.archives.search import (
    ArchiveClient,
    ArchivedRedirect,
    ArchiveQuery,
    Capture,
    canonical_or_none,
    read_capture,
    refused,
)
from owt_pipeline.stages.fetch.archives.surt import surt_key
from owt_pipeline.stages.fetch.web.politeness import RequestError
from owt_pipeline.storage.buckets import Bucket
from owt_pipeline.storage.folder import Storage, at_once, folder_of, open_source
from schemas import Reason

if TYPE_CHECKING:
    from owt_pipeline.engine.stage import StageRun
    from owt_pipeline.ledger.commit import ShardWriter
    from owt_pipeline.stages.fetch.options import Options

_CONNECTIONS = 4  # requests for records at once
KEY = "url_surtkey"
_PLACE = ("warc_filename", "warc_record_offset", "warc_record_length")
NEEDED = ("url", "fetch_time", "fetch_status", "content_mime_detected", *_PLACE)
"""The columns of a capture; `content_truncated` is missing in the first years' crawls."""
_TRUNCATED = "content_truncated"

WANTED_WITH = ["url_id", "url", "posted_url"]
"""The columns of urls/ from which keys are made."""

WANTED = pa.schema(
    [("key", pa.binary()), ("url_id", pa.uint64()), ("shard", pa.uint32()), ("url", pa.string())]
)
"""A key to look for, and its URL."""

FOUND = pa.schema(
    [
        ("url_id", pa.uint64()),
        ("shard", pa.uint32()),
        ("date", pa.int64()),
        ("truncated", pa.bool_()),
        ("file", pa.string()),
        ("offset", pa.int64()),
        ("length", pa.int64()),
        ("crawl", pa.string()),
    ]
)
"""A capture of a page, and whose it is."""

_EVERY_KEY = (b"", b"\x7f")  # keys are of ASCII


class IndexFile(msgspec.Struct, frozen=True, array_like=True, order=True):
    """A file of the index, with its least and greatest key."""

    least: bytes
    greatest: bytes
    crawl: str
    uri: str


def list_files(options: Options) -> list[tuple[str, str]]:
    """(crawl, URI) of the index's files that list captures of pages, sorted; raises UserError if
    a crawl has none."""
    found: list[tuple[str, str]] = []
    for crawl in options.cc_crawls:
        folder = f"{options.cc_index.rstrip('/')}/crawl={crawl}/subset=warc/"
        uris = (
            _published(options.index_root, crawl)
            if is_http(folder)
            else map(folder.__add__, Storage(folder).names())
        )
        files = sorted(uri for uri in uris if uri.startswith(folder) and uri.endswith(".parquet"))
        if not files:
            raise UserError(
                f"--cc_crawls {crawl}: no file {folder}*.parquet; give the index as --cc_index and "
                f"crawls that it has"
            )
        found += [(crawl, file) for file in files]
    return found


def _published(root: str, crawl: str) -> list[str]:
    """The URIs of the files of a crawl's index on a web server, as Common Crawl publishes them:
    it has no listing."""
    name = f"crawl-data/{crawl}/cc-index-table.paths.gz"
    try:
        return [
            f"{root}/{path}"
            for path in gzip.decompress(Bucket(root).read(name)[0]).decode().split()
        ]
    except (OSError, EOFError, zlib.error, UnicodeDecodeError) as error:
        raise UserError(
            f"--cc_crawls {crawl}: {root}/{name} is no list of files: {error}"
        ) from error


def is_http(uri: str) -> bool:
    return uri.startswith(("http://", "https://"))


def _open(uri: str) -> pa.NativeFile:
    folder, _, name = uri.rpartition("/")
    return Bucket(folder).open(name) if is_http(uri) else open_source(uri)


def read_bounds(run: StageRun, _number: int, _slices: Sequence[Slice], writer: ShardWriter) -> None:
    """Write the files of the index with their bounds, by which URLs are sent to them; their
    footers are read."""
    found = at_once(lambda file: bounds_of(*file), run.properties["cc_files"])
    writer.open_file(".json", "bounds").write(msgspec.json.encode(sorted(found)))


def bounds_of(crawl: str, uri: str) -> IndexFile:
    """A file of the index with its bounds; raises UserError."""
    with opened(uri) as parquet:
        limits = [_limits(parquet, group) for group in range(parquet.num_row_groups)]
        least, greatest = (
            min((each[0] for each in limits), default=b""),
            max((each[1] for each in limits), default=b""),
        )
        return IndexFile(least, greatest, crawl, uri)


def send_keys(
    run: StageRun, shard: int, urls: Iterable[pa.RecordBatch], writer: ShardWriter
) -> None:
    """Send the keys of URLs (columns WANTED_WITH) to the files of the index that may have them."""
    files = _index(run)
    for batch in urls:
        wanted = wanted_keys(batch, shard)
        keys = wanted["key"].to_pylist()
        for number, file in enumerate(files):
            writer.send(number, wanted[span(keys, file.least, file.greatest)])


def match(run: StageRun, number: int, slices: Sequence[Slice], writer: ShardWriter) -> None:
    """Send each shard the captures of its URLs in a file of the index."""
    file, wanted = _index(run)[number], gather(run.work, slices, WANTED).sort_by("key")
    with opened(file.uri) as parquet:
        found = join(parquet, file.crawl, wanted)
    writer.send(found["shard"].to_numpy(), found)
    progress.advance(len(wanted))


def _index(run: StageRun) -> list[IndexFile]:
    """The files of the index, in the order of their keys."""
    path = next(
        file.path for file in run.records_of_step("bounds")[0].files if file.kind == "bounds"
    )
    return msgspec.json.decode(run.work.read(path), type=list[IndexFile])


@contextlib.contextmanager
def opened(uri: str) -> Iterator[pq.ParquetFile]:
    """A file of the index; raises UserError, also for what the block cannot read of it."""
    try:
        with _open(uri) as source, pq.ParquetFile(source, pre_buffer=True) as parquet:
            missing = [name for name in (KEY, *NEEDED) if name not in parquet.schema_arrow.names]
            if missing:
                raise UserError(
                    f"{uri} has no column {', '.join(missing)}: it is no file of Common Crawl's "
                    f"index"
                )
            yield parquet
    except (pa.ArrowException, OSError) as error:
        problem = " ".join(str(error).split())[:200]
        raise UserError(
            f"{uri} cannot be read: {problem}; a complete copy of the index is needed"
        ) from error


def _limits(parquet: pq.ParquetFile, group: int) -> tuple[bytes, bytes]:
    """The least and the greatest key of a row group."""
    chunk = parquet.metadata.row_group(group).column(parquet.schema_arrow.names.index(KEY))
    if chunk.statistics is None or not chunk.statistics.has_min_max:
        return _EVERY_KEY
    least, greatest = chunk.statistics.min, chunk.statistics.max
    return (least.encode(), greatest.encode()) if isinstance(least, str) else (least, greatest)


def wanted_keys(urls: pa.RecordBatch, shard: int) -> pa.RecordBatch:
    """Rows of WANTED, sorted by key, for URLs (columns WANTED_WITH).

    A URL is looked for in its canonical form and as posted, since an index keeps parameters that
    canonical URLs lack, such as those for tracking; and under its path, ending in `?`, with any
    tracking parameters.
    """
    rows: list[tuple[bytes, int, int, str]] = []
    for number, url, posted in zip(*(urls[name].to_pylist() for name in WANTED_WITH), strict=True):
        keys = {key for key in (surt_key(url), surt_key(unescaped(posted))) if key is not None}
        rows += [(key, number, shard, url) for key in keys | {_path_of(key) for key in keys}]
    return batch_of(sorted(rows), WANTED)


def _path_of(key: bytes) -> bytes:
    return key.partition(b"?")[0] + b"?"


def span(keys: Sequence[bytes], least: bytes, greatest: bytes) -> slice:
    """Those of the sorted keys that rows with keys from `least` to `greatest` may match."""
    first = bisect_left(keys, min(least, _path_of(least)))
    return slice(first, max(first, bisect_right(keys, greatest)))


def join(parquet: pq.ParquetFile, crawl: str, wanted: pa.Table) -> pa.RecordBatch:
    """The pages that a file of the index has of the URLs of `wanted` (of WANTED, sorted by key),
    as rows of FOUND.

    A capture is a URL's if its canonical URL is.
    """
    keys = wanted["key"].to_pylist()
    url_ids, shards = wanted["url_id"].to_pylist(), wanted["shard"].to_pylist()
    whose = dict(zip(wanted["url"].to_pylist(), zip(url_ids, shards, strict=True), strict=True))
    rows: list[tuple[Any, ...]] = []
    for group in range(parquet.num_row_groups):
        some = keys[span(keys, *_limits(parquet, group))]
        for row in _rows(parquet, group, some) if some else ():
            owner = whose.get(canonical_or_none(row["url"]) or "")
            if owner is not None and _is_page(row):
                date, place = (
                    calendar.timegm(row["fetch_time"].utctimetuple()),
                    [row[name] for name in _PLACE],
                )
                rows.append((*owner, date, bool(row.get(_TRUNCATED)), *place, crawl))
    return batch_of(rows, FOUND)


def _rows(parquet: pq.ParquetFile, group: int, keys: Sequence[bytes]) -> list[dict[str, Any]]:
    """The rows of a row group that may be captures of the keys' URLs."""
    column = parquet.read_row_group(group, columns=[KEY])[KEY].cast(pa.binary())
    is_wanted = pc.is_in(column, value_set=pa.array(keys, pa.binary()))
    paths = pa.array([key for key in keys if key.endswith(b"?")], pa.binary())
    perhaps = np.flatnonzero(
        pc.is_in(pc.replace_substring_regex(column, r"\?.*", "?"), value_set=paths).to_numpy()
    )
    tracked = pc.match_substring_regex(
        column.take(pa.array(perhaps)), tracking_pattern()
    ).to_numpy()
    rows = np.union1d(np.flatnonzero(is_wanted.to_numpy()), perhaps[tracked])
    if not len(rows):
        return []
    columns = parquet.read_row_group(group, columns=[*NEEDED, _TRUNCATED])
    return columns.take(pa.array(rows)).to_pylist()  # type: ignore[no-any-return]


def _is_page(row: Mapping[str, Any]) -> bool:
    has_record = (
        row["warc_filename"] and row["warc_record_length"] and row["warc_record_offset"] is not None
    )
    return (
        bool(has_record)
        and row["fetch_status"] == 200
        and is_html(row["content_mime_detected"] or "")
    )


def captures_by_url(found: pa.Table) -> Mapping[int, list[Capture]]:
    """The captures of each URL, by url_id, from rows of FOUND; a place is file, offset, length
    and crawl."""
    captures: dict[int, list[Capture]] = {}
    for number, _, date, truncated, *place in zip(
        *(column.to_pylist() for column in found.columns), strict=True
    ):
        captures.setdefault(number, []).append(
            Capture(date, place=tuple(place), truncated=truncated)
        )
    return captures


class BulkClient(ArchiveClient):
    """Reads the records of captures that are known, in a bucket, in a folder or on a web server.

    There, requests are retried after 403, 429 and 503, with which Common Crawl answers too many
    requests.
    """

    busy = (403, 429, 503)

    def __init__(self, options: Options, captures: Mapping[int, Sequence[Capture]]):
        """A client that knows the captures of URLs, as by `captures_by_url`."""
        self.captures = captures
        super().__init__(options, ", ".join(options.cc_crawls), _CONNECTIONS, options.cc_delay)
        self._data = (options.cc_data or options.index_root).rstrip("/")

    async def find(self, asked: ArchiveQuery) -> Sequence[Capture]:
        """The captures that the index has of the URL."""
        return self.captures.get(id_of(asked.url), ())

    async def read(self, capture: Capture, url: str) -> Answer | ArchivedRedirect:
        file, offset, length, crawl = capture.place
        where = f"{length:,} bytes at {offset} of {file}"
        if length > self._options.max_page_bytes:
            return FetchFailure(
                Reason.TOO_LARGE, f"{where}, more than {self._options.max_page_bytes:,}"
            )
        begun = time.monotonic()
        record = await self.read_range(f"{self._data}/{file.lstrip('/')}", offset, length)
        ms = int((time.monotonic() - begun) * 1000)
        origin = Origin("commoncrawl", crawl, file, offset)
        return await asyncio.to_thread(
            read_capture, record, origin, self._options.max_page_bytes, where, ms, url
        )

    async def read_range(self, uri: str, start: int, length: int) -> bytes:
        """`length` bytes of a file from `start` on; raises RequestError with the reason
        `archive_failed`."""
        where = f"{length:,} bytes at {start} of {uri}"
        if is_http(uri):
            headers = {
                "Range": f"bytes={start}-{start + length - 1}",
                "Accept-Encoding": "identity",
            }
            # The complete file, sent by a server that does not know ranges, is not read.
            response = await self.get(
                where, URL(uri), length, lambda status, _: status != 206, headers=headers
            )
            if response.status != 206:
                raise refused(where, f"status {response.status} where a part (206) was asked for")
            self.works, found = True, response.body
        else:
            folder, name = folder_of(uri)
            try:
                found = await asyncio.to_thread(folder.read_range, name, start, length)
            except (OSError, UserError) as error:
                raise RequestError(Reason.ARCHIVE_FAILED, f"{where}: {error}") from error
        if len(found) != length:
            raise refused(where, f"only {len(found):,} bytes came")
        return found
