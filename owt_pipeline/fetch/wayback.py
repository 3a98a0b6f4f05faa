"""Pages out of the Wayback Machine: a lookup in its CDX index, then the capture as it was archived.

    CDX?url=URL&closest=20140501000000&sort=closest&filter=statuscode:200&fl=...&output=json    -> captures
    PAGES/20140503120000id_/URL                                                                 -> one of them

The index is that of https://github.com/internetarchive/wayback/tree/master/wayback-cdx-server; `id_` asks for bytes
that no replay has rewritten. pywb has both, and names the index' fields otherwise. The Internet Archive allows 24
lookups a minute from an address, so turns are those of the run: all processes that ask share one rate.
"""

from __future__ import annotations

import asyncio
import calendar
import contextlib
import email.utils
import json
import re
import time
from collections.abc import Iterator
from dataclasses import dataclass, replace
from datetime import datetime, timezone
from typing import Any, ClassVar

import pyarrow as pa
from yarl import URL

from owt_pipeline.engine.errors import UserError
from owt_pipeline.fetch.answers import Answer, NoPage, Origin, judge, wanted_moment
from owt_pipeline.fetch.client import Received, parse_url
from owt_pipeline.fetch.connections import Stop
from owt_pipeline.fetch.journal import RENEW_SECONDS
from owt_pipeline.fetch.live import Fetcher, LiveOptions
from owt_pipeline.fetch.manners import Failed, Gate, retry_after
from owt_pipeline.fetch.recorder import Recorder
from owt_pipeline.fetch.sources import Shared, archive_failed, ask_each, first_page
from owt_pipeline.formats.messages import REDIRECTS, BadMessage, Headers, TooLarge, charset_of, decode_body, is_html
from owt_pipeline.formats.urls import BadURL, canonical_url
from owt_pipeline.formats.warc import Response, response_record
from schemas import Reason

LONGEST_PAUSE = 3600.0
"""Seconds that are waited where the archive asks for it (Retry-After); the run ends where it asks for more."""

PAUSE_TURNS = 24
"""Turns that are missed where the archive is busy (429, 503) and does not say for how long: a minute's."""

_CAPTURES_ASKED = 10
_MAX_ANSWER_BYTES = 1 << 20  # of the index
_REPLAY_REDIRECTS = 3
_COUNTED_SECONDS = 1.2 * RENEW_SECONDS

_ORIGINAL = "x-archive-orig-"
_OF_REPLAY = frozenset(
    ["memento-datetime", "link", "content-location", "date", "connection", "preference-applied", "vary"]
)
_OF_TRANSFER = frozenset(["content-encoding", "transfer-encoding", "content-length"])
_CAPTURE = re.compile(r"/(\d{14})id_/(.+)", re.DOTALL)


class BadIndex(ValueError):
    """An answer that is none of a CDX index; the message says what it is instead."""


@dataclass(frozen=True)
class Capture:
    """A capture that the index knows, and the file its record is in, where the index says so."""

    date: int
    url: str
    file: str | None = None
    offset: int | None = None

    @property
    def timestamp(self) -> str:
        return timestamp(self.date)


@dataclass(frozen=True)
class WaybackSource:
    """The Wayback Machine, or a pywb.

    Attributes:
      cdx: the URL of its index.
      pages: what `TIMESTAMPid_/URL` is below.
      requests: how requests are made; `host_connections` and `host_delay` hold for index and pages together, and for
        all processes that ask.
      choice: which capture of several is taken.
      url_rules: version of the rules by which URLs are canonical.
    """

    cdx: str
    pages: str
    requests: LiveOptions
    choice: str
    url_rules: int
    columns: ClassVar = ("url_id", "url", "posted_url", "created_utc")

    def open(self, crawl: Shared) -> WaybackClient:
        return WaybackClient(self, crawl)


class WaybackClient:
    """Looks up and gets captures; used in one event loop, by several shards at once."""

    def __init__(self, source: WaybackSource, shared: Shared):
        self._source, self._shared = source, shared
        self._fetcher = Fetcher(source.requests, shared.may_ask)
        self._gate = Gate(source.requests.host_delay, source.requests.host_connections)

    async def close(self) -> None:
        await self._fetcher.close()

    def status(self) -> str:
        return f"{self._fetcher.requests:,} requests to the Wayback Machine"

    async def ask(self, urls: pa.Table, recorder: Recorder, resumed: bool) -> None:
        """Look up every URL of `urls`; raises UserError where the archive fails, or asks for patience, for too long."""
        requests = self._source.requests
        if self._shared.on_cluster:  # until each process that asks knows how many there are
            await asyncio.sleep(_COUNTED_SECONDS)
        if resumed:
            await asyncio.sleep(self._delay)
        await ask_each(self.fetch, urls, recorder, requests.host_connections, requests.host_failures)

    async def fetch(self, url: str, posted: str, created_utc: int | None) -> Answer:
        """The page of a canonical URL: its capture that is the nearest to the time wanted; see `first_page`."""
        moment = wanted_moment(self._source.choice, created_utc)

        async def look_up(address: str) -> tuple[list[Capture], str]:
            return await self._captures(address, url, moment), "the Wayback Machine"

        return await first_page(look_up, lambda capture: self._page(capture, url), url, posted)

    async def _captures(self, url: str, canonical: str, moment: int) -> list[Capture]:
        """The captures found under `url`, the nearest first."""
        what = "the Wayback Machine's index"
        response = await self._get(what, query(self._source.cdx, url, moment), lambda *_: False, index=True)
        if response.status in (403, 451) and b"AccessControlException" in response.body:
            raise Failed(Reason.NOT_ARCHIVED, "the Wayback Machine withholds the site")
        if response.status == 404:  # OpenWayback's way to say that there is none
            return []
        if response.status != 200:
            about = " ".join(response.body[:200].decode("utf-8", "replace").split())
            raise archive_failed(what, f"status {response.status} {about}".strip())
        try:
            found = parse_captures(response.body, canonical, self._source.url_rules)
        except BadIndex as error:
            raise archive_failed(what, str(error)) from error
        return sorted(found, key=lambda capture: (abs(capture.date - moment), capture.date, capture.url))

    async def _page(self, capture: Capture, canonical: str) -> Answer:
        where = f"the capture of {capture.timestamp}"
        try:
            place = parse_url(f"{self._source.pages.rstrip('/')}/{capture.timestamp}id_/{capture.url}")
        except ValueError as error:
            return NoPage(Reason.BAD_URL, f"{where}: {error}")
        for _ in range(_REPLAY_REDIRECTS + 1):
            response = await self._get(where, place, lambda status, _: status != 200)
            if response.status not in REDIRECTS:
                break
            found = self._redirected(response, canonical)
            if found is None:
                return NoPage(Reason.BAD_REDIRECT, f"{where} redirects to {response.header('location')}")
            capture, place = found
        if response.status in REDIRECTS:
            return NoPage(Reason.REDIRECT_LOOP, f"{where}: more than {_REPLAY_REDIRECTS} redirects")
        if response.status in (429, 503) or response.status >= 500:
            raise archive_failed(where, f"status {response.status}")
        if response.status != 200:
            return NoPage(Reason.NOT_ARCHIVED, f"{where} is not given: status {response.status}")
        try:
            return self._archived(capture, response)
        except (BadMessage, TooLarge) as error:
            reason = Reason.TOO_LARGE if isinstance(error, TooLarge) else Reason.BAD_RESPONSE
            return NoPage(reason, f"{where}: {error}")

    def _redirected(self, response: Received, canonical: str) -> tuple[Capture, URL] | None:
        """Another capture of the same URL that a capture redirects to, and where it is."""
        try:
            place = response.location()
            match = _CAPTURE.search(str(place))
            if match and str(place).startswith(self._source.pages) and self._canonical(match[2]) == canonical:
                return Capture(_seconds(match[1]), match[2]), place
        except ValueError:
            pass
        return None

    def _canonical(self, url: str) -> str | None:
        with contextlib.suppress(BadURL):
            return canonical_url(url, self._source.url_rules)
        return None

    def _archived(self, capture: Capture, replay: Received) -> Answer:
        """The page that was archived; its record holds the body decoded, without headers that are of the transfer."""
        headers = original_headers(replay.headers)
        body = replay.body
        if body.startswith(b"\x1f\x8b"):  # sent as it was archived, without saying so
            encoded = [(name, value) for name, value in headers if name.lower() == "content-encoding"]
            body = decode_body(encoded, body, self._source.requests.limits.body_bytes, strictly=True)
        headers = [(name, value) for name, value in headers if name.lower() not in _OF_TRANSFER]
        content_type = next((value for name, value in headers if name.lower() == "content-type"), None)
        date = _memento_date(replay) or capture.date
        response = Response(capture.url, date, 200, headers, content_type, charset_of(content_type), body)
        file = capture.file or replay.header("x-archive-src")
        origin = Origin("wayback", None, file, capture.offset if capture.file else None)
        return judge(
            response,
            origin,
            replay.ms,
            lambda _: response_record(capture.url, date, "HTTP/1.1 200 OK", headers, body),
        )

    @property
    def _delay(self) -> float:
        return self._source.requests.host_delay * self._shared.workers()

    async def _get(self, what: str, url: URL, stop: Stop, index: bool = False) -> Received:
        """The response, at the run's turns.

        Raises Failed, with the reason `archive_failed` but for a page that is too large; UserError where the archive
        asks for more patience than is had.
        """
        limits = self._source.requests.limits
        if index:
            limits = replace(limits, wire_bytes=_MAX_ANSWER_BYTES, body_bytes=_MAX_ANSWER_BYTES)
        self._gate.delay = self._delay
        try:
            response = await self._fetcher.get(url, limits, self._gate, stop, cut=index)
        except Failed as failure:
            if failure.reason == Reason.TOO_LARGE:
                raise
            raise archive_failed(what, f"{failure.reason}, {failure.detail}") from failure
        if response.status in (429, 503) and (asked := retry_after(response) or 0.0) > LONGEST_PAUSE:
            raise UserError(
                f"the Wayback Machine asks to come back in {asked:,.0f} s (status {response.status}): run again then, "
                "it continues where it stopped; and with a longer --wayback_delay"
            )
        return response


def query(cdx: str, url: str, moment: int) -> URL:
    """What to ask the index for the successful captures of `url` nearest to a time, in seconds since 1970."""
    pywb = not cdx.rstrip("/").endswith("/cdx/search/cdx")
    fields = "timestamp,url,mime,status,filename,offset" if pywb else "timestamp,original,mimetype,statuscode"
    return URL(cdx).update_query(
        {
            "url": url,
            "output": "json",
            "fl": fields,
            "filter": "=status:200" if pywb else "statuscode:200",
            "closest": timestamp(int(min(max(moment, 0), time.time()))),
            "sort": "closest",
            "limit": str(_CAPTURES_ASKED),
        }
    )


def timestamp(moment: int) -> str:
    """A time as archives write it, YYYYMMDDhhmmss in UTC."""
    return datetime.fromtimestamp(moment, timezone.utc).strftime("%Y%m%d%H%M%S")


def parse_captures(body: bytes, canonical: str, url_rules: int) -> list[Capture]:
    """The captures of an index' answer that may be pages of the URL whose canonical form is `canonical`.

    An answer is a JSON array, of arrays whose first one names the fields (the Wayback Machine's), or an object a line
    (pywb's). Rows that are none are passed over; raises BadIndex for an answer that is none.
    """
    found = set()
    for row in _rows(body):
        with contextlib.suppress(KeyError, TypeError, ValueError, AttributeError, BadURL):
            url, mime = row.get("original") or row["url"], str(row.get("mimetype") or row.get("mime") or "unk")
            is_page = str(row.get("statuscode") or row["status"]) == "200" and (is_html(mime) or mime == "unk")
            if is_page and canonical_url(url, url_rules) == canonical:
                place = (str(row["filename"]), int(row["offset"])) if row.get("filename") else (None, None)
                found.add(Capture(_seconds(row["timestamp"]), url, *place))
    return sorted(found, key=lambda capture: (capture.date, capture.url))


def original_headers(replay: Headers) -> Headers:
    """The headers that a page was archived with, of those it is replayed with."""
    original = [(name[len(_ORIGINAL) :], value) for name, value in replay if name.lower().startswith(_ORIGINAL)]
    if original:
        if not any(name.lower() == "content-type" for name, _ in original):
            original += [(name, value) for name, value in replay if name.lower() == "content-type"]
        return original
    return [(name, value) for name, value in replay if name.lower() not in _OF_REPLAY]


def _rows(body: bytes) -> Iterator[dict[str, Any]]:
    text = body.strip()
    if not text:
        return
    try:
        if text.startswith(b"["):
            names, *rows = json.loads(text) or [[]]
            yield from (dict(zip(names, row, strict=True)) for row in rows)
            return
        rows = [json.loads(line) for line in text.split(b"\n")]
    except (ValueError, TypeError) as error:
        raise BadIndex(f"no captures as JSON ({error}) but {text[:100]!r}") from error
    if not all(isinstance(row, dict) and "timestamp" in row for row in rows):
        raise BadIndex(f"no captures but {text[:100]!r}")
    yield from rows


def _seconds(text: str) -> int:
    return calendar.timegm(time.strptime(text, "%Y%m%d%H%M%S"))


def _memento_date(replay: Received) -> int | None:
    try:
        return int(email.utils.parsedate_to_datetime(replay.header("memento-datetime") or "").timestamp())
    except (TypeError, ValueError, OverflowError):
        return None
