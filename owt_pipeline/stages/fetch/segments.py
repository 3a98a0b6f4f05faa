"""Segments: what the sources answered, in WARC files that are written once and kept for good.

    warc/part-00007/live-1f0c9a72-000003-SHA256.warc.gz

A segment has the answers of one source to some URLs of one shard: a warcinfo record; a resource
record, whose content is an Arrow stream with a row for each URL (`ANSWERS`); and the records of the
pages, each after those of the redirects that led to it. It is complete when it appears. Its name
has the source, a digest of the options that shape the source's answers, a number, by which segments
are ordered, and the SHA-256 of the file. An answer counts for every shard that has the URL, in
whatever generation, as long as these options are the same.

The root manifest counts the rounds of each shard: how often its failed or lost URLs were asked for
again. The round is a part of the shard's key, so the shard is made again, and an interrupted round
continues with or without the flag that has begun it.
"""

from __future__ import annotations

import hashlib
import logging
import math
import time
from collections.abc import Mapping, Sequence
from operator import attrgetter
from typing import TYPE_CHECKING, Any

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from isal import isal_zlib

from owt_pipeline.errors import UserError, command
from owt_pipeline.formats.warc import resource_record, warcinfo_record
from owt_pipeline.ledger.commit import lost_files, shard_name
from owt_pipeline.ledger.dataset import DatasetReader, batch_of
from owt_pipeline.stages.fetch.answers import INDEXED, Answer, FetchFailure
from owt_pipeline.stages.fetch.options import ONLINE
from owt_pipeline.storage.folder import Storage, at_once
from schemas import DATASETS, Reason
from schemas.manifest import Root, ShardFile, ShardRecord
from schemas.reasons import TEMPORARY

if TYPE_CHECKING:
    from owt_pipeline.engine.stage import Runtime, StageRun
    from owt_pipeline.stages.fetch.options import Options

logger = logging.getLogger("owt")

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
        (
            "offset",
            pa.uint64(),
        ),  # of the page's record; in the file, from the end of the first two records on
        ("length", pa.uint64()),
    ]
)

_READ = ANSWERS.append(pa.field("segment", pa.string()))  # path in the run's folder
_BRIEF = pa.schema(
    [("url_id", pa.uint64()), *((name, pa.bool_()) for name in ("is_page", "is_final", "is_past"))]
)

_INDEXED_OF = attrgetter(*INDEXED)
_NO_PAGE = (None,) * (len(INDEXED) + 2)
_ROW_BYTES = 500  # memory of a row's objects, about
_FIRST_READ = 64 << 10  # bytes; in most segments the first two records have fewer
SUFFIX = ".warc.gz"
ARROW_STREAM = "application/vnd.apache.arrow.stream"
_TEMPORARY = sorted(map(str, TEMPORARY))  # an array would import pandas with this module


def shards_with_hosts_of(root: Root, shard: int) -> list[int]:
    """The shards of all generations that may have a host in common with `shard`: a host is in
    shard `home_of(host)` modulo the number of shards."""
    own = root.generations[root.generation_of(shard)]
    found: list[int] = []
    for each in root.generations:
        common = math.gcd(own.shards, each.shards)
        found += range(each.first + (shard - own.first) % common, each.range.stop, common)
    return found


class SegmentReader:
    """What one source has answered to the URLs of one shard, as far as it is in segments; a few
    bytes a URL in memory.

    Of two answers to a URL, one that is final counts, then the one in the segment that comes first
    by name. A temporary failure counts only in the round of retries in which it happened, and in
    those before.

    Attributes:
      workdir: the run's folder.
      folder: in it, the folder of the shard's own segments.
      ids: url_ids with an answer, ascending, (n,) uint64.
      pages: those whose answer is a page.
      postponed: those whose answer is a temporary failure so far; they are requested once more at
        the end of the shard.
      failed_before: those whose answer was a temporary failure in an earlier round, and does not
        count.
      segments: those that have the answers to `ids`, in order.
    """

    def __init__(self, workdir: Storage, root: Root, shard: int, prefix: str, wanted: np.ndarray):
        """The answers to the URLs `wanted`; `prefix` begins the names of the segments: the
        source and the digest."""
        self.workdir, self.folder = workdir, f"{FOLDER}/{shard_name(shard)}"
        self._prefix, self._wanted = prefix, np.sort(wanted)
        self._round = root.rounds.get(str(shard), 0)
        self._folders = [
            f"{FOLDER}/{shard_name(each)}" for each in shards_with_hosts_of(root, shard)
        ]
        self._shard = shard
        self._read: dict[str, tuple[ShardFile, pa.Table]] = {}  # by path, with rows of _BRIEF
        self.load()

    def load(self) -> None:
        """Read the segments that were written since; those that were damaged are skipped."""
        new = [
            (f"{folder}/{entry.name}", entry)
            for folder in self._folders
            for entry in (self.workdir / folder).walk(f"{self._prefix}-")
            if f"{folder}/{entry.name}" not in self._read
        ]
        for (path, entry), rows in zip(
            new, self._rows_of([(path, entry.bytes) for path, entry in new]), strict=True
        ):
            digest = entry.name.removesuffix(SUFFIX)[-64:]
            self._read[path] = (
                ShardFile(path, FOLDER, self._shard, rows.num_rows, entry.bytes, digest),
                rows,
            )
        in_order = [
            self._read[path]
            for path in sorted(self._read, key=lambda path: path.rpartition("/")[::-1])
        ]
        joined = pa.concat_tables([_BRIEF.empty_table(), *(rows for _, rows in in_order)])
        numbers = np.repeat(np.arange(len(in_order)), [len(rows) for _, rows in in_order])
        ids, is_page, is_final, is_past = (joined[name].to_numpy() for name in _BRIEF.names)
        self.failed_before = np.unique(ids[is_past])
        rows = _first(ids, is_final, is_past)
        ids, is_final = ids[rows], is_final[rows]
        self.ids, self.postponed, self.pages = ids[is_final], ids[~is_final], ids[is_page[rows]]
        self.segments = [in_order[number][0] for number in np.unique(numbers[rows]).tolist()]

    def rows(self, ids: np.ndarray) -> pa.Table:
        """The answers to those of `ids` that have one, ascending: ANSWERS, with offsets in the
        file, and `segment`. They are read from the segments."""
        files = [(file.path, file.bytes) for file in self.segments]
        joined = pa.concat_tables([_READ.empty_table(), *self._rows_of(files, ids)])
        rows = _first(
            joined["url_id"].to_numpy(),
            joined["is_final"].to_numpy(),
            self._is_past(joined).to_numpy(),
        )
        return joined.take(pa.array(rows))

    def _rows_of(
        self, files: Sequence[tuple[str, int]], ids: np.ndarray | None = None
    ) -> list[pa.Table]:
        """The answers in segments, given with their sizes: to `ids` all of them, else _BRIEF of
        those to `wanted`."""
        some = self._wanted if ids is None else np.sort(ids)

        def read(file: tuple[str, int]) -> pa.Table:
            rows = read_segment(self.workdir, *file) or _READ.empty_table()
            rows = rows.filter(pa.array(isin_sorted(rows["url_id"].to_numpy(), some)))
            if ids is not None:
                return rows
            columns = [
                rows["url_id"],
                rows["reason"].is_null(),
                rows["is_final"],
                self._is_past(rows),
            ]
            return pa.table(columns, schema=_BRIEF)

        return (
            list(map(read, files))
            if self.workdir.is_local or len(files) < 2
            else at_once(read, files)
        )

    def _is_past(self, rows: pa.Table) -> pa.ChunkedArray:
        return pc.and_(
            pc.is_in(rows["reason"], pa.array(_TEMPORARY)),
            pc.less(rows["round"], self._round),
        )

    def writer(
        self, about: Mapping[str, str], *, is_last: bool = True, date: int | None = None
    ) -> SegmentWriter:
        """A writer of further segments; the arguments as there."""
        number = sum(path.startswith(f"{self.folder}/") for path in self._read)
        path = f"{self.folder}/{self._prefix}"
        return SegmentWriter(
            self.workdir, path, self._round, number, about, is_last=is_last, date=date
        )


def isin_sorted(ids: np.ndarray, known: np.ndarray) -> np.ndarray:
    """bool (n,): whether each of `ids` is among `known`, which are ascending. `np.isin` takes
    ten times the memory."""
    if not len(known):
        return np.zeros(len(ids), bool)
    return known.take(np.searchsorted(known, ids), mode="clip") == ids  # type: ignore[no-any-return]


def _first(ids: np.ndarray, is_final: np.ndarray, is_past: np.ndarray) -> np.ndarray:
    """The row of the answer that counts for each of the ids, ascending, of rows in the order of
    their segments."""
    rows = np.flatnonzero(~is_past)
    rows = rows[np.lexsort((~is_final[rows], ids[rows]))]
    return rows[np.unique(ids[rows], return_index=True)[1]]


def read_segment(workdir: Storage, path: str, size: int) -> pa.Table | None:
    """The answers in a segment of `size` bytes: ANSWERS with offsets in the file, and a column
    `segment`; None if it was damaged."""
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
    # its stub hides what it derives from
    except (isal_zlib.error, pa.ArrowException, OSError):  # type: ignore[misc]
        return None
    if rows.schema.metadata is None or size != start + int(rows.schema.metadata[b"bytes"]):
        return None
    rows = rows.replace_schema_metadata(None)
    at = rows.schema.get_field_index("offset")
    rows = rows.set_column(
        at, ANSWERS.field(at), pc.add(rows["offset"], pa.scalar(start, pa.uint64()))
    )
    return rows.append_column(_READ.field("segment"), pa.array([path] * len(rows), pa.string()))


class SegmentWriter:
    """Writes answers to segments of a shard.

    Attributes:
      workdir: the run's folder.
      is_last: whether temporary failures are final, because no further request follows.
      bytes: memory of the answers that are in no segment yet.
    """

    def __init__(
        self, workdir: Storage, path: str, round: int, number: int, about: Mapping[str, str], *,
        is_last: bool = True, date: int | None = None,
    ):  # fmt: skip
        """A writer of segments from `number` on, whose paths in `workdir` begin with `path`.

        `about` are the fields of the warcinfo record, and `date` is that of the first two records,
        in seconds since 1970; by default the time of writing.
        """
        self.workdir, self.is_last, self.bytes = workdir, is_last, 0
        self._path, self._round, self._number, self._about, self._date = (
            path,
            round,
            number,
            about,
            date,
        )
        self._rows: list[tuple[Any, ...]] = []
        self._records: list[bytes] = []
        self._end = 0  # of the records

    def append(self, url_id: int, answer: Answer) -> bool:
        """Keep an answer in memory for the next segment; returns whether it is final."""
        if isinstance(answer, FetchFailure):
            is_final = self.is_last or answer.reason not in TEMPORARY
            self._rows.append(
                (url_id, self._round, is_final, str(answer.reason), answer.detail, *_NO_PAGE)
            )
            self.bytes += _ROW_BYTES + len(answer.detail)
            return is_final
        begin = self._end + sum(map(len, answer.redirects))
        length = len(answer.record)
        self._records += [*answer.redirects, answer.record]
        self._rows.append(
            (url_id, self._round, True, None, None, *_INDEXED_OF(answer), begin, length)
        )
        self.bytes += _ROW_BYTES + begin + length - self._end
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


def start_retry_rounds(options: Options, root: Root, runtime: Runtime) -> Root:
    """The root with another round for each shard of finished `pages/` with temporary failures,
    or with lost segments, if the options ask for it. A round that was begun counts as asked for,
    so a repeated call has no effect."""
    manifest = root.datasets.get("pages")
    if not (options.retry_failed or options.refetch) or manifest is None:
        return root
    failed, lost = {}, set[str]()
    for record in DatasetReader(runtime.workdir, manifest).table_of_files.records:
        shard = str(record.shard)
        if record.stats.get("round", 0) != root.rounds.get(shard, 0):
            continue
        count = sum(
            count
            for reason, count in record.counts.rejected.items()
            if Reason.of(reason) in TEMPORARY
        )
        if count and options.retry_failed:
            failed[shard] = count
        if (options.refetch or shard in failed) and (
            missing := _lost(runtime.workdir, record, ONLINE)
        ):
            if not options.refetch:
                raise _error(runtime.workdir, missing, record.shard)
            lost.add(shard)
    if options.retry_failed:
        logger.info("fetch: --retry_failed: %s URLs of %d shards failed temporarily and are "
        "requested again",
                    f"{sum(failed.values()):,}", len(failed))  # fmt: skip
    rounds = root.rounds | {shard: root.rounds.get(shard, 0) + 1 for shard in {*failed, *lost}}
    return msgspec.structs.replace(root, rounds=rounds)


def check_nothing_lost(run: StageRun, shard: int, source: str) -> None:
    """Raise UserError if segments of a source are lost that a finished shard was made from in
    this round."""
    table = (
        DatasetReader(run.workdir, run.before).table_of_files if run.before is not None else None
    )
    for record in table.records if table is not None else ():
        is_current = record.stats.get("round", 0) == run.root.rounds.get(str(shard), 0)
        if record.shard == shard and is_current:
            prefix = f"{source}-{run.properties['digests'][source]}"
            if missing := _lost(run.workdir, record, (prefix,)):
                raise _error(run.workdir, missing, shard)


def _lost(workdir: Storage, record: ShardRecord, prefixes: tuple[str, ...]) -> dict[str, str]:
    """What is wrong with a shard's segments whose names begin with one of `prefixes`, by path."""
    files = [file for file in record.files if file.kind == FOLDER]
    return lost_files(
        workdir, [file for file in files if file.path.rpartition("/")[2].startswith(prefixes)]
    )


def _error(workdir: Storage, missing: dict[str, str], shard: int) -> UserError:
    path, problem = next(iter(missing.items()))
    return UserError(
        f"{workdir.path(path)} {problem}, one of {len(missing)} files of shard {shard} that "
        f"something has to be made "
        "from, and that came from the web: restore it from a backup, or run "
        f"{command('owt', 'run', workdir, '--refetch')} to fetch its pages as they are now"
    )
