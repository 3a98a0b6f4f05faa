"""Options of fetch, and the options that shape the pages of each source."""

from __future__ import annotations

import functools
import hashlib
import json
import logging
import resource
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import partial
from operator import itemgetter
from typing import Any

from owt_pipeline.engine.generations import key_sources
from owt_pipeline.engine.stage import Recorded
from owt_pipeline.errors import UserError
from owt_pipeline.formats.archives import archives_of_option, package_of_archive
from owt_pipeline.formats.files import find_files
from owt_pipeline.stages.fetch.page_sources import (
    GATHERED,
    PAGE_SOURCES,
    page_source,
    words_of_sources,
)
from owt_pipeline.storage.folder import describe_source, find_recorded, is_gone
from schemas import option
from schemas.manifest import PAGES
from schemas.settings import shaping_options

logger = logging.getLogger("owt")

FORMAT = 1
"""The format of segments. Raised when segments of the former one cannot be read any more, so that
none of them counts."""

SHARDS_TOGETHER = 8
"""Shards fetched at once in one process, so that one shard's last slow hosts do not delay the
next shard."""

# Open files for each host: its connection, and kept-alive connections to the hosts before it.
_FILES_PER_CONNECTION = 4

# Open files for all else that a process does, and the fewest connections that are still of use.
_OTHER_FILES = 500
_MIN_CONNECTIONS = 16

# The limit on open files that macOS accepts where it reports "unlimited", which it rejects as a
# limit: OPEN_MAX of its <sys/syslimits.h>.
_OPEN_MAX = 10_240

_DIGEST_CHARS = 8

not_in_key = partial(option, shapes_bytes=False)
"""An option that does not shape the output's bytes."""


@dataclass(frozen=True)
class Options:
    """Options of the stage."""

    pages_from: tuple[str, ...] = not_in_key(
        (),
        "take pages from WARC files: files, folders or globs, local or in a bucket",
        metavar="GLOB",
        is_path=True,
    )  # the files' content shapes bytes, and `sources` describes it
    allow_damaged: bool = not_in_key(
        False,
        "read damaged files of --pages_from as far as possible and record the losses in the "
        "manifest, instead of stopping",
    )
    sources: tuple[str, ...] = option(
        (),
        "sources of pages in the order in which they are tried; a page is taken from the first "
        "source that has it (default: archive with --pages_from, otherwise live)",
        choices=tuple(PAGE_SOURCES),
    )
    archive_choice: str = option(
        "nearest",
        "capture to take if an archive has several: the nearest to the submission, the earliest "
        "or the latest",
        choices=("nearest", "earliest", "latest"),
    )
    user_agent: str = not_in_key(
        "",
        "User-Agent with a contact address, required for all sources except archive, such as "
        "'name/1.0 (+https://example.org/contact)'; the rules of robots.txt for this name apply",
    )
    host_delay: float = not_in_key(1.0, "delay between two requests to the same host", minimum=0)
    connections: int = not_in_key(1000, "maximum of open connections over all hosts", minimum=1)
    timeout: float = not_in_key(
        90.0,
        "time limit of a page with its redirects, without the delays between requests",
        minimum=0.01,
    )
    max_page_bytes: int = option(
        10_000_000, "reject pages with a larger body, before or after decoding", minimum=1
    )
    allowed_ports: tuple[int, ...] = option(
        (80, 443, 8000, 8080, 8443),
        "ports that URLs may have; an empty list allows every port",
        minimum=1,
        maximum=65535,
    )
    allow_private_hosts: bool = option(
        False, "fetch from addresses that are not public, such as those of an intranet"
    )
    verify_tls: bool = option(True, "reject hosts without a valid certificate")
    proxy: str = not_in_key(
        "",
        "proxy for all requests except those to hosts in NO_PROXY, as "
        "http[s]://[USER:PASSWORD@]HOST:PORT (default: HTTPS_PROXY and HTTP_PROXY)",
        metavar="URL",
    )
    cc_index: str = option(
        "",
        "Common Crawl's columnar index for the source `commoncrawl`: "
        "s3://commoncrawl/cc-index/table/cc-main/warc, the same path below "
        "https://data.commoncrawl.org/, or a copy of it",
        metavar="URI",
        is_path=True,
    )
    cc_crawls: tuple[str, ...] = option(
        (),
        "crawls of --cc_index to search, such as CC-MAIN-2013-20 CC-MAIN-2013-48",
        metavar="CRAWL",
    )
    cc_data: str = option(
        "",
        "root of the WARC files that --cc_index refers to: a folder, s3:// or https:// (default: "
        "the parent of its folder cc-index/)",
        metavar="URI",
        is_path=True,
    )
    cc_delay: float = not_in_key(
        0.1,
        "delay between two requests of a process to --cc_data if it is a web server; the index is "
        "read without a delay",
        minimum=0,
    )
    wayback_cdx: str = option(
        "https://web.archive.org/cdx/search/cdx",
        "index in which the source `wayback` looks up a URL: the Wayback Machine's or a "
        "copy with its interface",
        metavar="URL",
    )
    wayback_pages: str = option(
        "https://web.archive.org/web",
        "root of the captures of `wayback`",
        metavar="URL",
    )
    wayback_delay: float = not_in_key(
        2.5,
        "delay between two requests to `wayback`, for all workers together; the Internet Archive "
        "allows 24 lookups a minute",
        minimum=0,
    )
    retry_failed: bool = not_in_key(
        False,
        "once all URLs have an outcome, retry the URLs that failed temporarily (dns, connect, "
        "proxy, timeout, http_429, http_503, http_5xx, robots_unreachable, archive_failed); the "
        "other URLs keep their outcome",
    )
    refetch: bool = not_in_key(
        False,
        "fetch lost and damaged pages of this run again from the web, where they may have changed",
    )
    resolve: tuple[str, ...] = not_in_key(
        (),
        "connect to this address instead of resolving the name, such as "
        "*.demo.test=127.0.0.1:8123; the address may be private",
        metavar="PATTERN=ADDRESS[:PORT]",
    )

    @property
    def order(self) -> tuple[str, ...]:
        """The sources to ask, in order."""
        if self.sources:
            return tuple(dict.fromkeys(self.sources))
        return ("archive",) if self.pages_from else ("live",)

    @property
    def is_online(self) -> bool:
        """Whether one of the sources is on the network."""
        return any(page_source(name).is_online for name in self.order)

    @property
    def index_root(self) -> str:
        """The root that Common Crawl's index and its WARC files share.

        Raises UserError if it cannot be derived.
        """
        root, separator, _ = self.cc_index.rstrip("/").partition("/cc-index/")
        if not separator:
            raise UserError(
                f"--cc_index {self.cc_index}: not a folder below .../cc-index/; give the root of "
                "the WARC files as --cc_data"
            )
        return root

    @property
    def gathered(self) -> tuple[str, ...]:
        """The gathered sources of this run, in order, after "" for each that is not queried."""
        names = [name for name in self.order if name in GATHERED]
        num_missing = len(GATHERED) - len(names)
        return (*[""] * num_missing, *names)


def shaping_of(options: Options, sources: Iterable[str]) -> dict[str, Any]:
    """Return the options that shape the pages of any of these sources, by name."""
    words_of_chosen = words_of_sources(sources)
    words_of_others = words_of_sources(PAGE_SOURCES) - words_of_chosen
    by_name = {**shaping_options(options), "allowed_ports": sorted(set(options.allowed_ports))}
    shaping = {}
    for name, value in by_name.items():
        if name.split("_")[0] not in words_of_others:
            shaping[name] = value
    return shaping


def digest_of_source(options: Options, source: str, pages: Iterable[Mapping[str, Any]]) -> str:
    """Return hex digits that change whenever the source may respond otherwise.

    They depend on the options, and on the source's archive files, `pages`.
    """
    shaping = shaping_of(options, [source])
    del shaping["sources"]
    files = key_sources(pages)
    for file in files:
        del file["kind"]
    content = json.dumps([FORMAT, shaping, files], sort_keys=True).encode()
    return hashlib.sha256(content).hexdigest()[:_DIGEST_CHARS]


def archives_of(options: Options, recorded: Recorded) -> list[dict[str, Any]]:
    """Return what identifies each archive file, by name.

    A missing file is described as it was `recorded`.
    """
    recorded_by_uri = {source.get("uri", ""): dict(source) for source in recorded}
    files = []
    paths = find_files(
        options.pages_from,
        archives_of_option("--pages_from"),
        known=recorded_by_uri,
        checks_kinds=not options.allow_damaged,
    )
    for uri in paths:
        if uri in recorded_by_uri and is_gone(uri):
            files.append(recorded_by_uri[uri])
            continue
        source = find_recorded(recorded, uri, uri.rpartition("/")[2])
        files.append(
            {"kind": PAGES, **describe_source(uri, source), **package_of_archive(uri), "uri": uri}
        )
    return sorted(files, key=itemgetter("name"))


@functools.cache
def allowed_connections(num_wanted: int) -> int:
    """Return how many of the wanted connections the system allows, by its limit on open files.

    The limit is raised as far as the system allows it.
    """
    soft_limit, hard_limit = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft_limit == resource.RLIM_INFINITY:
        return num_wanted
    max_files = hard_limit
    if hard_limit == resource.RLIM_INFINITY:
        max_files = max(soft_limit, _OPEN_MAX)
    resource.setrlimit(resource.RLIMIT_NOFILE, (max_files, hard_limit))
    allowed = max((max_files - _OTHER_FILES) // _FILES_PER_CONNECTION, _MIN_CONNECTIONS)
    if allowed >= num_wanted:
        return num_wanted
    logger.warning(
        "fetch: using %d connections instead of %d, since the system allows %d open files (ulimit "
        "-n)",
        allowed,
        num_wanted,
        max_files,
    )
    return allowed
