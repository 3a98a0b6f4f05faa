"""Pages out of a web archive on the web: looked up in its CDX indexes, each read by one ranged request.

An index answers `API?url=URL&output=json` with a capture a line, as JSON: the CDX server API of pywb, which Common
Crawl runs too (https://pywb.readthedocs.io/en/latest/manual/cdxserver_api.html). It compares URLs by their SURT
form, which ignores more than canonical URLs do, such as case; so what it finds is compared once more.

Common Crawl's way, for any archive that has a CDX index and serves its WARC files by range. Requests go through the
live client: its turns, limits and retries hold here too.
"""

from __future__ import annotations

import asyncio
import calendar
import json
import math
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from datetime import datetime, timezone
from typing import Any, ClassVar

import pyarrow as pa
from yarl import URL

from owt_pipeline.engine.errors import UserError
from owt_pipeline.fetch.answers import Answer, NoPage, Origin, wanted_moment
from owt_pipeline.fetch.archives import page_of_record
from owt_pipeline.fetch.client import Limits, Received
from owt_pipeline.fetch.live import Fetcher, LiveOptions
from owt_pipeline.fetch.manners import Failed
from owt_pipeline.fetch.recorder import Recorder
from owt_pipeline.fetch.sources import Shared, archive_failed, ask_each, first_page
from owt_pipeline.formats.messages import is_html
from owt_pipeline.formats.urls import BadURL, canonical_url
from schemas import Reason

_EVER = (0, 1 << 40)

_MAX_ANSWER_BYTES = 8 << 20
"""Of an index: some 25,000 captures of one URL in one collection, a site's first page at most."""


class BadIndex(ValueError):
    """An answer that is none of a CDX index; the message says what it is instead."""


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
class IndexedCapture:
    """A capture that an index knows: when, the range of bytes of its record in an archive file, and its collection."""

    date: int
    file: str
    offset: int
    length: int
    crawl: str | None = None


@dataclass(frozen=True)
class CdxSource:
    """An archive on the web that is asked URL by URL.

    Attributes:
      collections: the indexes.
      data: the URL that the archive files' names are appended to.
      most_collections: how many are asked for one URL.
      requests: how requests are made; `host_connections` and `host_delay` hold for index and data each.
      choice: which capture of several is taken.
      url_rules: version of the rules by which URLs are canonical.
    """

    collections: tuple[Collection, ...]
    data: str
    most_collections: int
    requests: LiveOptions
    choice: str
    url_rules: int
    columns: ClassVar = ("url_id", "url", "posted_url", "created_utc")

    def open(self, crawl: Shared) -> ArchiveClient:
        return ArchiveClient(self, crawl.may_ask)


def read_collections(index: str, requests: LiveOptions) -> tuple[Collection, ...]:
    """The collections behind `--cdx_index`; raises UserError where their list cannot be read."""

    async def read() -> Received:
        fetcher = Fetcher(requests)
        try:
            url = URL(index)
            return await fetcher.get(url, requests.limits, fetcher.gates[url.raw_host or ""], lambda *_: False)
        finally:
            await fetcher.close()

    if not is_list_of_collections(index):
        return (single_collection(index),)
    try:
        response = asyncio.run(read())
        if response.status != 200:
            raise BadIndex(f"status {response.status}")
        return parse_collections(response.body)
    except Failed as failure:
        problem = f"{failure.reason}: {failure.detail}"
    except BadIndex as error:
        problem = str(error)
    raise UserError(f"--cdx_index {index}: {problem}; try later, or name another index")


class ArchiveClient:
    """Asks indexes and reads records; to be made and used in one event loop, by any number of tasks at once."""

    def __init__(self, options: CdxSource, may_ask: Callable[[], bool] = lambda: True):
        self.options = options
        self._fetcher = Fetcher(options.requests, may_ask)
        self._limits = options.requests.limits

    async def close(self) -> None:
        await self._fetcher.close()

    async def ask(self, urls: pa.Table, recorder: Recorder, resumed: bool) -> None:
        """Look up every URL of `urls`; raises UserError where index or data fail for `host_failures` URLs in a row."""
        requests = self.options.requests
        # Twice as many as may be under way, so that index and data are asked at once.
        await ask_each(self.fetch, urls, recorder, 2 * requests.host_connections, requests.host_failures)

    def status(self) -> str:
        return f"{self._fetcher.requests:,} requests"

    async def fetch(self, url: str, posted: str, created_utc: int | None) -> Answer:
        """The page of a canonical URL: its capture nearest in time to `created_utc`, or the last without a date; or,
        as the options have it, the earliest or the latest. See `first_page`.
        """
        moment = wanted_moment(self.options.choice, created_utc)
        return await first_page(
            lambda address: self._captures(address, url, moment), lambda capture: self._page(capture, url), url, posted
        )

    async def _captures(self, url: str, canonical: str, moment: int) -> tuple[list[IndexedCapture], str]:
        """The captures found under `url`, the nearest first, and the names of the collections asked.

        The nearest collections are asked, as long as the next may have a capture nearer than those known.
        """
        found: list[IndexedCapture] = []
        asked: list[str] = []
        nearest = math.inf
        for collection in sorted(self.options.collections, key=lambda each: each.distance(moment)):
            if len(asked) == self.options.most_collections or nearest <= collection.distance(moment):
                break
            asked.append(collection.name)
            found += await self._ask(collection, url, canonical)
            nearest = min((abs(capture.date - moment) for capture in found), default=math.inf)
        found.sort(key=lambda capture: (abs(capture.date - moment), capture.date, capture.file))
        return found, ", ".join(asked)

    async def _ask(self, collection: Collection, url: str, canonical: str) -> list[IndexedCapture]:
        limits = replace(self._limits, wire_bytes=_MAX_ANSWER_BYTES, body_bytes=_MAX_ANSWER_BYTES)
        response = await self._get(f"the index {collection.name}", query(collection.api, url), limits, cut=True)
        if response.status == 404 and says_no_captures(response.body):
            return []
        if response.status != 200:
            about = " ".join(response.body[:200].decode("utf-8", "replace").split())
            raise archive_failed(f"the index {collection.name}", f"status {response.status} {about}".strip())
        try:
            found = parse_captures(response.body, canonical, self.options.url_rules)
            return [replace(capture, crawl=collection.name) for capture in found]
        except BadIndex as error:
            raise archive_failed(f"the index {collection.name}", str(error)) from error

    async def _page(self, capture: IndexedCapture, url: str) -> Answer:
        where = f"{capture.length:,} bytes at {capture.offset} of {capture.file}"
        if capture.length > self._limits.wire_bytes:
            return NoPage(Reason.TOO_LARGE, f"{where}, more than {self._limits.wire_bytes:,}")
        last = capture.offset + capture.length - 1
        headers = {"Range": f"bytes={capture.offset}-{last}", "Accept-Encoding": "identity"}
        source = URL(self.options.data.rstrip("/") + "/" + capture.file.lstrip("/"))
        limits = replace(self._limits, body_bytes=self._limits.wire_bytes)  # of the record; the page's is judged below
        response = await self._get(where, source, limits, headers=headers)
        if response.status != 206:
            raise archive_failed(where, f"status {response.status} where a part (206) was asked for")
        if len(response.body) != capture.length:
            return NoPage(Reason.BAD_RESPONSE, f"{where}: only {len(response.body):,} bytes came")
        origin = Origin("commoncrawl", capture.crawl, capture.file, capture.offset)
        return page_of_record(
            response.body,
            origin,
            self._limits.body_bytes,
            where=where,
            fetch_ms=response.ms,
            canonical=url,
            url_rules=self.options.url_rules,
        )

    async def _get(self, what: str, url: URL, limits: Limits, **how: Any) -> Received:
        """The response; raises Failed with the reason `archive_failed`."""
        gate = self._fetcher.gates[url.raw_host or ""]
        try:
            # A complete archive file, sent by a server that knows no ranges, is not read.
            return await self._fetcher.get(
                url, limits, gate, lambda status, _: "headers" in how and status != 206, **how
            )
        except Failed as failure:
            raise archive_failed(what, f"{failure.reason}, {failure.detail}") from failure


def is_list_of_collections(url: str) -> bool:
    """Whether a URL is that of a list of collections (`collinfo.json`), and not of one index."""
    return URL(url).path.endswith(".json")


def single_collection(api: str) -> Collection:
    """The index at `api`, of which nothing else is known."""
    return Collection(URL(api).path.strip("/") or api, api)


def parse_collections(body: bytes) -> tuple[Collection, ...]:
    """The collections of a `collinfo.json`; raises BadIndex where it is none, or has none."""
    try:
        entries = json.loads(body)
        found = tuple(_collection(entry) for entry in entries)
    except (ValueError, TypeError, KeyError) as error:
        raise BadIndex(f"no list of collections with id, cdx-api, from and to: {_problem(error)}") from error
    if not found:
        raise BadIndex("an empty list of collections")
    return found


def query(api: str, url: str) -> URL:
    """What to ask for the successful captures of `url`."""
    return URL(api).update_query({"url": url, "output": "json", "filter": "=status:200"})


def parse_captures(body: bytes, canonical: str, url_rules: int) -> list[IndexedCapture]:
    """The captures of an index' answer that are HTML pages of the URL whose canonical form is `canonical`.

    A last line that is cut off is none; raises BadIndex where no line is a capture.
    """
    lines = [line for line in body.split(b"\n") if line.strip()]
    rows = list(_rows(lines))
    if lines and not rows:
        raise BadIndex(f"no captures as JSON but {lines[0][:100]!r}")
    found = {capture for row in rows for capture in _captures(row, canonical, url_rules)}
    return sorted(found, key=lambda capture: (capture.date, capture.file))


def says_no_captures(body: bytes) -> bool:
    """Whether the body of a 404 says that the index, which is there, has nothing (Common Crawl's way to say so)."""
    return b"no captures found" in body[:1000].lower()


def _collection(entry: dict[str, Any]) -> Collection:
    begins, ends = (_iso_time(entry[key]) if entry.get(key) else _EVER[i] for i, key in enumerate(("from", "to")))
    return Collection(str(entry["id"]), str(URL(entry["cdx-api"])), begins, ends)


def _iso_time(text: str) -> int:
    moment = datetime.fromisoformat(text.replace("Z", "+00:00"))  # which Python 3.10 does not know
    return int((moment if moment.tzinfo else moment.replace(tzinfo=timezone.utc)).timestamp())


def _rows(lines: list[bytes]) -> Iterator[dict[str, Any]]:
    for line in lines:
        try:
            row = json.loads(line)
        except ValueError:
            continue
        if isinstance(row, dict) and "filename" in row:
            yield row


def _captures(row: dict[str, Any], canonical: str, url_rules: int) -> Iterator[IndexedCapture]:
    """The capture of a row; none where it is another URL's, no page, or incomplete."""
    try:
        if row["status"] != "200" or canonical_url(row["url"], url_rules) != canonical:
            return
        if not any(is_html(row[name]) for name in ("mime", "mime-detected") if row.get(name)):
            return
        date = calendar.timegm(time.strptime(row["timestamp"], "%Y%m%d%H%M%S"))
        capture = IndexedCapture(date, str(row["filename"]), int(row["offset"]), int(row["length"]))
        if capture.offset >= 0 and capture.length > 0:
            yield capture
    except (KeyError, TypeError, ValueError, AttributeError, BadURL):
        return


def _problem(error: Exception) -> str:
    return f"{error} is missing" if isinstance(error, KeyError) else str(error)[:200]
