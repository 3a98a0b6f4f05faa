"""The sources of pages that `--sources` names.

An entry in PAGE_SOURCES and the module of its client are all that a source needs. From the entry
follow the choice of `--sources`, the options in the keys of its segments, whether its requests
need a User-Agent, and which steps query it. A client imports an HTTP client, which takes 0.2 s, so
an entry names it, and only a run that queries the source imports it.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

from schemas.manifest import Generation

_ROOM = "owt_pipeline.stages.fetch"


@dataclass(frozen=True)
class PageSource:
    """A source of pages.

    Attributes:
      client: the class of its client, as `module:class`. The class is a `recorder.Client`, and is
        called with the options. None for the files of `--pages_from`, which are read without
        requests.
      option_words: the first words of the names of the options that shape its pages. An option
        whose first word no source has shapes the pages of all sources.
      is_gathered: whether one part queries it for the URLs of all shards together. Others are
        queried by each shard.
      obeys_robots: whether its client reads robots.txt, for the segments' warcinfo records.
    """

    client: str | None
    option_words: tuple[str, ...] = ()
    is_gathered: bool = False
    obeys_robots: bool = False

    @property
    def is_online(self) -> bool:
        """Return whether it is on the network: its responses are requested again only on demand."""
        return self.client is not None

    def load_client(self) -> Callable[..., Any]:
        """Import and return the class of its client."""
        assert self.client is not None
        module, _, name = self.client.partition(":")
        return getattr(importlib.import_module(module), name)  # type: ignore[no-any-return]


PAGE_SOURCES = {
    "live": PageSource(
        f"{_ROOM}.web.live:Fetcher", option_words=("allow", "allowed"), obeys_robots=True
    ),
    "archive": PageSource(None, option_words=("archive",)),
    "commoncrawl": PageSource(
        f"{_ROOM}.archives.commoncrawl:BulkClient",
        option_words=("archive", "cc"),
        is_gathered=True,
    ),
    "wayback": PageSource(
        f"{_ROOM}.archives.wayback:WaybackClient",
        option_words=("archive", "wayback"),
        is_gathered=True,
    ),
}
"""The sources, by name."""

ONLINE = tuple(name for name, source in PAGE_SOURCES.items() if source.is_online)
GATHERED = tuple(name for name, source in PAGE_SOURCES.items() if source.is_gathered)


LATER = "later"
"""The name of the source of a generation's first later set is `later1`."""


def page_source(name: str) -> PageSource:
    """Return the source of a name: one of PAGE_SOURCES, or a later set of archive files."""
    return PAGE_SOURCES["archive" if name.startswith(LATER) else name]


def files_of_source(generation: Generation, name: str) -> list[dict[str, Any]]:
    """Return the archive files of a source; none if it is online."""
    if page_source(name).is_online:
        return []
    return generation.page_sets[int(name.removeprefix(LATER)) if name.startswith(LATER) else 0]


def words_of_sources(names: Iterable[str]) -> set[str]:
    """Return the `option_words` of the sources with these names."""
    words: set[str] = set()
    for name in names:
        words.update(page_source(name).option_words)
    return words
