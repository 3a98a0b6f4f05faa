"""`owt fetch`: the page of every URL, live or from archives, in WARC files, or why there is none."""

from __future__ import annotations

import hashlib
import importlib
import json
import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from functools import partial
from operator import itemgetter
from typing import Any

from owt_pipeline.engine.generations import shaping_sources
from owt_pipeline.engine.stage import SHARDS, Recorded, Stage, StageRun, Step, rows_of_input, what_was_sent
from owt_pipeline.errors import UsageError, UserError
from owt_pipeline.ledger.dataset import DatasetReader
from owt_pipeline.storage.folder import describe_source, expand_globs, is_gone
from schemas import option
from schemas.manifest import Root
from schemas.settings import shaping_options

_PROXY = re.compile(r"https?://([^@/]+@)?[^@/]+:\d+/?")
USER_AGENT_EXAMPLE = "'my-crawl/1.0 (+mailto:me@example.org)'"

FORMAT = 1
"""Of segments: raised when those of the former format cannot be read any more, so that nothing of them counts."""

SHARDS_TOGETHER = 8
"""Shards fetched at once in one process, so that one shard's last slow hosts do not delay the next shard."""

READ_AT_ONCE = 4
"""Parts that read the index at once; each holds columns of a row group, 100 MB of Common Crawl's."""

_READ_BY = {
    "allow": ("live",),
    "allowed": ("live",),
    "archive": ("archive", "commoncrawl", "wayback"),
    "cc": ("commoncrawl",),
    "wayback": ("wayback",),
}
"""By the first word of an option's name, the sources whose pages it shapes; an option of another name shapes those of
all."""


ONLINE = ("live", "commoncrawl", "wayback")
"""The sources on the network: what they have answered is asked for again only on request."""

_how = partial(option, shapes_bytes=False)
"""An option that does not shape the output's bytes."""


@dataclass(frozen=True)
class Options:
    pages_from: tuple[str, ...] = _how(
        (), "take pages from WARC or ARC files: paths, folders or globs, local or gs:// or s3://", metavar="GLOB",
    )  # fmt: skip  # the files' content shapes bytes, and `sources` describes it
    allow_damaged: bool = _how(
        False,
        "read damaged files of --pages_from as far as possible, and record in the manifest what is lost, instead of "
        "stopping",
    )
    sources: tuple[str, ...] = option(
        (),
        "where to look for a page; the first source that has it wins; default: archive with --pages_from, else live",
        choices=("live", "archive", "commoncrawl", "wayback"),
    )
    archive_choice: str = option(
        "nearest", "which of an archive's captures to take: the nearest to the submission, the earliest or the latest",
        choices=("nearest", "earliest", "latest"),
    )  # fmt: skip
    user_agent: str = _how(
        "",
        "User-Agent with contact details, needed for all sources but archive: 'name/1.0 "
        "(+https://example.org/contact)'; robots.txt knows it by this name",
    )
    host_delay: float = _how(1.0, "seconds between two requests to a host", minimum=0)
    connections: int = _how(1000, "connections at once, over all hosts", minimum=1)
    timeout: float = _how(90.0, "seconds for a page with its redirects, without waiting for turns", minimum=0.01)
    max_page_bytes: int = option(10_000_000, "a page with a larger body is rejected, decoded or as sent", minimum=1)
    allowed_ports: tuple[int, ...] = option(
        (80, 443, 8000, 8080, 8443), "ports that a URL may name; if empty, every port", minimum=1, maximum=65535
    )
    allow_private_hosts: bool = option(False, "fetch from addresses that are not public, such as an intranet's")
    verify_tls: bool = option(True, "reject hosts without a valid certificate (off: --no_verify_tls)")
    proxy: str = _how(
        "", "proxy for all requests but those to hosts in NO_PROXY, http[s]://[USER:PASSWORD@]HOST:PORT; default: "
        "HTTPS_PROXY and HTTP_PROXY", metavar="URL",
    )  # fmt: skip
    cc_index: str = option(
        "", "Common Crawl's columnar index, for the source `commoncrawl`: s3://commoncrawl/cc-index/table/cc-main/warc "
        "or https://data.commoncrawl.org/cc-index/table/cc-main/warc, or a copy of it", metavar="URI",
    )  # fmt: skip
    cc_crawls: tuple[str, ...] = option(
        (), "crawls of --cc_index to search, such as CC-MAIN-2013-20 CC-MAIN-2013-48", metavar="CRAWL"
    )
    cc_data: str = option(
        "", "the root of the WARC files that --cc_index names: a folder, s3:// or https://; default: the parent of its "
        "folder cc-index/", metavar="URI",
    )  # fmt: skip
    cc_delay: float = _how(
        0.1, "seconds between two requests of a process to a web server that is --cc_data; the index is read without "
        "a delay", minimum=0,
    )  # fmt: skip
    wayback_cdx: str = option(
        "https://web.archive.org/cdx/search/cdx",
        "where `wayback` looks a URL up: the Wayback Machine's index, or a pywb's (.../COLLECTION/cdx)",
        metavar="URL",
    )  # fmt: skip
    wayback_pages: str = option(
        "https://web.archive.org/web", "the root of the captures: the Wayback Machine, or a pywb's collection",
        metavar="URL",
    )  # fmt: skip
    wayback_delay: float = _how(
        2.5, "seconds between two requests to `wayback`, of all workers together; the Internet Archive allows 24 "
        "lookups a minute", minimum=0,
    )  # fmt: skip
    retry_failed: bool = _how(
        False, "once all URLs have an outcome: retry those that failed temporarily (dns, connect, proxy, timeout, "
        "http_429, http_503, http_5xx, robots_unreachable, archive_failed); all others keep their outcome",
    )  # fmt: skip
    refetch: bool = _how(False, "fetch pages of this run again that were lost or damaged, as they are now")
    resolve: tuple[str, ...] = _how(
        (),
        "connect to an address instead of resolving: *.demo.test=127.0.0.1:8123; it may be private",
        metavar="PATTERN=ADDRESS[:PORT]",
    )

    @property
    def order(self) -> tuple[str, ...]:
        """The sources to ask, in order."""
        return tuple(dict.fromkeys(self.sources)) or (("archive",) if self.pages_from else ("live",))

    @property
    def index_root(self) -> str:
        """The root that Common Crawl's index and its WARC files share; raises UserError if it cannot be derived."""
        root, middle, _ = self.cc_index.rstrip("/").partition("/cc-index/")
        if not middle:
            raise UserError(
                f"--cc_index {self.cc_index}: not a folder below .../cc-index/; give the root of the WARC files as "
                "--cc_data"
            )
        return root

    @property
    def gathered(self) -> tuple[str, ...]:
        """Those of the sources that are asked for the URLs of all shards together, in order: two, or "" for none."""
        found = tuple(name for name in self.order if name in ("commoncrawl", "wayback"))
        return (*("", "")[len(found) :], *found)


def _later(place: str, *more: Any) -> Callable[..., Any]:
    """The function `module:name` of this folder, called with `more` arguments at the end, and imported when it is
    called: a finished stage needs none of these imports."""
    module, _, name = place.partition(":")

    def call(*arguments: Any) -> Any:
        return getattr(importlib.import_module(f"owt_pipeline.stages.fetch.{module}"), name)(*arguments, *more)

    return call


def _together(run: StageRun) -> int:
    """Shards at once in one process, which wait for the network; with archive files alone, the pool makes shards."""
    return 0 if run.options.order == ("archive",) else SHARDS_TOGETHER


def _archive_files(run: StageRun) -> range:
    return range(len(run.properties.get("archives", ())))


def _index_files(run: StageRun) -> range:
    return range(len(run.properties.get("cc_files", ())))


def _shards_to_ask(number: int) -> Callable[[StageRun], list[int]]:
    """Shards that are not finished, if there is a gathered source of this number."""

    def shards(run: StageRun) -> list[int]:
        make = sorted(run.make) if run.options.gathered[number] else ()
        return [shard for shard in make if run.place(SHARDS, shard).find()[0] is None]

    return shards


def shaping_of(options: Options, sources: Iterable[str]) -> dict[str, Any]:
    """The options that shape the pages of any of these sources, by name."""
    given = {**shaping_options(options), "allowed_ports": sorted(set(options.allowed_ports))}
    asked = set(sources)
    return {name: given[name] for name in given if asked.intersection(_READ_BY.get(name.split("_")[0], asked))}


def digest_of_source(options: Options, source: str) -> str:
    """Eight hex digits that change whenever the source may answer otherwise, by the options."""
    shaping = shaping_of(options, [source])
    del shaping["sources"]
    files = shaping_sources(STAGE.outside(options)) if source == "archive" else []
    return hashlib.sha256(json.dumps([FORMAT, shaping, files], sort_keys=True).encode()).hexdigest()[:8]


def archives_of(options: Options, recorded: Recorded) -> list[dict[str, Any]]:
    """What identifies each archive file, by name; one that is gone is what was recorded of it."""
    known = {each.get("uri", ""): dict(each) for each in recorded}
    files = [
        known[uri] if uri in known and is_gone(uri) else {**describe_source(uri), "uri": uri}
        for uri in expand_globs(options.pages_from, "--pages_from", known)
    ]
    return sorted(files, key=itemgetter("name"))


class Fetch(Stage):
    """Fetch the page of each URL of urls/, over HTTP, from WARC files, or from Common Crawl or the Wayback
    Machine. Writes the responses to warc/, which is kept for good, pages/ with a row for each page, and a reject
    row with a reason for each URL without a page.
    """

    name = "fetch"
    inputs = ("urls",)
    output = "pages"
    options = Options
    version = 8
    libraries = ("fastwarc", "isal")
    steps = (
        Step(_later("warc_files:index_archive"), "index", keys=_archive_files),
        Step(_later("commoncrawl:read_bounds"), "bounds", keys=lambda run: _index_files(run)[:1], together=1),
        Step(_later("shards:send_missing", 0), "ask_1", _shards_to_ask(0), rows_of_input, together=_together),
        Step(_later("shards:ask_gathered", 0), "gather_1", keys=what_was_sent, together=READ_AT_ONCE),
        Step(_later("shards:send_missing", 1), "ask_2", _shards_to_ask(1), rows_of_input, together=_together),
        Step(_later("shards:ask_gathered", 1), "gather_2", keys=what_was_sent, together=READ_AT_ONCE),
        Step(_later("shards:fetch_part"), rows=rows_of_input, together=_together),
    )
    example = "owt run run --until fetch --pages_from 'archives/*.warc.gz'"

    def shaping(self, options: Options) -> dict[str, Any]:
        """With the sources that are asked, and without the options of others: pages of the web are not fetched again
        because of them."""
        return {**shaping_of(options, options.order), "sources": list(options.order)}

    def outside(self, options: Options, recorded: Recorded = ()) -> list[dict[str, Any]]:
        """The archive files; raises UserError for impossible options, before an earlier run's pages are deleted."""
        if "archive" in options.order and not options.pages_from:
            raise UsageError("--sources archive: give the WARC files with --pages_from")
        if bool(options.cc_index) != bool(options.cc_crawls):
            raise UsageError(
                "--cc_index and --cc_crawls go together: give the columnar index, and its crawls to search"
            )
        if bool(options.cc_index) != ("commoncrawl" in options.order):
            raise UsageError("--cc_index and --sources commoncrawl go together")
        if options.cc_index and not options.cc_data:
            _ = options.index_root
        agent = options.user_agent
        if options.order != ("archive",) and not ("@" in agent or "://" in agent):
            found = f"{agent!r} has no contact address" if agent else "missing"
            raise UsageError(f"--user_agent: {found}; give a name and a contact address, as in {USER_AGENT_EXAMPLE}")
        if agent and not (agent.isascii() and agent.isprintable() and agent.partition("/")[0].strip()):
            raise UsageError(f"--user_agent: {agent!r} is not plain text such as {USER_AGENT_EXAMPLE}")
        if options.proxy and not _PROXY.fullmatch(options.proxy):
            raise UsageError(f"--proxy: {options.proxy!r} is not http://HOST:PORT or https://HOST:PORT")
        if options.resolve:  # only then: the import is slow, and the stage may be finished
            from owt_pipeline.stages.fetch.addresses import parse_rules

            parse_rules(options.resolve)
        return archives_of(options, recorded)

    def of_shard(self, options: Options, root: Root, inputs: Mapping[str, DatasetReader], shard: int) -> Any:
        """How often its failed or lost URLs were asked for again."""
        return root.rounds.get(str(shard))

    begin = staticmethod(_later("segments:raise_rounds"))
    set_up = staticmethod(_later("shards:set_up"))
    finish = staticmethod(_later("shards:finish"))


STAGE = Fetch()
