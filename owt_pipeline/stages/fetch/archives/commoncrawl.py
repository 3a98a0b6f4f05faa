"""Common Crawl: the captures of many URLs by its columnar index, and the records of these
captures. Only row groups of the index that may have one are read.

    bounds    the files of the index   -> the least and the greatest key of each, by key
    ask       a shard's URLs           -> the keys of those that no earlier source has, by file
    match     the keys sent to a file  -> the captures of their URLs, by shard

The index has about 300 Parquet files per crawl, each roughly sorted by SURT key
(https://commoncrawl.org/columnar-index).
A shard decides which capture of a URL is taken, since it has the captures of all files.
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
from typing import TYPE_CHECKING, Any, NamedTuple

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from yarl import URL

from owt_pipeline import progress
from owt_pipeline.errors import UserError, raise_unless_damage
from owt_pipeline.formats.completeness import check_is_complete
from owt_pipeline.formats.messages import is_html
from owt_pipeline.formats.tracking import tracking_pattern
from owt_pipeline.formats.urls import id_of, unescaped
from owt_pipeline.ledger.dataset import batch_of
from owt_pipeline.ledger.exchange import Slice, gather
from owt_pipeline.stages.fetch.answers import FetchFailure, FetchResult, Origin
from owt_pipeline.stages.fetch.archives.client import ArchiveClient, permanent_error
from owt_pipeline.stages.fetch.archives.search import (
    ArchivedRedirect,
    ArchiveQuery,
    Capture,
    canonical_or_none,
    read_capture,
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

# Requests for records at once.
_CONNECTIONS = 4

KEY = "url_surtkey"
_PLACE = ("warc_filename", "warc_record_offset", "warc_record_length")
CAPTURE_COLUMNS = ("url", "fetch_time", "fetch_status", "content_mime_detected", *_PLACE)
"""The columns of a capture; `content_truncated` is missing in the first years' crawls."""
_TRUNCATED = "content_truncated"

URL_COLUMNS = ["url_id", "url", "posted_url"]
"""The columns of urls/ from which keys are made."""

LOOKUPS = pa.schema(
    [("key", pa.binary()), ("url_id", pa.uint64()), ("shard", pa.uint32()), ("url", pa.string())]
)
"""A key to look for, and its URL."""

CAPTURES = pa.schema(
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


class _Bounds(NamedTuple):
    """The least and the greatest key of some rows of the index."""

    min_key: bytes
    max_key: bytes


# Keys are ASCII, so these bounds have every key between them.
_EVERY_KEY = _Bounds(b"", b"\x7f")


class IndexFile(msgspec.Struct, frozen=True, array_like=True, order=True):
    """A file of the index, with its least and greatest key."""

    min_key: bytes
    max_key: bytes
    crawl: str
    uri: str


def list_files(options: Options) -> list[tuple[str, str]]:
    """Return the files of the index that list captures of pages, as (crawl, URI), sorted.

    Raises UserError if a crawl has none.
    """
    files: list[tuple[str, str]] = []
    for crawl in options.cc_crawls:
        folder = f"{options.cc_index.rstrip('/')}/crawl={crawl}/subset=warc/"
        if is_http(folder):
            uris = _list_published(options.index_root, crawl)
        else:
            uris = [f"{folder}{name}" for name in Storage(folder).names()]
        of_pages = [uri for uri in uris if uri.startswith(folder) and uri.endswith(".parquet")]
        if not of_pages:
            raise UserError(
                f"--cc_crawls {crawl}: no file {folder}*.parquet; give the index as --cc_index and "
                "crawls that it has"
            )
        files += [(crawl, uri) for uri in sorted(of_pages)]
    return files


def _list_published(root: str, crawl: str) -> list[str]:
    """Return the URIs of the files of a crawl's index on a web server.

    A web server has no listing. Common Crawl publishes the paths in a file.
    """
    name = f"crawl-data/{crawl}/cc-index-table.paths.gz"
    try:
        content, *_ = Bucket(root).read(name)
        paths = gzip.decompress(content).decode().split()
    except (OSError, EOFError, zlib.error, UnicodeDecodeError) as error:
        raise UserError(
            f"--cc_crawls {crawl}: {root}/{name} is not a list of files: {error}"
        ) from error
    return [f"{root}/{path}" for path in paths]


def is_http(uri: str) -> bool:
    """Return whether a URI is on a web server."""
    return uri.startswith(("http://", "https://"))


def _open(uri: str) -> pa.NativeFile:
    folder, _, name = uri.rpartition("/")
    return Bucket(folder).open(name) if is_http(uri) else open_source(uri)


def read_bounds(run: StageRun, _number: int, _slices: Sequence[Slice], writer: ShardWriter) -> None:
    """Write the files of the index with their bounds, by which URLs are sent to them.

    Only their footers are read.
    """
    files = at_once(lambda file: bounds_of(*file), run.properties["cc_files"])
    writer.open_file(".json", "bounds").write(msgspec.json.encode(sorted(files)))


def bounds_of(crawl: str, uri: str) -> IndexFile:
    """Return a file of the index with its bounds; raises UserError if it cannot be read."""
    with opened(uri) as parquet:
        bounds = [_bounds_of_group(parquet, group) for group in range(parquet.num_row_groups)]
    min_key = min((group.min_key for group in bounds), default=b"")
    max_key = max((group.max_key for group in bounds), default=b"")
    return IndexFile(min_key, max_key, crawl, uri)


def send_keys(
    run: StageRun, shard: int, urls: Iterable[pa.RecordBatch], writer: ShardWriter
) -> None:
    """Send the keys of URLs (columns URL_COLUMNS) to the files of the index that may have them."""
    files = _index_files(run)
    for batch in urls:
        # Both are in the order of their keys, so a file's part is a slice.
        lookups = lookups_of(batch, shard)
        keys = lookups["key"].to_pylist()
        for number, file in enumerate(files):
            writer.send(number, lookups[span(keys, file.min_key, file.max_key)])


def match(run: StageRun, number: int, slices: Sequence[Slice], writer: ShardWriter) -> None:
    """Send each shard the captures of its URLs in a file of the index."""
    file = _index_files(run)[number]
    lookups = gather(run.work, slices, LOOKUPS).sort_by("key")
    with opened(file.uri) as parquet:
        captures = join(parquet, file.crawl, lookups)
    writer.send(captures["shard"].to_numpy(), captures)
    progress.advance(len(lookups))


def _index_files(run: StageRun) -> list[IndexFile]:
    """Return the files of the index, in the order of their keys."""
    (record,) = run.records_of_step("bounds")
    path = next(file.path for file in record.files if file.kind == "bounds")
    return msgspec.json.decode(run.work.read(path), type=list[IndexFile])


@contextlib.contextmanager
def opened(uri: str) -> Iterator[pq.ParquetFile]:
    """Open a file of the index; raises UserError, also for what the block cannot read of it."""
    try:
        with _open(uri) as source, pq.ParquetFile(source, pre_buffer=True) as parquet:
            missing = [
                name for name in (KEY, *CAPTURE_COLUMNS) if name not in parquet.schema_arrow.names
            ]
            if missing:
                raise UserError(
                    f"{uri} has no column {', '.join(missing)}: it is not a file of Common Crawl's "
                    "index"
                )
            yield parquet
    except (pa.ArrowException, OSError) as error:
        raise_unless_damage(error, uri)
        problem = " ".join(str(error).split())[:200]
        raise UserError(
            f"{uri} cannot be read: {problem}; a complete copy of the index is needed"
        ) from error


def _bounds_of_group(parquet: pq.ParquetFile, group: int) -> _Bounds:
    """Return the bounds of a row group, by its statistics."""
    column = parquet.schema_arrow.names.index(KEY)
    statistics = parquet.metadata.row_group(group).column(column).statistics
    if statistics is None or not statistics.has_min_max:
        return _EVERY_KEY
    if isinstance(statistics.min, str):
        return _Bounds(statistics.min.encode(), statistics.max.encode())
    return _Bounds(statistics.min, statistics.max)


def lookups_of(urls: pa.RecordBatch, shard: int) -> pa.RecordBatch:
    """Return rows of LOOKUPS, sorted by key, for URLs (columns URL_COLUMNS).

    A URL is looked for in its canonical form and as posted, since an index keeps parameters that
    canonical URLs lack, such as those for tracking; and under its path, ending in `?`, with any
    tracking parameters.
    """
    rows: list[tuple[bytes, int, int, str]] = []
    columns = [urls[name].to_pylist() for name in URL_COLUMNS]
    for url_id, url, posted in zip(*columns, strict=True):
        keys = {key for key in (surt_key(url), surt_key(unescaped(posted))) if key is not None}
        keys |= {_path_of(key) for key in keys}
        rows += [(key, url_id, shard, url) for key in keys]
    return batch_of(sorted(rows), LOOKUPS)


def _path_of(key: bytes) -> bytes:
    return key.partition(b"?")[0] + b"?"


def span(keys: Sequence[bytes], min_key: bytes, max_key: bytes) -> slice:
    """Return where the sorted keys may match rows with keys from `min_key` to `max_key`."""
    first = bisect_left(keys, min(min_key, _path_of(min_key)))
    return slice(first, max(first, bisect_right(keys, max_key)))


def join(parquet: pq.ParquetFile, crawl: str, lookups: pa.Table) -> pa.RecordBatch:
    """Return the pages that a file of the index has of the URLs of `lookups`, as rows of CAPTURES.

    `lookups` has rows of LOOKUPS, sorted by key. A capture is a URL's if its canonical URL is.
    """
    keys = lookups["key"].to_pylist()
    owners = zip(lookups["url_id"].to_pylist(), lookups["shard"].to_pylist(), strict=True)
    owner_by_url = dict(zip(lookups["url"].to_pylist(), owners, strict=True))
    rows: list[tuple[Any, ...]] = []
    for group in range(parquet.num_row_groups):
        bounds = _bounds_of_group(parquet, group)
        keys_of_group = keys[span(keys, bounds.min_key, bounds.max_key)]
        if not keys_of_group:
            continue
        for row in _rows_that_may_match(parquet, group, keys_of_group):
            # Keys ignore more than canonical URLs do, such as case.
            owner = owner_by_url.get(canonical_or_none(row["url"]) or "")
            if owner is None or not _is_page(row):
                continue
            date = calendar.timegm(row["fetch_time"].utctimetuple())
            place = [row[name] for name in _PLACE]
            rows.append((*owner, date, bool(row.get(_TRUNCATED)), *place, crawl))
    return batch_of(rows, CAPTURES)


def _rows_that_may_match(
    parquet: pq.ParquetFile, group: int, keys: Sequence[bytes]
) -> list[dict[str, Any]]:
    """Return the rows of a row group that may be captures of the keys' URLs."""
    column = _read_group(parquet, group, [KEY])[KEY].cast(pa.binary())
    has_key = pc.is_in(column, value_set=pa.array(keys, pa.binary())).to_numpy()
    # Rows with the path of a key and other parameters count if these only track.
    paths = pa.array([key for key in keys if key.endswith(b"?")], pa.binary())
    path_of_row = pc.replace_substring_regex(column, r"\?.*", "?")
    has_path = np.flatnonzero(pc.is_in(path_of_row, value_set=paths).to_numpy())
    only_tracks = pc.match_substring_regex(column.take(pa.array(has_path)), tracking_pattern())
    rows = np.union1d(np.flatnonzero(has_key), has_path[only_tracks.to_numpy()])
    if not len(rows):
        return []
    columns = _read_group(parquet, group, [*CAPTURE_COLUMNS, _TRUNCATED])
    return columns.take(pa.array(rows)).to_pylist()  # type: ignore[no-any-return]


def _read_group(parquet: pq.ParquetFile, group: int, columns: list[str]) -> pa.Table:
    """Return columns of a row group; raise OSError if it has fewer rows than it declares."""
    table = parquet.read_row_group(group, columns=columns)
    num_declared = parquet.metadata.row_group(group).num_rows
    check_is_complete(f"row group {group}", table.num_rows, num_declared, "rows")
    return table


def _is_page(row: Mapping[str, Any]) -> bool:
    has_file = row["warc_filename"] and row["warc_record_length"]
    has_record = bool(has_file) and row["warc_record_offset"] is not None
    is_complete = row["fetch_status"] == 200
    return has_record and is_complete and is_html(row["content_mime_detected"] or "")


def captures_by_url(rows_of_captures: pa.Table) -> Mapping[int, list[Capture]]:
    """Return the captures of each URL, by url_id, from rows of CAPTURES.

    The place of a capture is file, offset, length and crawl.
    """
    captures: dict[int, list[Capture]] = {}
    columns = [column.to_pylist() for column in rows_of_captures.columns]
    for url_id, _shard, date, truncated, *place in zip(*columns, strict=True):
        capture = Capture(date, place=tuple(place), truncated=truncated)
        captures.setdefault(url_id, []).append(capture)
    return captures


class BulkClient(ArchiveClient):
    """Reads the records of captures that are known, in a bucket, in a folder or on a web server.

    There, requests are retried after 403, 429 and 503, with which Common Crawl answers too many
    requests.
    """

    busy = (403, 429, 503)

    def __init__(self, options: Options, captures: Mapping[int, Sequence[Capture]]):
        """Return a client that knows the captures of URLs, as by `captures_by_url`."""
        self.captures = captures
        super().__init__(options, ", ".join(options.cc_crawls), _CONNECTIONS, options.cc_delay)
        self._data = (options.cc_data or options.index_root).rstrip("/")

    async def find(self, query: ArchiveQuery) -> Sequence[Capture]:
        """Return the captures that the index has of the URL."""
        return self.captures.get(id_of(query.url), ())

    async def read(self, capture: Capture, url: str) -> FetchResult | ArchivedRedirect:
        file, offset, length, crawl = capture.place
        max_bytes = self._options.max_page_bytes
        location = f"{length:,} bytes at {offset} of {file}"
        if length > max_bytes:
            return FetchFailure(Reason.TOO_LARGE, f"{location}, more than {max_bytes:,}")
        started = time.monotonic()
        content = await self.read_range(f"{self._data}/{file.lstrip('/')}", offset, length)
        ms = int((time.monotonic() - started) * 1000)
        origin = Origin("commoncrawl", crawl, file, offset)
        # In a thread, since it decompresses the record.
        return await asyncio.to_thread(read_capture, content, origin, max_bytes, location, ms, url)

    async def read_range(self, uri: str, start: int, length: int) -> bytes:
        """Return `length` bytes of a file from `start` on.

        Raises RequestError with the reason `archive_failed`.
        """
        location = f"{length:,} bytes at {start} of {uri}"
        if is_http(uri):
            content = await self._read_range_over_http(location, uri, start, length)
        else:
            folder, name = folder_of(uri)
            try:
                content = await asyncio.to_thread(folder.read_range, name, start, length)
            except (OSError, UserError) as error:
                raise RequestError(Reason.ARCHIVE_FAILED, f"{location}: {error}") from error
        if len(content) != length:
            raise permanent_error(location, f"only {len(content):,} bytes came")
        return content

    async def _read_range_over_http(
        self, location: str, uri: str, start: int, length: int
    ) -> bytes:
        headers = {"Range": f"bytes={start}-{start + length - 1}", "Accept-Encoding": "identity"}
        # The complete file, sent by a server that does not know ranges, is not read.
        response = await self.get(
            location, URL(uri), length, lambda status, _: status != 206, headers=headers
        )
        if response.status != 206:
            problem = f"status {response.status} where a part (206) was asked for"
            raise permanent_error(location, problem)
        self.works = True
        return response.body
