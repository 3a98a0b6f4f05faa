"""The page of a URL in an archive: one search for archive files, Common Crawl and the Wayback Machine.

URL  ->  find: its captures  ->  in order of `Capture.rank`: read, and follow if it is a redirect  ->  the first page
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple, Protocol

from owt_pipeline.formats.captures import absolute
from owt_pipeline.formats.messages import MAX_HEAD_BYTES, REDIRECTS, TooLarge, header
from owt_pipeline.formats.urls import BadURL, canonical_url
from owt_pipeline.formats.warc import BadRecord, read_record, rewritten, single_member
from owt_pipeline.stages.fetch.answers import MAX_REDIRECTS, Answer, NoPage, Origin, Page, judge
from owt_pipeline.stages.fetch.manners import Failed
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

    def rank(self, moment: int) -> tuple[Any, ...]:
        """The sort key of a URL's captures: complete pages, truncated ones, redirects, others; of these the nearest to
        `moment`, then the earliest. With the rest, the order does not depend on that of the index."""
        kind = int(self.truncated) if 200 <= self.status < 300 else 2 if self.status in REDIRECTS else 3
        return kind, abs(self.date - moment), self.date, self.place, self.url


class Asked(NamedTuple):
    """A URL to find in an archive.

    Attributes:
      url: its canonical form.
      posted: the URL as posted.
      moment: the time that the capture should be nearest to, seconds since 1970 in UTC.
      captures: its captures, if they are known.
    """

    url: str
    posted: str
    moment: int
    captures: Sequence[Any] = ()


class Refused(Failed):
    """An answer that no retry can change, such as 404 for a file that the index names."""


class Refusal(NoPage):
    """Why a URL has no page, although the archive answered."""


@dataclass(frozen=True)
class Moved:
    """A redirect: the URL that it leads to, if it is one, and its record."""

    target: str | None
    record: bytes


class Archive(Protocol):
    """An archive. Its methods may raise Failed.

    Attributes:
      holdings: what is searched, for messages: "no capture of a page in ...".
      tries: how many captures of a URL are read until one is a page.
    """

    holdings: str
    tries: float

    async def find(self, asked: Asked) -> Sequence[Capture]:
        """The captures of a URL that may be pages, or redirects."""

    async def read(self, capture: Capture, url: str) -> Answer | Moved:
        """The page of a capture of the canonical URL `url`, or where it redirects, or why it is neither."""


async def nearest_page(archive: Archive, asked: Asked, seen: set[str] | None = None) -> Answer:
    """The page of a URL from its best capture; if that is no page or cannot be read, from the next one.

    Redirects are followed within the archive, but not to the URLs `seen` on the way. Without a page, the answer is that
    of the best capture.
    """
    seen = {asked.url} if seen is None else seen
    try:
        found = await archive.find(asked)
    except Failed as failure:
        return _outcome(failure)
    first: NoPage | None = None
    tried: set[tuple[Any, ...]] = set()
    for capture in sorted(found, key=lambda capture: capture.rank(asked.moment)):
        if capture.place in tried or len(tried) >= archive.tries:
            continue
        tried.add(capture.place)
        try:
            answer = await archive.read(capture, asked.url)
            if isinstance(answer, Moved):
                answer = await _followed(archive, answer, asked, seen)
        except Failed as failure:
            answer = _outcome(failure)
        if isinstance(answer, Page):
            return answer
        first = first or answer
    return first or NoPage(Reason.NOT_ARCHIVED, f"no capture of a page in {archive.holdings}")


async def _followed(archive: Archive, redirect: Moved, asked: Asked, seen: set[str]) -> Answer:
    target = canonical_or_none(redirect.target)
    if target is None:
        return NoPage(Reason.BAD_REDIRECT, "a redirect to no URL that could be archived")
    if target == asked.url:  # from http to https, or to www.
        return NoPage(Reason.NOT_ARCHIVED, "archived is only a redirect to another spelling of the URL")
    if target in seen:
        return NoPage(Reason.REDIRECT_LOOP, f"redirects to {target}, where it came from")
    if len(seen) > MAX_REDIRECTS:
        return NoPage(Reason.REDIRECT_LOOP, f"more than {MAX_REDIRECTS} redirects")
    seen.add(target)
    answer = await nearest_page(archive, Asked(target, target, asked.moment), seen)
    if isinstance(answer, Page):
        return replace(answer, redirects=(redirect.record, *answer.redirects))
    return replace(answer, detail=f"redirects to {target}: {answer.detail}")


def _outcome(failure: Failed) -> NoPage:
    return (Refusal if isinstance(failure, Refused) else NoPage)(failure.reason, failure.detail)


def page_of_record(
    data: bytes, origin: Origin, max_page_bytes: int, where: str, fetch_ms: int = 0, canonical: str | None = None
) -> Answer | Moved:
    """The page in the bytes of an archived record, or where it redirects, or why it is neither.

    `where` describes the record's place. With `canonical`, the record must be of this canonical URL.
    """
    try:
        member, record = single_member(data, max_page_bytes + MAX_HEAD_BYTES)
        response = read_record(record, max_page_bytes)
    except BadRecord as error:
        return NoPage(Reason.BAD_RESPONSE, f"{error}, {where}")
    except TooLarge as error:
        return NoPage(Reason.TOO_LARGE, str(error))
    if canonical is not None and canonical_or_none(response.url) != canonical:
        return NoPage(Reason.BAD_RESPONSE, f"the record is of {response.url[:200]!r}, {where}")
    if response.status in REDIRECTS:
        return Moved(absolute(response.url, header(response.headers, "location")), member or rewritten(record))
    return judge(response, origin, fetch_ms, lambda _: member or rewritten(record))


def canonical_or_none(url: str | None) -> str | None:
    try:
        return canonical_url(url) if url else None
    except BadURL:
        return None
