"""Options of collect: where the URLs come from, and which of them are left out."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import Any

from schemas import option

# Where the files are shapes nothing; what is in them does, and that is in the manifest's `sources`.
_FILES: dict[str, Any] = {"metavar": "GLOB", "shapes_bytes": False}

_api = partial(option, is_flag=False)


@dataclass(frozen=True)
class Options:
    """Options of the stage."""

    dumps: tuple[str, ...] = option(
        (), "monthly dumps of submissions (.zst, .xz, .bz2, .gz or plain): files, folders or globs", **_FILES
    )
    url_lists: tuple[str, ...] = option(
        (), "lists of URLs, one a line (plain or compressed likewise): files, folders or globs", **_FILES
    )
    warcs: tuple[str, ...] = option(
        (), "WARC files whose HTML responses are the URLs: files, folders or globs", **_FILES
    )
    subreddits: tuple[str, ...] = option(
        (), "ask Reddit's API (PRAW) for submissions of these; praw_… in the settings say how", metavar="NAME"
    )
    praw_site: str | None = _api(
        None, "section of praw.ini with the credentials (default: DEFAULT)", shapes_bytes=False
    )
    praw_listing: str = _api("top", "which submissions to ask for", choices=("new", "top", "hot", "search"))
    praw_query: str | None = _api(None, "what to search for, where praw_listing is search")
    praw_time: str = _api("all", "span of top and search", choices=("all", "year", "month", "week", "day", "hour"))
    praw_limit: int | None = _api(None, "most submissions of a subreddit (default: all Reddit gives)", minimum=1)
    praw_after: str | None = _api(None, "take submissions of the API from this day on: YYYY-MM-DD, UTC")
    praw_before: str | None = _api(None, "take submissions of the API before this day: YYYY-MM-DD, UTC")
    allow_damaged: bool = option(
        False,
        "take what can be read of damaged files, and record in the manifest what is lost, in place of stopping",
        shapes_bytes=False,  # where it does, there is no output without it
    )
    num_shards: int = option(8, "shards of this and every later dataset", minimum=1, maximum=65535)
    min_score: int = option(3, "least score of a URL on Reddit (WebText's is 3)")
    score_policy: str = option(
        "max", "the score of a URL: its best submission's, or the sum over all", choices=("max", "sum")
    )
    over_18: bool = option(False, "keep submissions marked over 18")
    allow_subreddits: tuple[str, ...] = option((), "take submissions from these subreddits only", metavar="NAME")
    deny_subreddits: tuple[str, ...] = option((), "take no submissions from these subreddits", metavar="NAME")
    blocked_domains: tuple[str, ...] = option(
        (),
        "lists of domains to leave out with their subdomains, or hosts (=HOST), one a line: files or globs",
        **_FILES,
    )
    deny_domains: tuple[str, ...] = option(
        (),
        "domains to leave out with their subdomains, such as wikipedia.org, or hosts, such as =docs.python.org",
        metavar="DOMAIN",
    )
    blocked_extensions: tuple[str, ...] = option(
        (), "further endings of paths to leave out, such as .cgi", metavar="EXT"
    )
    built_in_blocklists: bool = option(True, "leave out known hosts of media and files, and endings of such files")
    max_host_share: float = option(
        1.0, "a host with more URLs than this part of a mean shard is spread over several", minimum=0.01
    )
    retry_bases: bool = option(
        False,
        "take up again the URLs of the bases (--base) whose fetch failed for a while: a time limit, an error 5xx, a "
        "robots.txt that could not be read",
    )
    retry_after_days: float = option(
        7.0, "with --retry_bases: retry only URLs last requested at least this many days ago", minimum=0.0
    )
