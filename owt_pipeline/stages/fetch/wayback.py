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
from dataclasses import replace
from datetime import datetime, timezone
from http import HTTPStatus
from typing import TYPE_CHECKING, ClassVar

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
from owt_pipeline.formats.urls import canonical_url, requested, url_id
from owt_pipeline.formats.warc import Response, response_record
from owt_pipeline.stages.fetch.answers import (
    MAX_REDIRECTS,
    Answer,
    NoPage,
    Origin,
    Page,
    Received,
    judge,
    nearness,
    wanted_moment,
)
from owt_pipeline.stages.fetch.archive_client import ArchiveClient, breaker, outcome
from owt_pipeline.stages.fetch.archives import canonical_or_none, followed
from owt_pipeline.stages.fetch.journal import RENEW_SECONDS
from owt_pipeline.stages.fetch.lookups import BadIndex, Capture, Found, parse_captures, seconds_of
from owt_pipeline.stages.fetch.manners import Failed, Gate, for_each
from owt_pipeline.stages.fetch.recorder import Recorder
from owt_pipeline.stages.fetch.sources import Crawl
from schemas import Reason

if TYPE_CHECKING:
    from owt_pipeline.stages.fetch.stage import Options

CONNECTIONS = 2
"""Requests at once."""

PAUSE_TURNS = 24
"""Turns skipped after a busy answer (429, 503) without Retry-After: those of a minute."""

_CAPTURES_ASKED = 100

_CAPTURES_TRIED = 3
"""How many captures of a URL are read until one is a page."""

_TRACKED = "utm_"
"""The beginning of the most frequent names of tracking parameters."""

_MAX_ANSWER_BYTES = 8 << 20
"""The limit of an index' answer: some 25,000 captures, as only a site's home page has."""

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


class WaybackClient(ArchiveClient):
    """Looks up and reads captures of the Wayback Machine or a pywb; one rate holds for index and pages together."""

    of_page = (Reason.TOO_LARGE,)
    columns: ClassVar = ("url_id", "url", "posted_url", "created_utc")

    def __init__(self, options: Options, crawl: Crawl):
        delay = options.wayback_delay
        super().__init__(options, crawl, CONNECTIONS, delay, Gate(delay, CONNECTIONS))
        self.least_pause = PAUSE_TURNS * delay

    def status(self) -> str:
        return f"{super().status()} to the Wayback Machine"

    async def ask(self, urls: pa.Table, recorder: Recorder, resumed: bool) -> None:
        """Look up each URL of `urls`; raises UserError if the archive fails for too many URLs in a row."""
        if self._crawl.on_cluster:  # until each process knows how many others make requests
            await asyncio.sleep(_COUNTED_SECONDS)
        if resumed:
            await asyncio.sleep(self.delay)
        held = breaker(recorder)

        async def ask(row: int) -> None:
            url_id, *about = (urls[name][row].as_py() for name in urls.column_names)
            begun = time.monotonic()
            await held.take(url_id, await self.fetch(*about), begun)

        await for_each(ask, range(len(urls)), self._connections)
        await held.settle()

    async def fetch(self, url: str, posted: str, created_utc: int | None) -> Answer:
        """The page of a canonical URL: its capture nearest in time to `created_utc` (without a date, the latest), or
        the earliest or latest one, by the options.

        If there is no capture, the URL is looked up as it was `posted`, then with any tracking parameters, which
        indexes keep and canonical URLs lack. If a capture is no page or cannot be read, the next one is read; redirects
        come last and are followed. If the archive does not answer properly, the reason is `archive_failed`.
        """
        return await self._find(url, posted, wanted_moment(self._options.archive_choice, created_utc), {url_id(url)})

    async def _find(self, url: str, posted: str, moment: int, seen: set[int]) -> Answer:
        try:
            found = await self._look_up_variants(url, posted, moment)
        except Failed as failure:
            return outcome(failure)
        first: NoPage | None = None
        tried: set[tuple[str, int, int]] = set()  # records: a revisit is another date of one
        for capture in sorted(found.captures, key=lambda each: _distance(each, moment)):
            place = (capture.file, capture.offset, 0 if capture.file else capture.date)
            if place in tried or len(tried) == _CAPTURES_TRIED:
                continue
            tried.add(place)
            try:
                if capture.status == 200:
                    answer = await self.read(capture, url)
                else:
                    answer = await self._follow(capture, url, moment, seen)
            except Failed as failure:
                answer = outcome(failure)
            if isinstance(answer, Page):
                return answer
            first = first or answer
        return first or found.nothing()

    async def _look_up_variants(self, url: str, posted: str, moment: int) -> Found:
        found = await self.look_up(url, url, moment)
        if not found.pages and posted.partition("?")[2] != url.partition("?")[2]:
            found.add(await self.look_up(posted, url, moment))
        if not found.pages and "#" not in url:
            tracked = f"{url}{'&' if '?' in url else '?'}{_TRACKED}"
            found.add(await self.look_up(tracked, url, moment, by_prefix=True))
        return found

    async def _follow(self, capture: Capture, url: str, moment: int, seen: set[int]) -> Answer:
        """The page that a redirect leads to within the archive."""
        redirect = await self.read_redirect(capture)
        if isinstance(redirect, NoPage):
            return redirect
        there, record = redirect
        target = followed(capture.status, canonical_or_none(there), url_id(url), seen, MAX_REDIRECTS)
        if isinstance(target, NoPage):
            return target
        seen.add(url_id(target))
        answer = await self._find(target, target, moment, seen)
        if isinstance(answer, Page):
            return replace(answer, redirects=(record, *answer.redirects))
        return replace(answer, detail=f"redirects to {target}: {answer.detail}")

    async def look_up(self, url: str, canonical: str, moment: int, *, by_prefix: bool = False) -> Found:
        """The captures of the URL `canonical` that the index has for `url` (or, `by_prefix`, for all URLs that begin
        with it), at least those near `moment`; may raise Failed."""
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
        index, what = URL(cdx).update_query(query), "the Wayback Machine's index"
        response = await self.get(what, index, _MAX_ANSWER_BYTES, cut=True)
        found = Found()
        if response.status != 200 and not _has_none(response):
            raise self.refused(index, what, f"status {response.status} {response.beginning()}".strip())
        if response.status == 200:
            try:
                found = parse_captures(response.body, canonical)
            except BadIndex as error:
                raise self.refused(index, what, str(error)) from error
        self.accepted(index)
        return found

    async def read(self, capture: Capture, canonical: str) -> Answer:
        """The page of a capture of the URL `canonical`, or why it is none; may raise Failed."""
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

    async def read_redirect(self, capture: Capture) -> tuple[str, bytes] | NoPage:
        """Where a redirect leads, and its record; or why it is none. May raise Failed."""
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
        return target, record

    def _place(self, capture: Capture) -> URL:
        below = f"{self._options.wayback_pages.rstrip('/')}/{timestamp(capture.date)}id_"
        return URL(f"{below}/{requested(capture.url)}", encoded=True)

    def _redirected(self, response: Received, canonical: str) -> tuple[Capture, URL] | None:
        """The other capture of the same URL to which the replay of a capture redirects, and its place."""
        with contextlib.suppress(ValueError):
            place = response.location()
            match = _CAPTURE.search(str(place)) if str(place).startswith(self._options.wayback_pages) else None
            if match and canonical_url(match[2]) == canonical:
                return Capture(seconds_of(match[1]), match[2]), place
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


def _distance(capture: Capture, moment: int) -> tuple:
    """The sort key of a URL's captures: pages, then redirects; the nearest in time; the earliest."""
    return *nearness(capture.status != 200, capture.date, moment), capture.file, capture.offset, capture.url


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
