"""Options of collect: the sources of the URLs, and which URLs are rejected."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import Any

from schemas import option

# The places of files do not shape bytes; their content does, and it is described in the manifest's
# `sources`.
_FILES: dict[str, Any] = {"metavar": "GLOB", "shapes_bytes": False}

_api = partial(option, is_flag=False)


@dataclass(frozen=True)
class Options:
    """Options of the stage."""

    dumps: tuple[str, ...] = option(
        (),
        "monthly dumps of submissions (.zst, .xz, .bz2, .gz or plain): files, folders or globs",
        **_FILES,
    )
    links: tuple[str, ...] = option(
        (),
        "tables of links (Parquet, JSON Lines, CSV: a column url, and optionally score, "
        "created_utc, title, source) or "
        "lists of URLs, one per line; plain or compressed likewise: files, folders or globs",
        **_FILES,
    )
    warcs: tuple[str, ...] = option(
        (), "WARC files whose HTML responses are the URLs: files, folders or globs", **_FILES
    )
    subreddits: tuple[str, ...] = option(
        (), "read the top submissions of these from Reddit's API (PRAW)", metavar="NAME"
    )
    praw_site: str | None = _api(
        None, "section of praw.ini with the credentials (default: DEFAULT)", shapes_bytes=False
    )
    praw_limit: int | None = _api(
        None,
        "read at most this many submissions of a subreddit (default: all that Reddit lists)",
        minimum=1,
    )
    allow_damaged: bool = option(
        False,
        "read a damaged file up to its first damage, and record in the manifest what is lost, "
        "instead of stopping",
        shapes_bytes=False,  # if a file is damaged, there is no output without it
    )
    num_shards: int | None = option(
        None, "shards of a generation (default: one for 10,000 to 20,000 URLs, a power of two)",
        minimum=1, maximum=65535, shapes_bytes=False,  # the generation has it
    )  # fmt: skip
    min_score: int = option(
        3, "minimum score of a URL's best submission (WebText's is 3), if it has a score"
    )
    over_18: bool = option(False, "keep submissions marked as over 18")
    allow_subreddits: tuple[str, ...] = option(
        (), "keep only submissions from these subreddits", metavar="NAME"
    )
    deny_subreddits: tuple[str, ...] = option(
        (), "reject submissions from these subreddits", metavar="NAME"
    )
    blocked_domains: tuple[str, ...] = option(
        (),
        "domains to reject with their subdomains, such as wikipedia.org, hosts, such as "
        "=docs.python.org, or lists of "
        "these, one per line: files or globs",
        metavar="DOMAIN",
        shapes_bytes=False,  # the manifest's `sources` name the domains, and describe the lists
    )
