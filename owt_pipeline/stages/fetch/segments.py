"""Segments: what the sources answered, in WARC files that are written once and kept for good.

    warc/part-00007/live-1f0c9a72-000003-SHA256.warc.gz

A segment has the answers of one source to some URLs of one shard: a warcinfo record; a resource record, whose content
is an Arrow stream with a row for each URL (`ANSWERS`); and the records of the pages, each after those of the redirects
that led to it. It is complete when it appears. Its name has the source, a digest of the options that shape the source's
answers, a number, by which segments are ordered, and the SHA-256 of the file. An answer counts for every shard that has
the URL, in whatever generation, as long as these options are the same.
"""

from __future__ import annotations

import hashlib
import math
import time
from collections.abc import Mapping
from operator import attrgetter
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from isal import isal_zlib

from owt_pipeline.formats.warc import resource_record, warcinfo_record
from owt_pipeline.ledger.commit import shard_name
from owt_pipeline.ledger.dataset import batch_of
from owt_pipeline.stages.fetch.answers import INDEXED, Answer, NoPage
from owt_pipeline.storage.folder import Entry, Storage, at_once
from schemas import DATASETS, Reason
from schemas.manifest import Root, ShardFile
from schemas.reasons import TEMPORARY

FOLDER = "warc"
"""Folder of a run for segments, and the kind of these files."""

_TYPES = {field.name: field.type for field in DATASETS["pages"].schema}

ANSWERS = pa.schema(
    [
        ("url_id", pa.uint64()),
        ("round", pa.uint32()),  # of retries, in which the source was asked
        ("is_final", pa.bool_()),  # not so for a temporary failure before the end of the shard
        ("reason", pa.string()),  # why there is no page; null for a page
        ("detail", pa.string()),
        *((name, _TYPES[name]) for name in INDEXED),
        ("offset", pa.uint64()),  # of the page's record; in the file, from the end of the first two records on
        ("length", pa.uint64()),
    ]
)

_READ = ANSWERS.append(pa.field("segment", pa.string()))  # path in the run's folder
PLACED = pa.schema([_READ.field(name) for name in ("url_id", *INDEXED, "segment", "offset", "length")])
"""A page, without what urls/ says of it, and where it lies."""

_INDEXED_OF = attrgetter(*INDEXED)
_NO_PAGE = (None,) * (len(INDEXED) + 2)
_FIRST_READ = 64 << 10  # bytes; in most segments the first two records have fewer
SUFFIX = ".warc.gz"
ARROW_STREAM = "application/vnd.apache.arrow.stream"
_TEMPORARY = pa.array(sorted(map(str, TEMPORARY)))


def shards_with_hosts_of(root: Root, shard: int) -> list[int]:
    """The shards of all generations that may have a host in common with `shard`: a host is in shard `home_of(host)`
    modulo the number of shards."""
    own = root.generations[root.generation_of(shard)]
    found: list[int] = []
    for each in root.generations:
        common = math.gcd(own.shards, each.shards)
        found += range(each.first + (shard - own.first) % common, each.range.stop, common)
    return found


class Answered:
    """What one source has answered to the URLs of one shard, as far as it is in segments.

    Of two answers to a URL, one that is final counts, then the one in the segment that comes first by name. A temporary
    failure counts only in the round of retries in which it happened, and in those before.

    Attributes:
      workdir: the run's folder.
      folder: in it, the folder of the shard's own segments.
      ids: url_ids with an answer, ascending, (n,) uint64.
      pages: those whose answer is a page.
      postponed: those whose answer is a temporary failure so far; they are requested once more at the end of the shard.
      failed_before: those whose answer was a temporary failure in an earlier round, and does not count.
      rows: the answer of each of `ids` and `postponed`, ascending: ANSWERS, with offsets in the file, and `segment`.
    """

    def __init__(self, workdir: Storage, root: Root, shard: int, prefix: str, wanted: np.ndarray):
        """The answers to the URLs `wanted`; `prefix` begins the names of the segments: the source and the digest."""
        self.workdir, self.folder = workdir, f"{FOLDER}/{shard_name(shard)}"
        self._prefix, self._wanted = prefix, pa.array(wanted, pa.uint64())
        self._round = root.rounds.get(str(shard), 0)
        self._folders = [f"{FOLDER}/{shard_name(each)}" for each in shards_with_hosts_of(root, shard)]
        self._shard = shard
        self._read: dict[str, pa.Table] = {}  # by path
        self._files: dict[str, ShardFile] = {}
        self.load()

    def load(self) -> None:
        """Read the segments that were written since; those that were damaged are skipped."""
        found = [
            (f"{folder}/{entry.name}", entry)
            for folder in self._folders
            for entry in (self.workdir / folder).walk(f"{self._prefix}-")
        ]
        new = [each for each in found if each[0] not in self._read]
        read = list(map(self._load, new)) if self.workdir.is_local or len(new) < 2 else at_once(self._load, new)
        for (path, entry), rows in zip(new, read, strict=True):
            self._files[path] = ShardFile(
                path, FOLDER, self._shard, len(rows), entry.bytes, entry.name.removesuffix(SUFFIX)[-64:]
            )
            self._read[path] = rows.filter(pc.is_in(rows["url_id"], self._wanted))
        in_order = sorted(self._read, key=lambda path: path.rpartition("/")[::-1])
        joined = pa.concat_tables([_READ.empty_table(), *map(self._read.__getitem__, in_order)])
        is_past = pc.and_(pc.is_in(joined["reason"], _TEMPORARY), pc.less(joined["round"], self._round))
        self.failed_before = np.unique(joined["url_id"].filter(is_past).to_numpy())
        joined = joined.filter(pc.invert(is_past))
        ids, is_final = (joined[name].to_numpy() for name in ("url_id", "is_final"))
        order = np.lexsort((~is_final, ids))
        ids, first = np.unique(ids[order], return_index=True)
        self.rows = joined.take(pa.array(order[first]))
        is_final = self.rows["is_final"].to_numpy()
        self.ids, self.postponed = ids[is_final], ids[~is_final]
        self.pages = ids[self.rows["reason"].is_null().to_numpy()]

    def _load(self, found: tuple[str, Entry]) -> pa.Table:
        path, entry = found
        return read_segment(self.workdir, path, entry.bytes) or _READ.empty_table()

    def no_pages(self) -> dict[int, NoPage]:
        """The answers that are no pages, by url_id."""
        rows = self.rows.filter(self.rows["reason"].is_valid()).select(["url_id", "reason", "detail"])
        return {each["url_id"]: NoPage(Reason.of(each["reason"]), each["detail"]) for each in rows.to_pylist()}

    def segments(self) -> list[ShardFile]:
        """The segments that have these answers."""
        return [self._files[path] for path in self.rows["segment"].unique().to_pylist()]

    def writer(self, about: Mapping[str, str], *, is_last: bool = True, date: int | None = None) -> SegmentWriter:
        """A writer of further segments; the arguments as there."""
        number = sum(path.startswith(f"{self.folder}/") for path in self._read)
        path = f"{self.folder}/{self._prefix}"
        return SegmentWriter(self.workdir, path, self._round, number, about, is_last=is_last, date=date)


def read_segment(workdir: Storage, path: str, size: int) -> pa.Table | None:
    """The answers in a segment of `size` bytes: ANSWERS with offsets in the file, and a column `segment`; None if it
    was damaged."""
    data, start, content = workdir.read_range(path, 0, _FIRST_READ), 0, b""
    try:
        for _ in range(2):
            gzip = isal_zlib.decompressobj(31)
            content = gzip.decompress(data[start:])
            while not gzip.eof:
                more = workdir.read_range(path, len(data), max(_FIRST_READ, len(data)))
                if not more:
                    return None
                data += more
                content += gzip.decompress(more)
            start = len(data) - len(gzip.unused_data)
        with pa.ipc.open_stream(content.partition(b"\r\n\r\n")[2]) as stream:
            rows = stream.read_all()
    except (isal_zlib.error, pa.ArrowException, OSError):  # type: ignore[misc]  # its stub hides what it derives from
        return None
    if rows.schema.metadata is None or size != start + int(rows.schema.metadata[b"bytes"]):
        return None
    rows = rows.replace_schema_metadata(None)
    at = rows.schema.get_field_index("offset")
    rows = rows.set_column(at, ANSWERS.field(at), pc.add(rows["offset"], pa.scalar(start, pa.uint64())))
    return rows.append_column(_READ.field("segment"), pa.array([path] * len(rows), pa.string()))


class SegmentWriter:
    """Writes answers to segments of a shard.

    Attributes:
      workdir: the run's folder.
      is_last: whether temporary failures are final, because no further request follows.
      bytes: of the answers that are in no segment yet.
    """

    def __init__(
        self, workdir: Storage, path: str, round: int, number: int, about: Mapping[str, str], *,
        is_last: bool = True, date: int | None = None,
    ):  # fmt: skip
        """A writer of segments from `number` on, whose paths in `workdir` begin with `path`.

        `about` are the fields of the warcinfo record, and `date` is that of the first two records, in seconds since
        1970; by default the time of writing.
        """
        self.workdir, self.is_last, self.bytes = workdir, is_last, 0
        self._path, self._round, self._number, self._about, self._date = path, round, number, about, date
        self._rows: list[tuple[Any, ...]] = []
        self._records: list[bytes] = []
        self._end = 0  # of the records

    def append(self, url_id: int, answer: Answer) -> bool:
        """Keep an answer in memory for the next segment; returns whether it is final."""
        if isinstance(answer, NoPage):
            is_final = self.is_last or answer.reason not in TEMPORARY
            self._rows.append((url_id, self._round, is_final, str(answer.reason), answer.detail, *_NO_PAGE))
            self.bytes += len(answer.detail)
            return is_final
        begin = self._end + sum(map(len, answer.redirects))
        length = len(answer.record)
        self._records += [*answer.redirects, answer.record]
        self._rows.append((url_id, self._round, True, None, None, *_INDEXED_OF(answer), begin, length))
        self.bytes += begin + length - self._end
        self._end = begin + length
        return True

    def flush(self) -> None:
        """Write the answers that are kept as a segment."""
        if not self._rows:
            return
        rows = batch_of(self._rows, ANSWERS).replace_schema_metadata({"bytes": str(self._end)})
        sink = pa.BufferOutputStream()
        with pa.ipc.new_stream(sink, rows.schema) as stream:
            stream.write_batch(rows)
        date = int(time.time()) if self._date is None else self._date
        index = resource_record("urn:owt:answers", date, sink.getvalue().to_pybytes(), ARROW_STREAM)
        segment = b"".join([warcinfo_record(date, self._about), index, *self._records])
        sha256 = hashlib.sha256(segment).hexdigest()
        self.workdir.create(f"{self._path}-{self._number:06d}-{sha256}{SUFFIX}", segment)
        self._number += 1
        self._rows, self._records, self._end, self.bytes = [], [], 0, 0
