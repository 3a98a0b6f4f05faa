"""Archive files as a source of pages: an index of each file, and the capture of a URL nearest to
its submission."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import xxhash

from owt_pipeline.errors import UserError
from owt_pipeline.formats.captures import OR_DAMAGED, Broken
from owt_pipeline.formats.urls import BadURL, canonicalize, host_of, id_of
from owt_pipeline.ledger.commit import ShardWriter
from owt_pipeline.ledger.dataset import batch_of
from owt_pipeline.stages.fetch.answers import EARLIEST, MAX_REDIRECTS, Answer, Origin, target_time
from owt_pipeline.stages.fetch.archives.kinds import kind_of
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
"""Parts of a file's index, by hash of the host: a shard reads only those of its hosts."""

COUNTS = ("responses", "broken", "unusable")
"""What is counted in a file: responses indexed, broken records skipped, responses without a
usable URL."""

_CAPTURES = pa.schema(
    [
        ("url_id", pa.uint64()),
        ("date", pa.int64()),
        ("status", pa.uint16()),
        ("target", pa.string()),  # canonical URL it redirects to
        ("offset", pa.uint64()),
        ("length", pa.uint64()),
    ]
)


def index_archive(
    run: StageRun, number: int, _slices: Sequence[Slice], writer: ShardWriter
) -> None:
    """Write the index of an archive's responses, an Arrow file of one batch per bucket."""
    path = run.properties["archives"][number]
    index = writer.open_file(".index", "index")
    buckets: list[list[tuple]] = [[] for _ in range(BUCKETS)]
    counts, first = dict.fromkeys(COUNTS, 0), ""  # problem
    with open_source(path) as file:
        for capture in kind_of(path).captures(file):
            if isinstance(capture, Broken):
                if not run.options.allow_damaged:
                    raise UserError(f"{path}: {capture}; {capture.remedy}{OR_DAMAGED}")
                counts["broken"] += 1
                first = first or str(capture)
                continue
            try:
                url, host = canonicalize(capture.url)
            except BadURL:
                counts["unusable"] += 1
                continue
            counts["responses"] += 1
            buckets[_bucket(host)].append(
                (id_of(url), capture.date, capture.status, canonical_or_none(capture.location),
                 capture.offset, capture.length)
            )  # fmt: skip
    with pa.ipc.new_file(index, _CAPTURES) as arrow:
        for rows in buckets:
            arrow.write_batch(batch_of(rows, _CAPTURES))
    writer.open_file(".txt", "damage").write(first.encode())
    writer.count(counts)


class Archives:
    """Indexed archive files: an `Archive` of the captures that `look_up` has found.

    Attributes:
      files: their paths or URIs.
      folder: the folder of the index step's files.
      records: the index step's records, one per archive file.
    """

    tries = math.inf

    def __init__(self, run: StageRun):
        self.files: list[str] = run.properties["archives"]
        self.holdings = f"{len(self.files)} archive files"
        self.folder, self.records = run.work, run.records_of_step("index")
        self._options: Options = run.options

    def look_up(self, ids: np.ndarray, hosts: Iterable[str]) -> None:
        """Find the captures of the URLs with `ids`, which are on `hosts`, and of the URLs they
        redirect to."""
        found = _by_id([])
        asked: set[int] = set(ids.tolist())
        for _ in range(MAX_REDIRECTS + 1):
            new = _by_id(list(self._captures(ids, {_bucket(host) for host in hosts})))
            found = _by_id([found, new])
            targets = {
                id_of(url): url for url in pc.unique(new["target"]).to_pylist() if url is not None
            }
            missing = sorted(targets.keys() - asked)
            if not missing:
                break
            asked.update(missing)
            ids, hosts = np.array(missing, np.uint64), [host_of(targets[i]) for i in missing]
        self._found, self._ids = found, found["url_id"].combine_chunks().to_numpy()

    async def answer(self, url: str, created_utc: int | None) -> Answer:
        """The page of a canonical URL, from its capture nearest in time to `created_utc`
        (without a date, the earliest), or the earliest or latest one, by the options."""
        moment = target_time(self._options.archive_choice, created_utc, EARLIEST)
        return await best_capture(self, ArchiveQuery(url, url, moment))

    async def find(self, asked: ArchiveQuery) -> list[Capture]:
        start, end = (
            int(np.searchsorted(self._ids, np.uint64(id_of(asked.url)), side))
            for side in ("left", "right")
        )
        return [
            Capture(row["date"], row["status"], place=(row["file"], row["offset"], row["length"]))
            for row in self._found.slice(start, end - start).to_pylist()
        ]

    async def read(self, capture: Capture, url: str) -> Answer | ArchivedRedirect:
        file, offset, length = capture.place
        path = self.files[file]
        folder, name = folder_of(path)
        content = folder.read_range(name, offset, length)
        record = kind_of(path).read(content, url, capture.date)
        origin = Origin("archive", None, name, offset)
        return read_capture(
            record, origin, self._options.max_page_bytes, f"at byte {offset} of {name}"
        )

    def _captures(self, ids: np.ndarray, buckets: set[int]) -> Iterator[pa.Table]:
        wanted = pa.array(ids, pa.uint64())
        for number, record in enumerate(self.records):
            with self.folder.open(_path(record, "index")) as file, pa.ipc.open_file(file) as arrow:
                for bucket in sorted(buckets):
                    batch = arrow.get_batch(bucket)
                    if batch.num_rows:
                        batch = batch.filter(pc.is_in(batch["url_id"], wanted))
                    if batch.num_rows:
                        table = pa.Table.from_batches([batch])
                        yield table.append_column(
                            "file", pa.array([number] * len(table), pa.int32())
                        )


def summary(archives: Archives) -> list[dict[str, Any]]:
    """Counts and damage of each archive file, for the manifest."""
    found = []
    for file, record in zip(archives.files, archives.records, strict=True):
        damage = archives.folder.read(_path(record, "damage")).decode()
        counts = {name: record.stats[name] for name in COUNTS}
        found.append(
            {"name": file.rpartition("/")[2], **counts, **({"problem": damage} if damage else {})}
        )
    return found


def _by_id(tables: list[pa.Table]) -> pa.Table:
    schema = _CAPTURES.append(pa.field("file", pa.int32()))
    return pa.concat_tables([schema.empty_table(), *tables]).sort_by("url_id")


def _bucket(host: str) -> int:
    return xxhash.xxh3_64_intdigest(host.encode()) % BUCKETS


def _path(record: ShardRecord, kind: str) -> str:
    return next(file.path for file in record.files if file.kind == kind)
