"""`owt collect`: Reddit dumps, Reddit's API, URL lists and WARC files become `urls/`."""

from __future__ import annotations

import itertools
import logging
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any

import msgspec
import pyarrow as pa

from owt_pipeline import progress
from owt_pipeline.engine.stage import Stage, StageRun, Step, one_part, what_was_sent
from owt_pipeline.engine.workers import map_batches
from owt_pipeline.errors import UserError
from owt_pipeline.formats import lines
from owt_pipeline.ledger.commit import ShardWriter
from owt_pipeline.ledger.exchange import (
    SLICE_BYTES,
    Slice,
    SliceWriter,
    gather,
    joined,
    read_index,
    read_slices,
)
from owt_pipeline.stages.collect.earlier import AGAIN, KNOWN, BaseReader, Earlier, accepted_by
from owt_pipeline.stages.collect.merge import merge_submissions
from owt_pipeline.stages.collect.options import Options
from owt_pipeline.stages.collect.reddit import SubredditReader
from owt_pipeline.stages.collect.rules import Rules, blocklists
from owt_pipeline.stages.collect.sources import (
    Reader,
    Source,
    Tally,
    WarcUrlReader,
    block_batches,
    row_of_problem,
    rows_of_block,
)
from owt_pipeline.stages.collect.spread import HOSTS, HostCounter, Spread, plan_spread
from owt_pipeline.stages.collect.submissions import ROWS
from owt_pipeline.storage.folder import describe_source, expand_globs, open_source
from schemas import Reason
from schemas.manifest import ShardRecord

logger = logging.getLogger("owt")

_SUBMISSIONS, _SPREAD, _ROWS, _TALLY = "submissions", "spread", "rows", "tally"  # steps, and kinds of their files
_KNOWN, _AGAIN = "known", "again"  # kinds of files of what the bases know
_SOURCES_NAME = "sources.json"
_SOURCES_TOGETHER = 4  # at once: .xz and .bz2 decompress slower than few processes parse; a dump's window takes 2 GB
_AS_OF_NAME = "as-of.json"
_PARTS_OF_BASE = 64
_FEW_REQUESTS = 1_000  # worth less than writing the rows once more
_DAY = 86_400.0
_MANY_ROWS = 4_000_000  # of a shard: some 4 GB of memory


def _sources(run: StageRun) -> list[Source]:
    return msgspec.json.decode(run.work.read(_SOURCES_NAME), type=list[Source])


def read_source(run: StageRun, number: int, _: Sequence[Slice], writer: ShardWriter) -> None:
    """Step 1: a source's rows by bucket, its tally, and the counts of its hosts; or what a base knows.

    This process decompresses the source, which cannot be split; the pool's processes parse it.
    """
    sources = _sources(run)
    if number >= len(sources):
        _read_base(run, *_parts_of_bases(run)[number - len(sources)], writer)
        return
    source = sources[number]
    tally, hosts = Tally(source.name, source.kind), HostCounter()
    buckets = SliceWriter(writer.open_file(".rows", _ROWS))

    def write(rows: pa.RecordBatch) -> None:
        buckets.send(rows["bucket"].to_numpy(), rows)
        hosts.add(rows["host"])
        progress.advance(rows.num_rows)

    with _opened(source, run.options) as reader:
        work = partial(rows_of_block, source=source, rules=_rules(run.options), num_buckets=run.num_shards)
        for _, rows in map_batches(work, block_batches(reader, source), run.runtime.workers):
            tally.add(rows)
            write(rows)
    for line in reader.overlong:
        rows = row_of_problem(source, line, Reason.BAD_LINE, f"over {lines.MAX_LINE_BYTES:,} bytes", run.num_shards)
        tally.add(rows)
        write(rows)
    tally.bytes_read, tally.bytes_decompressed = reader.bytes_read, reader.bytes_decompressed
    tally.broken = reader.broken
    if source.kind == "dump" and tally.broken is None:
        if not tally.lines:
            tally.broken = f"the file has no {'lines' if reader.bytes_read else 'bytes'}"
        elif reader.ends_within_line and tally.last_malformed == tally.last_line:
            tally.broken = f"the file ends in the middle of line {tally.last_line:,}"
    tally.overlong = min(reader.overlong, default=0)
    if tally.problem is not None and not run.options.allow_damaged:
        raise UserError(f"{source.uri}: {tally.problem}")
    if tally.broken is not None:
        write(row_of_problem(source, tally.last_line + 1, Reason.BROKEN_FILE, tally.broken, run.num_shards))
    buckets.close()
    writer.send(0, hosts.batch())
    writer.open_file(".json", _TALLY).write(msgspec.json.encode(tally))


def _parts_of_bases(run: StageRun) -> list[tuple[int, range]]:
    """(number of the base, some of its shards) for each part that reads what the bases know."""
    found = []
    for number, base in enumerate(run.bases):
        shards = accepted_by(base).num_shards
        together = -(-shards // _PARTS_OF_BASE)
        found += [(number, range(first, min(first + together, shards))) for first in range(0, shards, together)]
    return found


def _read_base(run: StageRun, number: int, shards: range, writer: ShardWriter) -> None:
    """What a base knows of its URLs, by bucket: ids, scores and outcomes."""
    options: Options = run.options
    failed_before = None
    if options.retry_bases:
        failed_before = run.properties["retried_as_of"] - options.retry_after_days * _DAY
    reader = BaseReader(run.bases[number], number, run.num_shards, failed_before)
    hosts = HostCounter()
    buckets = [SliceWriter(writer.open_file(f".{kind}", kind)) for kind in (_KNOWN, _AGAIN)]
    for shard in shards:
        for is_again, rows in reader.known(shard):
            buckets[is_again].send(rows["bucket"].to_numpy(), rows)
            if is_again:
                hosts.add(rows["host"])
            else:
                progress.advance(rows.num_rows)
    for some in buckets:
        some.close()
    writer.send(0, hosts.batch())


def spread_hosts(run: StageRun, _: int, slices: Sequence[Slice], writer: ShardWriter) -> None:
    """Step 2, one part: decides which hosts are divided, and sends handles of each bucket's rows to its shards.

    If these were many and small, as with many sources and shards, handles of many buckets are sent to the parts of
    step 3 instead, which read and write the rows once more.
    """
    kinds = (_ROWS, _KNOWN, _AGAIN)
    files = [file for record in run.read_records(_SUBMISSIONS) for file in record.files if file.kind in kinds]
    total = sum(file.rows for file in files if file.kind != _KNOWN)
    if total > _MANY_ROWS * run.num_shards:
        logger.warning(
            "collect: %d submissions per shard; a shard is merged in memory: if it does not fit, use more --num_shards",
            total // run.num_shards,
        )
    spread = plan_spread(gather(run.work, slices, HOSTS), total, run.num_shards, run.options.max_host_share)
    writer.open_file(".json", _SPREAD).write(msgspec.json.encode(spread))
    shards_of = spread.shards_of_buckets()
    found = [read_index(run.work, file.path) for file in files]
    requests = sum(len(shards_of[bucket]) for index in found for bucket, _ in index)
    parts = len(files) + run.num_shards
    if requests <= max(_FEW_REQUESTS, 4 * parts + sum(file.bytes for file in files) // SLICE_BYTES):
        for index in found:
            for bucket, slice in index:
                for shard in sorted(shards_of[bucket]):
                    writer.forward(shard, msgspec.structs.replace(slice, ahead=1))
        return
    groups = min(run.num_shards, -(-2 * parts // len(files)))
    for index in found:
        for group, some in itertools.groupby(index, lambda sent: sent[0] * groups // run.num_shards):
            for slice in joined(slice for _, slice in some):
                writer.forward(group, slice)


def regroup(run: StageRun, _: int, slices: Sequence[Slice], writer: ShardWriter) -> None:
    """Step 3: sends the rows of some buckets to their shards, those of one shard together."""
    spread = _spread(run)[0]
    for table in read_slices(run.work, slices):
        for rows in table.to_batches():
            writer.send(spread.shards(rows), rows)
    progress.advance(sum(slice.rows for slice in slices))


_known: tuple[StageRun, Spread, list[Source]] | None = None  # of the run that this process works on


def _spread(run: StageRun) -> tuple[Spread, list[Source]]:
    """The result of step 2, and the sources."""
    global _known
    if _known is None or _known[0] is not run:
        (path,) = (file.path for record in run.read_records(_SPREAD) for file in record.files if file.kind == _SPREAD)
        _known = (run, msgspec.json.decode(run.work.read(path), type=Spread), _sources(run))
    return _known[1:]


def merge_shard(run: StageRun, shard: int, slices: Sequence[Slice], writer: ShardWriter) -> None:
    """Step 4: merges one shard's rows from all sources by URL."""
    spread, sources = _spread(run)
    tables = [spread.rows_of(shard, rows) for rows in read_slices(run.work, slices)]

    def sent(schema: pa.Schema) -> pa.Table:
        return pa.concat_tables([schema.empty_table(), *(rows for rows in tables if rows.schema.names == schema.names)])

    rows, earlier = sent(ROWS), None
    if run.bases:
        names = [base.name for base in run.bases]
        earlier = Earlier.of(sent(KNOWN), sent(AGAIN), names, spread)
    urls, rejects = merge_submissions(
        rows,
        [source.name for source in sources],
        min_score=run.options.min_score,
        spread=spread,
        earlier=earlier,
    )
    writer.enter(rows.num_rows + (len(earlier.again) if earlier else 0))
    for batch in urls.to_batches(max_chunksize=1 << 14):
        writer.write(batch)
    for batch in rejects.to_batches(max_chunksize=1 << 14):
        writer.reject(batch)
    progress.advance(rows.num_rows)


@contextmanager
def _opened(source: Source, options: Options) -> Iterator[Reader]:
    """A reader of a source."""
    if source.kind == "subreddit":
        yield SubredditReader(source.uri, options)
        return
    with open_source(source.uri) as file:
        yield WarcUrlReader(file, file.size()) if source.kind == "warc" else lines.LineReader(file)


def _files(options: Options) -> list[tuple[str, str, str]]:
    """(kind, URI, name) of all files, ordered by kind and name."""
    return [
        (kind, uri, uri.rpartition("/")[2])
        for kind, patterns in (("dump", options.dumps), ("list", options.url_lists), ("warc", options.warcs))
        for uri in expand_globs(patterns, "collect")
    ]


def _rules(options: Options) -> Rules:
    lists, domains = blocklists(options.blocked_domains)
    return Rules(
        over_18=options.over_18,
        allow_subreddits=frozenset(_subreddit(name) for name in options.allow_subreddits),
        deny_subreddits=frozenset(_subreddit(name) for name in options.deny_subreddits),
        domains=tuple(domains),
        domain_files=tuple((uri, describe_source(uri)["ends_sha256"]) for uri in lists),
    )


def _subreddit(name: str) -> str:
    return name.strip("/").lower().removeprefix("r/")


class Collect(Stage):
    """Collect URLs that people posted and voted up on Reddit, one row per URL, from monthly dumps, Reddit's API,
    lists of URLs or WARC files. Variants of a URL are one; every rejected submission is in rejects/.
    """

    name = "collect"
    inputs = ()
    bases = ("urls", "pages", "documents", "clean", "duplicates")
    output = "urls"
    options = Options
    version = 6
    libraries = ("msgspec", "idna", "xxhash", "duckdb", "tld")
    steps = (
        Step(
            read_source,
            _SUBMISSIONS,
            keys=lambda run: range(len(_sources(run)) + len(_parts_of_bases(run))),
            rows=lambda run: {},  # not known before they are read
            together=lambda run: min(_SOURCES_TOGETHER, run.runtime.workers),
        ),
        Step(spread_hosts, _SPREAD, keys=one_part),
        Step(regroup, "groups", keys=what_was_sent, spread="shards"),
        Step(merge_shard, spread="shards"),
    )
    example = "owt collect --workdir run --dumps 'dumps/RS_2013-*.zst' --num_shards 64"

    def sources(self, options: Options) -> list[dict[str, Any]]:
        if not (options.dumps or options.url_lists or options.warcs or options.subreddits):
            raise UserError(
                "collect has nothing to read: give at least one of --dumps, --url_lists, --warcs and --subreddits "
                "(or the same keys in the table [collect])"
            )
        described = [{"kind": kind, **describe_source(uri)} for kind, uri, _ in _files(options)]
        lists, domains = blocklists(options.blocked_domains)
        described += [{"kind": "blocklist", **describe_source(uri)} for uri in lists]
        return described + [{"kind": "blocklist", "name": domain} for domain in domains]

    def num_shards(self, options: Options) -> int:
        return options.num_shards

    def prepare(self, run: StageRun) -> None:
        """List the sources, ordered by their names."""
        options: Options = run.options
        found = _files(options)
        found += [
            ("subreddit", name, f"r/{name}") for name in sorted({_subreddit(name) for name in options.subreddits})
        ]
        sources = [Source(number, *about) for number, about in enumerate(found)]
        run.work.write(_SOURCES_NAME, msgspec.json.encode(sources))
        if options.retry_bases:
            run.work.create(
                _AS_OF_NAME, msgspec.json.encode(time.time())
            )  # once, since parts may be made on another day
            run.properties["retried_as_of"] = msgspec.json.decode(run.work.read(_AS_OF_NAME))

    def finish(self, run: StageRun, _: Sequence[ShardRecord]) -> None:
        """Write what was found in each source to inputs.json, and what is lost of damaged ones to the manifest."""
        files = [file for record in run.read_records(_SUBMISSIONS) for file in record.files]
        tallies = [msgspec.json.decode(run.work.read(f.path), type=Tally) for f in files if f.kind == _TALLY]
        for tally in tallies:
            if tally.problem is not None:
                logger.warning("%s: %s", tally.name, tally.problem)
            elif not tally.lines:
                logger.warning("%s has nothing to collect", tally.name)
        damaged = [
            {"name": tally.name, "problem": tally.problem, "lines": tally.lines} for tally in tallies if tally.problem
        ]
        if damaged:
            run.properties["damaged"] = damaged
        run.write_asset("inputs.json", msgspec.json.format(msgspec.json.encode(tallies), indent=1))
        run.stats["files"] = len(tallies)
        run.stats["lines"] = sum(file.rows for file in files if file.kind == _ROWS)
        run.stats["broken_files"] = sum(tally.broken is not None for tally in tallies)
        run.stats["bytes_read"] = sum(tally.bytes_read for tally in tallies)
        run.stats["bytes_decompressed"] = sum(tally.bytes_decompressed for tally in tallies)


STAGE = Collect()
