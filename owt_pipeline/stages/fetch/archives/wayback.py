"""Pages from the Wayback Machine: a lookup in its CDX index, then the capture as it was archived.

    CDX?url=URL&closest=20140501000000&sort=closest&filter=statuscode:200&fl=...&output=json
                                                    -> captures
    PAGES/20140503120000id_/URL                 -> one capture

The index (https://github.com/internetarchive/wayback/tree/master/wayback-cdx-server) answers with
JSON: an array of arrays. The first array names the fields. It compares URLs by their SURT form,
which ignores more than canonical URLs do, such as case; so the canonical forms of what it finds are
compared again.

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
from typing import TYPE_CHECKING, Any, ClassVar

from yarl import URL

from owt_pipeline.formats.messages import REDIRECTS, Headers, is_html
from owt_pipeline.formats.urls import BadURL, canonical_url, requested
from owt_pipeline.formats.warc import response_record
from owt_pipeline.stages.fetch.answers import FetchFailure, FetchResult, HttpResponse, Origin
from owt_pipeline.stages.fetch.archives.client import ArchiveClient, permanent_error
from owt_pipeline.stages.fetch.archives.search import (
    ArchivedRedirect,
    ArchiveQuery,
    Capture,
    canonical_or_none,
    read_capture,
)
from owt_pipeline.stages.fetch.web.politeness import RequestError
from schemas import Reason

if TYPE_CHECKING:
    from owt_pipeline.stages.fetch.options import Options

CONNECTIONS = 2
"""Requests at once."""

PAUSE_TURNS = 24
"""Turns skipped after a busy response (429, 503) without Retry-After: those of a minute."""

_MAX_CAPTURES = 1000

# The response of an index is cut there, after some 25,000 captures. Only a site's home page has as
# many.
_MAX_INDEX_BYTES = 8 << 20

_STATUSES = "200|30[12378]"
_MAX_REPLAY_REDIRECTS = 3
_INDEX = "the Wayback Machine's index"

_GZIP_MAGIC = b"\x1f\x8b"
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
_REPLAY_PATH = re.compile(r"/(\d{14})id_/(.+)", re.DOTALL)


class WaybackClient(ArchiveClient):
    """Looks up and reads captures of the Wayback Machine.

    Attributes:
      source: the name of the source in the rows of its pages.
    """

    source: ClassVar[str] = "wayback"

    def __init__(self, options: Options):
        delay = options.wayback_delay
        super().__init__(options, "the Wayback Machine", CONNECTIONS, delay, PAUSE_TURNS * delay)

    async def find(self, query: ArchiveQuery) -> list[Capture]:
        """Return the captures of a URL in its canonical form.

        If none is a page, captures of the URL as it was posted are added: indexes keep its tracking
        parameters.
        """
        captures = await self._look_up(query.url, query)
        is_page_known = any(capture.status == 200 for capture in captures)
        canonical_parameters = query.url.partition("?")[2]
        posted_parameters = query.posted.partition("?")[2]
        if not is_page_known and posted_parameters != canonical_parameters:
            captures += await self._look_up(query.posted, query)
        return captures

    async def _look_up(self, url: str, query: ArchiveQuery) -> list[Capture]:
        """Return the captures that the index has for `url`, those nearest to the wanted time."""
        index_url = URL(self._options.wayback_cdx).update_query(self.parameters(url, query))
        response = await self.get(_INDEX, index_url, _MAX_INDEX_BYTES, cut=True)
        if response.status in (403, 451) and b"AccessControlException" in response.body:
            raise RequestError(Reason.NOT_ARCHIVED, "the Wayback Machine withholds the site")
        # OpenWayback responds with 404 if there are no captures.
        if response.status not in (200, 404):
            problem = f"status {response.status} {response.beginning()}".strip()
            raise permanent_error(_INDEX, problem)
        captures = []
        if response.status == 200:
            captures = self.parse_captures(response.body, query.url)
        self.works = True
        return captures

    def parameters(self, url: str, query: ArchiveQuery) -> dict[str, str]:
        """Return the parameters of a lookup."""
        # The times before and after every capture cannot be written as a timestamp.
        closest = int(min(max(query.time, 0), time.time()))
        return {
            "url": url,
            "output": "json",
            "fl": "timestamp,original,mimetype,statuscode",
            "filter": f"statuscode:({_STATUSES})",
            "closest": timestamp(closest),
            "sort": "closest",
            "limit": str(_MAX_CAPTURES),
        }

    async def read(self, capture: Capture, url: str) -> FetchResult | ArchivedRedirect:
        """Return the page of a capture, from its replay.

        A replay that redirects leads to another capture of the same URL, or is the archived
        redirect itself.
        """
        location = f"the capture of {timestamp(capture.date)}"
        replayed = capture
        try:
            address = self._address(capture)
            for _ in range(_MAX_REPLAY_REDIRECTS + 1):
                replay = await self.get(location, address, stop=lambda status, _: status != 200)
                if replay.status not in REDIRECTS:
                    break
                address = replay.location()
                match = _REPLAY_PATH.search(str(address))
                if capture.status in REDIRECTS:
                    target = match[2] if match else str(address)
                    record = self._record(replayed, replay, [("Location", target)])
                    return ArchivedRedirect(target, record)
                is_ours = str(address).startswith(self._options.wayback_pages)
                if not match or not is_ours or canonical_or_none(match[2]) != url:
                    return FetchFailure(Reason.BAD_REDIRECT, f"{location} redirects to {address}")
                replayed = Capture(seconds_of(match[1]), url=match[2])
        except ValueError as error:
            return FetchFailure(Reason.BAD_REDIRECT, f"{location}: {error}")
        if replay.status in REDIRECTS:
            detail = f"{location}: more than {_MAX_REPLAY_REDIRECTS} redirects"
            return FetchFailure(Reason.REDIRECT_LOOP, detail)
        if replay.status != 200:
            detail = f"{location} is not given: status {replay.status}"
            return FetchFailure(Reason.NOT_ARCHIVED, detail)
        record = self._record(replayed, replay)
        origin = Origin(self.source, None, replay.header("x-archive-src"), None)
        return read_capture(record, origin, self._options.max_page_bytes, location, replay.ms)

    def _record(
        self, capture: Capture, replay: HttpResponse, other_headers: Sequence[tuple[str, str]] = ()
    ) -> bytes:
        """Return the record of a capture from its replay.

        It has the decoded body, unless that is still as archived, and no headers about the
        transfer. `other_headers` replace the headers of the same names.
        """
        dropped = {
            "transfer-encoding",
            "content-length",
            *(name.lower() for name, _ in other_headers),
        }
        # A body in gzip was sent as archived, so its Content-Encoding still holds.
        if not replay.body.startswith(_GZIP_MAGIC):
            dropped.add("content-encoding")
        headers = [
            (name, value)
            for name, value in original_headers(replay.headers)
            if name.lower() not in dropped
        ]
        line = f"HTTP/1.1 {capture.status} {HTTPStatus(capture.status).phrase}"
        return response_record(
            capture.url, capture.date, line, [*headers, *other_headers], replay.body
        )

    def parse_captures(self, body: bytes, canonical: str) -> list[Capture]:
        """Return the captures in a response of the index."""
        return parse_captures(body, canonical)

    def _address(self, capture: Capture) -> URL:
        """Return the URL of a capture as it was archived, by `id_`."""
        below = f"{self._options.wayback_pages.rstrip('/')}/{timestamp(capture.date)}id_"
        return URL(f"{below}/{requested(capture.url)}", encoded=True)


def parse_captures(body: bytes, canonical: str) -> list[Capture]:
    """Return the captures of the URL `canonical` in the response of a CDX index.

    A capture's place is its time. Captures of unknown content type are returned, too, since they
    may be pages. Malformed rows are skipped. Raises RequestError if the response does not have the
    form of a CDX index.
    """
    captures = []
    for row in _rows(body):
        with contextlib.suppress(KeyError, TypeError, ValueError, AttributeError, BadURL):
            capture = _capture_of(row)
            media_type = row.get("mimetype") or "unk"
            may_be_page = media_type == "unk" or is_html(media_type)
            is_page = capture.status == 200 and may_be_page
            if not (is_page or capture.status in REDIRECTS):
                continue
            if canonical_url(capture.url) == canonical:
                captures.append(capture)
    return captures


def _capture_of(row: dict[str, Any]) -> Capture:
    """Return the capture of a row; raises KeyError, TypeError or ValueError."""
    date = seconds_of(row["timestamp"])
    return Capture(date, int(row["statuscode"]), row["original"], place=(date,))


def _rows(body: bytes) -> Iterator[dict[str, Any]]:
    """Yield the rows of a response, an array of arrays; the first one names the fields."""
    try:
        table = json.loads(body.strip() or b"[]")
        if not isinstance(table, list):
            raise TypeError("not an array")
        names, *values = table or [[]]
        yield from (dict(zip(names, row, strict=True)) for row in values)
    except (ValueError, TypeError) as error:
        problem = f"no captures as JSON ({error}) but {body.strip()[:100]!r}"
        raise permanent_error(_INDEX, problem) from error


def timestamp(seconds: int) -> str:
    """Return a time as archives write it, YYYYMMDDhhmmss in UTC."""
    return datetime.fromtimestamp(seconds, timezone.utc).strftime("%Y%m%d%H%M%S")


def seconds_of(timestamp: str) -> int:
    """Return a time as archives write it, in seconds since 1970; raises ValueError."""
    return calendar.timegm(time.strptime(timestamp, "%Y%m%d%H%M%S"))


def original_headers(replay: Headers) -> Headers:
    """Return the headers that a page was archived with, from its replay."""
    original = []
    for name, value in replay:
        if name.lower().startswith(_ORIGINAL):
            original.append((name[len(_ORIGINAL) :], value))
    if not original:
        return [(name, value) for name, value in replay if name.lower() not in _OF_REPLAY]
    if not any(name.lower() == "content-type" for name, _ in original):
        original += [(name, value) for name, value in replay if name.lower() == "content-type"]
    return original
