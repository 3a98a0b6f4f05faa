"""`owt collect`: Reddit dumps, Reddit's API, URL lists and WARC files become `urls/`."""

from __future__ import annotations

import logging
import sys
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

from owt_pipeline.engine import progress
from owt_pipeline.engine.errors import UsageError, UserError
from owt_pipeline.engine.stage import Stage, StageRun
from owt_pipeline.engine.storage import Storage, describe_source, expand_globs, open_source
from schemas import option

if TYPE_CHECKING:
    from owt_pipeline.collect.reddit import Listing
    from owt_pipeline.collect.rules import Rules
    from owt_pipeline.collect.sources import Source
    from owt_pipeline.collect.spread import Spread
    from owt_pipeline.engine.commit import ShardWriter
    from schemas.manifest import ShardRecord

logger = logging.getLogger("owt")


_MANY_ROWS = 4_000_000  # of a shard: some 4 GB of memory

# Where the files are shapes nothing; what is in them does, and that is in the manifest's `sources`.
_FILES: dict[str, Any] = {"metavar": "GLOB", "shapes_bytes": False}


@dataclass(frozen=True)
class Options:
    dumps: tuple[str, ...] = option(
        (), "monthly dumps of submissions (.zst, .xz, .bz2, .gz or plain): files, folders or globs", **_FILES
    )
    url_lists: tuple[str, ...] = option(
        (), "lists of URLs, one a line (plain or compressed likewise): files, folders or globs", **_FILES
    )
    warcs: tuple[str, ...] = option(
        (), "WARC files whose HTML responses are the URLs: files, folders or globs", **_FILES
    )
    subreddits: tuple[str, ...] = option((), "ask Reddit's API (PRAW) for submissions of these", metavar="NAME")
    praw_site: str | None = option(
        None, "section of praw.ini with the credentials (default: DEFAULT)", shapes_bytes=False
    )
    praw_listing: str = option("top", "which submissions to ask for", choices=("new", "top", "hot", "search"))
    praw_query: str | None = option(None, "what to search for, with --praw_listing search")
    praw_time: str = option(
        "all", "span of top and search", choices=("all", "year", "month", "week", "day", "hour"), metavar="SPAN"
    )
    praw_limit: int | None = option(None, "most submissions of a subreddit (default: all Reddit gives)", minimum=1)
    praw_after: str | None = option(None, "take submissions of the API from this day on (UTC)", metavar="YYYY-MM-DD")
    praw_before: str | None = option(None, "take submissions of the API before this day (UTC)", metavar="YYYY-MM-DD")
    num_shards: int = option(8, "shards of this and every later dataset", minimum=1, maximum=65535)
    min_score: int = option(3, "least score of a URL on Reddit (WebText's is 3)")
    score_policy: str = option(
        "max", "the score of a URL: its best submission's, or the sum over all", choices=("max", "sum")
    )
    over_18: bool = option(False, "keep submissions marked over 18")
    allow_subreddits: tuple[str, ...] = option((), "take submissions from these subreddits only", metavar="NAME")
    deny_subreddits: tuple[str, ...] = option((), "take no submissions from these subreddits", metavar="NAME")
    blocked_domains: tuple[str, ...] = option(
        (), "lists of domains to leave out with their subdomains, one a line: files or globs", **_FILES
    )
    deny_domains: tuple[str, ...] = option(
        (), "domains to leave out with their subdomains, such as wikipedia.org", metavar="DOMAIN"
    )
    blocked_extensions: tuple[str, ...] = option(
        (), "further endings of paths to leave out, such as .cgi", metavar="EXT"
    )
    built_in_blocklists: bool = option(True, "leave out known hosts of media and files, and endings of such files")
    max_host_share: float = option(
        1.0, "a host with more URLs than this part of a mean shard is spread over several", minimum=0.01
    )


def run(run: StageRun) -> None:
    from owt_pipeline.collect.spread import HOSTS, plan_spread

    options: Options = run.options
    sources = [*_files(options), *_spooled(run)]
    rules = _rules(options)
    read = partial(_read_source, sources=sources, rules=rules, num_buckets=run.num_shards, workers=run.runtime.workers)
    files = run.write_step("submissions", range(len(sources)), read, HOSTS)
    folder = run.work / "submissions"
    stats = {"files": len(sources)}
    for file in files:
        for name, count in file.stats.items():
            stats[name] = stats.get(name, 0) + count
    if stats["lines"] > _MANY_ROWS * run.num_shards:
        logger.warning(
            "collect: %d submissions a shard; a shard is merged in memory, so use more --num_shards if it runs out",
            stats["lines"] // run.num_shards,
        )
    spread = plan_spread(
        (_hosts(folder, file) for file in files), stats["lines"], run.num_shards, options.max_host_share
    )
    merge = partial(
        _merge_shard, folder=folder, files=files, sources=sources, options=options, spread=spread, stats=stats
    )
    run.write_shards(merge, rows=stats["lines"])


def _read_source(
    key: int, writer: ShardWriter, *, sources: list[Source], rules: Rules, num_buckets: int, workers: int
) -> None:
    """Step 1: one file's rows by bucket, and how often each host is among them."""
    from owt_pipeline.collect.buckets import BucketWriter
    from owt_pipeline.collect.sources import block_batches, open_reader, row_of_break, rows_of_block
    from owt_pipeline.collect.spread import HostCounter
    from owt_pipeline.engine.workers import map_batches

    source = sources[key]
    hosts = HostCounter()
    output, count = writer.open_file(".rows", "rows")
    buckets = BucketWriter(output, num_buckets)
    last_line = 0

    def write(rows: Any) -> None:
        buckets.write(rows)
        hosts.add(rows["host"])
        count[0] += rows.num_rows
        progress.advance(rows.num_rows)

    with open_source(source.uri) as file:
        reader = open_reader(source, file)
        work = partial(rows_of_block, source=source, rules=rules, num_buckets=num_buckets)
        for _, rows in map_batches(work, block_batches(reader), workers):
            write(rows)
            last_line = rows["line"][-1].as_py() if rows.num_rows else last_line
        if reader.broken is not None:
            logger.warning("%s: %s; the whole records are kept", source.uri, reader.broken)
            write(row_of_break(source, reader.broken, last_line + 1, num_buckets))
    if not count[0]:
        logger.warning("%s holds nothing to collect", source.name)
    buckets.close()
    writer.write(hosts.batch())
    writer.count(
        {
            "bytes_read": reader.bytes_read,
            "bytes_decompressed": reader.bytes_decompressed,
            "broken_files": int(reader.broken is not None),
            "lines": count[0],
        }
    )


def _merge_shard(
    shard: int,
    writer: ShardWriter,
    *,
    folder: Storage,
    files: list[ShardRecord],
    sources: list[Source],
    options: Options,
    spread: Spread,
    stats: dict[str, int],
) -> None:
    """Step 2: one shard's rows of all files, merged by URL."""
    import pyarrow as pa

    from owt_pipeline.collect.buckets import read_buckets
    from owt_pipeline.collect.merge import merge_submissions
    from owt_pipeline.collect.rows import ROWS

    batches = []
    wanted = spread.buckets(shard)
    for record in files:
        with folder.open(_file(record, "rows")) as file:
            batches += [spread.rows_of(shard, rows) for rows in read_buckets(file, wanted)]
    rows = pa.Table.from_batches(batches, ROWS)
    urls, rejects = merge_submissions(
        rows,
        [source.name for source in sources],
        min_score=options.min_score,
        score_policy=options.score_policy,
        spread=spread,
    )
    writer.enter(rows.num_rows)
    for batch in urls.to_batches(max_chunksize=1 << 14):
        writer.write(batch)
    for batch in rejects.to_batches(max_chunksize=1 << 14):
        writer.reject(batch)
    if shard == 0:  # counts of the whole stage
        writer.count(stats)
    progress.advance(rows.num_rows)


def _hosts(folder: Storage, record: ShardRecord) -> Any:
    import pyarrow.parquet as pq

    with folder.open(_file(record, "data")) as file:
        return pq.read_table(file)


def _spooled(run: StageRun) -> list[Source]:
    """What Reddit's API says, a subreddit a unit of resume, as dumps in the working folder."""
    from owt_pipeline.collect.sources import Source
    from owt_pipeline.collect.spread import HOSTS

    options: Options = run.options
    if not options.subreddits:
        return []
    names = sorted({_subreddit(name) for name in options.subreddits})
    ask = partial(_ask_reddit, names=names, listing=_listing(options), site=options.praw_site)
    spooled = run.write_step("reddit", range(len(names)), ask, HOSTS)
    first = len(_files(options))
    return [
        Source(first + k, "dump", (run.work / "reddit").path(_file(record, "dump")), f"r/{name}")
        for k, (name, record) in enumerate(zip(names, spooled, strict=True))
    ]


def _ask_reddit(key: int, writer: ShardWriter, *, names: list[str], listing: Listing, site: str | None) -> None:
    from owt_pipeline.collect.reddit import write_submissions

    file, count = writer.open_file(".ndjson.zst", "dump")
    count[0] = write_submissions(file, names[key], listing, site)
    progress.advance(count[0])


def _listing(options: Options) -> Listing:
    from owt_pipeline.collect.reddit import Listing, timestamp

    if (options.praw_listing == "search") != (options.praw_query is not None):
        raise UsageError("--praw_listing search and --praw_query go together: give both or neither")
    return Listing(
        options.praw_listing,
        options.praw_query,
        options.praw_time,
        options.praw_limit,
        timestamp(options.praw_after, "praw_after"),
        timestamp(options.praw_before, "praw_before"),
    )


def _file(record: ShardRecord, kind: str) -> str:
    """Path of a step's file of that kind."""
    return next(file.path for file in record.files if file.kind == kind)


def _files(options: Options) -> list[Source]:
    """All files, in an order that follows from their names."""
    from owt_pipeline.collect.sources import Source

    files = [
        (kind, uri)
        for kind, patterns in (("dump", options.dumps), ("list", options.url_lists), ("warc", options.warcs))
        for uri in sorted(expand_globs(patterns, "collect"), key=lambda uri: (uri.rpartition("/")[2], uri))
    ]
    return [Source(number, kind, uri, uri.rpartition("/")[2]) for number, (kind, uri) in enumerate(files)]


def _describe_sources(options: Options) -> list[dict[str, Any]]:
    if not (options.dumps or options.url_lists or options.warcs or options.subreddits):
        raise UserError(
            "collect has nothing to read: give at least one of --dumps, --url_lists, --warcs and --subreddits "
            "(or the same keys in the table [collect])"
        )
    _listing(options)  # its errors come before anything is deleted
    described = [{"kind": source.kind, **describe_source(source.uri)} for source in _files(options)]
    lists = expand_globs(options.blocked_domains, "blocked_domains")
    return described + [{"kind": "blocklist", **describe_source(uri)} for uri in lists]


def _rules(options: Options) -> Rules:
    from owt_pipeline.collect.rules import Rules

    return Rules(
        over_18=options.over_18,
        allow_subreddits=frozenset(_subreddit(name) for name in options.allow_subreddits),
        deny_subreddits=frozenset(_subreddit(name) for name in options.deny_subreddits),
        deny_domains=options.deny_domains,
        blocked_domain_files=tuple(
            (uri, describe_source(uri)["ends_sha256"])
            for uri in expand_globs(options.blocked_domains, "blocked_domains")
        ),
        extensions=options.blocked_extensions,
        built_in=options.built_in_blocklists,
    )


def _subreddit(name: str) -> str:
    return name.strip("/").lower().removeprefix("r/")


STAGE = Stage(
    name="collect",
    output="urls",
    inputs=(),
    options=Options,
    version=1,
    run=run,
    help="Collect URLs that people posted on Reddit and found good, one row a URL, from monthly dumps, Reddit's API,\n"
    "lists of URLs or WARC files. Variants of a URL are one; every submission that is turned away is in rejects/.",
    sources=_describe_sources,
    num_shards=lambda options: options.num_shards,
    libraries=("msgspec", "idna", "xxhash"),
    example="owt collect --workdir run --dumps 'dumps/RS_2013-*.zst' --num_shards 64",
)


if __name__ == "__main__":
    from owt_pipeline.stage_command import main

    sys.exit(main(STAGE))
