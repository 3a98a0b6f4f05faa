"""Pages out of a web archive on the web: looked up in its CDX indexes, each read by one ranged request.

Common Crawl's way, for any archive that has a CDX index and serves its WARC files by range. Requests go through the
live client: its turns, limits and retries hold here too.
"""

from __future__ import annotations

import asyncio
import json
import math
from dataclasses import dataclass, replace
from datetime import datetime, timezone
from typing import Any

from yarl import URL

from owt_pipeline.engine.errors import UserError
from owt_pipeline.fetch.answers import Answer, NoPage
from owt_pipeline.fetch.client import Received
from owt_pipeline.fetch.live import Fetcher, LiveOptions
from owt_pipeline.fetch.lookups import BadIndex, Capture, LookupClient, LookupSource, archive_failed
from owt_pipeline.fetch.manners import Failed
from owt_pipeline.fetch.sources import Crawl
from schemas import Reason

_EVER = (0, 1 << 40)


@dataclass(frozen=True)
class Collection:
    """One index of captures.

    Attributes:
      name: what messages call it.
      api: where it is asked.
      begins: time of its first capture, seconds since 1970 in UTC.
      ends: time of its last one.
    """

    name: str
    api: str
    begins: int = _EVER[0]
    ends: int = _EVER[1]

    def distance(self, moment: int) -> int:
        """Seconds from `moment` to the nearest capture that it can have."""
        return max(self.begins - moment, moment - self.ends, 0)


@dataclass(frozen=True)
class CdxSource(LookupSource):
    """An archive with a CDX index.

    Attributes:
      collections: the indexes.
      data: the URL that the archive files' names are appended to.
      most_collections: how many are asked for one URL.
    """

    collections: tuple[Collection, ...]
    data: str
    most_collections: int

    def open(self, crawl: Crawl) -> CdxClient:
        return CdxClient(self, crawl)


def read_collections(index: str, requests: LiveOptions) -> tuple[Collection, ...]:
    """The collections behind `--cdx_index`; raises UserError where their list cannot be read."""

    async def read() -> tuple[Collection, ...]:
        fetcher = Fetcher(requests)
        try:
            url = URL(index)
            response = await fetcher.get(url, requests.limits, fetcher.gates[url.raw_host or ""], lambda *_: False)
        finally:
            await fetcher.close()
        if response.status != 200:
            raise BadIndex(f"status {response.status}")
        return parse_collections(response.body)

    path = URL(index).path
    if not path.endswith(".json"):  # one index, of which nothing else is known
        return (Collection(path.strip("/") or index, index),)
    try:
        return asyncio.run(read())
    except (Failed, BadIndex) as error:
        raise UserError(f"--cdx_index {index}: {error}; try later, or name another index") from error


class CdxClient(LookupClient):
    """Asks indexes and reads records."""

    def __init__(self, source: CdxSource, crawl: Crawl):
        super().__init__(source, crawl)
        self._source, self._limits = source, source.requests.limits
        self._together *= 2  # twice as many as may be under way, so that index and data are asked at once

    async def look_up(self, url: str, canonical: str, moment: int) -> tuple[list[Capture], str]:
        """The captures found under `url`, and the names of the collections asked.

        The nearest collections are asked, as long as the next may have a capture nearer than those known.
        """
        found: list[Capture] = []
        asked: list[str] = []
        nearest = math.inf
        for collection in sorted(self._source.collections, key=lambda each: each.distance(moment)):
            if len(asked) == self._source.most_collections or nearest <= collection.distance(moment):
                break
            asked.append(collection.name)
            found += await self.captures_in(collection, url, canonical)
            nearest = min((abs(capture.date - moment) for capture in found), default=math.inf)
        return found, ", ".join(asked)

    async def captures_in(self, collection: Collection, url: str, canonical: str) -> list[Capture]:
        """The captures that one collection has; raises Failed."""
        query = URL(collection.api).update_query({"url": url, "output": "json", "filter": "=status:200"})
        index = f"the index {collection.name}"
        found = await self.ask_index(index, query, canonical, _says_no_captures)
        if found and not any(capture.file for capture in found):
            raise archive_failed(index, "its captures name no file to read: another index is needed, such as pywb's")
        return [
            replace(capture, crawl=collection.name)
            for capture in found
            if capture.file and capture.offset >= 0 and capture.length > 0
        ]

    async def read(self, capture: Capture, canonical: str) -> Answer:
        where = str(capture)
        if capture.length > self._limits.wire_bytes:
            return NoPage(Reason.TOO_LARGE, f"{where}, more than {self._limits.wire_bytes:,}")
        place = URL(f"{self._source.data.rstrip('/')}/{capture.file.lstrip('/')}")
        span = f"{capture.offset}-{capture.offset + capture.length - 1}"
        response = await self.get_part(where, place, self._limits.wire_bytes, span)
        if len(response.body) != capture.length:
            return NoPage(Reason.BAD_RESPONSE, f"{where}: only {len(response.body):,} bytes came")
        return capture.page(response.body, canonical, self._url_rules, self._limits.body_bytes, response.ms)


def parse_collections(body: bytes) -> tuple[Collection, ...]:
    """The collections of a `collinfo.json`; raises BadIndex where it is none, or has none."""
    try:
        entries = json.loads(body)
        found = tuple(_collection(entry) for entry in entries)
    except (ValueError, TypeError, KeyError) as error:
        problem = f"{error} is missing" if isinstance(error, KeyError) else str(error)[:200]
        raise BadIndex(f"no list of collections with id, cdx-api, from and to: {problem}") from error
    if not found:
        raise BadIndex("an empty list of collections")
    return found


def _says_no_captures(response: Received) -> bool:
    """Whether it says that the index, which is there, has nothing (Common Crawl's way to say so)."""
    return response.status == 404 and b"no captures found" in response.body[:1000].lower()


def _collection(entry: dict[str, Any]) -> Collection:
    begins, ends = (_iso_time(entry[key]) if entry.get(key) else _EVER[i] for i, key in enumerate(("from", "to")))
    return Collection(str(entry["id"]), str(URL(entry["cdx-api"])), begins, ends)


def _iso_time(text: str) -> int:
    moment = datetime.fromisoformat(text.replace("Z", "+00:00"))  # which Python 3.10 does not know
    return int((moment if moment.tzinfo else moment.replace(tzinfo=timezone.utc)).timestamp())
