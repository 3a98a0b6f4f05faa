"""Which files and subreddits a run reads, and what identifies each in the ledger."""

from __future__ import annotations

import hashlib
import logging
from collections.abc import Mapping
from operator import itemgetter
from typing import TYPE_CHECKING, Any

from owt_pipeline.formats.records import describe_file, named_files
from owt_pipeline.stages.collect.reddit import top_submissions
from owt_pipeline.stages.collect.rules import blocklists, subreddit_name
from owt_pipeline.storage.folder import (
    Storage,
    describe_source,
    expand_globs,
    find_recorded,
    is_gone,
)
from schemas.manifest import ledger_of

if TYPE_CHECKING:
    from owt_pipeline.engine.stage import Recorded
    from owt_pipeline.stages.collect.options import Options

logger = logging.getLogger("owt")

Described = dict[str, Any]
"""A source in the ledger: `kind`, `name`, what identifies its content, and `uri`."""

_MAX_FILES_SHOWN = 5


def describe_files(options: Options, recorded: Recorded) -> list[Described]:
    """Describe the dumps, tables of links and WARC files that the options name, in this order.

    A file that is `recorded` keeps its name, and may be missing. Raises UserError for one that
    cannot be read.
    """
    return [
        *_describe_matches("dump", options.dumps, recorded),
        *_describe_tables(options.links, recorded),
        *_describe_matches("warc", options.warcs, recorded),
    ]


def _by_uri(kind: str, recorded: Recorded) -> dict[str, Described]:
    return {source["uri"]: dict(source) for source in recorded if source["kind"] == kind}


def _describe_matches(kind: str, patterns: tuple[str, ...], recorded: Recorded) -> list[Described]:
    """Describe the files that match globs."""
    known = _by_uri(kind, recorded)
    sources = []
    for uri in expand_globs(patterns, "collect", known):
        if uri in known and is_gone(uri):
            sources.append(known[uri])
            continue
        previous = find_recorded(known.values(), uri, uri.rpartition("/")[2])
        sources.append({"kind": kind, **describe_source(uri, previous), "uri": uri})
    return sources


def _describe_tables(patterns: tuple[str, ...], recorded: Recorded) -> list[Described]:
    """Describe the tables of links, sorted by name; warn of files of folders that are left out."""
    known = _by_uri("links", recorded)
    tables, left_out = named_files(patterns, "collect", known=known)
    if left_out:
        logger.warning(
            "collect: files of folders left out, name them to read them: %s",
            ", ".join(left_out[:_MAX_FILES_SHOWN]),
        )
    taken = {str(known[uri]["name"]) for uri in tables if uri in known}
    names: dict[str, str] = {}
    for uri, name in tables.items():
        if uri in known:
            names[uri] = str(known[uri]["name"])
        else:
            # Two tables of one run never share a name, since rejects name the table.
            names[uri] = uri if name in taken else name
    sources = []
    for uri, name in sorted(names.items(), key=itemgetter(1)):
        if uri in known and is_gone(uri):
            sources.append(known[uri])
            continue
        previous = find_recorded(known.values(), uri, name)
        sources.append({"kind": "links", **describe_file(uri, name, previous)})
    return sources


def describe_subreddits(options: Options) -> list[Described]:
    """Describe the subreddits that the options name, sorted."""
    names = sorted(set(map(subreddit_name, options.subreddits)))
    return [{"kind": "subreddit", "name": f"r/{name}", "uri": name} for name in names]


def store_subreddit(
    source: Mapping[str, Any], generation: int, options: Options, workdir: Storage
) -> Described:
    """Store the submissions of a subreddit in the ledger, and return the source with their digest.

    A subreddit that an interrupted run stored is not requested again. Other sources are returned as
    they are.
    """
    if source["kind"] != "subreddit" or "stored" in source:
        return dict(source)
    limit = options.praw_limit or "all"
    path = f"{ledger_of('collect')}/reddit/{generation}-{source['uri']}-{limit}.jsonl"
    if not workdir.exists(path):
        workdir.write(path, top_submissions(source["uri"], options))
    content = workdir.read(path)
    digest = hashlib.sha256(content).hexdigest()
    return {**source, "bytes": len(content), "sha256": digest, "stored": path}


def describe_blocklists(options: Options, recorded: Recorded) -> list[Described]:
    """Describe the lists of blocked domains, then the single domains."""
    lists, domains = blocklists(options.blocked_domains)
    known = [source for source in recorded if source["kind"] == "blocklist"]
    sources: list[Described] = []
    for uri in lists:
        previous = find_recorded(known, uri, uri.rpartition("/")[2])
        sources.append({"kind": "blocklist", **describe_source(uri, previous)})
    sources += [{"kind": "blocklist", "name": domain} for domain in domains]
    return sources
