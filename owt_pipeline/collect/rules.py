"""Which submissions are wanted: the rules that judge one submission by itself. The score is judged by URL, later."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from functools import lru_cache
from importlib.resources import files
from itertools import chain

import numpy as np
import xxhash

from owt_pipeline.collect.lines import LineReader
from owt_pipeline.collect.urls import BadURL, canonicalize
from owt_pipeline.engine.errors import UserError
from owt_pipeline.engine.storage import open_source


@dataclass(frozen=True)
class Rules:
    """What is turned away; small, so that it travels to worker processes with each block.

    Attributes:
      over_18: keep submissions marked over 18.
      allow_subreddits: if any, submissions elsewhere are turned away; in lower case.
      deny_subreddits: submissions there are turned away; in lower case.
      deny_domains: domains that are turned away with their subdomains.
      blocked_domain_files: lists of such domains, each a path with a digest by which a changed one is read again.
      extensions: endings of paths, beside the built-in ones.
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

    def blocks_subreddit(self, subreddit: str | None) -> bool:
        name = (subreddit or "").lower()
        return name in self.deny_subreddits or bool(self.allow_subreddits and name not in self.allow_subreddits)


class DomainSet:
    """A set of domains that holds 8 bytes a domain, so that lists of millions fit beside every worker."""

    def __init__(self, domains: Iterable[str]):
        hashes = np.fromiter((xxhash.xxh3_64_intdigest(domain.encode()) for domain in domains), np.uint64)
        self._hashes = np.unique(hashes)

    def __len__(self) -> int:
        return len(self._hashes)

    def match(self, host: str) -> str | None:
        """The shortest suffix of `host`, in whole labels, that is in the set; None where there is none."""
        labels = host.split(".")
        suffixes = [".".join(labels[start:]) for start in range(len(labels) - 1, -1, -1)]
        hashes = np.array([xxhash.xxh3_64_intdigest(suffix.encode()) for suffix in suffixes], np.uint64)
        places = np.searchsorted(self._hashes, hashes)
        for suffix, value, place in zip(suffixes, hashes, places, strict=True):
            if place < len(self._hashes) and self._hashes[place] == value:
                return suffix
        return None


@lru_cache(2)  # a process works at one run at a time; reading millions of lines again for each block would cost more
def blocked_domains(lists: tuple[tuple[str, str], ...], built_in: bool, further: tuple[str, ...] = ()) -> DomainSet:
    """The domains of files, one a line, of the built-in list, and `further` ones; `lists` are (path, digest).

    Blank lines and what follows a `#` are skipped; the last word of a line counts, so lists in the format of
    `/etc/hosts` do as well. A domain stands for its subdomains too. Raises UserError for a file that cannot be read.
    """
    own = _built_in("media_domains.txt") if built_in else []
    named = [host for domain in further for host in _domain(domain.encode())]
    return DomainSet(chain(own, named, (domain for path, _ in lists for domain in _domains(path))))


@lru_cache(2)
def blocked_extensions(extensions: tuple[str, ...], built_in: bool) -> frozenset[str]:
    """The extensions given, with or without a dot, and those of the built-in list; in lower case without a dot."""
    own = _built_in("media_extensions.txt") if built_in else []
    return frozenset([*own, *(extension.lower().lstrip(".") for extension in extensions)])


def extension_of(canonical: str) -> str:
    """The file extension of a canonical URL's path in lower case, without its dot; "" where it has none.

    `File:Tree.jpg` has none: in wikis it is the page about the file. `jpg:large` is `jpg`: Twitter's images.
    """
    path, _, _ = canonical[8:].partition("?")
    _, slash, segment = path.rpartition("/")
    name, dot, extension = segment.rpartition(".")
    return extension.partition(":")[0].lower() if slash and dot and ":" not in name else ""


def _domains(path: str) -> Iterator[str]:
    with open_source(path) as file:
        reader = LineReader(file)
        for block in reader:
            for line in block.data.split(b"\n"):
                yield from _domain(line)
    if reader.broken is not None:  # half a list would let through what the user wants out
        raise UserError(f"the blocklist {path} cannot be read: {reader.broken}; get a whole one")


def _domain(line: bytes) -> Iterator[str]:
    words = line.partition(b"#")[0].split()
    if words:
        domain = words[-1].decode("utf-8", "replace").removeprefix("*.").strip(".")
        with suppress(BadURL):
            yield canonicalize(f"https://{domain}/")[1]


def _built_in(name: str) -> list[str]:
    lines = files("owt_pipeline.collect").joinpath(name).read_text("utf-8").split("\n")
    return [line.strip() for line in lines if line.strip() and not line.startswith("#")]
