"""Pages from a web archive that has CDX indexes and serves its WARC files by range, such as Common Crawl.

Each URL is looked up in the indexes, and its record is read by one ranged request.
"""

from __future__ import annotations

import asyncio
import json
import math
from dataclasses import dataclass, replace
from datetime import datetime, timezone
from typing import TYPE_CHECKING, Any

from yarl import URL

from owt_pipeline.errors import UserError
from owt_pipeline.stages.fetch.answers import Answer, NoPage, Received
from owt_pipeline.stages.fetch.archive_client import BUSY, ArchiveClient, first_tries
from owt_pipeline.stages.fetch.archives import Redirect, redirect_of_record
from owt_pipeline.stages.fetch.lookups import BadIndex, Capture, Found, LookupClient, below
from owt_pipeline.stages.fetch.manners import Failed
from owt_pipeline.stages.fetch.sources import Crawl
from schemas import Reason

if TYPE_CHECKING:
    from owt_pipeline.stages.fetch.stage import Options

_EVER = (0, 1 << 40)
_MOST_BY_PREFIX = "1000"  # captures with tracking parameters


@dataclass(frozen=True)
class Collection:
    """One index of captures.

    Attributes:
      name: its name in messages.
      api: the URL of its CDX server.
      begins: time of its first capture, seconds since 1970 in UTC.
      ends: time of its last one.
    """

    name: str
    api: str
    begins: int = _EVER[0]
    ends: int = _EVER[1]

    def distance(self, moment: int) -> int:
        """Seconds from `moment` to the nearest capture it can have."""
        return max(self.begins - moment, moment - self.ends, 0)


def read_collections(options: Options) -> tuple[Collection, ...]:
    """The collections of `--cdx_index`; raises UserError if their list cannot be read."""

    async def read() -> tuple[Collection, ...]:
        client = ArchiveClient(first_tries(options), Crawl({}, False), options.cdx_connections, options.cdx_delay)
        try:
            response = await client.get("the list of collections", URL(index))
        finally:
            await client.close()
        if response.status != 200:
            raise BadIndex(f"status {response.status}")
        return parse_collections(response.body)

    index = options.cdx_index
    path = URL(index).path
    if not path.endswith(".json"):  # a single index
        return (Collection(path.strip("/") or index, index),)
    try:
        return asyncio.run(read())
    except (Failed, BadIndex, UserError) as error:
        raise UserError(f"--cdx_index {index}: {error}; try later, or name another index") from error


class CdxClient(LookupClient):
    """Looks URLs up in CDX indexes and reads records."""

    busy = BUSY

    def __init__(self, options: Options, crawl: Crawl, *collections: Collection):
        super().__init__(options, crawl, options.cdx_connections, options.cdx_delay)
        self._collections = collections
        self.together = 2 * options.cdx_connections  # so that index and data are requested at the same time

    async def look_up(self, url: str, canonical: str, moment: int, *, by_prefix: bool = False) -> Found:
        """The captures of `url`; with `by_prefix`, in the nearest collection alone, of all URLs that begin with it.

        Collections are asked in the order of their distance, while the next one may have a nearer page.
        """
        found = Found()
        most, nearest = 1 if by_prefix else self._options.cdx_collections, math.inf
        for collection in sorted(self._collections, key=lambda each: each.distance(moment))[:most]:
            if nearest <= collection.distance(moment):
                break
            found.add(await self.captures_in(collection, url, canonical, by_prefix))
            nearest = min((abs(capture.date - moment) for capture in found.pages), default=math.inf)
        return found

    async def captures_in(self, collection: Collection, url: str, canonical: str, by_prefix: bool = False) -> Found:
        """The captures in one collection; raises Failed."""
        query = {"url": url, "output": "json"}
        query |= {"matchType": "prefix", "limit": _MOST_BY_PREFIX} if by_prefix else {}
        index = f"the index {collection.name}"
        found = await self.ask_index(index, URL(collection.api).update_query(query), canonical, _says_no_captures)
        if found.captures and not any(capture.file for capture in found.captures):
            problem = "its captures name no file to read: another index is needed, such as pywb's"
            raise self.refused(URL(collection.api), index, problem)
        found.asked = [collection.name]
        found.captures = [
            replace(capture, crawl=collection.name)
            for capture in found.captures
            if capture.file and capture.offset >= 0 and capture.length > 0
        ]
        return found

    async def read(self, capture: Capture, canonical: str) -> Answer:
        record = await self._record(capture)
        if isinstance(record, NoPage):
            return record
        return capture.page(record.body, canonical, self._limits.body_bytes, record.ms)

    async def read_redirect(self, capture: Capture, canonical: str) -> Redirect | NoPage:
        record = await self._record(capture)
        if isinstance(record, NoPage):
            return record
        return redirect_of_record(record.body, self._limits.body_bytes, canonical, where=str(capture))

    async def _record(self, capture: Capture) -> Received | NoPage:
        """The response with the bytes of a capture's record; raises Failed."""
        where = str(capture)
        if capture.length > self._limits.wire_bytes:
            return NoPage(Reason.TOO_LARGE, f"{where}, more than {self._limits.wire_bytes:,}")
        place = URL(below(self._options.cdx_data, capture.file))
        span = f"{capture.offset}-{capture.offset + capture.length - 1}"
        response = await self.get_part(where, place, self._limits.wire_bytes, span)
        if len(response.body) != capture.length:
            return NoPage(Reason.BAD_RESPONSE, f"{where}: only {len(response.body):,} bytes came")
        return response


def parse_collections(body: bytes) -> tuple[Collection, ...]:
    """The collections in a `collinfo.json`; raises BadIndex for other content, and for an empty list."""
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
    """Whether an index answers that it has no captures, as Common Crawl does: with 404 and this text."""
    return response.status == 404 and b"no captures found" in response.body[:1000].lower()


def _collection(entry: dict[str, Any]) -> Collection:
    begins, ends = (_iso_time(entry[key]) if entry.get(key) else _EVER[i] for i, key in enumerate(("from", "to")))
    return Collection(str(entry["id"]), str(URL(entry["cdx-api"])), begins, ends)


def _iso_time(text: str) -> int:
    moment = datetime.fromisoformat(text.replace("Z", "+00:00"))  # Python 3.10 does not know "Z"
    return int((moment if moment.tzinfo else moment.replace(tzinfo=timezone.utc)).timestamp())
