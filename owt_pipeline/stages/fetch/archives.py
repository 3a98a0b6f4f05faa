"""Archive files as a source of pages: an index of each file, and the capture of a URL nearest to its submission."""

from __future__ import annotations

import contextlib
from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import xxhash

from owt_pipeline.errors import UserError
from owt_pipeline.formats.captures import COMPLETE, Broken, captures, what_else
from owt_pipeline.formats.messages import MAX_HEAD_BYTES, REDIRECTS, TooLarge
from owt_pipeline.formats.urls import BadURL, canonicalize, host_of, url_id
from owt_pipeline.formats.warc import BadRecord, read_record, rewritten, single_member
from owt_pipeline.ledger.commit import ShardWriter
from owt_pipeline.ledger.dataset import batch_of
from owt_pipeline.stages.fetch.answers import (
    EARLIEST,
    MAX_REDIRECTS,
    Answer,
    NoPage,
    Origin,
    Page,
    judge,
    nearness,
    wanted_moment,
)
from owt_pipeline.storage.folder import open_source
from schemas import Reason
from schemas.manifest import ShardRecord

if TYPE_CHECKING:
    from owt_pipeline.engine.stage import StageRun
    from owt_pipeline.ledger.exchange import Slice
    from owt_pipeline.stages.fetch.stage import Options

BUCKETS = 256
"""Parts of a file's index, by hash of the host: a shard reads only those of its hosts."""

COUNTS = ("responses", "broken", "unusable")
"""What is counted in a file: responses indexed, broken records skipped, responses without a usable URL."""

_CAPTURES = pa.schema(
    [
        ("url_id", pa.uint64()),
        ("date", pa.int64()),
        ("status", pa.uint16()),
        ("target", pa.string()),  # canonical URL it redirects to
        ("offset", pa.uint64()),
        ("length", pa.uint64()),
        ("copied", pa.bool_()),
    ]
)

_OPEN_FILES = 32


def index_archive(run: StageRun, number: int, _slices: Sequence[Slice], writer: ShardWriter) -> None:
    """Write the index of an archive's responses, an Arrow file of one batch per bucket, and copied records."""
    path = run.properties["archives"][number]
    copies = writer.open_file(".warc.gz", "copies")
    index = writer.open_file(".index", "index")
    buckets: list[list[tuple]] = [[] for _ in range(BUCKETS)]
    counts = dict.fromkeys(COUNTS, 0)

    def copy(record: bytes) -> int:
        at = copies.tell()
        copies.write(record)
        return at

    first = ""  # problem
    with open_source(path) as file:
        if what := what_else(file, file.size()):
            first = f"no WARC or ARC file but {what}"
            if not run.options.allow_damaged:
                raise UserError(f"{path}: {first}")
        for capture in captures(file, file.size(), copy):
            if isinstance(capture, Broken):
                if not run.options.allow_damaged:
                    raise UserError(f"{path}, {capture}; {COMPLETE}")
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
                (url_id(url), capture.date, capture.status, canonical_or_none(capture.location),
                 capture.offset, capture.length, capture.copied)
            )  # fmt: skip
    with pa.ipc.new_file(index, _CAPTURES) as arrow:
        for rows in buckets:
            arrow.write_batch(batch_of(rows, _CAPTURES))
    writer.open_file(".txt", "damage").write(first.encode())
    writer.count(counts)


class Archives:
    """Indexed archive files.

    Attributes:
      files: their paths or URIs.
      options: those of the stage.
      folder: the folder of the index step's files.
      records: the index step's records, one per archive file.
    """

    def __init__(self, run: StageRun):
        self.files: list[str] = run.properties["archives"]
        self.options: Options = run.options
        self.folder, self.records = run.work, run.read_records("index")

    def lookup(self, ids: np.ndarray, hosts: Iterable[str]) -> Lookup:
        """The captures of the URLs with `ids`, which are on `hosts`, and of the URLs they redirect to."""
        found = _by_id([])
        asked: set[int] = set(ids.tolist())
        for _ in range(MAX_REDIRECTS + 1):
            new = _by_id(list(self._captures(ids, {_bucket(host) for host in hosts})))
            found = _by_id([found, new])
            targets = {url_id(url): url for url in pc.unique(new["target"]).to_pylist() if url is not None}
            missing = sorted(targets.keys() - asked)
            if not missing:
                break
            asked.update(missing)
            ids, hosts = np.array(missing, np.uint64), [host_of(targets[i]) for i in missing]
        return Lookup(self, found)

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
                        yield table.append_column("file", pa.array([number] * len(table), pa.int32()))


def summary(archives: Archives) -> list[dict[str, Any]]:
    """Counts and damage of each archive file, for the manifest."""
    found = []
    for file, record in zip(archives.files, archives.records, strict=True):
        damage = archives.folder.read(_path(record, "damage")).decode()
        counts = {name: record.stats[name] for name in COUNTS}
        found.append({"name": file.rpartition("/")[2], **counts, **({"problem": damage} if damage else {})})
    return found


class Lookup:
    """The captures of some URLs; a context manager that closes the archive files it opened."""

    def __init__(self, archives: Archives, found: pa.Table):
        self._archives = archives
        self._ids = found["url_id"].combine_chunks().to_numpy()
        self._found = found
        self._files: dict[tuple[int, bool], Any] = {}

    def __enter__(self) -> Lookup:
        return self

    def __exit__(self, *_: object) -> None:
        for file in self._files.values():
            file.close()
        self._files.clear()

    def answer(self, wanted: int, created_utc: int | None) -> Answer:
        """The page of the URL with the id `wanted`, from its successful capture nearest in time to `created_utc` (the
        earliest of equally near ones; the earliest of all without a date), or the earliest or latest one, by the
        options. If a capture turns out to be no page, the next best one is taken.
        """
        return self._answer(wanted, wanted_moment(self._archives.options.archive_choice, created_utc, EARLIEST), set())

    def _answer(self, wanted: int, moment: int, seen: set[int]) -> Answer:
        first: NoPage | None = None
        seen.add(wanted)
        start, end = (int(np.searchsorted(self._ids, np.uint64(wanted), side)) for side in ("left", "right"))
        for capture in sorted(self._found.slice(start, end - start).to_pylist(), key=partial(_distance, moment=moment)):
            if capture["status"] in REDIRECTS:
                answer = self._redirected(capture, moment, seen)
            else:
                answer = self._page(capture)
            if isinstance(answer, Page):
                return answer
            first = first or answer
        return first or NoPage(Reason.NOT_ARCHIVED, f"in none of {len(self._archives.files)} archive files")

    def _redirected(self, capture: dict[str, Any], moment: int, seen: set[int]) -> Answer:
        most = MAX_REDIRECTS
        target = followed(capture["status"], capture["target"], capture["url_id"], seen, most)
        if isinstance(target, NoPage):
            return target
        answer = self._answer(url_id(target), moment, seen)
        if isinstance(answer, Page):
            return replace(answer, redirects=(*self._redirect_record(capture), *answer.redirects))
        if answer.reason == Reason.NOT_ARCHIVED:
            return NoPage(Reason.NOT_ARCHIVED, f"redirects to {target}: {answer.detail}")
        return answer

    def _page(self, capture: dict[str, Any]) -> Answer:
        archive = self._archives.files[capture["file"]].rpartition("/")[2]
        where = f"at byte {capture['offset']} of {archive}"
        origin = Origin("archive", None, archive, None if capture["copied"] else capture["offset"])
        return page_of_record(self._read(capture), origin, self._archives.options.max_page_bytes, where=where)

    def _redirect_record(self, capture: dict[str, Any]) -> Iterator[bytes]:
        """The record of a redirect, by which the page can be found under the original URL; none if it is broken."""
        most = self._archives.options.max_page_bytes
        with contextlib.suppress(BadRecord, TooLarge):
            member, record = single_member(self._read(capture), most + MAX_HEAD_BYTES)
            read_record(record, most)
            yield member or rewritten(record)

    def _read(self, capture: dict[str, Any]) -> bytes:
        key = (capture["file"], capture["copied"])
        if key not in self._files:
            if len(self._files) >= _OPEN_FILES:
                self._files.pop(next(iter(self._files))).close()
            if capture["copied"]:
                record = self._archives.records[capture["file"]]
                self._files[key] = self._archives.folder.open(_path(record, "copies"))
            else:
                self._files[key] = open_source(self._archives.files[capture["file"]])
        self._files[key].seek(capture["offset"])
        return bytes(self._files[key].read(capture["length"]))


def page_of_record(
    data: bytes,
    origin: Origin,
    max_page_bytes: int,
    *,
    where: str,
    fetch_ms: int = 0,
    canonical: str | None = None,
) -> Answer:
    """The page in the bytes of an archived record, or why there is none.

    `where` describes the record's place. With `canonical`, the record must be of this canonical URL.
    """
    try:
        member, record = single_member(data, max_page_bytes + MAX_HEAD_BYTES)
        response = read_record(record, max_page_bytes)
    except BadRecord as error:
        return NoPage(Reason.BAD_RESPONSE, f"{error}, {where}")
    except TooLarge as error:
        return NoPage(Reason.TOO_LARGE, str(error))
    if canonical is not None and canonical_or_none(response.url) != canonical:
        return NoPage(Reason.BAD_RESPONSE, f"the record is of {response.url[:200]!r}, {where}")
    return judge(response, origin, fetch_ms, lambda _: member or rewritten(record))


def followed(status: int, target: str | None, origin: int, seen: Collection[int], most: int) -> str | NoPage:
    """The canonical URL `target` of an archived redirect, or why the redirect is not followed.

    A redirect is not followed if it has no target (None), if the target is the URL itself (id `origin`) or one of the
    ids `seen` on the way, and after `most` redirects.
    """
    if target is None:
        return NoPage(Reason.BAD_REDIRECT, f"status {status} to no URL that could be archived")
    if url_id(target) == origin:  # from http to https, or to www.
        return NoPage(Reason.NOT_ARCHIVED, "archived is only a redirect to another spelling of the URL")
    if url_id(target) in seen:
        return NoPage(Reason.REDIRECT_LOOP, f"redirects to {target}, where it came from")
    if len(seen) > most:
        return NoPage(Reason.REDIRECT_LOOP, f"more than {most} redirects")
    return target


def _distance(capture: dict[str, Any], moment: int) -> tuple:
    """The sort key of a URL's captures: successful ones, then redirects; the nearest in time; the earliest."""
    status, date = capture["status"], capture["date"]
    kind = 0 if 200 <= status < 300 else 1 if status in REDIRECTS else 2
    return *nearness(kind, date, moment), capture["file"], capture["copied"], capture["offset"]


def _by_id(tables: list[pa.Table]) -> pa.Table:
    schema = _CAPTURES.append(pa.field("file", pa.int32()))
    return pa.concat_tables([schema.empty_table(), *tables]).sort_by("url_id")


def _bucket(host: str) -> int:
    return xxhash.xxh3_64_intdigest(host.encode()) % BUCKETS


def canonical_or_none(url: str | None) -> str | None:
    try:
        return canonicalize(url)[0] if url else None
    except BadURL:
        return None


def _path(record: ShardRecord, kind: str) -> str:
    return next(file.path for file in record.files if file.kind == kind)
