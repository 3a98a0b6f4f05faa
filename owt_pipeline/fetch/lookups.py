"""Pages looked up URL by URL in a CDX index, and redirects followed within the archive.

An index answers with the captures of a URL, as JSON: an array, of arrays whose first one names the fields (the Wayback
Machine), or an object a line (pywb, Common Crawl; https://pywb.readthedocs.io/en/latest/manual/cdxserver_api.html). It
compares URLs by their SURT form, which ignores more than canonical URLs do, such as case; so what it finds is compared
once more.
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

from owt_pipeline.fetch.answers import Answer, NoPage, Origin, Page, Received, wanted_moment
from owt_pipeline.fetch.archive_client import ArchiveClient, HeldBack, at_once, outcome
from owt_pipeline.fetch.archives import Redirect, canonical_or_none, followed, page_of_record
from owt_pipeline.fetch.manners import Failed
from owt_pipeline.fetch.recorder import Recorder
from owt_pipeline.formats.messages import REDIRECTS, is_html
from owt_pipeline.formats.urls import BadURL, canonical_url, url_id
from schemas import Reason

_CAPTURES_TRIED = 3
"""Captures of a URL that are read, where the best turn out to be no pages."""

_TRACKED = "utm_"
"""How the names of the parameters for tracking begin that archived URLs have most often."""

_REVISIT = "warc/revisit"

_MAX_ANSWER_BYTES = 8 << 20
"""Of an index: some 25,000 captures of one URL in one collection, a site's first page at most."""


def below(root: str, name: str) -> str:
    """The URI of a file below the root of an archive's files."""
    return f"{root.rstrip('/')}/{name.lstrip('/')}"


class BadIndex(ValueError):
    """An answer that is none of a CDX index; the message says what it is instead."""


@dataclass(frozen=True)
class Capture:
    """A capture of a URL, as far as the index says.

    Attributes:
      crawl: the collection that it is of.
      file: the archive file, below the root of the archive's files; "" where it is not known.
      offset: first byte of its record there.
      length: bytes of its record.
      date: when it was made, seconds since 1970 in UTC.
      url: the URL as it was archived.
      status: that it was answered with: 200, or that of a redirect.
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
        """The page in its record, read within `ms`, if that is of the URL `canonical`."""
        origin = Origin("commoncrawl", self.crawl, self.file, self.offset)
        about: dict[str, Any] = {"where": str(self), "canonical": canonical, "fetch_ms": ms}
        return page_of_record(record, origin, max_page_bytes, **about)


@dataclass
class Found:
    """What indexes have of a URL.

    Attributes:
      captures: pages, and redirects.
      others: what other captures of it are.
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
        """Why there is no page, where no capture may be one."""
        others = ", ".join(f"{count} of {about}" for about, count in sorted(self.others.items()))
        detail = f"no capture of a page in {', '.join(self.asked)}" + (others and f": {others}")
        return NoPage(Reason.NOT_ARCHIVED, detail)


class LookupClient(ArchiveClient, ABC):
    """Looks URLs up in an index, and reads captures."""

    reads_untyped: ClassVar[bool] = False
    """Whether a capture whose type the index does not know may be a page."""

    columns: ClassVar = ("url_id", "url", "posted_url", "created_utc")
    together: int
    """URLs that are looked up at once."""

    @abstractmethod
    async def look_up(self, url: str, canonical: str, moment: int, *, by_prefix: bool = False) -> Found:
        """The captures found under `url`, or under all that begin so, that are of `canonical`, at least those near to
        `moment`; may raise Failed."""

    @abstractmethod
    async def read(self, capture: Capture, canonical: str) -> Answer:
        """The page that a capture is, or why it is none; may raise Failed."""

    @abstractmethod
    async def read_redirect(self, capture: Capture, canonical: str) -> Redirect | NoPage:
        """The redirect that a capture is; may raise Failed."""

    async def ask(self, urls: pa.Table, recorder: Recorder, resumed: bool) -> None:
        """Look up every URL of `urls`; raises UserError where the archive fails for `host_failures` URLs in a row."""
        rows = iter(range(len(urls)))
        held = HeldBack(recorder, self._options.host_failures)

        async def ask() -> None:
            for row in rows:
                url_id, *about = (urls[name][row].as_py() for name in urls.column_names)
                begun = time.monotonic()
                await held.take(url_id, await self.fetch(*about), begun)

        await at_once(ask() for _ in range(self.together))
        await held.settle()

    async def fetch(self, url: str, posted: str, created_utc: int | None) -> Answer:
        """The page of a canonical URL: its capture nearest in time to `created_utc`, or the last without a date; or,
        as the options have it, the earliest or the latest.

        Where there is no capture of it, the URL is looked up as it was `posted`, then with any parameters for tracking:
        indexes keep these, which canonical URLs lack. A capture that is no page, or cannot be read, makes way for the
        next; where there are none but redirects, those are followed. Where the archive does not answer as it should,
        the reason is `archive_failed`.
        """
        return await self._find(url, posted, wanted_moment(self._options.archive_choice, created_utc), {url_id(url)})

    async def _find(self, url: str, posted: str, moment: int, seen: set[int]) -> Answer:
        try:
            found = await self._look_up_variants(url, posted, moment)
        except Failed as failure:
            return outcome(failure)
        first: NoPage | None = None
        tried: set[tuple[str, int, int]] = set()  # a revisit is another date of a record
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
        """The page that a redirect leads to, within the archive."""
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
        """The captures of an index' answer to a query; `has_none` knows the answers that say that there are none."""
        response = await self.get(what, query, _MAX_ANSWER_BYTES, cut=True)
        found = Found()
        if response.status != 200 and not has_none(response):
            about = " ".join(response.body[:200].decode("utf-8", "replace").split())
            raise self.refused(query, what, f"status {response.status} {about}".strip())
        if response.status == 200:
            try:
                found = parse_captures(response.body, canonical, self.reads_untyped)
            except BadIndex as error:
                raise self.refused(query, what, str(error)) from error
        self.accepted(query)
        return found


def _distance(capture: Capture, moment: int) -> tuple:
    """Orders captures of one URL: pages, then redirects; the nearest in time; the earliest."""
    where = (capture.date, capture.file, capture.offset, capture.url)
    return capture.status != 200, abs(capture.date - moment), *where


def parse_captures(body: bytes, canonical: str, untyped: bool) -> Found:
    """The captures of an index' answer that are of the URL whose canonical form is `canonical`: those that may be
    pages, and redirects. A revisit is another date of the page with the same digest.

    With `untyped`, captures whose type the index does not know may be pages, too.
    Rows that are none are passed over, such as a last line that is cut off; raises BadIndex for an answer that is none.
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
