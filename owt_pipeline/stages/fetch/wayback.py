"""Pages from the Wayback Machine: a lookup in its CDX index, then the capture as it was archived.

    CDX?url=URL&closest=20140501000000&sort=closest&filter=statuscode:200&fl=...&output=json    -> captures
    PAGES/20140503120000id_/URL                                                                 -> one of them

The index is described at https://github.com/internetarchive/wayback/tree/master/wayback-cdx-server; `id_` requests the
archived bytes, without the changes for replay. pywb has both, with other names of the index' fields. The Internet
Archive allows 24 lookups per minute and address, so all processes of a run share one rate.
"""

from __future__ import annotations

import asyncio
import contextlib
import email.utils
import re
import time
from datetime import datetime, timezone
from http import HTTPStatus
from typing import TYPE_CHECKING

import pyarrow as pa
from yarl import URL

from owt_pipeline.formats.messages import (
    REDIRECTS,
    BadMessage,
    Headers,
    TooLarge,
    charset_of,
    content_type_of,
    decode_body,
)
from owt_pipeline.formats.urls import canonical_url, requested
from owt_pipeline.formats.warc import Response, response_record
from owt_pipeline.stages.fetch.answers import Answer, NoPage, Origin, Received, judge
from owt_pipeline.stages.fetch.archives import Redirect
from owt_pipeline.stages.fetch.journal import RENEW_SECONDS
from owt_pipeline.stages.fetch.lookups import Capture, Found, LookupClient, seconds_of
from owt_pipeline.stages.fetch.manners import Failed, Gate
from owt_pipeline.stages.fetch.recorder import Recorder
from owt_pipeline.stages.fetch.sources import Crawl
from schemas import Reason

if TYPE_CHECKING:
    from owt_pipeline.stages.fetch.stage import Options

PAUSE_TURNS = 24
"""Turns skipped after a busy answer (429, 503) without Retry-After: those of a minute."""

_CAPTURES_ASKED = 100
_PAGES = "200"
_NAMED = f"{_PAGES}|30[12378]|404|410"
_REPLAY_REDIRECTS = 3
_COUNTED_SECONDS = 1.2 * RENEW_SECONDS

_ORIGINAL = "x-archive-orig-"
_OF_REPLAY = frozenset(
    ["memento-datetime", "link", "content-location", "date", "connection", "preference-applied", "vary"]
)
_OF_TRANSFER = frozenset(["content-encoding", "transfer-encoding", "content-length"])
_CAPTURE = re.compile(r"/(\d{14})id_/(.+)", re.DOTALL)


class WaybackClient(LookupClient):
    """Looks up and reads captures of the Wayback Machine or a pywb; one rate holds for index and pages together."""

    of_page = (Reason.TOO_LARGE,)
    reads_untyped = True

    def __init__(self, options: Options, crawl: Crawl):
        self.together, delay = options.wayback_connections, options.wayback_delay
        super().__init__(options, crawl, self.together, delay, Gate(delay, self.together))
        self.least_pause = PAUSE_TURNS * delay

    def status(self) -> str:
        return f"{super().status()} to the Wayback Machine"

    async def ask(self, urls: pa.Table, recorder: Recorder, resumed: bool) -> None:
        if self._crawl.on_cluster:  # until each process knows how many others make requests
            await asyncio.sleep(_COUNTED_SECONDS)
        if resumed:
            await asyncio.sleep(self.delay)
        await super().ask(urls, recorder, resumed)

    async def look_up(self, url: str, canonical: str, moment: int, *, by_prefix: bool = False) -> Found:
        found = await self._captures(url, canonical, moment, _NAMED, by_prefix)
        if not found.pages and len(found.captures) + found.others.total() >= _CAPTURES_ASKED // 2:
            found = await self._captures(url, canonical, moment, _PAGES, by_prefix)
        return found

    async def _captures(self, url: str, canonical: str, moment: int, status: str, by_prefix: bool) -> Found:
        """The captures nearest to a time, in seconds since 1970, of `url` or of all URLs that begin with it; `status`
        is a regular expression for their status."""
        cdx, closest = self._options.wayback_cdx, timestamp(int(min(max(moment, 0), time.time())))
        pywb = not cdx.rstrip("/").endswith("/cdx/search/cdx")
        fields = "timestamp,url,mime,status,filename,offset" if pywb else "timestamp,original,mimetype,statuscode"
        query = {
            "url": url,
            "output": "json",
            "fl": fields,
            "filter": f"~status:({status})" if pywb else f"statuscode:({status})",
            **({"matchType": "prefix"} if by_prefix else {"closest": closest, "sort": "closest"}),
            "limit": str(_CAPTURES_ASKED),
        }
        index = URL(cdx).update_query(query)
        found = await self.ask_index("the Wayback Machine's index", index, canonical, _has_none)
        found.asked = ["the Wayback Machine"]
        return found

    async def read(self, capture: Capture, canonical: str) -> Answer:
        where = f"the capture of {timestamp(capture.date)}"
        try:
            place = self._place(capture)
        except ValueError as error:
            return NoPage(Reason.BAD_URL, f"{where}: {error}")
        for _ in range(_REPLAY_REDIRECTS + 1):
            response = await self.get(where, place, stop=lambda status, _: status != 200)
            if response.status not in REDIRECTS:
                break
            found = self._redirected(response, canonical)
            if found is None:
                return NoPage(Reason.BAD_REDIRECT, f"{where} redirects to {response.header('location')}")
            capture, place = found
        if response.status in REDIRECTS:
            return NoPage(Reason.REDIRECT_LOOP, f"{where}: more than {_REPLAY_REDIRECTS} redirects")
        if response.status != 200:
            return NoPage(Reason.NOT_ARCHIVED, f"{where} is not given: status {response.status}")
        self.accepted(place)
        try:
            return self._archived(capture, response)
        except (BadMessage, TooLarge) as error:
            reason = Reason.TOO_LARGE if isinstance(error, TooLarge) else Reason.BAD_RESPONSE
            return NoPage(reason, f"{where}: {error}")

    async def read_redirect(self, capture: Capture, canonical: str) -> Redirect | NoPage:
        where = f"the capture of {timestamp(capture.date)}"
        try:
            replay = await self.get(where, self._place(capture), stop=lambda status, _: status != 200)
            if replay.status not in REDIRECTS:
                return NoPage(Reason.NOT_ARCHIVED, f"{where}, a redirect, is not given: status {replay.status}")
            there = str(replay.location())
        except ValueError as error:
            return NoPage(Reason.BAD_REDIRECT, f"{where}: {error}")
        match = _CAPTURE.search(there)
        target = match[2] if match else there
        headers = original_headers(replay.headers)
        kept = [(name, value) for name, value in headers if name.lower() not in (*_OF_TRANSFER, "location")]
        line = f"HTTP/1.1 {capture.status} {HTTPStatus(capture.status).phrase}"
        record = response_record(capture.url, capture.date, line, [*kept, ("Location", target)], b"")
        return Redirect(capture.status, target, record)

    def _place(self, capture: Capture) -> URL:
        below = f"{self._options.wayback_pages.rstrip('/')}/{timestamp(capture.date)}id_"
        return URL(f"{below}/{requested(capture.url)}", encoded=True)

    def _redirected(self, response: Received, canonical: str) -> tuple[Capture, URL] | None:
        """The other capture of the same URL to which the replay of a capture redirects, and its place."""
        with contextlib.suppress(ValueError):
            place = response.location()
            match = _CAPTURE.search(str(place)) if str(place).startswith(self._options.wayback_pages) else None
            if match and canonical_url(match[2]) == canonical:
                return Capture(date=seconds_of(match[1]), url=match[2]), place
        return None

    def _archived(self, capture: Capture, replay: Received) -> Answer:
        """The archived page; its record has the decoded body, and no headers about the transfer."""
        headers = original_headers(replay.headers)
        body = replay.body
        if body.startswith(b"\x1f\x8b"):  # sent as archived, without a Content-Encoding
            encoded = [(name, value) for name, value in headers if name.lower() == "content-encoding"]
            body = decode_body(encoded, body, self._limits.body_bytes, strictly=True)
        headers = [(name, value) for name, value in headers if name.lower() not in _OF_TRANSFER]
        content_type = content_type_of(headers)
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


def _has_none(response: Received) -> bool:
    """Whether an answer says that there are no captures, as OpenWayback does by 404; raises Failed for a site that the
    archive withholds."""
    if response.status in (403, 451) and b"AccessControlException" in response.body:
        raise Failed(Reason.NOT_ARCHIVED, "the Wayback Machine withholds the site")
    return response.status == 404


def timestamp(moment: int) -> str:
    """A time as archives write it, YYYYMMDDhhmmss in UTC."""
    return datetime.fromtimestamp(moment, timezone.utc).strftime("%Y%m%d%H%M%S")


def original_headers(replay: Headers) -> Headers:
    """The headers that a page was archived with, from those of its replay."""
    original = [(name[len(_ORIGINAL) :], value) for name, value in replay if name.lower().startswith(_ORIGINAL)]
    if original:
        if not any(name.lower() == "content-type" for name, _ in original):
            original += [(name, value) for name, value in replay if name.lower() == "content-type"]
        return original
    return [(name, value) for name, value in replay if name.lower() not in _OF_REPLAY]


def _memento_date(replay: Received) -> int | None:
    try:
        return int(email.utils.parsedate_to_datetime(replay.header("memento-datetime") or "").timestamp())
    except (TypeError, ValueError, OverflowError):
        return None
