"""fetch: the page of every URL, live or from archives, as WARC with an index; or why there is none."""

from __future__ import annotations

import logging
import re
import sys
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from typing import TYPE_CHECKING, Any

from owt_pipeline.engine.commit import record_name
from owt_pipeline.engine.errors import UsageError
from owt_pipeline.engine.stage import SHARDS, Stage, StageRun, Step, rows_of_input, what_was_sent
from owt_pipeline.engine.storage import describe_source, expand_globs
from schemas import option

if TYPE_CHECKING:
    from owt_pipeline.engine.commit import ShardWriter
    from owt_pipeline.engine.exchange import Slice
    from owt_pipeline.fetch.archives import Archives
    from owt_pipeline.fetch.cc_records import BulkSource
    from owt_pipeline.fetch.commoncrawl import Collection
    from owt_pipeline.fetch.shards import Sources
    from owt_pipeline.fetch.sources import Source
    from owt_pipeline.fetch.wayback import WaybackSource
    from schemas.manifest import ShardRecord

logger = logging.getLogger("owt")


_PROXY = re.compile(r"http://([^@/]+@)?[^@/]+:\d+/?")
USER_AGENT_EXAMPLE = "'my-crawl/1.0 (+mailto:me@example.org)'"

SHARDS_TOGETHER = 8
"""Shards fetched at once in one process, so that the last slow hosts of one do not keep the next from its start."""


@dataclass(frozen=True)
class Options:
    pages_from: tuple[str, ...] = option(
        (), "take pages from WARC or ARC files: paths, folders or globs, local or gs:// or s3://", metavar="GLOB",
        shapes_bytes=False,
    )  # fmt: skip  # what is in the files does, wherever they are: `sources` describes it
    sources: tuple[str, ...] = option(
        (),
        "where to look for a page, the first that has it wins; default: archive where --pages_from is given, else live",
        choices=("live", "archive", "commoncrawl", "wayback"),
    )
    archive_choice: str = option(
        "nearest", "which of an archive's captures is taken: the nearest to the submission, the earliest, the latest",
        choices=("nearest", "earliest", "latest"), added=True,
    )  # fmt: skip
    user_agent: str = option(
        "",
        "User-Agent with contact details, needed for all but archive: 'name/1.0 (+https://example.org/contact)'; "
        "robots.txt knows it by name",
        shapes_bytes=False,
    )
    host_delay: float = option(1.0, "seconds between two requests to a host", minimum=0, shapes_bytes=False)
    host_connections: int = option(1, "connections to a host at once", minimum=1, shapes_bytes=False)
    address_delay: float = option(
        0.1, "seconds between two requests to an IP address, which may have thousands of hosts; on a cluster, as many "
        "times as shards are fetched at once", minimum=0, shapes_bytes=False,
    )  # fmt: skip
    address_connections: int = option(8, "requests to an IP address at once", minimum=1, shapes_bytes=False)
    connections: int = option(1000, "connections at once, over all hosts", minimum=1, shapes_bytes=False)
    connect_timeout: float = option(
        15.0, "seconds to find a host, and again to connect to it", minimum=0.01, shapes_bytes=False
    )
    silence_timeout: float = option(
        30.0, "seconds without a byte, before the first or later", minimum=0.01, shapes_bytes=False
    )
    page_timeout: float = option(
        90.0, "seconds for a page, redirects included, waiting for turns not", minimum=0.01, shapes_bytes=False
    )
    retries: int = option(
        3, "how often a request is tried again after 429, 503 or a failed connection", minimum=0, shapes_bytes=False
    )
    max_retry_wait: float = option(
        120.0, "seconds to wait at most before a retry; a host that asks for more is not asked again",
        minimum=0, shapes_bytes=False,
    )  # fmt: skip
    host_failures: int = option(
        20, "failed connections and timeouts in a row after which a host is given up", minimum=1, shapes_bytes=False
    )
    max_page_bytes: int = option(10_000_000, "a page with a larger decoded body is rejected", minimum=1)
    max_wire_bytes: int = option(10_000_000, "a page with a larger body as sent is rejected", minimum=1)
    max_redirects: int = option(10, "redirects followed for one URL", minimum=0)
    allowed_ports: tuple[int, ...] = option(
        (80, 443, 8000, 8080, 8443), "ports that a URL may name; none: every one", minimum=1, maximum=65535
    )
    allow_private_hosts: bool = option(False, "fetch from addresses that are not public, such as an intranet's")
    verify_tls: bool = option(True, "reject hosts whose certificate is not valid (off: --no_verify_tls)")
    proxy: str = option(
        "", "HTTP proxy for all requests, http://[USER:PASSWORD@]HOST:PORT; default: by HTTPS_PROXY, HTTP_PROXY and "
        "NO_PROXY", metavar="URL", shapes_bytes=False,
    )  # fmt: skip
    keep_requests: bool = option(False, "write each request into the WARC file, too", shapes_bytes=False)
    cc_index: str = option(
        "", "look all URLs up at once in Common Crawl's columnar index: a folder, s3:// or https://, such as "
        "s3://commoncrawl/cc-index/table/cc-main/warc", metavar="URI", added=True,
    )  # fmt: skip
    cc_crawls: tuple[str, ...] = option(
        (), "crawls of --cc_index to look through: CC-MAIN-2013-20 CC-MAIN-2013-48", metavar="CRAWL", added=True
    )
    cc_data: str = option(
        "", "what the names of WARC files in --cc_index are below: a folder, s3:// or https://; default: what its "
        "folder cc-index/ is in", metavar="URI", added=True,
    )  # fmt: skip
    cc_connections: int = option(
        4, "requests at once to each host of --cc_index and --cc_data", minimum=1, shapes_bytes=False
    )
    cc_delay: float = option(
        0.1, "seconds between two requests to a host of --cc_index and --cc_data; on a cluster, as many times as "
        "shards are fetched at once", minimum=0, shapes_bytes=False,
    )  # fmt: skip
    cdx_index: str = option(
        "https://index.commoncrawl.org/collinfo.json",
        "without --cc_index, where `commoncrawl` looks each URL up: a list of collections (....json), or one index, "
        "such as pywb's .../cdx",
        metavar="URL",
    )
    cdx_data: str = option(
        "https://data.commoncrawl.org/", "what the files are below that the index names", metavar="URL"
    )
    cdx_collections: int = option(
        4, "collections asked for a URL, those nearest to its submission, while one may have a nearer capture",
        minimum=1,
    )  # fmt: skip
    cdx_connections: int = option(1, "requests to index and data at once, each", minimum=1, shapes_bytes=False)
    cdx_delay: float = option(
        1.0, "seconds between two requests to the index, or the data", minimum=0, shapes_bytes=False
    )
    wayback_cdx: str = option(
        "https://web.archive.org/cdx/search/cdx",
        "where `wayback` looks a URL up: the Wayback Machine's index, or a pywb's (.../COLLECTION/cdx)",
        metavar="URL", added=True,
    )  # fmt: skip
    wayback_pages: str = option(
        "https://web.archive.org/web", "what captures are below: the Wayback Machine, or a pywb's collection",
        metavar="URL", added=True,
    )  # fmt: skip
    wayback_connections: int = option(2, "requests to `wayback` at once", minimum=1, shapes_bytes=False)
    wayback_delay: float = option(
        2.5, "seconds between two requests to `wayback`, of all workers together; the Internet Archive allows 24 "
        "lookups a minute", minimum=0, shapes_bytes=False,
    )  # fmt: skip
    refetch: bool = option(
        False, "fetch again, as they are now, pages of this run that were lost or damaged", shapes_bytes=False
    )
    resolve: tuple[str, ...] = option(
        (),
        "connect to an address instead of resolving: *.demo.test=127.0.0.1:8123; it may be private",
        metavar="PATTERN=ADDRESS[:PORT]",
        shapes_bytes=False,
    )

    @property
    def order(self) -> tuple[str, ...]:
        """The sources that are asked, in order."""
        return tuple(dict.fromkeys(self.sources)) or (("archive",) if self.pages_from else ("live",))

    @property
    def in_bulk(self) -> bool:
        """Whether Common Crawl is looked through by its columnar index."""
        return "commoncrawl" in self.order and bool(self.cc_index)


def prepare(run: StageRun) -> None:
    options: Options = run.options
    order = options.order
    if "archive" in order:
        run.properties["archives"] = expand_globs(options.pages_from, "--pages_from")
    if options.in_bulk:
        run.properties["cc_files"] = _list_index(options)
    elif "commoncrawl" in order:
        run.properties["collections"] = [asdict(found) for found in _read_collections(options)]


def index_archive(run: StageRun, number: int, _: Sequence[Slice], writer: ShardWriter) -> None:
    from owt_pipeline.fetch import archives

    archives.index_archive(run.properties["archives"][number], writer, _url_rules(run))


def read_footers(run: StageRun, number: int, _: Sequence[Slice], writer: ShardWriter) -> None:
    from owt_pipeline.fetch import cc_join

    cc_join.read_footers(run, _bulk_source(run), number, writer)


def divide(run: StageRun, _: int, slices: Sequence[Slice], writer: ShardWriter) -> None:
    from owt_pipeline.fetch import cc_join

    cc_join.divide(run, slices, writer)


def ask_first(run: StageRun, shard: int, _: Sequence[Slice], writer: ShardWriter) -> None:
    """Ask the sources before Common Crawl, and send the keys of the URLs that none of them has."""
    from owt_pipeline.fetch import cc_join, shards

    order = run.options.order
    before = order[: order.index("commoncrawl")]
    urls = shards.ask_first(before, shard, run.inputs["urls"], _shard_sources(run), run.work, cc_join.WANTED_WITH)
    cc_join.send_keys(run, shard, urls, run.options.archive_choice, writer)


def match(run: StageRun, _: int, slices: Sequence[Slice], writer: ShardWriter) -> None:
    from owt_pipeline.fetch import cc_join

    cc_join.match(run, _bulk_source(run), slices, writer)


def fetch_shard(run: StageRun, shard: int, slices: Sequence[Slice], writer: ShardWriter) -> None:
    from owt_pipeline.fetch import shards

    shards.fetch_shard(shard, writer, run.inputs["urls"], _shard_sources(run, slices), run.work)


def _shard_sources(run: StageRun, slices: Sequence[Slice] = ()) -> Sources:
    """The sources as a shard asks them; `slices` are the captures that were found for it."""
    from owt_pipeline.engine.exchange import gather
    from owt_pipeline.fetch.cc_join import FOUND, captures_by_url
    from owt_pipeline.fetch.shards import Sources

    order = run.options.order
    return Sources(
        order=order,
        archives=_archives(run) if "archive" in order else None,
        online=_online(run),
        on_cluster=run.runtime.on_cluster,
        captures=captures_by_url(gather(run.work, slices, FOUND)) if run.options.in_bulk else None,
        crawls=", ".join(run.options.cc_crawls),
        warcinfo=_warcinfo(run) if {"live", "wayback"} & set(order) else b"",
    )


def _warcinfo(run: StageRun) -> bytes:
    """The record that a WARC file begins with: who fetched its pages, how, and for what settings."""
    from importlib.metadata import version

    from owt_pipeline.formats.warc import warcinfo_record

    fields = {
        "software": f"owt-pipeline/{version('owt-pipeline')}",
        "format": "WARC File Format 1.1",
        "conformsTo": "http://iipc.github.io/warc-specifications/specifications/warc-format/warc-1.1/",
        **({"robots": "obey (RFC 9309)"} if "live" in run.options.order else {}),
        "http-header-user-agent": run.options.user_agent,
        "description": f"pages of {run.num_shards} shards, settings {run.plan.fingerprint}",
    }
    return warcinfo_record(int(run.started), fields)


def finish(run: StageRun, _: Sequence[ShardRecord]) -> None:
    from owt_pipeline.fetch import archives

    run.properties.pop("collections", None)
    if "cc_files" in run.properties:
        for record in (found for step in ("ranges", "ask", "match") for found in run.read_records(step)):
            for name, count in record.stats.items():
                run.stats[f"cc_{name}"] = run.stats.get(f"cc_{name}", 0) + count
        run.properties["commoncrawl"] = {
            "index": run.options.cc_index,
            "crawls": list(run.options.cc_crawls),
            "files": len(run.properties.pop("cc_files")),
        }
    if "archives" in run.properties:
        run.properties["archives"] = archives.summary(_archives(run))
        for archive in run.properties["archives"]:
            if not archive["responses"]:
                logger.warning("fetch: %s holds no response to a request: is it a WARC or ARC file?", archive["name"])


def _together(run: StageRun) -> int:
    """Shards at once in one process: those that wait for the network; from archives alone, they go to the pool."""
    return 1 if run.options.order == ("archive",) else SHARDS_TOGETHER


def _together_at_the_index(_: StageRun) -> int:
    """Parts at once that read the index: each holds columns of a row group, some 100 MB of Common Crawl's."""
    return 4


def _index_files(run: StageRun) -> range:
    return range(len(run.properties.get("cc_files", ())))


def _one(run: StageRun) -> range:
    return range(min(len(_index_files(run)), 1))


def _shards_to_ask(run: StageRun) -> list[int]:
    """Shards that are not finished, where they are looked up in bulk."""
    if not _index_files(run):
        return []
    finished = set(run.records(SHARDS).names())
    return [shard for shard in range(run.num_shards) if record_name(shard) not in finished]


def _wayback(options: Options, url_rules: int) -> WaybackSource:
    from owt_pipeline.fetch.live import archive_requests
    from owt_pipeline.fetch.wayback import LONGEST_PAUSE, PAUSE_TURNS, WaybackSource

    delay = options.wayback_delay
    requests = replace(
        archive_requests(options, options.wayback_connections, delay),
        max_retry_wait=LONGEST_PAUSE,
        least_pause=PAUSE_TURNS * delay,
    )
    return WaybackSource(requests, options.archive_choice, url_rules, options.wayback_cdx, options.wayback_pages)


def _read_collections(options: Options) -> tuple[Collection, ...]:
    from owt_pipeline.fetch.commoncrawl import read_collections
    from owt_pipeline.fetch.live import archive_requests

    return read_collections(options.cdx_index, archive_requests(options, options.cdx_connections, options.cdx_delay))


def _list_index(options: Options) -> list[tuple[str, str]]:
    """(crawl, URI) of the files of the columnar index."""
    from owt_pipeline.fetch.cc_index import list_files
    from owt_pipeline.fetch.cc_records import reading

    with reading(_bulk_options(options, 0), on_cluster=False) as archive:
        return list_files(options.cc_index, options.cc_crawls, archive.read_all)


def _bulk_source(run: StageRun) -> BulkSource:
    return _bulk_options(run.options, _url_rules(run))


def _bulk_options(options: Options, url_rules: int) -> BulkSource:
    from owt_pipeline.fetch.cc_index import root_of
    from owt_pipeline.fetch.cc_records import BulkSource
    from owt_pipeline.fetch.live import archive_requests

    requests = archive_requests(options, options.cc_connections, options.cc_delay)
    return BulkSource(options.cc_data or root_of(options.cc_index), requests, url_rules)


def _online(run: StageRun) -> dict[str, Source]:
    """The sources on the network, by name."""
    from owt_pipeline.fetch.commoncrawl import CdxSource, Collection
    from owt_pipeline.fetch.live import archive_requests, live_options
    from owt_pipeline.fetch.sources import LiveSource

    options: Options = run.options
    found: dict[str, Source] = {}
    for name in options.order:
        if name == "live":
            found[name] = LiveSource(live_options(options))
        elif options.in_bulk and name == "commoncrawl":
            found[name] = _bulk_source(run)
        elif name == "commoncrawl":
            found[name] = CdxSource(
                archive_requests(options, options.cdx_connections, options.cdx_delay),
                options.archive_choice,
                _url_rules(run),
                tuple(Collection(**found) for found in run.properties["collections"]),
                options.cdx_data,
                options.cdx_collections,
            )
        elif name == "wayback":
            found[name] = _wayback(options, _url_rules(run))
    return found


def _url_rules(run: StageRun) -> int:
    """Version of the rules by which the URLs of urls/ are canonical."""
    from owt_pipeline.formats.urls import version_of

    return version_of(run.inputs["urls"].manifest.options)


def _archives(run: StageRun) -> Archives:
    """The archive files, with what the step `index` wrote."""
    from owt_pipeline.fetch.archives import Archives

    options: Options = run.options
    files, records = run.properties["archives"], run.read_records("index")
    return Archives(
        tuple(files),
        run.work,
        tuple(records),
        options.max_page_bytes,
        options.max_redirects,
        options.archive_choice,
    )


def _sources(options: Options) -> list[dict[str, Any]]:
    """The archive files; raises UserError for options that cannot be, before an earlier run's pages are deleted."""
    if "archive" in options.order and not options.pages_from:
        raise UsageError("--sources archive: give the WARC files with --pages_from")
    if bool(options.cc_index) != bool(options.cc_crawls):
        raise UsageError("--cc_index and --cc_crawls go together: the columnar index, and its crawls to look through")
    if options.cc_index and "commoncrawl" not in options.order:
        raise UsageError("--cc_index: --sources does not name commoncrawl")
    if options.in_bulk:
        _bulk_options(options, 0)
    agent = options.user_agent
    if options.order != ("archive",) and not ("@" in agent or "://" in agent):
        found = f"{agent!r} names nobody to write to" if agent else "missing"
        raise UsageError(f"--user_agent: {found}; say who fetches, as in {USER_AGENT_EXAMPLE}")
    if agent and not (agent.isascii() and agent.isprintable() and agent.partition("/")[0].strip()):
        raise UsageError(f"--user_agent: {agent!r} is not plain text such as {USER_AGENT_EXAMPLE}")
    if options.proxy and not _PROXY.fullmatch(options.proxy):
        raise UsageError(f"--proxy: {options.proxy!r} is not http://HOST:PORT")
    if options.resolve:  # not otherwise: that imports what fetches, for a stage that may be finished
        from owt_pipeline.fetch.addresses import parse_rules

        parse_rules(options.resolve)
    return [describe_source(file) for file in expand_globs(options.pages_from, "--pages_from")]


STAGE = Stage(
    name="fetch",
    output="pages",
    inputs=("urls",),
    options=Options,
    version=1,
    steps=(
        Step(index_archive, "index", keys=lambda run: range(len(run.properties.get("archives", ()))), spread="shards"),
        Step(read_footers, "footers", keys=_index_files, spread="shards", together=_together_at_the_index),
        Step(divide, "ranges", keys=_one),
        Step(ask_first, "ask", keys=_shards_to_ask, rows=rows_of_input, spread="shards", together=_together),
        Step(match, "match", keys=what_was_sent, spread="shards", together=_together_at_the_index),
        Step(fetch_shard, rows=rows_of_input, spread="shards", together=_together),
    ),
    prepare=prepare,
    finish=finish,
    module="owt_pipeline.fetch.stage",
    help="Fetch the page of every URL of urls/, over HTTP, from WARC files, out of Common Crawl or the Wayback\n"
    "Machine. Writes pages/: a WARC file and its index a shard, and a reject row with its reason for each URL\n"
    "without a page.",
    sources=_sources,
    irreplaceable=lambda options: options.order != ("archive",) and not options.refetch,
    libraries=("fastwarc", "isal"),
    example="owt fetch --workdir run --pages_from 'archives/*.warc.gz'",
)

if __name__ == "__main__":
    from owt_pipeline.commands.run import stage_main

    sys.exit(stage_main(STAGE))
