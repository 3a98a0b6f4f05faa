"""Pages looked up URL by URL in a CDX index; redirects are followed within the archive.

An index answers with a URL's captures as JSON: an array of arrays, the first of which names the fields (the Wayback
Machine), or one object per line (pywb, Common Crawl; https://pywb.readthedocs.io/en/latest/manual/cdxserver_api.html).
It compares URLs by their SURT form, which ignores more than canonical URLs do, such as case; so the canonical forms of
what it finds are compared again.
"""

from __future__ import annotations

import calendar
import contextlib
import json
import time
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar

import pyarrow as pa
from yarl import URL

from owt_pipeline.formats.messages import REDIRECTS, is_html
from owt_pipeline.formats.urls import BadURL, canonical_url, url_id
from owt_pipeline.stages.fetch.answers import Answer, NoPage, Origin, Page, Received, wanted_moment
from owt_pipeline.stages.fetch.archive_client import ArchiveClient, HeldBack, outcome
from owt_pipeline.stages.fetch.archives import Redirect, canonical_or_none, followed, page_of_record
from owt_pipeline.stages.fetch.manners import Failed, for_each
from owt_pipeline.stages.fetch.recorder import Recorder
from schemas import Reason

_CAPTURES_TRIED = 3
"""How many captures of a URL are read until one is a page."""

_TRACKED = "utm_"
"""The beginning of the most frequent names of tracking parameters."""

_REVISIT = "warc/revisit"

_MAX_ANSWER_BYTES = 8 << 20
"""The limit of an index' answer: some 25,000 captures, as only a site's home page has in one collection."""


def below(root: str, name: str) -> str:
    """The URI of a file below the root of an archive's files."""
    return f"{root.rstrip('/')}/{name.lstrip('/')}"


class BadIndex(ValueError):
    """An answer that is not a CDX index'; the message says what it is."""


@dataclass(frozen=True)
class Capture:
    """A capture of a URL, as the index describes it.

    Attributes:
      crawl: the name of its collection.
      file: the archive file, relative to the root of the archive's files; "" if unknown.
      offset: first byte of its record there.
      length: bytes of its record.
      date: when it was made, seconds since 1970 in UTC.
      url: the URL as archived.
      status: the status of the response: 200, or that of a redirect.
    """

    crawl: str | None = None
    file: str = ""
    offset: int = 0
    length: int = 0
    date: int = 0
    url: str = ""
    status: int = 200

    def __str__(self) -> str:
        return f"{self.length:,} bytes at {self.offset} of {self.file}"

    def page(self, record: bytes, canonical: str, max_page_bytes: int, ms: int) -> Answer:
        """The page in its record, which took `ms` to read; the record must be of the URL `canonical`."""
        origin = Origin("commoncrawl", self.crawl, self.file, self.offset)
        return page_of_record(record, origin, max_page_bytes, where=str(self), fetch_ms=ms, canonical=canonical)


@dataclass
class Found:
    """The captures of a URL in some indexes.

    Attributes:
      captures: those that may be pages, and redirects.
      others: counts of the other captures, by kind.
      asked: the names of the indexes.
    """

    captures: list[Capture] = field(default_factory=list)
    others: Counter[str] = field(default_factory=Counter)
    asked: list[str] = field(default_factory=list)

    def add(self, found: Found) -> None:
        self.captures += found.captures
        self.others += found.others
        self.asked += [name for name in found.asked if name not in self.asked]

    @property
    def pages(self) -> list[Capture]:
        return [capture for capture in self.captures if capture.status == 200]

    def nothing(self) -> NoPage:
        """The outcome of the URL if no capture can be a page."""
        others = ", ".join(f"{count} of {about}" for about, count in sorted(self.others.items()))
        detail = f"no capture of a page in {', '.join(self.asked)}" + (others and f": {others}")
        return NoPage(Reason.NOT_ARCHIVED, detail)


class LookupClient(ArchiveClient, ABC):
    """Looks URLs up in an index and reads captures."""

    reads_untyped: ClassVar[bool] = False
    """Whether captures of unknown content type are read as pages."""

    columns: ClassVar = ("url_id", "url", "posted_url", "created_utc")
    together: int
    """How many URLs are looked up at once."""

    @abstractmethod
    async def look_up(self, url: str, canonical: str, moment: int, *, by_prefix: bool = False) -> Found:
        """The captures of the URL `canonical` that the index has for `url` (or, `by_prefix`, for all URLs that begin
        with it), at least those near `moment`; may raise Failed."""

    @abstractmethod
    async def read(self, capture: Capture, canonical: str) -> Answer:
        """The page of a capture, or why it is none; may raise Failed."""

    @abstractmethod
    async def read_redirect(self, capture: Capture, canonical: str) -> Redirect | NoPage:
        """The redirect of a capture, or why it is none; may raise Failed."""

    async def ask(self, urls: pa.Table, recorder: Recorder, resumed: bool) -> None:
        """Look up each URL of `urls`; raises UserError if the archive fails for `host_failures` URLs in a row."""
        held = HeldBack(recorder, self._options.host_failures)

        async def ask(row: int) -> None:
            url_id, *about = (urls[name][row].as_py() for name in urls.column_names)
            begun = time.monotonic()
            await held.take(url_id, await self.fetch(*about), begun)

        await for_each(ask, range(len(urls)), self.together)
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
        redirect = await self.read_redirect(capture, url)
        if isinstance(redirect, NoPage):
            return redirect
        there, most = canonical_or_none(redirect.location), self._options.max_redirects
        target = followed(redirect.status, there, url_id(url), seen, most)
        if isinstance(target, NoPage):
            return target
        seen.add(url_id(target))
        answer = await self._find(target, target, moment, seen)
        if isinstance(answer, Page):
            return replace(answer, redirects=(redirect.record, *answer.redirects))
        return replace(answer, detail=f"redirects to {target}: {answer.detail}")

    async def ask_index(self, what: str, query: URL, canonical: str, has_none: Callable[[Received], bool]) -> Found:
        """The captures in an index' answer to a query; `has_none` recognizes answers that say there are none."""
        response = await self.get(what, query, _MAX_ANSWER_BYTES, cut=True)
        found = Found()
        if response.status != 200 and not has_none(response):
            raise self.refused(query, what, f"status {response.status} {response.beginning()}".strip())
        if response.status == 200:
            try:
                found = parse_captures(response.body, canonical, self.reads_untyped)
            except BadIndex as error:
                raise self.refused(query, what, str(error)) from error
        self.accepted(query)
        return found


def _distance(capture: Capture, moment: int) -> tuple:
    """The sort key of a URL's captures: pages, then redirects; the nearest in time; the earliest."""
    where = (capture.date, capture.file, capture.offset, capture.url)
    return capture.status != 200, abs(capture.date - moment), *where


def parse_captures(body: bytes, canonical: str, untyped: bool) -> Found:
    """The captures of the URL `canonical` in an index' answer. A revisit is another date of the page with its digest.

    With `untyped`, captures of unknown content type may be pages, too. Malformed rows, such as a last line that is cut
    off, are skipped; an answer that is not a CDX index' raises BadIndex.
    """
    pages: dict[Capture, str] = {}  # with their digests
    revisits: set[tuple[str, int]] = set()
    found = Found()
    for row in _rows(body):
        with contextlib.suppress(KeyError, TypeError, ValueError, AttributeError, BadURL):
            url = row.get("original") or row["url"]
            if canonical_url(url) != canonical:
                continue
            types = {row[name] for name in ("mimetype", "mime", "mime-detected") if row.get(name)} - {"unk"}
            status, date = str(row.get("statuscode") or row["status"]), seconds_of(row["timestamp"])
            digest = str(row.get("digest") or "")
            file = str(row.get("filename") or "")
            offset, length = (int(row["offset"]), int(row.get("length") or 0)) if file else (0, 0)
            if _REVISIT in types or status == "304":
                revisits.add((digest, date))
            elif status.isdecimal() and int(status) in REDIRECTS:
                found.captures.append(Capture(None, file, offset, length, date, url, int(status)))
            elif status == "200" and (any(map(is_html, types)) if types else untyped):
                pages[Capture(None, file, offset, length, date, url)] = digest
            else:
                found.others[f"status {status}" if status != "200" else ", ".join(sorted(types)) or "no type"] += 1
    found.captures += pages
    for capture, digest in pages.items() if revisits else ():
        found.captures += [replace(capture, date=date) for same, date in sorted(revisits) if digest == same != ""]
    if revisits and not pages:
        found.others[_REVISIT] += len(revisits)
    return found


def seconds_of(timestamp: str) -> int:
    """A time as archives write it, YYYYMMDDhhmmss in UTC, in seconds since 1970; raises ValueError."""
    return calendar.timegm(time.strptime(timestamp, "%Y%m%d%H%M%S"))


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
        raise BadIndex(f"no captures as JSON{problem} but {text[:100]!r}")
    yield from rows
