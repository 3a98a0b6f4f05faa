"""Pages from the Wayback Machine: a lookup in its CDX index, then the capture as it was archived.

    CDX?url=URL&closest=20140501000000&sort=closest&filter=statuscode:200&fl=...&output=json
                                                    -> captures
    PAGES/20140503120000id_/URL                 -> one of them

The index (https://github.com/internetarchive/wayback/tree/master/wayback-cdx-server) answers with
JSON, an array of arrays, the first of which names the fields. pywb has both, with other names of
the fields, and one object per line
(https://pywb.readthedocs.io/en/latest/manual/cdxserver_api.html). Indexes compare URLs by their
SURT form, which ignores more than canonical URLs do, such as case; so the canonical forms of what
they find are compared again.

`id_` requests the archived bytes, without the changes for replay. The Internet Archive allows 24
lookups per minute and address, so one part makes the requests of the complete run.
"""

from __future__ import annotations

import calendar
import contextlib
import json
import re
import time
from collections.abc import Iterator, Sequence
from datetime import datetime, timezone
from http import HTTPStatus
from typing import TYPE_CHECKING, Any

from yarl import URL

from owt_pipeline.formats.messages import REDIRECTS, Headers, is_html
from owt_pipeline.formats.urls import BadURL, canonical_url, requested
from owt_pipeline.formats.warc import response_record
from owt_pipeline.stages.fetch.answers import Answer, FetchFailure, HttpResponse, Origin
from owt_pipeline.stages.fetch.archives.search import (
    ArchiveClient,
    ArchivedRedirect,
    ArchiveQuery,
    Capture,
    canonical_or_none,
    read_capture,
    refused,
)
from owt_pipeline.stages.fetch.web.politeness import RequestError
from schemas import Reason

if TYPE_CHECKING:
    from owt_pipeline.stages.fetch.options import Options

CONNECTIONS = 2
"""Requests at once."""

PAUSE_TURNS = 24
"""Turns skipped after a busy answer (429, 503) without Retry-After: those of a minute."""

_CAPTURES_ASKED = 1000
_MAX_ANSWER_BYTES = 8 << 20  # of an index: some 25,000 captures, as only a site's home page has
_WANTED = "200|30[12378]"  # statuses
_REPLAY_REDIRECTS = 3
_INDEX = "the Wayback Machine's index"

_ORIGINAL = "x-archive-orig-"
_OF_REPLAY = frozenset(
    [
        "memento-datetime",
        "link",
        "content-location",
        "date",
        "connection",
        "preference-applied",
        "vary",
    ]
)
_CAPTURE = re.compile(r"/(\d{14})id_/(.+)", re.DOTALL)


class WaybackClient(ArchiveClient):
    """Looks up and reads captures of the Wayback Machine or a pywb."""

    def __init__(self, options: Options):
        delay = options.wayback_delay
        super().__init__(options, "the Wayback Machine", CONNECTIONS, delay, PAUSE_TURNS * delay)

    async def find(self, asked: ArchiveQuery) -> list[Capture]:
        """The captures of a URL in its canonical form; if none is a page, also those of the URL
        as it was posted, with its tracking parameters, which indexes keep."""
        found = await self._look_up(asked.url, asked)
        is_page_known = any(capture.status == 200 for capture in found)
        if not is_page_known and asked.posted.partition("?")[2] != asked.url.partition("?")[2]:
            found += await self._look_up(asked.posted, asked)
        return found

    async def _look_up(self, url: str, asked: ArchiveQuery) -> list[Capture]:
        """The captures that the index has for `url`, those nearest to the wanted moment."""
        cdx, closest = (
            self._options.wayback_cdx,
            timestamp(int(min(max(asked.moment, 0), time.time()))),
        )
        pywb = not cdx.rstrip("/").endswith("/cdx/search/cdx")
        query = {
            "url": url,
            "output": "json",
            "fl": "timestamp,url,mime,status,filename,offset"
            if pywb
            else "timestamp,original,mimetype,statuscode",
            "filter": f"~status:({_WANTED})" if pywb else f"statuscode:({_WANTED})",
            "closest": closest,
            "sort": "closest",
            "limit": str(_CAPTURES_ASKED),
        }
        response = await self.get(_INDEX, URL(cdx).update_query(query), _MAX_ANSWER_BYTES, cut=True)
        if response.status in (403, 451) and b"AccessControlException" in response.body:
            raise RequestError(Reason.NOT_ARCHIVED, "the Wayback Machine withholds the site")
        if response.status not in (200, 404):  # OpenWayback says with 404 that there are none
            raise refused(_INDEX, f"status {response.status} {response.beginning()}".strip())
        found = parse_captures(response.body, asked.url) if response.status == 200 else []
        self.works = True
        return found

    async def read(self, capture: Capture, url: str) -> Answer | ArchivedRedirect:
        where, about = f"the capture of {timestamp(capture.date)}", capture
        try:
            place = self._address(capture)
            for _ in range(_REPLAY_REDIRECTS + 1):
                replay = await self.get(where, place, stop=lambda status, _: status != 200)
                if replay.status not in REDIRECTS:
                    break
                there = replay.location()
                match = _CAPTURE.search(str(there))
                if capture.status in REDIRECTS:
                    target = match[2] if match else str(there)
                    return ArchivedRedirect(
                        target, self._record(about, replay, [("Location", target)])
                    )
                is_ours = match and str(there).startswith(self._options.wayback_pages)
                if not match or not is_ours or canonical_or_none(match[2]) != url:
                    return FetchFailure(Reason.BAD_REDIRECT, f"{where} redirects to {there}")
                about, place = (
                    Capture(seconds_of(match[1]), url=match[2]),
                    there,
                )  # another one of the same URL
        except ValueError as error:
            return FetchFailure(Reason.BAD_REDIRECT, f"{where}: {error}")
        if replay.status in REDIRECTS:
            return FetchFailure(
                Reason.REDIRECT_LOOP, f"{where}: more than {_REPLAY_REDIRECTS} redirects"
            )
        if replay.status != 200:
            return FetchFailure(
                Reason.NOT_ARCHIVED, f"{where} is not given: status {replay.status}"
            )
        file, offset = (
            about.place if len(about.place) == 2 else (replay.header("x-archive-src"), None)
        )
        origin = Origin("wayback", None, file, offset)
        return read_capture(
            self._record(about, replay), origin, self._options.max_page_bytes, where, replay.ms
        )

    def _record(
        self, capture: Capture, replay: HttpResponse, more: Sequence[tuple[str, str]] = ()
    ) -> bytes:
        """The record of a capture from its replay: with the decoded body, unless that is still
        as archived, and without headers about the transfer."""
        is_encoded = replay.body.startswith(
            b"\x1f\x8b"
        )  # sent as archived, without a Content-Encoding
        dropped = {"transfer-encoding", "content-length", *(name.lower() for name, _ in more)}
        dropped |= set() if is_encoded else {"content-encoding"}
        headers = [
            (name, value)
            for name, value in original_headers(replay.headers)
            if name.lower() not in dropped
        ]
        line = f"HTTP/1.1 {capture.status} {HTTPStatus(capture.status).phrase}"
        return response_record(capture.url, capture.date, line, [*headers, *more], replay.body)

    def _address(self, capture: Capture) -> URL:
        below = f"{self._options.wayback_pages.rstrip('/')}/{timestamp(capture.date)}id_"
        return URL(f"{below}/{requested(capture.url)}", encoded=True)


def parse_captures(body: bytes, canonical: str) -> list[Capture]:
    """The captures of the URL `canonical` in an index' answer; a place is the archive's file and
    the offset there, or the time if these are unknown.

    Captures of unknown content type may be pages, too. Malformed rows, such as a last line that is
    cut off, are skipped; an answer that is not a CDX index' raises RequestError.
    """
    found = []
    for row in _rows(body):
        with contextlib.suppress(KeyError, TypeError, ValueError, AttributeError, BadURL):
            url, status = (
                row.get("original") or row["url"],
                int(row.get("statuscode") or row["status"]),
            )
            kind = row.get("mimetype") or row.get("mime") or "unk"
            is_wanted = status in REDIRECTS or (status == 200 and (kind == "unk" or is_html(kind)))
            if is_wanted and canonical_url(url) == canonical:
                date, file = seconds_of(row["timestamp"]), str(row.get("filename") or "")
                found.append(
                    Capture(date, status, url, (file, int(row["offset"])) if file else (date,))
                )
    return found


def _rows(body: bytes) -> Iterator[dict[str, Any]]:
    text, problem = body.strip(), ""
    rows: list[Any] = []
    if text.startswith(b"["):
        try:
            names, *values = json.loads(text) or [[]]
            yield from (dict(zip(names, row, strict=True)) for row in values)
            return
        except (ValueError, TypeError) as error:
            problem = f" ({error})"
    for line in [] if problem else text.split(b"\n"):
        with contextlib.suppress(ValueError):
            rows.append(json.loads(line))
    rows = [row for row in rows if isinstance(row, dict) and "timestamp" in row]
    if text and not rows:
        raise refused(_INDEX, f"no captures as JSON{problem} but {text[:100]!r}")
    yield from rows


def timestamp(moment: int) -> str:
    """A time as archives write it, YYYYMMDDhhmmss in UTC."""
    return datetime.fromtimestamp(moment, timezone.utc).strftime("%Y%m%d%H%M%S")


def seconds_of(timestamp: str) -> int:
    """A time as archives write it, in seconds since 1970; raises ValueError."""
    return calendar.timegm(time.strptime(timestamp, "%Y%m%d%H%M%S"))


def original_headers(replay: Headers) -> Headers:
    """The headers that a page was archived with, from those of its replay."""
    original = [
        (name[len(_ORIGINAL) :], value)
        for name, value in replay
        if name.lower().startswith(_ORIGINAL)
    ]
    if original:
        if not any(name.lower() == "content-type" for name, _ in original):
            original += [(name, value) for name, value in replay if name.lower() == "content-type"]
        return original
    return [(name, value) for name, value in replay if name.lower() not in _OF_REPLAY]
