"""The page of a URL in an archive: one search for archive files, Common Crawl and the Wayback
Machine.

URL  ->  find: its captures  ->  in order of `Capture.rank`: read, and follow if it is a redirect
->  the first page
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple, Protocol

from owt_pipeline.formats.messages import MAX_HEAD_BYTES, REDIRECTS, TooLarge, header
from owt_pipeline.formats.urls import BadURL, canonical_url, redirected
from owt_pipeline.formats.warc import BadRecord, read_record, rewritten, single_member
from owt_pipeline.stages.fetch.answers import (
    MAX_REDIRECTS,
    FetchFailure,
    FetchResult,
    Origin,
    Page,
    judge_response,
)
from owt_pipeline.stages.fetch.web.politeness import RequestError
from schemas import Reason


@dataclass(frozen=True)
class Capture:
    """A capture of a URL, as an archive's index describes it.

    Attributes:
      date: when it was made, seconds since 1970 in UTC.
      status: the status of the response.
      url: the URL as archived, if the index has it.
      place: where its record is: captures with the same place are one.
      truncated: whether the crawler did not get all of the page.
    """

    date: int
    status: int = 200
    url: str = ""
    place: tuple[Any, ...] = ()
    truncated: bool = False

    def rank(self, time: int) -> tuple[Any, ...]:
        """Return the sort key among the captures of a URL.

        Complete pages come first, then truncated ones, redirects and others; of these the nearest
        to `time`, then the earliest. The rest makes it independent of the order of the index.
        """
        return self._rank_of_kind(), abs(self.date - time), self.date, self.place, self.url

    def _rank_of_kind(self) -> int:
        if 200 <= self.status < 300:
            return int(self.truncated)
        if self.status in REDIRECTS:
            return 2
        return 3


class ArchiveQuery(NamedTuple):
    """A URL to find in an archive.

    Attributes:
      url: its canonical form.
      posted: the URL as posted.
      time: the time that the capture should be nearest to, seconds since 1970 in UTC.
    """

    url: str
    posted: str
    time: int


class PermanentError(RequestError):
    """A response that no retry can change, such as 404 for a file that the index names."""


class ArchiveReject(FetchFailure):
    """Why a URL has no page, although the archive responded."""


@dataclass(frozen=True)
class ArchivedRedirect:
    """A redirect: the URL that it leads to, if it is one, and its record."""

    target: str | None
    record: bytes


class Archive(Protocol):
    """An archive. Its methods may raise RequestError.

    Attributes:
      holdings: the name of its captures, for messages: "no capture of a page in ...".
      max_tries: how many captures of a URL are read until one is a page.
    """

    holdings: str
    max_tries: float

    async def find(self, query: ArchiveQuery) -> Sequence[Capture]:
        """Return the captures of a URL that may be pages, or redirects."""

    async def read(self, capture: Capture, url: str) -> FetchResult | ArchivedRedirect:
        """Return the page of a capture of the canonical URL `url`, its redirect, or a failure."""


async def best_capture(
    archive: Archive, query: ArchiveQuery, seen: set[str] | None = None
) -> FetchResult:
    """Return the page of a URL from its best capture.

    If that is not a page or cannot be read, the next one is read. Redirects are followed within the
    archive, but not to the URLs `seen` on the way. Without a page, the failure of the best capture
    is returned.
    """
    seen = {query.url} if seen is None else seen
    try:
        captures = await archive.find(query)
    except RequestError as error:
        return _failure_of(error)
    first_failure: FetchFailure | None = None
    tried: set[tuple[Any, ...]] = set()
    for capture in sorted(captures, key=lambda capture: capture.rank(query.time)):
        # Captures with the same place are one record.
        if capture.place in tried or len(tried) >= archive.max_tries:
            continue
        tried.add(capture.place)
        result = await _read_capture(archive, capture, query, seen)
        if isinstance(result, Page):
            return result
        first_failure = first_failure or result
    if first_failure is not None:
        return first_failure
    return FetchFailure(Reason.NOT_ARCHIVED, f"no capture of a page in {archive.holdings}")


async def _read_capture(
    archive: Archive, capture: Capture, query: ArchiveQuery, seen: set[str]
) -> FetchResult:
    """Return the page of a capture, or of the capture that it redirects to."""
    try:
        result = await archive.read(capture, query.url)
        if isinstance(result, ArchivedRedirect):
            return await _follow(archive, result, query, seen)
    except RequestError as error:
        return _failure_of(error)
    return result


async def _follow(
    archive: Archive, redirect: ArchivedRedirect, query: ArchiveQuery, seen: set[str]
) -> FetchResult:
    """Return the page that a redirect leads to, in the same archive."""
    target = canonical_or_none(redirect.target)
    if target is None:
        detail = "a redirect to no URL that could be archived"
        return FetchFailure(Reason.BAD_REDIRECT, detail)
    if target == query.url:
        # From http to https, or to www.
        detail = "archived is only a redirect to another spelling of the URL"
        return FetchFailure(Reason.NOT_ARCHIVED, detail)
    if target in seen:
        return FetchFailure(Reason.REDIRECT_LOOP, f"redirects to {target}, where it came from")
    if len(seen) > MAX_REDIRECTS:
        return FetchFailure(Reason.REDIRECT_LOOP, f"more than {MAX_REDIRECTS} redirects")
    # The target may redirect back.
    seen.add(target)
    result = await best_capture(archive, ArchiveQuery(target, target, query.time), seen)
    if isinstance(result, Page):
        return replace(result, redirects=(redirect.record, *result.redirects))
    return replace(result, detail=f"redirects to {target}: {result.detail}")


def _failure_of(error: RequestError) -> FetchFailure:
    if isinstance(error, PermanentError):
        return ArchiveReject(error.reason, error.detail)
    return FetchFailure(error.reason, error.detail)


def read_capture(
    content: bytes,
    origin: Origin,
    max_page_bytes: int,
    location: str,
    fetch_ms: int = 0,
    canonical: str | None = None,
) -> FetchResult | ArchivedRedirect:
    """Return the page in the bytes of an archived record, or its redirect, or a failure.

    `location` describes the record's place. With `canonical`, the record must be of this canonical
    URL.
    """
    try:
        member, record = single_member(content, max_page_bytes + MAX_HEAD_BYTES)
        response = read_record(record, max_page_bytes)
    except BadRecord as error:
        return FetchFailure(Reason.BAD_RESPONSE, f"{error}, {location}")
    except TooLarge as error:
        return FetchFailure(Reason.TOO_LARGE, str(error))
    if canonical is not None and canonical_or_none(response.url) != canonical:
        detail = f"the record is of {response.url[:200]!r}, {location}"
        return FetchFailure(Reason.BAD_RESPONSE, detail)
    if response.status in REDIRECTS:
        target = _absolute(response.url, header(response.headers, "location"))
        return ArchivedRedirect(target, member or rewritten(record))
    return judge_response(response, origin, fetch_ms, lambda _: member or rewritten(record))


def canonical_or_none(url: str | None) -> str | None:
    """Return the canonical form of a URL; None if it has none."""
    try:
        return canonical_url(url) if url else None
    except BadURL:
        return None


def _absolute(url: str, location: str | None) -> str | None:
    """Return the target of a response's Location header, absolute; None if it is not a URL."""
    if not location:
        return None
    try:
        return redirected(url, location)
    except ValueError:
        return None
