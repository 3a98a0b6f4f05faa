"""Options of collect: the sources of the URLs, and which URLs are rejected."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import Any

from schemas import option

# The places of files do not shape bytes; their content does, and it is described in the manifest's
# `sources`.
_FILES: dict[str, Any] = {"metavar": "GLOB", "shapes_bytes": False, "is_path": True}

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
        "tables of links (Parquet, JSON Lines or CSV with a column url, and optionally score, "
        "created_utc, title, source), or lists of URLs, one per line; compressed like dumps or "
        "plain: files, folders or globs",
        **_FILES,
    )
    warcs: tuple[str, ...] = option(
        (),
        "WARC files, to collect the URLs of their HTML responses: files, folders or globs",
        **_FILES,
    )
    subreddits: tuple[str, ...] = option(
        (), "subreddits whose top submissions are read from Reddit's API (PRAW)", metavar="NAME"
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
        "read a damaged file up to its first damage and record the loss in the manifest, instead "
        "of stopping",
        shapes_bytes=False,  # if a file is damaged, there is no output without it
    )
    num_shards: int | None = option(
        None, "shards of a generation (default: a power of two, for 10,000 to 20,000 URLs each)",
        minimum=1, maximum=65535, shapes_bytes=False,  # the generation has it
    )  # fmt: skip
    min_score: int = option(
        3,
        "reject URLs whose best submission has a lower score (WebText: 3); a URL without a "
        "score is kept",
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
        "reject domains with their subdomains, such as wikipedia.org; single hosts, such as "
        "=docs.python.org; or lists of these, one per line: files or globs",
        metavar="DOMAIN",
        shapes_bytes=False,  # the manifest's `sources` name the domains, and describe the lists
        is_path=True,
    )
