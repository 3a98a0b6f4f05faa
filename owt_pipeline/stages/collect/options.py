"""Options of collect: the sources of the URLs, and which URLs are rejected."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import Any

from schemas import option

# The places of files do not shape bytes; their content does, and it is described in the manifest's `sources`.
_FILES: dict[str, Any] = {"metavar": "GLOB", "shapes_bytes": False}

_api = partial(option, is_flag=False)


@dataclass(frozen=True)
class Options:
    """Options of the stage."""

    dumps: tuple[str, ...] = option(
        (), "monthly dumps of submissions (.zst, .xz, .bz2, .gz or plain): files, folders or globs", **_FILES
    )
    url_lists: tuple[str, ...] = option(
        (), "lists of URLs, one per line (plain or compressed likewise): files, folders or globs", **_FILES
    )
    warcs: tuple[str, ...] = option(
        (), "WARC files whose HTML responses are the URLs: files, folders or globs", **_FILES
    )
    subreddits: tuple[str, ...] = option(
        (), "read submissions of these from Reddit's API (PRAW), by the settings praw_…", metavar="NAME"
    )
    praw_site: str | None = _api(
        None, "section of praw.ini with the credentials (default: DEFAULT)", shapes_bytes=False
    )
    praw_listing: str = _api("top", "which submissions to read", choices=("new", "top", "hot", "search"))
    praw_query: str | None = _api(None, 'the search query, with praw_listing = "search"')
    praw_time: str = _api("all", "span of top and search", choices=("all", "year", "month", "week", "day", "hour"))
    praw_limit: int | None = _api(None, "most submissions of a subreddit (default: as many as Reddit gives)", minimum=1)
    praw_after: str | None = _api(None, "read submissions of the API from this day on: YYYY-MM-DD, UTC")
    praw_before: str | None = _api(None, "read submissions of the API before this day: YYYY-MM-DD, UTC")
    allow_damaged: bool = option(
        False,
        "read damaged files as far as possible, and record in the manifest what is lost, instead of stopping",
        shapes_bytes=False,  # if a file is damaged, there is no output without it
    )
    num_shards: int = option(8, "shards of this and every later dataset", minimum=1, maximum=65535)
    min_score: int = option(3, "least score of a URL on Reddit (WebText's is 3)")
    score_policy: str = option(
        "max", "the score of a URL: its best submission's, or the sum of all", choices=("max", "sum")
    )
    over_18: bool = option(False, "keep submissions marked as over 18")
    allow_subreddits: tuple[str, ...] = option((), "keep only submissions from these subreddits", metavar="NAME")
    deny_subreddits: tuple[str, ...] = option((), "reject submissions from these subreddits", metavar="NAME")
    blocked_domains: tuple[str, ...] = option(
        (),
        "lists of domains to reject with their subdomains, or hosts (=HOST), one per line: files or globs",
        **_FILES,
    )
    deny_domains: tuple[str, ...] = option(
        (),
        "domains to reject with their subdomains, such as wikipedia.org, or hosts, such as =docs.python.org",
        metavar="DOMAIN",
    )
    blocked_extensions: tuple[str, ...] = option((), "further file extensions to reject, such as .cgi", metavar="EXT")
    built_in_blocklists: bool = option(True, "reject known hosts of media and files, and the extensions of such files")
    max_host_share: float = option(
        1.0, "a host with more URLs than this part of a mean shard is divided over several", minimum=0.01
    )
    retry_bases: bool = option(
        False,
        "also collect the URLs of the bases (--base) whose fetch failed temporarily, for the reasons of fetch "
        "--retry_failed",
    )
    retry_after_days: float = option(
        7.0, "with --retry_bases: retry only URLs last requested at least this many days ago", minimum=0.0
    )
