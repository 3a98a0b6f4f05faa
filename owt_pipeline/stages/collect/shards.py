"""The two steps from sources to shards of `urls/`.

    read    a source                   -> its submissions as rows, by the shard of their hosts
            a shard that is published  -> its accepted URLs, and scores that were too low
    merge   the rows of a shard        -> one row per URL, and rejects

A shard gets the rows of its own generation and of all earlier ones. A URL that an earlier one
accepted is `seen_before`. The scores of URLs that it rejected for a low score count. Sources of
published generations are not read again, since their shards and rejects have these URLs and scores.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

import msgspec
import numpy as np
import pyarrow as pa

from owt_pipeline import progress
from owt_pipeline.engine.workers import map_batches
from owt_pipeline.errors import UserError
from owt_pipeline.formats.captures import OR_DAMAGED
from owt_pipeline.ledger.dataset import DatasetReader
from owt_pipeline.ledger.exchange import Slice, read_slices
from owt_pipeline.stages.collect.kind import Source, Tally, problem_row
from owt_pipeline.stages.collect.merge import KNOWN, known_of, merge_submissions
from owt_pipeline.stages.collect.reddit import subreddit_name
from owt_pipeline.stages.collect.rules import Rules, blocklists
from owt_pipeline.stages.collect.sources import kind_named, rows_of_batch
from owt_pipeline.stages.collect.submissions import ROWS
from owt_pipeline.storage.folder import describe_source
from schemas import Reason

if TYPE_CHECKING:
    from owt_pipeline.engine.stage import StageRun
    from owt_pipeline.ledger.commit import ShardWriter
    from owt_pipeline.stages.collect.options import Options

SOURCES_STEP = "sources"
READ_KIND = "read"
"""Kind of the file that the first step writes for each source: its name, its number of lines, its
problem, and a message about times that are not understood."""


def _sources_by_generation(run: StageRun) -> list[tuple[int, Source]]:
    """Return each source with the number of its generation, in the order of the generations."""
    sources: list[tuple[int, Source]] = []
    for number, generation in enumerate(run.root.generations):
        for given in generation.links:
            uri = given.get("stored") or given["uri"]
            num_bytes = given.get("bytes", 0)
            source = Source(len(sources), given["kind"], uri, given["name"], num_bytes)
            sources.append((number, source))
    return sources


def sources_to_read(run: StageRun) -> list[tuple[int, Source]]:
    """Return the sources of the generations that are made, as `_sources_by_generation` does."""
    num_settled = sum(
        generation.first < run.plan.num_settled for generation in run.root.generations
    )
    return [pair for pair in _sources_by_generation(run) if pair[0] >= num_settled]


def bytes_by_part(run: StageRun) -> dict[int, int]:
    """Return how many bytes each part of the first step reads; published shards count nothing."""
    sizes = {number: source.num_bytes for number, (_, source) in enumerate(sources_to_read(run))}
    if not any(sizes.values()):
        return {}
    return {**sizes, **{len(sizes) + shard: 0 for shard in range(run.plan.num_settled)}}


def read_part(run: StageRun, number: int, _: Sequence[Slice], writer: ShardWriter) -> None:
    """Step 1: send a source's rows to the shards of their hosts.

    Parts after the sources are the published shards. They send their URLs and low scores.
    This process decompresses the source, which cannot be split; the pool's processes parse it.
    Raises UserError for a damaged source, unless `allow_damaged`.
    """
    to_read = sources_to_read(run)
    if number >= len(to_read):
        _send_known(run, number - len(to_read), writer)
        return
    generation, source = to_read[number]
    kind = kind_named(source.kind)
    tally = Tally(kind)
    uri = run.workdir.path(source.uri) if kind.is_stored else source.uri
    rules = rules_of(run.options)
    batches = kind.read(source, uri, tally, run.options.allow_damaged)
    to_rows = partial(rows_of_batch, source=source, rules=rules)
    num_reported = 0
    for _, rows in map_batches(to_rows, batches, run.runtime.workers):
        tally.add(rows)
        _send(run, generation, rows, writer)
        progress.advance(tally.bytes_read - num_reported)
        num_reported = tally.bytes_read
    # Tables of links are small, so their bytes are not counted while they are read.
    progress.advance(source.num_bytes - num_reported)
    tally.finish()
    if tally.problem is not None and not run.options.allow_damaged:
        raise UserError(f"{source.uri}: {tally.problem}{OR_DAMAGED}")
    if tally.broken is not None:
        # The reject shows in the data that the rest of the source is missing.
        missing_rest = problem_row(tally.last_line + 1, Reason.BROKEN_FILE, tally.broken)
        _send(run, generation, rows_of_batch(missing_rest, source, rules), writer)
    read = {
        "name": source.name,
        "problem": tally.problem,
        "lines": tally.lines,
        "times": tally.times.problem,
    }
    writer.open_file(".json", READ_KIND).write(msgspec.json.encode(read))


def _send(run: StageRun, since: int, rows: pa.RecordBatch, writer: ShardWriter) -> None:
    """Send rows to the shards of the generations from `since` on that are made.

    The column `home` decides the shard.
    """
    home = rows["home"].to_numpy()
    for generation in run.root.generations[since:]:
        if generation.first >= run.plan.num_settled:
            shards = generation.first + (home % np.uint64(generation.shards)).astype(np.int64)
            writer.send(shards, rows)


def _send_known(run: StageRun, shard: int, writer: ShardWriter) -> None:
    """Send the URLs that a published shard accepted, and the scores that were too low."""
    assert run.published is not None
    published = DatasetReader(run.workdir, run.published)
    urls = published.table(shard, columns=["url_id", "url"])
    rejects = published.table(shard, kind="rejects")
    known = known_of(urls, rejects, run.root.generation_number_of(shard))
    for batch in known.to_batches():
        _send(run, 0, batch, writer)


def merge_shard(run: StageRun, shard: int, slices: Sequence[Slice], writer: ShardWriter) -> None:
    """Step 2: merge one shard's rows from all sources by URL.

    Rows of earlier generations only show which URLs were accepted, and which scores were too low.
    """
    tables = list(read_slices(run.work, slices))
    rows = _of_schema(ROWS, tables)
    known = _of_schema(KNOWN, tables)
    sources = _sources_by_generation(run)
    generation_by_source = np.array([number for number, _ in sources], np.int64)
    generation_of_rows = generation_by_source.take(rows["source"].to_numpy())
    names = [(source.name, kind_named(source.kind).link_source) for _, source in sources]
    own_generation = run.root.generation_number_of(shard)
    # In order, since each generation rejects the URLs that the generations before it accepted.
    for generation in range(own_generation + 1):
        rows_here = rows.filter(pa.array(generation_of_rows == generation))
        urls, rejects = merge_submissions(
            rows_here,
            names,
            min_score=run.options.min_score,
            known=known if generation else None,
        )
        if generation < own_generation:
            known = pa.concat_tables([known, known_of(urls, rejects, generation)])
    writer.enter(len(rows_here))
    for batch in urls.to_batches(max_chunksize=1 << 14):
        writer.write(batch)
    for batch in rejects.to_batches(max_chunksize=1 << 14):
        writer.reject(batch)
    progress.advance(len(rows_here))


def _of_schema(schema: pa.Schema, tables: Sequence[pa.Table]) -> pa.Table:
    """Return the rows of the tables that have the names of `schema`."""
    own = [table for table in tables if table.schema.names == schema.names]
    return pa.concat_tables([schema.empty_table(), *own])


def rules_of(options: Options) -> Rules:
    """Return the rules of the options; raise UserError for an unreadable blocklist."""
    lists, domains = blocklists(options.blocked_domains)
    return Rules(
        over_18=options.over_18,
        allow_subreddits=frozenset(map(subreddit_name, options.allow_subreddits)),
        deny_subreddits=frozenset(map(subreddit_name, options.deny_subreddits)),
        domains=tuple(domains),
        domain_files=tuple((uri, _digest_of(describe_source(uri))) for uri in lists),
    )


def _digest_of(source: Mapping[str, Any]) -> str:
    return str(source.get("sha256") or source["ends_sha256"])
