"""Which submissions are wanted: the rules that judge one submission by itself. The score is judged by URL, later."""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from functools import cache, lru_cache
from importlib.resources import files
from itertools import chain

import numpy as np
import xxhash

from owt_pipeline.errors import UserError
from owt_pipeline.formats.lines import LineReader
from owt_pipeline.formats.urls import BadURL, canonicalize, host_of
from owt_pipeline.storage.folder import open_source


@dataclass(frozen=True)
class Rules:
    """What is rejected; small, so that it travels to worker processes with each block.

    Attributes:
      over_18: keep submissions marked over 18.
      allow_subreddits: if any, submissions elsewhere are rejected; in lower case.
      deny_subreddits: submissions there are rejected; in lower case.
      deny_domains: domains that are rejected with their subdomains.
      blocked_domain_files: lists of such domains, each a path with a digest by which a changed one is read again.
      extensions: endings of paths, in addition to the built-in ones.
      built_in: whether the built-in lists of media hosts and endings apply.
    """

    over_18: bool = False
    allow_subreddits: frozenset[str] = frozenset()
    deny_subreddits: frozenset[str] = frozenset()
    deny_domains: tuple[str, ...] = ()
    blocked_domain_files: tuple[tuple[str, str], ...] = ()
    extensions: tuple[str, ...] = ()
    built_in: bool = True

    @property
    def domains(self) -> DomainSet:
        return blocked_domains(self.blocked_domain_files, self.built_in, self.deny_domains)

    @property
    def blocked_extensions(self) -> frozenset[str]:
        return blocked_extensions(self.extensions, self.built_in)

    def blocked_extension(self, canonical: str) -> str | None:
        """The blocked extension of a canonical URL that is served as a file; None where it is none."""
        extension = extension_of(canonical)
        if extension not in self.blocked_extensions or is_page(canonical):
            return None
        return extension

    def blocks_subreddit(self, subreddit: str | None) -> bool:
        name = (subreddit or "").lower()
        return name in self.deny_subreddits or bool(self.allow_subreddits and name not in self.allow_subreddits)


class DomainSet:
    """A set of domains, which include their subdomains, and of exact hosts, written with `=` before them.

    It holds 8 bytes an entry, so that lists of millions fit next to every worker.
    """

    def __init__(self, entries: Iterable[str]):
        hashes = np.fromiter((xxhash.xxh3_64_intdigest(entry.encode()) for entry in entries), np.uint64)
        self._hashes = np.unique(hashes)

    def __len__(self) -> int:
        return len(self._hashes)

    def match(self, host: str) -> str | None:
        """The entry that `host` falls under: the shortest domain, else the host itself, `=HOST`; None for none.

        A domain is a suffix of `host` in complete labels.
        """
        labels = host.split(".")
        entries = [".".join(labels[start:]) for start in range(len(labels) - 1, -1, -1)] + [f"={host}"]
        hashes = np.array([xxhash.xxh3_64_intdigest(entry.encode()) for entry in entries], np.uint64)
        places = np.searchsorted(self._hashes, hashes)
        for entry, value, place in zip(entries, hashes, places, strict=True):
            if place < len(self._hashes) and self._hashes[place] == value:
                return entry
        return None


@lru_cache(2)  # a process works at one run at a time; reading millions of lines again for each block would cost more
def blocked_domains(lists: tuple[tuple[str, str], ...], built_in: bool, further: tuple[str, ...] = ()) -> DomainSet:
    """The domains and hosts of files, one a line, of the built-in list, and `further` ones; `lists` are (path, digest).

    A domain includes its subdomains (`example.com`, `*.example.com`, `||example.com^`); `=example.com` is that
    host only, and so is a line of `/etc/hosts`. Blank lines and what follows a `#` are skipped. Raises
    UserError for a file that cannot be read.
    """
    entries = chain(
        _built_in("media_domains.txt") if built_in else [],
        (entry for domain in further for entry in _entry(domain.encode())),
        (entry for path, _ in lists for entry in _entries(path)),
    )
    return DomainSet(entries)


@lru_cache(2)
def blocked_extensions(extensions: tuple[str, ...], built_in: bool) -> frozenset[str]:
    """The extensions given, with or without a dot, and those of the built-in list; in lower case without a dot."""
    own = _built_in("media_extensions.txt") if built_in else []
    return frozenset([*own, *(extension.lower().lstrip(".") for extension in extensions)])


def extension_of(canonical: str) -> str:
    """The file extension of a canonical URL's path in lower case, without its dot; "" where it has none.

    `File:Tree.jpg` has none: in wikis it is the page about the file. `jpg:large` is `jpg`: Twitter's images.
    """
    path = _path_of(canonical)
    _, slash, segment = path.rpartition("/")
    name, dot, extension = segment.rpartition(".")
    return extension.partition(":")[0].lower() if slash and dot and ":" not in name else ""


def is_page(canonical: str) -> bool:
    """Whether the path of a canonical URL names a page whatever it ends in: on hosts that serve no files under it."""
    path = "/" + _path_of(canonical).partition("/")[2]
    if _WIKI_PAGE(path):
        return True
    of_files = _paths_of_files(host_of(canonical))
    return of_files is not None and of_files.match(path) is None


_WIKI_PAGE = re.compile(r".*/(?:wiki|index\.php)/[^/]+").fullmatch  # MediaWiki's files are in other folders


def _path_of(canonical: str) -> str:
    """Host and path of a canonical URL."""
    return canonical[8:].partition("#")[0].partition("?")[0]


@lru_cache(1 << 14)
def _paths_of_files(host: str) -> re.Pattern[str] | None:
    """A host's paths under which it serves files; None for a host that serves them under all paths."""
    hosts, labels = _file_hosts(), host.split(".")
    for entry in [f"={host}", *(".".join(labels[start:]) for start in range(len(labels)))]:
        if entry in hosts:
            return hosts[entry]
    return None


@cache
def _file_hosts() -> Mapping[str, re.Pattern[str]]:
    """Of hosts that serve pages under names of files; what matches nothing where they serve no files at all."""
    lines = [line.partition(" ") for line in _built_in("file_hosts.txt")]
    return {host: re.compile(paths or "(?!)") for host, _, paths in lines}


def _entries(path: str) -> Iterator[str]:
    with open_source(path) as file:
        reader = LineReader(file)
        for block in reader:
            for line in block.data.split(b"\n"):
                yield from _entry(line)
    if reader.broken is not None:  # half a list would let through what the user wants out
        raise UserError(f"the blocklist {path} cannot be read: {reader.broken}; get a complete one")


def _entry(line: bytes) -> Iterator[str]:
    words = line.partition(b"#")[0].decode("utf-8", "replace").split()
    if not words or words[0].startswith(("!", "[")):  # comments and sections of ad blockers' lists
        return
    exact = words[-1].startswith("=") or (len(words) > 1 and _is_address(words[0]))
    domain = words[-1].removeprefix("=").removeprefix("||").removesuffix("^").removeprefix("*.").strip(".")
    with suppress(BadURL):
        yield "=" * exact + canonicalize(f"https://{domain}/")[1]


def _is_address(text: str) -> bool:
    with suppress(ValueError):
        return bool(ipaddress.ip_address(text))
    return False


def _built_in(name: str) -> list[str]:
    lines = files("owt_pipeline.collect").joinpath(name).read_text("utf-8").split("\n")
    return [line.strip() for line in lines if line.strip() and not line.startswith("#")]
