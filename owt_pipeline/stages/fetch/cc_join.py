"""The join of URLs with Common Crawl's columnar index; it reads only row groups that may hold one of the URLs.

    footers   a file of the index   -> its row groups, with their ranges of keys
    ranges    all row groups        -> ranges of keys, with about as many rows each
    ask       a shard's URLs        -> the keys of those that no earlier source has, by range
    match     a range's keys        -> the captures of each URL, by its shard

The keys are Common Crawl's: SURT. A part of the join has one range of keys of all crawls. So it fits into memory, each
row group is read for one part (or two, at the ends of ranges), and a part sees all captures of a URL and sends on the
best.
"""

from __future__ import annotations

import contextlib
import zlib
from bisect import bisect_left, bisect_right
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from owt_pipeline import progress
from owt_pipeline.formats.messages import is_html
from owt_pipeline.formats.urls import tracking_pattern, unescaped
from owt_pipeline.ledger.dataset import batch_of
from owt_pipeline.ledger.exchange import Slice, gather, read_slices
from owt_pipeline.stages.fetch.answers import NoPage, nearness, wanted_moment
from owt_pipeline.stages.fetch.archives import canonical_or_none
from owt_pipeline.stages.fetch.cc_index import (
    GROUPS,
    KEY,
    NEEDED,
    UNREADABLE,
    IndexReader,
    Ranges,
    groups_of,
    plan_ranges,
    read_footer,
)
from owt_pipeline.stages.fetch.cc_records import CAPTURE, BulkClient, Unreadable, reading
from owt_pipeline.stages.fetch.surt import surt_key
from schemas import Reason

if TYPE_CHECKING:
    from owt_pipeline.engine.stage import StageRun
    from owt_pipeline.ledger.commit import ShardWriter

WANTED = pa.schema(
    [
        ("key", pa.binary()),
        ("url_id", pa.uint64()),
        ("shard", pa.uint32()),
        ("moment", pa.int64()),
        ("url", pa.string()),
    ]
)
"""A key to look for: its URL, and the time that the capture should be nearest to."""

FOUND = pa.schema(
    [
        ("url_id", pa.uint64()),
        ("rank", pa.list_(pa.int64())),
        ("capture", CAPTURE),
        ("reason", pa.string()),
        ("problem", pa.string()),
        ("shard", pa.uint32()),
    ]
)
"""A capture of a page, the best one with the lowest rank; or why the URL has no page (`reason`, `problem`), or which
captures it has (`problem` alone)."""

CAPTURES_KEPT = 3
"""Captures that are kept of a URL: the nearest one may turn out to be no page."""

_JOINED_AT_ONCE = 1 << 19  # keys in memory, about 100 MB; a range with more reads its row groups again

_MOST_UNREAD = 3  # row groups or footers in a row that fail after all retries: then the archive is down

_TRUNCATED = "content_truncated"


def read_footers(run: StageRun, number: int, _slices: Sequence[Slice], writer: ShardWriter) -> None:
    """Keep the footer of a file of the index, and send its row groups.

    If the footer cannot be read but a neighbour's can, one group UNREADABLE is sent. Raises Unreadable if the archive
    is down.
    """
    files = [uri for _, uri in run.properties["cc_files"]]
    with reading(run.options, run.runtime.on_cluster) as archive:
        read_end = partial(archive, BulkClient.read_end)
        try:
            footer, _ = read_footer(files[number], read_end)
            groups = groups_of(number, files[number], footer)
        except Unreadable:
            if not any(_is_there(files[number - step], read_end) for step in range(1, min(_MOST_UNREAD, len(files)))):
                raise
            footer, groups = b"", batch_of([(number, UNREADABLE, 0, None, None)], GROUPS)
    writer.open_file(".footer", "footer").write(footer)
    writer.send(0, groups)


def _is_there(uri: str, read_end: Callable[[str, int], tuple[bytes, int]]) -> bool:
    with contextlib.suppress(Unreadable):
        read_footer(uri, read_end)
        return True
    return False


def divide(run: StageRun, _number: int, slices: Sequence[Slice], writer: ShardWriter) -> None:
    """Write all row groups, and the ranges of keys by which the join is divided into parts."""
    groups = gather(run.work, slices, GROUPS).sort_by([("file", "ascending"), ("group", "ascending")])
    with pa.ipc.new_file(writer.open_file(".arrow", "groups"), GROUPS) as arrow:
        arrow.write_table(groups)
    footers = [file.path for record in run.read_records("footers") for file in record.files if file.kind == "footer"]
    bounds = plan_ranges(groups, run.inputs["urls"].rows())
    writer.open_file(".json", "ranges").write(msgspec.json.encode(Ranges(bounds, footers)))
    unread = len(groups.filter(pc.equal(groups["group"], UNREADABLE)))
    writer.count({"row_groups": len(groups) - unread, "footers_unread": unread})


def send_keys(run: StageRun, shard: int, urls: Iterable[pa.RecordBatch], choice: str, writer: ShardWriter) -> None:
    """Send the keys of URLs (columns WANTED_WITH) to their ranges."""
    bounds, sent = _ranges(run).bounds, 0
    for batch in urls:
        ranges, rows = wanted_keys(batch, shard, bounds, choice)
        writer.send(ranges, rows)
        sent += rows.num_rows
    writer.count({"keys": sent})


def match(run: StageRun, _: int, slices: Sequence[Slice], writer: ShardWriter) -> None:
    """Send each shard the captures of those of its URLs whose keys are in this range."""
    ranges, counts = _ranges(run), Counter[str]()
    with run.work.open(_path(run, "groups")) as file, pa.ipc.open_file(file) as arrow:
        groups = arrow.read_all().to_pydict()
    with reading(run.options, run.runtime.on_cluster) as archive:
        read = partial(archive, BulkClient.read_pieces)
        reader = IndexReader(run.properties["cc_files"], lambda number: run.work.read(ranges.footers[number]), read)
        for wanted in _at_once(read_slices(run.work, slices)):
            found = join(wanted, groups, reader, counts)
            writer.send(found["shard"].to_numpy(), found)
            progress.advance(len(wanted))
    counts["index_bytes_read"] = reader.read_bytes
    writer.count(counts)


def _at_once(tables: Iterable[pa.Table]) -> Iterator[pa.Table]:
    """The rows of tables, in tables of about _JOINED_AT_ONCE rows."""
    waiting: list[pa.Table] = []
    for table in tables:
        waiting.append(table)
        if sum(map(len, waiting)) >= _JOINED_AT_ONCE:
            yield pa.concat_tables(waiting)
            waiting = []
    if waiting:
        yield pa.concat_tables(waiting)


def _ranges(run: StageRun) -> Ranges:
    return msgspec.json.decode(run.work.read(_path(run, "ranges")), type=Ranges)


def _path(run: StageRun, kind: str) -> str:
    """The path of a file of the step `ranges`."""
    return next(file.path for file in run.read_records("ranges")[0].files if file.kind == kind)


WANTED_WITH = ["url_id", "url", "posted_url", "created_utc"]
"""The columns of urls/ from which keys are made."""


def wanted_keys(
    urls: pa.RecordBatch, shard: int, bounds: Sequence[bytes], choice: str
) -> tuple[np.ndarray, pa.RecordBatch]:
    """(range of each row, rows of WANTED) for URLs (columns url_id, url, posted_url, created_utc).

    A URL is looked for in its canonical form and as posted, since an index keeps parameters that canonical URLs lack,
    such as those for tracking; and under its path with any tracking parameters.
    """
    rows: list[tuple[bytes, int, int, int, str]] = []
    ranges: list[int] = []
    columns = (urls[name].to_pylist() for name in ("url_id", "url", "posted_url", "created_utc"))
    for number, url, posted, created in zip(*columns, strict=True):
        moment = wanted_moment(choice, created)
        for key in _keys(url, posted):
            first = last = bisect_right(bounds, key)
            if key.endswith(b"?"):
                last = bisect_right(bounds, _end(key))
            ranges += range(first, last + 1)
            rows += [(key, number, shard, moment, url)] * (last + 1 - first)
    return np.array(ranges, np.int64), batch_of(rows, WANTED)


def _keys(url: str, posted: str) -> set[bytes]:
    """The keys of a URL, and their paths with a `?`, for captures with other tracking parameters."""
    keys = {key for key in (surt_key(url), surt_key(unescaped(posted))) if key is not None}
    return keys | {_path_of(key) for key in keys}


def _path_of(key: bytes) -> bytes:
    return key.partition(b"?")[0] + b"?"


def _end(path: bytes) -> bytes:
    """The least key after all keys that begin with `path`, which ends in `?`."""
    return path[:-1] + b"@"


class _Hit(NamedTuple):
    """A capture of a wanted URL, as the index describes it."""

    wanted: int  # row
    date: int
    is_page: bool
    truncated: bool
    about: str  # what it is, if no page
    capture: dict[str, Any]

    def rank(self, moment: int) -> list[int]:
        """The sort key of a URL's pages: complete ones, then the nearest in time. With the last two, the order does
        not depend on that of files and row groups."""
        capture = self.capture
        file = zlib.crc32(capture["file"].encode())
        return [*nearness(self.truncated, self.date, moment), capture["offset"], file]


def nothing_in(crawls: str, captures: str = "") -> NoPage:
    """The outcome of a URL without a page in these crawls; `captures` says which other captures it has."""
    return NoPage(Reason.NOT_ARCHIVED, f"no capture of a page in {crawls}" + (captures and f": {captures}"))


def join(
    wanted: pa.Table, groups: Mapping[str, Sequence[Any]], reader: IndexReader, counts: Counter[str]
) -> pa.RecordBatch:
    """The best captures of the URLs of `wanted` (of WANTED), as rows of FOUND.

    Of the captures with status 200 and an HTML type, the one nearest in time to `moment` is the best; those that the
    crawler truncated come after all others.

    Args:
      wanted: the keys to look for.
      groups: the columns of GROUPS.
      reader: reads the index.
      counts: counts of what is read and found, to which this adds.
    """
    wanted = wanted.sort_by("key").combine_chunks()
    keys, moments = wanted["key"].to_pylist(), wanted["moment"].to_pylist()
    canonical: dict[str, int] = {}  # the first row of each URL
    for row, url in enumerate(wanted["url"].to_pylist()):
        canonical.setdefault(url, row)
    hits: dict[int, list[_Hit]] = {}
    unread_in_row = 0
    unread: dict[str, str] = {}  # URLs that may be in a row group that cannot be read
    for file, group, rows, least, greatest in zip(*(groups[name] for name in GROUPS.names), strict=True):
        first = 0 if least is None else bisect_left(keys, min(least, _path_of(least)))
        last = len(keys) if greatest is None else bisect_right(keys, greatest)
        if first >= last:
            continue
        counts["row_groups_read"] += group != UNREADABLE
        counts["index_rows_read"] += rows
        try:
            for hit in _hits(reader, file, group, keys[first:last], canonical):
                hits.setdefault(hit.wanted, []).append(hit)
            unread_in_row = 0
        except Unreadable as error:
            unread_in_row += group != UNREADABLE
            if unread_in_row == _MOST_UNREAD:
                raise
            counts["row_groups_unread"] += group != UNREADABLE
            unread |= dict.fromkeys(wanted["url"][first:last].to_pylist(), str(error))
    url_ids, shards = wanted["url_id"].to_pylist(), wanted["shard"].to_pylist()
    best: list[tuple[Any, ...]] = []  # rows of FOUND
    for row, found in sorted(hits.items()):
        _count(found, counts)
        pages = sorted((hit.rank(moments[row]), at) for at, hit in enumerate(found) if hit.is_page)
        kept: list[tuple[Any, ...]] = [(rank, found[at].capture, None, None) for rank, at in pages[:CAPTURES_KEPT]]
        best += [(url_ids[row], *each, shards[row]) for each in kept or [(None, None, None, _problem(found))]]
    for url, problem in unread.items():
        if (row := canonical[url]) not in hits:
            best.append((url_ids[row], None, None, str(Reason.ARCHIVE_FAILED), problem, shards[row]))
    return batch_of(best, FOUND)


def _hits(
    reader: IndexReader, file: int, group: int, keys: Sequence[bytes], canonical: Mapping[str, int]
) -> Iterator[_Hit]:
    """The captures in a row group of the URLs in `canonical` (with their rows), by their keys; raises Unreadable."""
    if group == UNREADABLE:
        raise Unreadable(f"--cc_index: the footer of {reader.files[file][1]} cannot be read")
    column = reader.columns(file, group, [KEY])[KEY].cast(pa.binary())
    is_wanted = pc.is_in(column, value_set=pa.array(keys, pa.binary()))
    paths = pa.array([key for key in keys if key.endswith(b"?")], pa.binary())
    perhaps = np.flatnonzero(pc.is_in(pc.replace_substring_regex(column, r"\?.*", "?"), value_set=paths).to_numpy())
    tracked = pc.match_substring_regex(column.take(pa.array(perhaps)), tracking_pattern()).to_numpy()
    rows = np.union1d(np.flatnonzero(is_wanted.to_numpy()), perhaps[tracked])
    if not len(rows):
        return
    table = reader.columns(file, group, [*NEEDED, _TRUNCATED]).take(pa.array(rows))
    table = table.set_column(
        table.schema.get_field_index("fetch_time"), "fetch_time",
        pc.cast(pc.cast(table["fetch_time"], pa.timestamp("s"), safe=False), pa.int64()),
    )  # fmt: skip
    for row in table.to_pylist():
        url = canonical_or_none(row["url"]) or ""
        if url not in canonical:
            continue
        status, kind = row["fetch_status"], row["content_mime_detected"] or ""
        has_record = row["warc_filename"] and row["warc_record_length"] and row["warc_record_offset"] is not None
        is_page = status == 200 and is_html(kind) and bool(has_record)
        about = f"status {status}" if status != 200 else kind or "no type"
        capture = {
            "crawl": reader.files[file][0],
            "file": row["warc_filename"],
            "offset": row["warc_record_offset"],
            "length": row["warc_record_length"],
            "canonical": url,
        }
        yield _Hit(canonical[url], row["fetch_time"], is_page, bool(row.get(_TRUNCATED)), about, capture)


def _count(hits: Sequence[_Hit], counts: Counter[str]) -> None:
    counts["captures_found"] += len(hits)
    counts["captures_truncated"] += sum(hit.is_page and hit.truncated for hit in hits)
    counts["captures_no_page"] += sum(not hit.is_page for hit in hits)


def _problem(hits: Sequence[_Hit]) -> str:
    """Counts of the kinds of a URL's captures, none of which is a page."""
    kinds = Counter(hit.about for hit in hits)
    return ", ".join(f"{count} of {about}" for about, count in sorted(kinds.items()))


def captures_by_url(found: pa.Table, crawls: str) -> dict[int, tuple[list[dict[str, Any]], NoPage]]:
    """(captures, the best first; the outcome without any) by url_id, from rows of FOUND."""
    rows: dict[int, list[dict[str, Any]]] = {}
    for row in found.to_pylist():
        rows.setdefault(row["url_id"], []).append(row)
    answers: dict[int, tuple[list[dict[str, Any]], NoPage]] = {}
    for number, of_url in rows.items():
        pages = {(row["capture"]["file"], row["capture"]["offset"]): row for row in of_url if row["capture"]}
        best = sorted(pages.values(), key=lambda row: row["rank"])[:CAPTURES_KEPT]
        reasons = [NoPage(Reason.of(row["reason"]), row["problem"]) for row in of_url if row["reason"]]
        problems = [row["problem"] for row in of_url if row["problem"] and not row["reason"]]
        nothing = nothing_in(crawls, "; ".join(problems))
        answers[number] = [row["capture"] for row in best], reasons[0] if reasons else nothing
    return answers
