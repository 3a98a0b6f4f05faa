"""The join of URLs with Common Crawl's columnar index, which reads what may hold one of them and no more.

    footers   a file of the index   -> its row groups, with their ranges of keys
    ranges    all row groups        -> ranges of keys, of about as many rows each
    ask       a shard's URLs        -> the keys of those that no earlier source has, by range
    match     a range's keys        -> the captures of each URL, by its shard

The keys are Common Crawl's own, SURT. They are dealt out by ranges of them, all crawls together: so what one part joins
fits into memory, each row group is read for one part (or two, at the ends of ranges), and a part sees all captures of
a URL, of which it passes on the best.
"""

from __future__ import annotations

import zlib
from bisect import bisect_left, bisect_right
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from owt_pipeline.engine import progress
from owt_pipeline.engine.dataset import batch_of
from owt_pipeline.engine.exchange import Slice, by_key, gather, read_slices
from owt_pipeline.fetch.answers import wanted_moment
from owt_pipeline.fetch.cc_index import GROUPS, KEY, NEEDED, IndexReader, Ranges, groups_of, plan_ranges, read_footer
from owt_pipeline.fetch.cc_records import CAPTURE, BulkClient, reading
from owt_pipeline.fetch.surt import surt_key
from owt_pipeline.formats.messages import is_html
from owt_pipeline.formats.urls import BadURL, canonical_url, unescaped, version_of

if TYPE_CHECKING:
    from owt_pipeline.engine.commit import ShardWriter
    from owt_pipeline.engine.stage import StageRun

WANTED = pa.schema(
    [
        ("key", pa.binary()),
        ("url_id", pa.uint64()),
        ("shard", pa.uint32()),
        ("moment", pa.int64()),
        ("url", pa.string()),
    ]
)
"""A key that is looked for: of which URL, and which time its capture should be near."""

FOUND = pa.schema(
    [
        ("url_id", pa.uint64()),
        ("rank", pa.list_(pa.int64())),
        ("capture", CAPTURE),
        ("problem", pa.string()),
        ("shard", pa.uint32()),
    ]
)
"""A capture, the least rank the best; or, where a URL has captures and none is of a page, what those are."""

CAPTURES_KEPT = 3
"""Captures of a URL that are passed on: the nearest may turn out to be no page."""

_JOINED_AT_ONCE = 1 << 19  # keys in memory, some 100 MB; more of one range take another round through its row groups

_TRUNCATED, _DIGEST = "content_truncated", "content_digest"
_REVISIT = "warc/revisit"
_NOT_MODIFIED = 304


def read_footers(run: StageRun, number: int, _slices: Sequence[Slice], writer: ShardWriter) -> None:
    """Keep the footer of a file of the index, and send its row groups."""
    uri = run.properties["cc_files"][number][1]
    with reading(run.options, run.runtime.on_cluster) as archive:
        footer, _ = read_footer(uri, partial(archive, BulkClient.read_end))
    writer.open_file(".footer", "footer").write(footer)
    writer.send(0, groups_of(number, uri, footer))


def divide(run: StageRun, _number: int, slices: Sequence[Slice], writer: ShardWriter) -> None:
    """Write down the row groups, and the ranges of keys that URLs are dealt out to."""
    groups = gather(run.work, slices, GROUPS).sort_by([("file", "ascending"), ("group", "ascending")])
    with pa.ipc.new_file(writer.open_file(".arrow", "groups"), GROUPS) as arrow:
        arrow.write_table(groups)
    footers = [file.path for record in run.read_records("footers") for file in record.files if file.kind == "footer"]
    bounds = plan_ranges(groups, run.inputs["urls"].rows())
    writer.open_file(".json", "ranges").write(msgspec.json.encode(Ranges(bounds, footers)))
    writer.count({"row_groups": len(groups)})


def send_keys(run: StageRun, shard: int, urls: Iterable[pa.RecordBatch], choice: str, writer: ShardWriter) -> None:
    """Send the keys of URLs (columns WANTED_WITH) to the ranges they are in."""
    bounds, sent = _ranges(run).bounds, 0
    for batch in urls:
        for number, rows in wanted_keys(batch, shard, bounds, choice):
            writer.send(number, rows)
            sent += rows.num_rows
    writer.count({"keys": sent})


def match(run: StageRun, _: int, slices: Sequence[Slice], writer: ShardWriter) -> None:
    """Send each shard the captures of its URLs whose keys are in a range."""
    ranges, counts, url_rules = _ranges(run), Counter[str](), version_of(run.inputs["urls"].manifest.options)
    with run.work.open(_path(run, "groups")) as file, pa.ipc.open_file(file) as arrow:
        groups = arrow.read_all().to_pydict()
    with reading(run.options, run.runtime.on_cluster) as archive:
        read = partial(archive, BulkClient.read_pieces)
        reader = IndexReader(run.properties["cc_files"], lambda number: run.work.read(ranges.footers[number]), read)
        for wanted in _at_once(read_slices(run.work, slices)):
            found = join(wanted, groups, reader, url_rules, counts)
            for shard, rows in by_key(found, found["shard"].to_numpy()):
                writer.send(shard, rows)
            progress.advance(len(wanted))
    counts["index_bytes_read"] = reader.read_bytes
    writer.count(counts)


def _at_once(tables: Iterable[pa.Table]) -> Iterator[pa.Table]:
    """The rows of tables, as many together as are joined at once."""
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
    """Of a file of the step `ranges`."""
    return next(file.path for file in run.read_records("ranges")[0].files if file.kind == kind)


WANTED_WITH = ["url_id", "url", "posted_url", "created_utc"]
"""The columns of urls/ that a key is made from."""


def wanted_keys(
    urls: pa.RecordBatch, shard: int, bounds: Sequence[bytes], choice: str
) -> Iterator[tuple[int, pa.RecordBatch]]:
    """(range, its rows of WANTED) for URLs (columns url_id, url, posted_url, created_utc).

    A URL is looked for under its canonical form and as it was posted, since an index keeps parameters that canonical
    URLs lack, such as those for tracking.
    """
    rows: list[tuple[bytes, int, int, int, str]] = []
    columns = (urls[name].to_pylist() for name in ("url_id", "url", "posted_url", "created_utc"))
    for url_id, url, posted, created in zip(*columns, strict=True):
        moment = wanted_moment(choice, created)
        for key in {surt_key(url), surt_key(unescaped(posted))}:
            if key is not None:
                rows.append((key, url_id, shard, moment, url))
    ranges = np.array([bisect_right(bounds, row[0]) for row in rows], np.int64)
    return by_key(batch_of(rows, WANTED), ranges)


class _Hit(NamedTuple):
    """A capture of a wanted URL, as the index has it."""

    wanted: int  # row
    date: int
    is_page: bool
    truncated: bool
    about: str  # of a capture that is no page
    place: tuple[int, int, int]  # file, row group, row
    capture: dict[str, Any]


def join(
    wanted: pa.Table, groups: Mapping[str, Sequence[Any]], reader: IndexReader, url_rules: int, counts: Counter[str]
) -> pa.RecordBatch:
    """The best captures of the URLs of `wanted` (of WANTED), as FOUND.

    The best is the nearest in time to `moment` of those with status 200 and an HTML type. One that the crawler cut off
    comes after all others. A revisit says that the page was then as in the record with the same digest, so it counts
    as another date of that record.

    Args:
      wanted: what is looked for.
      groups: the columns of GROUPS.
      reader: of the index.
      url_rules: version of the rules by which URLs are canonical.
      counts: of what was read and found, added to.
    """
    wanted = wanted.sort_by("key").combine_chunks()
    keys = wanted["key"].to_pylist()
    canonical, moments = wanted["url"].to_pylist(), wanted["moment"].to_pylist()
    hits: dict[int, list[_Hit]] = {}
    for file, group, rows, least, greatest in zip(*(groups[name] for name in GROUPS.names), strict=True):
        first = 0 if least is None else bisect_left(keys, least)
        last = len(keys) if greatest is None else bisect_right(keys, greatest)
        if first >= last:
            continue
        counts["row_groups_read"] += 1
        counts["index_rows_read"] += rows
        for hit in _hits(reader, file, group, keys, first, last, canonical, url_rules):
            hits.setdefault(hit.wanted, []).append(hit)
    revisited = {row: found for row, found in hits.items() if any(hit.about == _REVISIT for hit in found)}
    digests = _digests(reader, [hit for found in revisited.values() for hit in found])
    url_ids, shards = wanted["url_id"].to_pylist(), wanted["shard"].to_pylist()
    best: list[tuple[Any, ...]] = []  # rows of FOUND
    for row, found in sorted(hits.items()):
        _count(found, counts)
        ranked = sorted(_ranked(found, moments[row], digests, counts))[:CAPTURES_KEPT]
        kept: list[tuple[Any, Any, Any]] = [(rank, found[number].capture, None) for rank, number in ranked]
        best += [(url_ids[row], *each, shards[row]) for each in kept or [(None, None, _problem(found))]]
    return batch_of(best, FOUND)


def _hits(
    reader: IndexReader, file: int, group: int, keys: Sequence[bytes], first: int, last: int,
    canonical: Sequence[str], url_rules: int,
) -> Iterator[_Hit]:  # fmt: skip
    """The captures in a row group of wanted URLs, whose keys are among `keys[first:last]`."""
    column = reader.columns(file, group, [KEY])[KEY].cast(pa.binary())
    rows = np.flatnonzero(pc.is_in(column, value_set=pa.array(keys[first:last], pa.binary())).to_numpy())
    if not len(rows):
        return
    held = column.take(pa.array(rows)).to_pylist()
    table = reader.columns(file, group, [*NEEDED, _TRUNCATED]).take(pa.array(rows))
    table = table.set_column(
        table.schema.get_field_index("fetch_time"), "fetch_time",
        pc.cast(pc.cast(table["fetch_time"], pa.timestamp("s"), safe=False), pa.int64()),
    )  # fmt: skip
    for at, key, row in zip(rows.tolist(), held, table.to_pylist(), strict=True):
        try:
            url = canonical_url(row["url"], url_rules)
        except BadURL:
            continue
        status, kind = row["fetch_status"], row["content_mime_detected"] or ""
        is_revisit = kind == _REVISIT or status == _NOT_MODIFIED
        has_record = row["warc_filename"] and row["warc_record_length"] and row["warc_record_offset"] is not None
        is_page = status == 200 and is_html(kind) and not is_revisit and bool(has_record)
        about = _REVISIT if is_revisit else f"status {status}" if status != 200 else kind or "no type"
        capture = {
            "crawl": reader.crawl(file),
            "file": row["warc_filename"],
            "offset": row["warc_record_offset"],
            "length": row["warc_record_length"],
        }
        for number in range(bisect_left(keys, key, first, last), bisect_right(keys, key, first, last)):
            if canonical[number] == url:
                truncated = bool(row.get(_TRUNCATED))
                yield _Hit(number, row["fetch_time"], is_page, truncated, about, (file, group, at), capture)


def _ranked(
    hits: Sequence[_Hit], moment: int, digests: Mapping[tuple[int, int, int], str], counts: Counter[str]
) -> Iterator[tuple[list[int], int]]:
    """(rank, which) of each capture that is a page."""
    dates: dict[str, list[int]] = {}  # of revisits, by digest
    for hit in hits:
        if hit.about == _REVISIT:
            dates.setdefault(digests.get(hit.place, ""), []).append(hit.date)
    known = {digests.get(hit.place, "") for hit in hits if hit.is_page} - {""}
    counts["revisits_without_record"] += sum(len(found) for digest, found in dates.items() if digest not in known)
    for number, hit in enumerate(hits):
        if hit.is_page:
            digest = digests.get(hit.place, "")
            distance = min(abs(date - moment) for date in (hit.date, *(dates.get(digest, ()) if digest else ())))
            # The last two make the order that of the captures, whatever the order of files and row groups.
            last = [hit.capture["offset"], zlib.crc32(hit.capture["file"].encode())]
            yield [int(hit.truncated), distance, hit.date, *last], number


def _digests(reader: IndexReader, hits: Iterable[_Hit]) -> dict[tuple[int, int, int], str]:
    """The digests of captures: of few, so the column is read for them alone."""
    found: dict[tuple[int, int, int], str] = {}
    for file, group in sorted({hit.place[:2] for hit in hits}):
        table = reader.columns(file, group, [_DIGEST])
        if _DIGEST in table.column_names:
            rows = sorted({hit.place[2] for hit in hits if hit.place[:2] == (file, group)})
            values = table[_DIGEST].take(pa.array(rows)).to_pylist()
            found.update({(file, group, row): value or "" for row, value in zip(rows, values, strict=True)})
    return found


def _count(hits: Sequence[_Hit], counts: Counter[str]) -> None:
    counts["captures_found"] += len(hits)
    counts["captures_truncated"] += sum(hit.is_page and hit.truncated for hit in hits)
    counts["captures_revisits"] += sum(hit.about == _REVISIT for hit in hits)
    counts["captures_no_page"] += sum(not hit.is_page and hit.about != _REVISIT for hit in hits)


def _problem(hits: Sequence[_Hit]) -> str:
    """What the captures of a URL are, where none is a page."""
    kinds = Counter(hit.about for hit in hits)
    return ", ".join(f"{count} of {about}" for about, count in sorted(kinds.items()))


def captures_by_url(found: pa.Table) -> dict[int, tuple[list[dict[str, Any]], str]]:
    """By url_id, the captures in rows of FOUND, the best first; or what those are that are no pages."""
    rows: dict[int, list[dict[str, Any]]] = {}
    for row in found.to_pylist():
        rows.setdefault(row["url_id"], []).append(row)
    answers: dict[int, tuple[list[dict[str, Any]], str]] = {}
    for url_id, of_url in rows.items():
        pages = {tuple(row["capture"].values()): row for row in of_url if row["capture"] is not None}
        best = sorted(pages.values(), key=lambda row: row["rank"])[:CAPTURES_KEPT]
        problems = [row["problem"] for row in of_url if row["problem"]]
        answers[url_id] = [row["capture"] for row in best], "; ".join(problems)
    return answers
