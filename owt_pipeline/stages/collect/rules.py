"""The rules that accept or reject a single submission. Scores are judged later, by URL."""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from functools import cache, lru_cache
from importlib.resources import files
from itertools import chain
from typing import Any

import numpy as np
import xxhash
from tld import is_tld

from owt_pipeline.errors import UserError
from owt_pipeline.formats.records import open_decompressed
from owt_pipeline.formats.urls import BadURL, canonicalize, host_of
from owt_pipeline.storage.folder import describe_source, find_recorded
from owt_pipeline.storage.matching import expand_globs


@dataclass(frozen=True)
class Rules:
    """The rules for a submission; small, as they are sent to worker processes with each block.

    Attributes:
      over_18: keep submissions marked as over 18.
      allow_subreddits: if any, submissions elsewhere are rejected; in lower case.
      deny_subreddits: submissions there are rejected; in lower case.
      domains: domains that are rejected with their subdomains, and hosts (`=HOST`), with the
        built-in hosts of media.
      domain_files: (path, digest) of lists of these; a list with another digest is read again.
    """

    over_18: bool = False
    allow_subreddits: frozenset[str] = frozenset()
    deny_subreddits: frozenset[str] = frozenset()
    domains: tuple[str, ...] = ()
    domain_files: tuple[tuple[str, str], ...] = ()

    def blocks_subreddit(self, subreddit: str | None) -> bool:
        """Return whether submissions in a subreddit are rejected."""
        name = (subreddit or "").lower()
        if name in self.deny_subreddits:
            return True
        return bool(self.allow_subreddits) and name not in self.allow_subreddits


class DomainSet:
    """A set of domains, which include their subdomains, and of exact hosts, written as `=HOST`.

    It takes 8 bytes per entry, so that each worker can hold lists of millions.
    """

    def __init__(self, entries: Iterable[str]):
        hashes = np.fromiter(
            (xxhash.xxh3_64_intdigest(entry.encode()) for entry in entries), np.uint64
        )
        self._hashes = np.unique(hashes)

    def match(self, host: str) -> str | None:
        """Return the entry that matches `host`; None without one.

        It is the shortest domain, or else the host itself as `=HOST`. A domain matches as a suffix
        of complete labels.
        """
        labels = host.split(".")
        entries = [".".join(labels[start:]) for start in range(len(labels) - 1, -1, -1)]
        entries.append(f"={host}")
        hashes = np.array(
            [xxhash.xxh3_64_intdigest(entry.encode()) for entry in entries], np.uint64
        )
        places = np.searchsorted(self._hashes, hashes)
        is_match = self._hashes.take(places, mode="clip") == hashes
        if not is_match.any():
            return None
        return entries[is_match.argmax()]


@lru_cache(2)  # millions of lines, for each block; a process works on one run at a time
def blocked_domains(
    lists: tuple[tuple[str, str], ...] = (), domains: tuple[str, ...] = ()
) -> DomainSet:
    """Return the built-in hosts of media, those in `domains`, and those in files, one per line.

    `lists` are (path, digest) of the files. A domain includes its subdomains (`example.com`,
    `*.example.com`, `||example.com^`);
    `=example.com` is only that host, and so is a line of `/etc/hosts`. Blank lines and comments
    after `#` are skipped. Raises UserError for a file that cannot be read.
    """
    entries = chain(
        _built_in("media_domains.txt"),
        (entry for domain in domains for entry in _entry(domain.encode())),
        (entry for path, _ in lists for entry in _entries(path)),
    )
    return DomainSet(entries)


def blocklists(blocked: Iterable[str]) -> tuple[list[str], list[str]]:
    """Return (files, domains) of the option `blocked_domains`.

    An entry that names a file is not read as a domain. Raises UserError for an entry that names
    neither a file nor a domain.
    """
    files: list[str] = []
    domains: list[str] = []
    for entry in blocked:
        try:
            files += expand_globs((entry,), "blocked_domains")
        except UserError:
            is_domain = "/" not in entry and is_tld(entry.rpartition(".")[2])
            if not is_domain and not entry.startswith("="):
                raise
            domains.append(entry)
    return files, domains


def describe_blocklists(
    blocked: Iterable[str], recorded: Iterable[Mapping[str, Any]]
) -> list[dict[str, Any]]:
    """Return what identifies the lists of the option `blocked_domains`, then the single domains.

    Raises UserError for a list that cannot be read, and is not `recorded`.
    """
    files, domains = blocklists(blocked)
    known = [source for source in recorded if source["kind"] == "blocklist"]
    described = []
    for uri in files:
        before = find_recorded(known, uri, uri.rpartition("/")[2])
        described.append({"kind": "blocklist", **describe_source(uri, before)})
    return described + [{"kind": "blocklist", "name": domain} for domain in domains]


@cache
def blocked_extensions() -> frozenset[str]:
    """Return the extensions of media and files, in lower case without a dot."""
    return frozenset(_built_in("media_extensions.txt"))


def blocked_extension(canonical: str) -> str | None:
    """Return the blocked extension of a canonical URL's path.

    Returns None if it has none, or is a page in spite of it.
    `File:Tree.jpg` has none: in wikis it is the page about the file. `jpg:large` is `jpg`, as in
    URLs of Twitter's images. A host of `file_hosts.txt` serves files only under the paths there.
    """
    without_query = canonical.removeprefix("https://").partition("#")[0].partition("?")[0]
    path = "/" + without_query.partition("/")[2]
    name, dot, extension = path.rpartition("/")[2].rpartition(".")
    extension = extension.partition(":")[0].lower()
    if not dot or ":" in name or extension not in blocked_extensions() or _WIKI_PAGE(path):
        return None
    file_paths = _paths_of_files(host_of(canonical))
    if file_paths is not None and not file_paths.match(path):
        return None
    return extension


# MediaWiki's files are in other folders.
_WIKI_PAGE = re.compile(r".*/(?:wiki|index\.php)/[^/]+").fullmatch


@lru_cache(1 << 14)
def _paths_of_files(host: str) -> re.Pattern[str] | None:
    """Return the paths under which a host serves files; None if these may be all paths."""
    paths_by_entry = _file_hosts()
    labels = host.split(".")
    entries = [f"={host}", *(".".join(labels[start:]) for start in range(len(labels)))]
    for entry in entries:
        if entry in paths_by_entry:
            return paths_by_entry[entry]
    return None


@cache
def _file_hosts() -> Mapping[str, re.Pattern[str]]:
    """Return the paths of files on hosts whose pages have names of files, by domain or `=HOST`.

    Hosts that serve no files have a pattern that never matches.
    """
    paths_by_entry = {}
    for line in _built_in("file_hosts.txt"):
        entry, _, paths = line.partition(" ")
        paths_by_entry[entry] = re.compile(paths or "(?!)")
    return paths_by_entry


def _entries(path: str) -> Iterator[str]:
    with open_decompressed(path) as file:
        for line in file:
            yield from _entry(line)


def _entry(line: bytes) -> Iterator[str]:
    """Yield the entry of a line, if it has one."""
    words = line.partition(b"#")[0].decode("utf-8", "replace").split()
    # Ad blockers' lists have comments after `!` and sections in brackets.
    if not words or words[0].startswith(("!", "[")):
        return
    given = words[-1]
    is_line_of_hosts_file = len(words) > 1 and _is_address(words[0])
    is_exact = given.startswith("=") or is_line_of_hosts_file
    domain = given.removeprefix("=").removeprefix("||").removesuffix("^").removeprefix("*.")
    with suppress(BadURL):
        _, host = canonicalize(f"https://{domain.strip('.')}/")
        yield f"={host}" if is_exact else host


def _is_address(text: str) -> bool:
    with suppress(ValueError):
        return bool(ipaddress.ip_address(text))
    return False


def _built_in(name: str) -> list[str]:
    lines = files("owt_pipeline.stages.collect").joinpath(name).read_text("utf-8").split("\n")
    return [line.strip() for line in lines if line.strip() and not line.startswith("#")]
