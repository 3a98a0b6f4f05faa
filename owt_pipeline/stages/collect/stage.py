"""`collect`: Reddit dumps, Reddit's API, tables of links and WARC files become `urls/`.

A generation's shard is made from the submissions of its hosts in its own sources and in those of all earlier
generations: a URL that one of these accepted is `seen_before`, and the scores of the others count. Sources of
generations that are published are not read again: their shards and rejects say the same.
"""

from __future__ import annotations

import hashlib
import json
import logging
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from operator import itemgetter
from typing import Any

import msgspec
import numpy as np
import pyarrow as pa

from owt_pipeline import progress
from owt_pipeline.engine.stage import Runtime, Stage, StageRun, Step
from owt_pipeline.engine.workers import map_batches
from owt_pipeline.errors import UserError
from owt_pipeline.formats import lines
from owt_pipeline.formats.records import describe_file, named_files
from owt_pipeline.ledger.commit import ShardWriter
from owt_pipeline.ledger.dataset import DatasetReader
from owt_pipeline.ledger.exchange import Slice, read_slices
from owt_pipeline.stages.collect.links import LinkReader
from owt_pipeline.stages.collect.merge import KNOWN, Earlier, known_of, merge_submissions
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
from owt_pipeline.stages.collect.submissions import ROWS
from owt_pipeline.storage.folder import Storage, describe_source, expand_globs, open_source
from schemas import Reason
from schemas.manifest import Generation, Root, ShardRecord, ledger_of

logger = logging.getLogger("owt")

_SOURCES, _TALLY = "sources", "tally"  # the first step, and the kind of its files
_INPUTS_NAME = "inputs.json"
_INPUTS = f"{ledger_of('urls')}/{_INPUTS_NAME}"
_SOURCES_TOGETHER = 4  # at once: .xz and .bz2 decompress slower than few processes parse; a dump's window takes 2 GB
_MANY_ROWS = 4_000_000  # of a shard: some 4 GB of memory
_SHARD_BYTES = {"dump": 100 << 20, "links": 1 << 20, "warc": 500 << 20, "subreddit": 1 << 30}
"""About how many bytes of a source become 20,000 URLs, a shard: of compressed dumps one submission in twenty stays."""
_LEAST_SHARDS = 8


def _open_generations(run: StageRun) -> list[Generation]:
    """The generations whose shards are made."""
    return [generation for generation in run.root.generations if generation.first >= run.settled]


def _sources(run: StageRun) -> list[tuple[int, Source]]:
    """(number of its generation, source) of each source, numbered in the order of the generations."""
    found = [(number, each) for number, of in enumerate(run.root.generations) for each in of.sources]
    return [
        (generation, Source(number, each["kind"], each.get("stored") or each["uri"], each["name"]))
        for number, (generation, each) in enumerate(found)
    ]


def _to_read(run: StageRun) -> list[tuple[int, Source]]:
    """The sources of the generations that are made; all if what was found in the others is lost."""
    settled = len(run.root.generations) - len(_open_generations(run))
    if not run.workdir.exists(_INPUTS):
        settled = 0
    return [(generation, source) for generation, source in _sources(run) if generation >= settled]


def read_source(run: StageRun, number: int, _: Sequence[Slice], writer: ShardWriter) -> None:
    """Step 1: send a source's rows to the shards of their hosts; or what a settled shard knows of its URLs.

    This process decompresses the source, which cannot be split; the pool's processes parse it.
    """
    to_read = _to_read(run)
    if number >= len(to_read):
        _read_shard(run, number - len(to_read), writer)
        return
    generation, source = to_read[number]
    tally = Tally(source.name, source.kind)

    def write(rows: pa.RecordBatch) -> None:
        tally.add(rows)
        for later in _open_generations(run):
            if later.first >= run.root.generations[generation].first:
                _send(rows, later, writer)
        progress.advance(rows.num_rows)

    with _opened(run, source) as reader:
        work = partial(rows_of_block, source=source, rules=_rules(run.options))
        for _, rows in map_batches(work, block_batches(reader, source), run.runtime.workers):
            write(rows)
    for line in reader.overlong:
        write(row_of_problem(source, line, Reason.BAD_LINE, f"over {lines.MAX_LINE_BYTES:,} bytes"))
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
        lost = row_of_problem(source, tally.last_line + 1, Reason.BROKEN_FILE, tally.broken)
        for later in _open_generations(run):
            if later.first >= run.root.generations[generation].first:
                _send(lost, later, writer)
    writer.open_file(".json", _TALLY).write(msgspec.json.encode(tally))


def _send(rows: pa.RecordBatch, generation: Generation, writer: ShardWriter) -> None:
    """Send rows with a column `home` to the shards of a generation."""
    writer.send(generation.first + (rows["home"].to_numpy() % np.uint64(generation.shards)).astype(np.int64), rows)


def _read_shard(run: StageRun, shard: int, writer: ShardWriter) -> None:
    """What a shard of an earlier generation knows: the URLs it accepted, and scores that were too low."""
    assert run.before is not None
    urls = DatasetReader(run.workdir, run.before)
    rejects = urls.table(shard, kind="rejects")
    known = known_of(urls.table(shard, columns=["url_id", "url"]), rejects, run.root.generation_of(shard))
    for batch in known.to_batches():
        for later in _open_generations(run):
            _send(batch, later, writer)
        progress.advance(batch.num_rows)


def merge_shard(run: StageRun, shard: int, slices: Sequence[Slice], writer: ShardWriter) -> None:
    """Step 2: merge one shard's rows from all sources by URL; those of earlier generations for what they know alone."""
    tables = list(read_slices(run.work, slices))

    def sent(schema: pa.Schema) -> pa.Table:
        return pa.concat_tables([schema.empty_table(), *(rows for rows in tables if rows.schema.names == schema.names)])

    rows, known = sent(ROWS), sent(KNOWN)
    if len(rows) > _MANY_ROWS:
        logger.warning(
            "collect: shard %d has %d submissions, which are merged in memory: if they do not fit, use more "
            "--num_shards", shard, len(rows),
        )  # fmt: skip
    sources = _sources(run)
    generation_of = np.array([generation for generation, _ in sources], np.int64)
    of_row = generation_of[rows["source"].to_numpy()] if len(rows) else np.zeros(0, np.int64)
    mine = run.root.generation_of(shard)
    for generation in range(mine + 1):
        own = rows.filter(pa.array(of_row == generation))
        urls, rejects = merge_submissions(
            own,
            [(source.name, source.link_source) for _, source in sources],
            min_score=run.options.min_score,
            earlier=Earlier.of(known) if generation else None,
        )
        if generation < mine:
            known = pa.concat_tables([known, known_of(urls, rejects, generation)])
    writer.enter(len(own))
    for batch in urls.to_batches(max_chunksize=1 << 14):
        writer.write(batch)
    for batch in rejects.to_batches(max_chunksize=1 << 14):
        writer.reject(batch)
    progress.advance(len(own))


@contextmanager
def _opened(run: StageRun, source: Source) -> Iterator[Reader]:
    """A reader of a source."""
    uri = run.workdir.path(source.uri) if source.kind == "subreddit" else source.uri
    with open_source(uri) as file:
        if source.kind == "links":
            yield LinkReader(uri, source.name, file.size(), allow_damaged=run.options.allow_damaged)
            return
        yield WarcUrlReader(file, file.size()) if source.kind == "warc" else lines.LineReader(file)


def _files(options: Options) -> list[dict[str, Any]]:
    """What identifies each file, ordered by kind and name."""
    tables, left_out = named_files(options.links, "collect")
    if left_out:
        logger.warning("collect: files of folders left out, name them to read them: %s", ", ".join(left_out[:5]))

    def described(kind: str, patterns: tuple[str, ...]) -> list[dict[str, Any]]:
        return [{"kind": kind, **describe_source(uri), "uri": uri} for uri in expand_globs(patterns, "collect")]

    links = [{"kind": "links", **describe_file(uri, name)} for uri, name in sorted(tables.items(), key=itemgetter(1))]
    return [*described("dump", options.dumps), *links, *described("warc", options.warcs)]


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
    tables of links or WARC files. Variants of a URL are one; every rejected submission is in rejects/.
    """

    name = "collect"
    output = "urls"
    options = Options
    version = 7
    libraries = ("msgspec", "idna", "xxhash", "duckdb", "tld")
    steps = (
        Step(
            read_source,
            _SOURCES,
            keys=lambda run: range(len(_to_read(run)) + run.settled),
            rows=lambda run: {},  # not known before they are read
            together=lambda run: min(_SOURCES_TOGETHER, run.runtime.workers),
        ),
        Step(merge_shard),
    )
    example = "owt collect run --dumps 'dumps/RS_2013-*.zst' --num_shards 64"

    def sources(self, options: Options) -> list[dict[str, Any]]:
        if not (options.dumps or options.links or options.warcs or options.subreddits):
            raise UserError(
                "collect has nothing to read: give at least one of --dumps, --links, --warcs and --subreddits "
                "(or the same keys in the table [collect])"
            )
        return _files(options) + [
            {"kind": "subreddit", "name": f"r/{name}", "uri": name}
            for name in sorted({_subreddit(name) for name in options.subreddits})
        ]

    def shards_for(self, options: Options, sources: Sequence[Any]) -> int:
        if options.num_shards is not None:
            return options.num_shards
        sizes = (source.get("bytes", 0) / _SHARD_BYTES[source["kind"]] for source in sources)
        return max(_LEAST_SHARDS, round(sum(sizes)))

    def begin(self, options: Options, root: Root, runtime: Runtime) -> Root:
        """Store what Reddit's API answers, once, as a source of its generation."""
        generations = []
        for number, generation in enumerate(root.generations):
            sources = [
                _stored(source, number, options, runtime.workdir)
                if source["kind"] == "subreddit" and "stored" not in source
                else source
                for source in generation.sources
            ]
            generations.append(msgspec.structs.replace(generation, sources=sources))
        return msgspec.structs.replace(root, generations=generations)

    def outside(self, options: Options) -> list[dict[str, Any]]:
        lists, domains = blocklists(options.blocked_domains)
        described = [{"kind": "blocklist", **describe_source(uri)} for uri in lists]
        return described + [{"kind": "blocklist", "name": domain} for domain in domains]

    def finish(self, run: StageRun, _: Sequence[ShardRecord]) -> None:
        """Write what was found in each source to inputs.json, and what is lost of damaged ones to the manifest."""
        files = [file for record in run.read_records(_SOURCES) for file in record.files if file.kind == _TALLY]
        read = {tally.name: tally for tally in (msgspec.json.decode(run.work.read(f.path), type=Tally) for f in files)}
        tallies = [read.get(source.name) or _tally_before(run, source) for _, source in _sources(run)]
        for tally in read.values():
            if tally.problem is not None:
                logger.warning("%s: %s", tally.name, tally.problem)
            elif not tally.lines:
                logger.warning("%s has nothing to collect", tally.name)
        damaged = [
            {"name": tally.name, "problem": tally.problem, "lines": tally.lines} for tally in tallies if tally.problem
        ]
        if damaged:
            run.properties["damaged"] = damaged
        run.write_asset(_INPUTS_NAME, msgspec.json.format(msgspec.json.encode(tallies), indent=1))
        run.stats["files"] = len(tallies)
        run.stats["lines"] = sum(tally.lines for tally in tallies)
        run.stats["broken_files"] = sum(tally.broken is not None for tally in tallies)
        run.stats["bytes_read"] = sum(tally.bytes_read for tally in tallies)
        run.stats["bytes_decompressed"] = sum(tally.bytes_decompressed for tally in tallies)


def _stored(source: dict[str, Any], generation: int, options: Options, workdir: Storage) -> dict[str, Any]:
    """A subreddit as a file in the ledger; one that an interrupted run stored is not asked for again."""
    asked = hashlib.sha256(repr(options.praw_limit).encode()).hexdigest()[:8]
    path = f"{ledger_of('collect')}/reddit/{generation}-{source['uri']}-{asked}.jsonl"
    if not workdir.exists(path):
        blocks = SubredditReader(source["uri"], options)
        workdir.write(path, b"\n".join(bytes(block.data) for block in blocks) + b"\n")
    content = workdir.read(path)
    return {**source, "bytes": len(content), "sha256": hashlib.sha256(content).hexdigest(), "stored": path}


def _tally_before(run: StageRun, source: Source) -> Tally:
    """The tally of a source of a settled generation."""
    found = json.loads(run.workdir.read(_INPUTS))
    return next(msgspec.convert(each, Tally) for each in found if each["name"] == source.name)


STAGE = Collect()
