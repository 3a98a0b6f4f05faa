"""`collect`: Reddit dumps, Reddit's API, tables of links and WARC files become `urls/`.

A generation's shard is made from the submissions of its hosts in its own sources and in those of
all earlier generations: a URL that one of these accepted is `seen_before`, and the scores of the
others count. Sources of generations that are published are not read again: their shards and rejects
say the same.
"""

from __future__ import annotations

import hashlib
import logging
import math
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

import msgspec
import numpy as np
import pyarrow as pa

from owt_pipeline import progress
from owt_pipeline.engine.stage import Recorded, Runtime, Stage, StageRun, Step, Summary
from owt_pipeline.engine.workers import map_batches
from owt_pipeline.errors import UserError
from owt_pipeline.formats.captures import OR_DAMAGED
from owt_pipeline.ledger.commit import ShardWriter
from owt_pipeline.ledger.dataset import DatasetReader
from owt_pipeline.ledger.exchange import Slice, read_slices
from owt_pipeline.stages.collect.kind import Source, Tally, problem_row
from owt_pipeline.stages.collect.merge import KNOWN, known_of, merge_submissions
from owt_pipeline.stages.collect.options import Options
from owt_pipeline.stages.collect.reddit import subreddit_name
from owt_pipeline.stages.collect.rules import Rules, blocklists
from owt_pipeline.stages.collect.sources import (
    flags_by_kind,
    kind_named,
    list_sources,
    read_source,
    rows_of_batch,
)
from owt_pipeline.stages.collect.submissions import ROWS
from owt_pipeline.storage.folder import (
    Storage,
    describe_source,
    find_recorded,
)
from schemas import Reason
from schemas.manifest import Root, ShardRecord, ledger_of

logger = logging.getLogger("owt")

_SOURCES, _READ = "sources", "read"  # the first step, and the kind of its files
# at once: .xz and .bz2 decompress slower than few processes parse; a dump's window takes 2 GB
_SOURCES_TOGETHER = 4
_LEAST_SHARDS, _MOST_SHARDS = 8, 1 << 15


def _sources(run: StageRun) -> list[tuple[int, Source]]:
    """(number of its generation, source) of each source, numbered in the order of the
    generations."""
    found = [
        (number, each) for number, of in enumerate(run.root.generations) for each in of.sources
    ]
    return [
        (generation, Source(number, each["kind"], each.get("stored") or each["uri"], each["name"]))
        for number, (generation, each) in enumerate(found)
    ]


def _to_read(run: StageRun) -> list[tuple[int, Source]]:
    """The sources of the generations that are made."""
    settled = sum(generation.first < run.plan.settled for generation in run.root.generations)
    return [(generation, source) for generation, source in _sources(run) if generation >= settled]


def read_part(run: StageRun, number: int, _: Sequence[Slice], writer: ShardWriter) -> None:
    """Step 1: send a source's rows to the shards of their hosts; or what a settled shard knows
    of its URLs.

    This process decompresses the source, which cannot be split; the pool's processes parse it.
    """
    to_read = _to_read(run)
    if number >= len(to_read):
        _read_shard(run, number - len(to_read), writer)
        return
    generation, source = to_read[number]
    kind = kind_named(source.kind)
    tally = Tally(kind)
    uri = run.workdir.path(source.uri) if kind.is_stored else source.uri
    rules = _rules(run.options)
    batches = read_source(source, uri, tally, run.options.allow_damaged)
    for _, rows in map_batches(
        partial(rows_of_batch, source=source, rules=rules), batches, run.runtime.workers
    ):
        tally.add(rows)
        _send(run, generation, rows, writer)
    tally.finish()
    if tally.problem is not None and not run.options.allow_damaged:
        raise UserError(f"{source.uri}: {tally.problem}{OR_DAMAGED}")
    if tally.broken is not None:
        lost = problem_row(tally.last_line + 1, Reason.BROKEN_FILE, tally.broken)
        _send(run, generation, rows_of_batch(lost, source, rules), writer)
    read = {"name": source.name, "problem": tally.problem, "lines": tally.lines}
    writer.open_file(".json", _READ).write(msgspec.json.encode(read))


def _send(run: StageRun, since: int, rows: pa.RecordBatch, writer: ShardWriter) -> None:
    """Send rows with a column `home` to the shards of the generations that are made, from
    `since` on."""
    for generation in run.root.generations[since:]:
        if generation.first >= run.plan.settled:
            shards = generation.first + (
                rows["home"].to_numpy() % np.uint64(generation.shards)
            ).astype(np.int64)
            writer.send(shards, rows)
    progress.advance(rows.num_rows)


def _read_shard(run: StageRun, shard: int, writer: ShardWriter) -> None:
    """What a shard of an earlier generation knows: the URLs it accepted, and scores that were
    too low."""
    assert run.before is not None
    urls, number = DatasetReader(run.workdir, run.before), run.root.generation_of(shard)
    known = known_of(
        urls.table(shard, columns=["url_id", "url"]), urls.table(shard, kind="rejects"), number
    )
    for batch in known.to_batches():
        _send(run, 0, batch, writer)


def merge_shard(run: StageRun, shard: int, slices: Sequence[Slice], writer: ShardWriter) -> None:
    """Step 2: merge one shard's rows from all sources by URL; those of earlier generations for
    what they know alone."""
    tables = list(read_slices(run.work, slices))

    def sent(schema: pa.Schema) -> pa.Table:
        return pa.concat_tables(
            [schema.empty_table(), *(rows for rows in tables if rows.schema.names == schema.names)]
        )

    rows, known = sent(ROWS), sent(KNOWN)
    sources, mine = _sources(run), run.root.generation_of(shard)
    of_row = np.array([number for number, _ in sources], np.int64).take(rows["source"].to_numpy())
    names = [(source.name, kind_named(source.kind).link_source) for _, source in sources]
    for generation in range(mine + 1):
        own = rows.filter(pa.array(of_row == generation))
        earlier = known if generation else None
        urls, rejects = merge_submissions(
            own, names, min_score=run.options.min_score, known=earlier
        )
        if generation < mine:
            known = pa.concat_tables([known, known_of(urls, rejects, generation)])
    writer.enter(len(own))
    for table, write in ((urls, writer.write), (rejects, writer.reject)):
        for batch in table.to_batches(max_chunksize=1 << 14):
            write(batch)
    progress.advance(len(own))


def _rules(options: Options) -> Rules:
    lists, domains = blocklists(options.blocked_domains)
    return Rules(
        over_18=options.over_18,
        allow_subreddits=frozenset(subreddit_name(name) for name in options.allow_subreddits),
        deny_subreddits=frozenset(subreddit_name(name) for name in options.deny_subreddits),
        domains=tuple(domains),
        domain_files=tuple((uri, _digest_of(describe_source(uri))) for uri in lists),
    )


def _digest_of(source: Mapping[str, Any]) -> str:
    return str(source.get("sha256") or source["ends_sha256"])


def _stored(
    source: dict[str, Any], generation: int, options: Options, workdir: Storage
) -> dict[str, Any]:
    """A subreddit as a file in the ledger; one that an interrupted run stored is not asked for
    again."""
    kind = kind_named(source["kind"])
    if not kind.is_stored or "stored" in source:
        return source
    limit = options.praw_limit or "all"
    path = f"{ledger_of('collect')}/reddit/{generation}-{source['uri']}-{limit}.jsonl"
    if not workdir.exists(path):
        workdir.write(path, kind.store(source["uri"], options))
    content = workdir.read(path)
    return {
        **source,
        "bytes": len(content),
        "sha256": hashlib.sha256(content).hexdigest(),
        "stored": path,
    }


class Collect(Stage):
    """Collect URLs that people posted and voted up on Reddit, one row per URL, from monthly
    dumps, Reddit's API, tables of links or WARC files. Variants of a URL are one; every rejected
    submission is in rejects/.
    """

    name = "collect"
    output = "urls"
    options = Options
    version = 8
    libraries = ("msgspec", "idna", "xxhash", "duckdb", "tld")
    flags = flags_by_kind()
    steps = (
        Step(
            read_part,
            _SOURCES,
            keys=lambda run: range(len(_to_read(run)) + run.plan.settled),
            rows=lambda run: {},  # not known before they are read
            together=lambda run: min(_SOURCES_TOGETHER, run.runtime.workers),
        ),
        Step(merge_shard),
    )
    example = "owt run run --until collect --dumps 'dumps/RS_2013-*.zst' --num_shards 64"

    def sources(self, options: Options, recorded: Recorded = ()) -> list[dict[str, Any]]:
        if not (options.dumps or options.links or options.warcs or options.subreddits):
            raise UserError(
                "collect has nothing to read: give at least one of --dumps, --links, --warcs and "
                "--subreddits "
                "(or the same keys in the table [collect])"
            )
        return list_sources(options, recorded)

    def shards_for(self, options: Options, sources: Sequence[Any]) -> int:
        if options.num_shards is not None:
            return options.num_shards
        wanted = sum(
            source.get("bytes", 0) / kind_named(source["kind"]).bytes_per_shard
            for source in sources
        )
        # Powers of two: a shard shares its hosts with as few of another generation as it can, and
        # fetch looks there.
        doublings = max(0, math.ceil(wanted / _LEAST_SHARDS) - 1).bit_length()
        return min(_LEAST_SHARDS << doublings, _MOST_SHARDS)

    def begin(self, options: Options, root: Root, runtime: Runtime) -> Root:
        """Store what Reddit's API answers, once, as a source of its generation."""
        generations = [
            msgspec.structs.replace(
                of, sources=[_stored(each, number, options, runtime.workdir) for each in of.sources]
            )
            for number, of in enumerate(root.generations)
        ]
        return msgspec.structs.replace(root, generations=generations)

    def outside(self, options: Options, recorded: Recorded = ()) -> list[dict[str, Any]]:
        lists, domains = blocklists(options.blocked_domains)
        before = [source for source in recorded if source["kind"] == "blocklist"]
        described = []
        for uri in lists:
            was = find_recorded(before, uri, uri.rpartition("/")[2])
            described.append({"kind": "blocklist", **describe_source(uri, was)})
        return described + [{"kind": "blocklist", "name": domain} for domain in domains]

    def finish(self, run: StageRun, _: Sequence[ShardRecord]) -> Summary:
        """Return what is lost of damaged sources; those of settled generations are not read
        again."""
        files = [
            file
            for record in run.records_of_step(_SOURCES)
            for file in record.files
            if file.kind == _READ
        ]
        read = [msgspec.json.decode(run.work.read(file.path)) for file in files]
        for source in read:
            if source["problem"] is not None:
                logger.warning("%s: %s", source["name"], source["problem"])
            elif not source["lines"]:
                logger.warning("%s has nothing to collect", source["name"])
        before = run.before.properties.get("damaged", []) if run.before and run.plan.settled else []
        again = {source["name"] for source in read}
        damaged = [source for source in before if source["name"] not in again]
        damaged += [source for source in read if source["problem"] is not None]
        return Summary(properties={"damaged": damaged} if damaged else None)


STAGE = Collect()
