"""Options of fetch, and which of them shape the pages of which source."""

from __future__ import annotations

import functools
import hashlib
import json
import logging
import resource
from collections.abc import Iterable
from dataclasses import dataclass
from functools import partial
from operator import itemgetter
from typing import Any

from owt_pipeline.engine.generations import key_sources
from owt_pipeline.engine.stage import Recorded
from owt_pipeline.errors import UserError
from owt_pipeline.storage.folder import describe_source, expand_globs, find_recorded, is_gone
from schemas import option
from schemas.settings import shaping_options

logger = logging.getLogger("owt")

FORMAT = 1
"""Of segments: raised when those of the former format cannot be read any more, so that nothing
of them counts."""

ONLINE = ("live", "commoncrawl", "wayback")
"""The sources on the network: what they have answered is asked for again only on request."""

SHARDS_TOGETHER = 8
"""Shards fetched at once in one process, so that one shard's last slow hosts do not delay the
next shard."""

_READ_BY = {
    "allow": ("live",),
    "allowed": ("live",),
    "archive": ("archive", "commoncrawl", "wayback"),
    "cc": ("commoncrawl",),
    "wayback": ("wayback",),
}
"""By the first word of an option's name, the sources whose pages it shapes; an option of another
name shapes those of all."""

# Open files for each host: its connection, and kept-alive connections to the hosts before it.
_FILES_PER_CONNECTION = 4

_how = partial(option, shapes_bytes=False)
"""An option that does not shape the output's bytes."""


@dataclass(frozen=True)
class Options:
    pages_from: tuple[str, ...] = _how(
        (),
        "take pages from WARC files: paths, folders or globs, local or gs:// or s3://",
        metavar="GLOB",
    )  # the files' content shapes bytes, and `sources` describes it
    allow_damaged: bool = _how(
        False,
        "read damaged files of --pages_from as far as possible, and record in the manifest what is "
        "lost, instead of "
        "stopping",
    )
    sources: tuple[str, ...] = option(
        (),
        "where to look for a page; the first source that has it wins; default: archive with "
        "--pages_from, else live",
        choices=("live", "archive", "commoncrawl", "wayback"),
    )
    archive_choice: str = option(
        "nearest", "which of an archive's captures to take: the nearest to the submission, the "
        "earliest or the latest",
        choices=("nearest", "earliest", "latest"),
    )  # fmt: skip
    user_agent: str = _how(
        "",
        "User-Agent with contact details, needed for all sources but archive: 'name/1.0 "
        "(+https://example.org/contact)'; robots.txt knows it by this name",
    )
    host_delay: float = _how(1.0, "seconds between two requests to a host", minimum=0)
    connections: int = _how(1000, "connections at once, over all hosts", minimum=1)
    timeout: float = _how(
        90.0, "seconds for a page with its redirects, without waiting for turns", minimum=0.01
    )
    max_page_bytes: int = option(
        10_000_000, "a page with a larger body is rejected, decoded or as sent", minimum=1
    )
    allowed_ports: tuple[int, ...] = option(
        (80, 443, 8000, 8080, 8443),
        "ports that a URL may name; if empty, every port",
        minimum=1,
        maximum=65535,
    )
    allow_private_hosts: bool = option(
        False, "fetch from addresses that are not public, such as an intranet's"
    )
    verify_tls: bool = option(
        True, "reject hosts without a valid certificate (off: --no_verify_tls)"
    )
    proxy: str = _how(
        "", "proxy for all requests but those to hosts in NO_PROXY, "
        "http[s]://[USER:PASSWORD@]HOST:PORT; default: "
        "HTTPS_PROXY and HTTP_PROXY", metavar="URL",
    )  # fmt: skip
    cc_index: str = option(
        "", "Common Crawl's columnar index, for the source `commoncrawl`: "
        "s3://commoncrawl/cc-index/table/cc-main/warc "
        "or https://data.commoncrawl.org/cc-index/table/cc-main/warc, or a copy of "
        "it", metavar="URI",
    )  # fmt: skip
    cc_crawls: tuple[str, ...] = option(
        (),
        "crawls of --cc_index to search, such as CC-MAIN-2013-20 CC-MAIN-2013-48",
        metavar="CRAWL",
    )
    cc_data: str = option(
        "", "the root of the WARC files that --cc_index names: a folder, s3:// or https://; "
        "default: the parent of its "
        "folder cc-index/", metavar="URI",
    )  # fmt: skip
    cc_delay: float = _how(
        0.1, "seconds between two requests of a process to a web server that is --cc_data; the "
        "index is read without "
        "a delay", minimum=0,
    )  # fmt: skip
    wayback_cdx: str = option(
        "https://web.archive.org/cdx/search/cdx",
        "where `wayback` looks a URL up: the Wayback Machine's index, or a pywb's "
        "(.../COLLECTION/cdx)",
        metavar="URL",
    )  # fmt: skip
    wayback_pages: str = option(
        "https://web.archive.org/web", "the root of the captures: the Wayback Machine, or a pywb's "
        "collection",
        metavar="URL",
    )  # fmt: skip
    wayback_delay: float = _how(
        2.5, "seconds between two requests to `wayback`, of all workers together; the Internet "
        "Archive allows 24 "
        "lookups a minute", minimum=0,
    )  # fmt: skip
    retry_failed: bool = _how(
        False, "once all URLs have an outcome: retry those that failed temporarily (dns, connect, "
        "proxy, timeout, "
        "http_429, http_503, http_5xx, robots_unreachable, archive_failed); all others keep their "
        "outcome",
    )  # fmt: skip
    refetch: bool = _how(
        False, "fetch pages of this run again that were lost or damaged, as they are now"
    )
    resolve: tuple[str, ...] = _how(
        (),
        "connect to an address instead of resolving: *.demo.test=127.0.0.1:8123; it may be private",
        metavar="PATTERN=ADDRESS[:PORT]",
    )

    @property
    def order(self) -> tuple[str, ...]:
        """The sources to ask, in order."""
        return tuple(dict.fromkeys(self.sources)) or (
            ("archive",) if self.pages_from else ("live",)
        )

    @property
    def index_root(self) -> str:
        """The root that Common Crawl's index and its WARC files share; raises UserError if it
        cannot be derived."""
        root, middle, _ = self.cc_index.rstrip("/").partition("/cc-index/")
        if not middle:
            raise UserError(
                f"--cc_index {self.cc_index}: not a folder below .../cc-index/; give the root of "
                f"the WARC files as "
                "--cc_data"
            )
        return root

    @property
    def gathered(self) -> tuple[str, ...]:
        """Those of the sources that are asked for the URLs of all shards together, in order:
        two, or "" for none."""
        found = tuple(name for name in self.order if name in ("commoncrawl", "wayback"))
        return (*("", "")[len(found) :], *found)


def shaping_of(options: Options, sources: Iterable[str]) -> dict[str, Any]:
    """The options that shape the pages of any of these sources, by name."""
    given = {**shaping_options(options), "allowed_ports": sorted(set(options.allowed_ports))}
    asked = set(sources)
    return {
        name: given[name]
        for name in given
        if asked.intersection(_READ_BY.get(name.split("_")[0], asked))
    }


def digest_of_source(options: Options, source: str, recorded: Recorded) -> str:
    """Return eight hex digits that change whenever the source may answer otherwise, by the
    options and by the archives, which may be `recorded`."""
    shaping = shaping_of(options, [source])
    del shaping["sources"]
    files = key_sources(archives_of(options, recorded)) if source == "archive" else []
    return hashlib.sha256(
        json.dumps([FORMAT, shaping, files], sort_keys=True).encode()
    ).hexdigest()[:8]


def archives_of(options: Options, recorded: Recorded) -> list[dict[str, Any]]:
    """What identifies each archive file, by name; one that is gone is what was recorded of it."""
    known = {each.get("uri", ""): dict(each) for each in recorded}
    files = []
    for uri in expand_globs(options.pages_from, "--pages_from", known):
        if uri in known and is_gone(uri):
            files.append(known[uri])
            continue
        before = find_recorded(recorded, uri, uri.rpartition("/")[2])
        files.append({**describe_source(uri, before), "uri": uri})
    return sorted(files, key=itemgetter("name"))


@functools.cache
def allowed_connections(wanted: int) -> int:
    """The connections that are wanted, or as many as the system's limit on open files allows,
    which is raised."""
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    allowed = (
        wanted if hard == resource.RLIM_INFINITY else max((hard - 500) // _FILES_PER_CONNECTION, 16)
    )
    if allowed < wanted:
        logger.warning(
            "fetch: %d connections at once, not %d: the system allows %d files",
            allowed,
            wanted,
            hard,
        )
    return min(wanted, allowed)
