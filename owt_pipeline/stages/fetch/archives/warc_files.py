"""The archive files of `--pages_from` as a source of pages.

The step `index` lists the captures of each file, whose kind knows how (`formats/archives.py`). A
shard finds its URLs in these lists, and reads the best capture of each.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import xxhash

from owt_pipeline.errors import UserError
from owt_pipeline.formats.archives import archive_kind_of
from owt_pipeline.formats.captures import OR_DAMAGED, Broken
from owt_pipeline.formats.urls import BadURL, canonicalize, host_of, id_of
from owt_pipeline.ledger.commit import ShardWriter
from owt_pipeline.ledger.dataset import batch_of
from owt_pipeline.stages.fetch.answers import (
    EARLIEST,
    MAX_REDIRECTS,
    FetchResult,
    Origin,
    target_time,
)
from owt_pipeline.stages.fetch.archives.search import (
    ArchivedRedirect,
    ArchiveQuery,
    Capture,
    best_capture,
    canonical_or_none,
    read_capture,
)
from owt_pipeline.storage.folder import folder_of, open_source
from schemas.manifest import ShardRecord

if TYPE_CHECKING:
    from owt_pipeline.engine.stage import StageRun
    from owt_pipeline.ledger.exchange import Slice
    from owt_pipeline.stages.fetch.options import Options

BUCKETS = 256
"""Parts of a file's index, by hash of the host: a shard reads only the parts of its hosts."""

COUNTS = ("responses", "broken", "unusable")
"""The counts of a file: responses indexed, broken records skipped, responses without a usable
URL."""

_CAPTURES = pa.schema(
    [
        ("url_id", pa.uint64()),
        ("date", pa.int64()),
        ("status", pa.uint16()),
        # The canonical URL that it redirects to; null for another one.
        ("target", pa.string()),
        ("offset", pa.uint64()),
        ("length", pa.uint64()),
    ]
)
"""The index of an archive file: one row for each capture."""

_CAPTURES_OF_FILES = _CAPTURES.append(pa.field("file", pa.int32()))


def index_archive(
    run: StageRun, number: int, _slices: Sequence[Slice], writer: ShardWriter
) -> None:
    """Write the index of an archive's responses, an Arrow file of one batch per bucket.

    Raises UserError for a broken record, unless `--allow_damaged`.
    """
    path = run.properties["archives"][number]
    index = writer.open_file(".index", "index")
    rows_by_bucket: list[list[tuple[Any, ...]]] = [[] for _ in range(BUCKETS)]
    counts = dict.fromkeys(COUNTS, 0)
    first_problem = ""
    with open_source(path) as file:
        for capture in archive_kind_of(path).captures(file):
            if isinstance(capture, Broken):
                if not run.options.allow_damaged:
                    raise UserError(f"{path}: {capture}; {capture.remedy}{OR_DAMAGED}")
                counts["broken"] += 1
                first_problem = first_problem or str(capture)
                continue
            try:
                url, host = canonicalize(capture.url)
            except BadURL:
                counts["unusable"] += 1
                continue
            counts["responses"] += 1
            target = canonical_or_none(capture.location)
            place = (capture.offset, capture.length)
            row = (id_of(url), capture.date, capture.status, target, *place)
            rows_by_bucket[_bucket_of(host)].append(row)
    with pa.ipc.new_file(index, _CAPTURES) as arrow:
        for rows in rows_by_bucket:
            arrow.write_batch(batch_of(rows, _CAPTURES))
    writer.open_file(".txt", "damage").write(first_problem.encode())
    writer.count(counts)


class Archives:
    """Indexed archive files: an `Archive` of the captures that `look_up` has found.

    Attributes:
      files: their paths or URIs.
      folder: the folder of the index step's files.
      records: the index step's records, one per archive file; the shard is the number of the file.
      holdings, max_tries: as of `Archive`.
    """

    max_tries = math.inf

    def __init__(self, run: StageRun, uris: Sequence[str]):
        """Open the indexes of those files of the run that have the paths or URIs `uris`."""
        self.files: list[str] = run.properties["archives"]
        self.holdings = f"{len(uris)} archive files"
        self.folder = run.work
        wanted_uris = set(uris)
        records = run.records_of_step("index")
        self.records = [record for record in records if self.files[record.shard] in wanted_uris]
        self._options: Options = run.options

    def look_up(self, ids: np.ndarray, hosts: Iterable[str]) -> None:
        """Find the captures of the URLs with `ids`, which are on `hosts`, and of the URLs they
        redirect to."""
        captures = _by_id([])
        known_ids: set[int] = set(ids.tolist())
        for _ in range(MAX_REDIRECTS + 1):
            buckets = {_bucket_of(host) for host in hosts}
            further = _by_id(list(self._captures(ids, buckets)))
            captures = _by_id([captures, further])
            # The targets of redirects are not URLs of the shard.
            targets = pc.unique(further["target"]).drop_null().to_pylist()
            target_by_id = {id_of(target): target for target in targets}
            missing = sorted(target_by_id.keys() - known_ids)
            if not missing:
                break
            known_ids.update(missing)
            ids = np.array(missing, np.uint64)
            hosts = [host_of(target_by_id[url_id]) for url_id in missing]
        self._captures_by_id = captures
        self._ids = captures["url_id"].combine_chunks().to_numpy()

    async def result(self, url: str, created_utc: int | None) -> FetchResult:
        """Return the page of a canonical URL, from its capture nearest in time to `created_utc`,
        or the earliest or latest one, by the options.

        Without a date, the nearest one is the earliest.
        """
        time = target_time(self._options.archive_choice, created_utc, EARLIEST)
        return await best_capture(self, ArchiveQuery(url, url, time))

    async def find(self, query: ArchiveQuery) -> list[Capture]:
        url_id = np.uint64(id_of(query.url))
        start = int(np.searchsorted(self._ids, url_id, "left"))
        end = int(np.searchsorted(self._ids, url_id, "right"))
        captures = []
        for row in self._captures_by_id.slice(start, end - start).to_pylist():
            place = (row["file"], row["offset"], row["length"])
            captures.append(Capture(row["date"], row["status"], place=place))
        return captures

    async def read(self, capture: Capture, url: str) -> FetchResult | ArchivedRedirect:
        file, offset, length = capture.place
        path = self.files[file]
        folder, name = folder_of(path)
        content = folder.read_range(name, offset, length)
        record = archive_kind_of(path).read(content, url, capture.date)
        origin = Origin("archive", None, name, offset)
        location = f"at byte {offset} of {name}"
        return read_capture(record, origin, self._options.max_page_bytes, location)

    def _captures(self, ids: np.ndarray, buckets: set[int]) -> Iterator[pa.Table]:
        """Yield the captures of URLs in some buckets of each file."""
        wanted_ids = pa.array(ids, pa.uint64())
        for record in self.records:
            with self.folder.open(_path(record, "index")) as file, pa.ipc.open_file(file) as arrow:
                for bucket in sorted(buckets):
                    batch = arrow.get_batch(bucket)
                    # A file may have no capture of these hosts.
                    if batch.num_rows:
                        batch = batch.filter(pc.is_in(batch["url_id"], wanted_ids))
                    if not batch.num_rows:
                        continue
                    table = pa.Table.from_batches([batch])
                    files = pa.array([record.shard] * len(table), pa.int32())
                    yield table.append_column("file", files)


def counts_of(archives: Archives) -> dict[str, dict[str, Any]]:
    """Return counts and damage of each archive file, by its path or URI, for the manifest."""
    count_by_uri = {}
    for record in archives.records:
        count: dict[str, Any] = {name: record.stats[name] for name in COUNTS}
        problem = archives.folder.read(_path(record, "damage")).decode()
        if problem:
            count["problem"] = problem
        count_by_uri[archives.files[record.shard]] = count
    return count_by_uri


def _by_id(tables: Sequence[pa.Table]) -> pa.Table:
    """Return the captures of several tables, in the order of `url_id`."""
    return pa.concat_tables([_CAPTURES_OF_FILES.empty_table(), *tables]).sort_by("url_id")


def _bucket_of(host: str) -> int:
    return xxhash.xxh3_64_intdigest(host.encode()) % BUCKETS


def _path(record: ShardRecord, kind: str) -> str:
    return next(file.path for file in record.files if file.kind == kind)
