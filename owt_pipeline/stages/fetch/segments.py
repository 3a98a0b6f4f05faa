"""Segments: the results of the sources, in WARC files that are written once.

    warc/part-00007/live-1f0c9a72-000003-SHA256.warc.gz

A segment has the results of one source for some URLs of one shard:

1. a warcinfo record;
2. a resource record, whose content is an Arrow stream with a row for each URL (`ANSWERS`);
3. the records of the pages, each after the records of the redirects that led to it.

It is complete when it appears. Its name has the source, a digest of the options that shape the
source's results, a number, by which segments are ordered, and the SHA-256 of the file. A result
counts for every shard that has the URL, in whatever generation, as long as these options are the
same.

Segments of sources on the network are never deleted: nobody could write them again. Segments of
archive files are swept like other files, as long as all archive files exist.
"""

from __future__ import annotations

import hashlib
import math
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import KW_ONLY, dataclass, field
from operator import attrgetter
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from isal import isal_zlib

from owt_pipeline.errors import raise_unless_damage
from owt_pipeline.formats.warc import resource_record, warcinfo_record
from owt_pipeline.ledger.commit import shard_name
from owt_pipeline.ledger.dataset import batch_of
from owt_pipeline.stages.fetch.answers import INDEXED, FetchFailure, FetchResult
from owt_pipeline.storage.folder import Storage, at_once
from schemas import DATASETS
from schemas.manifest import Root, ShardFile
from schemas.reasons import TEMPORARY

FOLDER = "warc"
"""Folder of a run for segments, and the kind of these files."""

_PAGES_TYPES = {field.name: field.type for field in DATASETS["pages"].schema}

ANSWERS = pa.schema(
    [
        ("url_id", pa.uint64()),
        # The round of retries of the request.
        ("round", pa.uint32()),
        # False for a temporary failure before the end of the shard.
        ("is_final", pa.bool_()),
        # Why there is no page; null for a page.
        ("reason", pa.string()),
        ("detail", pa.string()),
        *((name, _PAGES_TYPES[name]) for name in INDEXED),
        # The place of the page's record. As stored, it counts from the end of the first two
        # records, whose length is not known before this table is written; `read_segment` makes it
        # absolute.
        ("offset", pa.uint64()),
        ("length", pa.uint64()),
    ]
)
"""The table of a segment, one row for each URL."""

_ANSWERS_OF_SEGMENT = ANSWERS.append(pa.field("segment", pa.string()))
"""The rows as they are read: with offsets in the file, and the segment's path."""

_SUMMARIES = pa.schema(
    [
        ("url_id", pa.uint64()),
        ("is_page", pa.bool_()),
        ("is_final", pa.bool_()),
        # Whether it is a temporary failure of an earlier round, which does not count any more.
        ("is_past", pa.bool_()),
    ]
)
"""The columns that stay in memory."""

_indexed_fields = attrgetter(*INDEXED)
_NO_PAGE = (None,) * (len(INDEXED) + 2)

# Approximate memory of a row's objects, in bytes.
_ROW_BYTES = 500

# In most segments, the first two records have fewer bytes, so one request reads them.
_FIRST_READ_BYTES = 64 << 10

SUFFIX = ".warc.gz"
_DIGEST_CHARS = 64
ARROW_STREAM = "application/vnd.apache.arrow.stream"

# Strings, since an array would import pandas with this module.
_TEMPORARY = sorted(map(str, TEMPORARY))


def shards_with_hosts_of(root: Root, shard: int) -> list[int]:
    """Return the shards of all generations that may have a host in common with `shard`.

    A host is in shard `host_hash(host)` modulo the number of shards of its generation.
    """
    generation_of_shard = root.generations[root.generation_number_of(shard)]
    shards: list[int] = []
    for generation in root.generations:
        step = math.gcd(generation_of_shard.shards, generation.shards)
        first = generation.first + (shard - generation_of_shard.first) % step
        shards += range(first, generation.shard_numbers.stop, step)
    return shards


class _File(NamedTuple):
    path: str
    bytes: int


@dataclass(frozen=True)
class _Segment:
    """A segment, and the columns of its rows that stay in memory.

    Attributes:
      file: the file, as a record names it.
      summaries: rows of _SUMMARIES for the wanted URLs.
    """

    file: ShardFile
    summaries: pa.Table


class SegmentReader:
    """The results of one source for the URLs of one shard, as far as they are in segments; a few
    bytes a URL in memory.

    Of two results of a URL, one that is final counts, then the one in the segment that comes first
    by name. A temporary failure does not count once the shard is in a later round of retries.

    Attributes:
      workdir: the run's folder.
      folder: in it, the folder of the shard's own segments.
      ids: url_ids with a final result, ascending, (n,) uint64.
      pages: url_ids whose result is a page.
      postponed: url_ids with a temporary failure so far; they are requested once more at the end
        of the shard.
      failed_before: url_ids with a temporary failure in an earlier round, which does not count.
      segments: the segments with the results that count, those of `postponed` too, in order.
    """

    def __init__(
        self, workdir: Storage, root: Root, shard: int, prefix: str, wanted_ids: np.ndarray
    ):
        """Return a reader for the URLs `wanted_ids`.

        `prefix` begins the names of the segments: the source and the digest.
        """
        self.workdir = workdir
        self.folder = f"{FOLDER}/{shard_name(shard)}"
        self._prefix = prefix
        self._wanted_ids = np.sort(wanted_ids)
        self._shard = shard
        self._round = root.rounds.get(str(shard), 0)
        self._folders = [
            f"{FOLDER}/{shard_name(shard_of_host)}"
            for shard_of_host in shards_with_hosts_of(root, shard)
        ]
        self._segments: dict[str, _Segment] = {}
        self.load()

    def load(self) -> None:
        """Read the segments that were written since the last call; damaged ones are skipped."""
        new_files = self._list_new_files()
        for file, rows in zip(new_files, self._map_files(self._summaries, new_files), strict=True):
            digest = file.path.removesuffix(SUFFIX)[-_DIGEST_CHARS:]
            shard_file = ShardFile(file.path, FOLDER, self._shard, len(rows), file.bytes, digest)
            self._segments[file.path] = _Segment(shard_file, rows)
        # The name decides the order, whichever folder a segment is in.
        paths = sorted(self._segments, key=lambda path: path.rpartition("/")[::-1])
        segments = [self._segments[path] for path in paths]
        summaries = pa.concat_tables(
            [_SUMMARIES.empty_table(), *(segment.summaries for segment in segments)]
        )
        num_rows = [len(segment.summaries) for segment in segments]
        segment_of_row = np.repeat(np.arange(len(segments)), num_rows)
        ids, is_page, is_final, is_past = (summaries[name].to_numpy() for name in _SUMMARIES.names)
        self.failed_before = np.unique(ids[is_past])
        rows_that_count = _rows_that_count(ids, is_final, is_past)
        ids = ids[rows_that_count]
        is_final = is_final[rows_that_count]
        self.ids = ids[is_final]
        self.postponed = ids[~is_final]
        self.pages = ids[is_page[rows_that_count]]
        used = np.unique(segment_of_row[rows_that_count])
        self.segments = [segments[number].file for number in used.tolist()]

    def _list_new_files(self) -> list[_File]:
        """Return the segments that are not read yet."""
        files = []
        for folder in self._folders:
            for entry in (self.workdir / folder).walk(f"{self._prefix}-"):
                path = f"{folder}/{entry.name}"
                if path not in self._segments:
                    files.append(_File(path, entry.bytes))
        return files

    def rows(self, ids: np.ndarray) -> pa.Table:
        """Read the results of those of `ids` that have one, ascending, from the segments.

        The columns are those of ANSWERS, with offsets in the file, and `segment`.
        """
        wanted_ids = np.sort(ids)
        files = [_File(file.path, file.bytes) for file in self.segments]
        tables = self._map_files(lambda file: self._rows_in(file, wanted_ids), files)
        rows = pa.concat_tables([_ANSWERS_OF_SEGMENT.empty_table(), *tables])
        rows_that_count = _rows_that_count(
            rows["url_id"].to_numpy(),
            rows["is_final"].to_numpy(),
            self._is_past(rows).to_numpy(),
        )
        return rows.take(pa.array(rows_that_count))

    def _rows_in(self, file: _File, wanted_ids: np.ndarray) -> pa.Table:
        """Return the results in a segment of the URLs `wanted_ids`, which are ascending."""
        rows = read_segment(self.workdir, file.path, file.bytes)
        if rows is None:
            return _ANSWERS_OF_SEGMENT.empty_table()
        return rows.filter(pa.array(isin_sorted(rows["url_id"].to_numpy(), wanted_ids)))

    def _summaries(self, file: _File) -> pa.Table:
        """Return rows of _SUMMARIES of the wanted URLs in a segment."""
        rows = self._rows_in(file, self._wanted_ids)
        columns = [
            rows["url_id"],
            rows["reason"].is_null(),
            rows["is_final"],
            self._is_past(rows),
        ]
        return pa.table(columns, schema=_SUMMARIES)

    def _map_files(
        self, read: Callable[[_File], pa.Table], files: Sequence[_File]
    ) -> list[pa.Table]:
        """Return `read` of each file; in a bucket, where each takes a request, at once."""
        if self.workdir.is_local or len(files) < 2:
            return [read(file) for file in files]
        return at_once(read, files)

    def _is_past(self, rows: pa.Table) -> pa.ChunkedArray:
        """Return whether each row is a temporary failure of an earlier round."""
        is_temporary = pc.is_in(rows["reason"], pa.array(_TEMPORARY))
        return pc.and_(is_temporary, pc.less(rows["round"], self._round))

    def writer(
        self, warcinfo: Mapping[str, str], *, is_last_try: bool = True, date: int | None = None
    ) -> SegmentWriter:
        """Return a writer of further segments; for the arguments, see SegmentWriter."""
        num_own = sum(path.startswith(f"{self.folder}/") for path in self._segments)
        return SegmentWriter(
            self.workdir,
            f"{self.folder}/{self._prefix}",
            self._round,
            num_own,
            warcinfo,
            is_last_try=is_last_try,
            date=date,
        )


def isin_sorted(ids: np.ndarray, sorted_ids: np.ndarray) -> np.ndarray:
    """Return whether each of `ids` is among `sorted_ids`: (n,) bool.

    `np.isin` takes ten times the memory.
    """
    if not len(sorted_ids):
        return np.zeros(len(ids), bool)
    return sorted_ids.take(np.searchsorted(sorted_ids, ids), mode="clip") == ids  # type: ignore[no-any-return]


def _rows_that_count(ids: np.ndarray, is_final: np.ndarray, is_past: np.ndarray) -> np.ndarray:
    """Return the row of the result that counts for each of the ids, ascending.

    The rows are in the order of their segments.
    """
    rows = np.flatnonzero(~is_past)
    # The sort keeps the order of the segments, so of each id the first row counts.
    rows = rows[np.lexsort((~is_final[rows], ids[rows]))]
    return rows[np.unique(ids[rows], return_index=True)[1]]


def read_segment(workdir: Storage, path: str, size: int) -> pa.Table | None:
    """Return the results in a segment of `size` bytes.

    Returns None if its size is wrong or its table is damaged (the SHA-256 is not checked).

    The columns are those of ANSWERS, with offsets in the file, and `segment`.
    """
    data = workdir.read_range(path, 0, _FIRST_READ_BYTES)
    start = 0
    content = b""
    try:
        # The first two records are a gzip member each; the second one is the table.
        for _ in range(2):
            member = isal_zlib.decompressobj(31)
            content = member.decompress(data[start:])
            while not member.eof:
                next_bytes = workdir.read_range(path, len(data), max(_FIRST_READ_BYTES, len(data)))
                if not next_bytes:
                    return None
                data += next_bytes
                content += member.decompress(next_bytes)
            start = len(data) - len(member.unused_data)
        with pa.ipc.open_stream(content.partition(b"\r\n\r\n")[2]) as stream:
            rows = stream.read_all()
    # The stub of isal_zlib.error hides its base class.
    except (isal_zlib.error, pa.ArrowException, OSError) as error:  # type: ignore[misc]
        raise_unless_damage(error, workdir.path(path))
        return None
    metadata = rows.schema.metadata
    if metadata is None or size != start + int(metadata[b"bytes"]):
        return None
    rows = rows.replace_schema_metadata(None)
    column = rows.schema.get_field_index("offset")
    offsets = pc.add(rows["offset"], pa.scalar(start, pa.uint64()))
    rows = rows.set_column(column, ANSWERS.field(column), offsets)
    paths = pa.array([path] * len(rows), pa.string())
    return rows.append_column(_ANSWERS_OF_SEGMENT.field("segment"), paths)


@dataclass
class SegmentWriter:
    """Writes results to segments of a shard.

    A kill loses the results since the last `flush`; recorder.py and shards.py decide when to flush.

    Attributes:
      workdir: the run's folder.
      path: the beginning of the paths of the segments in `workdir`.
      round: the round of the shard.
      number: the number of the next segment.
      warcinfo: the fields of the segments' warcinfo records.
      is_last_try: whether temporary failures are final, because no further request follows.
      date: date of the first two records in seconds since 1970, by default the time of writing.
      bytes: memory of the results that are in no segment yet.
    """

    workdir: Storage
    path: str
    round: int
    number: int
    warcinfo: Mapping[str, str]
    _: KW_ONLY
    is_last_try: bool = True
    date: int | None = None
    bytes: int = field(default=0, init=False)

    def __post_init__(self) -> None:
        self._clear()

    def _clear(self) -> None:
        self.bytes = 0
        self._rows: list[tuple[Any, ...]] = []
        self._records: list[bytes] = []
        self._records_bytes = 0

    def append(self, url_id: int, result: FetchResult) -> bool:
        """Keep a result in memory for the next segment; returns whether it is final."""
        if isinstance(result, FetchFailure):
            is_final = self.is_last_try or result.reason not in TEMPORARY
            why = (str(result.reason), result.detail)
            self._rows.append((url_id, self.round, is_final, *why, *_NO_PAGE))
            self.bytes += _ROW_BYTES + len(result.detail)
            return is_final
        offset = self._records_bytes + sum(map(len, result.redirects))
        place = (offset, len(result.record))
        self._rows.append((url_id, self.round, True, None, None, *_indexed_fields(result), *place))
        self._records += [*result.redirects, result.record]
        end = offset + len(result.record)
        self.bytes += _ROW_BYTES + end - self._records_bytes
        self._records_bytes = end
        return True

    def flush(self) -> None:
        """Write the results in memory to the next segment, and drop them from memory."""
        if not self._rows:
            return
        rows = batch_of(self._rows, ANSWERS)
        rows = rows.replace_schema_metadata({"bytes": str(self._records_bytes)})
        table = pa.BufferOutputStream()
        with pa.ipc.new_stream(table, rows.schema) as stream:
            stream.write_batch(rows)
        date = int(time.time()) if self.date is None else self.date
        index = resource_record(
            "urn:owt:answers", date, table.getvalue().to_pybytes(), ARROW_STREAM
        )
        segment = b"".join([warcinfo_record(date, self.warcinfo), index, *self._records])
        sha256 = hashlib.sha256(segment).hexdigest()
        # A file of this name has this content, so it is no error if it exists.
        self.workdir.create(f"{self.path}-{self.number:06d}-{sha256}{SUFFIX}", segment)
        self.number += 1
        self._clear()
