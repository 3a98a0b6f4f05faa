"""The page of a URL in an archive: one search for archive files, Common Crawl and the Wayback
Machine.

URL  ->  find: its captures  ->  in order of `Capture.rank`: read, and follow if it is a redirect
->  the first page

Requests to archives on the web are patient: an archive that is busy or down for some minutes costs
no page. A request that fails temporarily is retried, with growing waits. If it still fails while
others succeed, its URL is rejected. If many fail in a row, the archive is down: the run stops, and
continues when it is run again.
"""

from __future__ import annotations

import asyncio
import itertools
import logging
import math
import time
from collections import defaultdict
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple, Protocol

import pyarrow as pa
from yarl import URL

from owt_pipeline.errors import UserError
from owt_pipeline.formats.captures import absolute
from owt_pipeline.formats.messages import MAX_HEAD_BYTES, REDIRECTS, TooLarge, header
from owt_pipeline.formats.urls import BadURL, canonical_url
from owt_pipeline.formats.warc import BadRecord, read_record, rewritten, single_member
from owt_pipeline.stages.fetch.answers import (
    MAX_REDIRECTS,
    Answer,
    FetchFailure,
    HttpResponse,
    Origin,
    Page,
    judge_response,
    target_time,
)
from owt_pipeline.stages.fetch.recorder import CircuitBreaker, Recorder
from owt_pipeline.stages.fetch.web.client import Client, Stop
from owt_pipeline.stages.fetch.web.politeness import (
    Gate,
    RequestError,
    for_each,
    retry_after,
    with_retries,
)
from schemas import Reason

if TYPE_CHECKING:
    from owt_pipeline.stages.fetch.options import Options
    from owt_pipeline.stages.fetch.segments import SegmentReader

logger = logging.getLogger("owt")

LONGEST_PAUSE = 3600.0
"""The longest Retry-After, in seconds, that is waited for; if an archive asks for more, the run
ends."""

RETRIES = 10
"""How often a request is retried after a failed connection, a timeout, 429 or 5xx."""

MAX_RETRY_WAIT = 60.0
"""The longest wait before such a retry, in seconds; the first one is a second, each further one
twice as long."""

MAX_FAILURES = 20
"""Failed requests in a row, after all retries, after which the archive is down."""

_PASSING = (Reason.DNS, Reason.CONNECT, Reason.PROXY, Reason.TIMEOUT, Reason.BAD_RESPONSE)
_SHOWN_AFTER = 3  # busy answers to one request
_FIRST_WAIT = 1.0  # seconds; doubled at each retry, and spread by half of it


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
        """The sort key of a URL's captures: complete pages, truncated ones, redirects, others;
        of these the nearest to `moment`, then the earliest. With the rest, the order does not
        depend on that of the index."""
        kind = (
            int(self.truncated)
            if 200 <= self.status < 300
            else 2
            if self.status in REDIRECTS
            else 3
        )
        return kind, abs(self.date - moment), self.date, self.place, self.url


class ArchiveQuery(NamedTuple):
    """A URL to find in an archive.

    Attributes:
      url: its canonical form.
      posted: the URL as posted.
      moment: the time that the capture should be nearest to, seconds since 1970 in UTC.
    """

    url: str
    posted: str
    moment: int


class PermanentError(RequestError):
    """An answer that no retry can change, such as 404 for a file that the index names."""


class ArchiveReject(FetchFailure):
    """Why a URL has no page, although the archive answered."""


@dataclass(frozen=True)
class ArchivedRedirect:
    """A redirect: the URL that it leads to, if it is one, and its record."""

    target: str | None
    record: bytes


class Archive(Protocol):
    """An archive. Its methods may raise RequestError.

    Attributes:
      holdings: what is searched, for messages: "no capture of a page in ...".
      tries: how many captures of a URL are read until one is a page.
    """

    holdings: str
    tries: float

    async def find(self, asked: ArchiveQuery) -> Sequence[Capture]:
        """The captures of a URL that may be pages, or redirects."""

    async def read(self, capture: Capture, url: str) -> Answer | ArchivedRedirect:
        """The page of a capture of the canonical URL `url`, or where it redirects, or why it is
        neither."""


async def best_capture(
    archive: Archive, asked: ArchiveQuery, seen: set[str] | None = None
) -> Answer:
    """The page of a URL from its best capture; if that is no page or cannot be read, from the
    next one.

    Redirects are followed within the archive, but not to the URLs `seen` on the way. Without a
    page, the answer is that of the best capture.
    """
    seen = {asked.url} if seen is None else seen
    try:
        found = await archive.find(asked)
    except RequestError as failure:
        return _outcome(failure)
    first: FetchFailure | None = None
    tried: set[tuple[Any, ...]] = set()
    for capture in sorted(found, key=lambda capture: capture.rank(asked.moment)):
        if capture.place in tried or len(tried) >= archive.tries:
            continue
        tried.add(capture.place)
        try:
            answer = await archive.read(capture, asked.url)
            if isinstance(answer, ArchivedRedirect):
                answer = await _followed(archive, answer, asked, seen)
        except RequestError as failure:
            answer = _outcome(failure)
        if isinstance(answer, Page):
            return answer
        first = first or answer
    return first or FetchFailure(Reason.NOT_ARCHIVED, f"no capture of a page in {archive.holdings}")


async def _followed(
    archive: Archive, redirect: ArchivedRedirect, asked: ArchiveQuery, seen: set[str]
) -> Answer:
    target = canonical_or_none(redirect.target)
    if target is None:
        return FetchFailure(Reason.BAD_REDIRECT, "a redirect to no URL that could be archived")
    if target == asked.url:  # from http to https, or to www.
        return FetchFailure(
            Reason.NOT_ARCHIVED, "archived is only a redirect to another spelling of the URL"
        )
    if target in seen:
        return FetchFailure(Reason.REDIRECT_LOOP, f"redirects to {target}, where it came from")
    if len(seen) > MAX_REDIRECTS:
        return FetchFailure(Reason.REDIRECT_LOOP, f"more than {MAX_REDIRECTS} redirects")
    seen.add(target)
    answer = await best_capture(archive, ArchiveQuery(target, target, asked.moment), seen)
    if isinstance(answer, Page):
        return replace(answer, redirects=(redirect.record, *answer.redirects))
    return replace(answer, detail=f"redirects to {target}: {answer.detail}")


def _outcome(failure: RequestError) -> FetchFailure:
    return (ArchiveReject if isinstance(failure, PermanentError) else FetchFailure)(
        failure.reason, failure.detail
    )


def read_capture(
    data: bytes,
    origin: Origin,
    max_page_bytes: int,
    where: str,
    fetch_ms: int = 0,
    canonical: str | None = None,
) -> Answer | ArchivedRedirect:
    """The page in the bytes of an archived record, or where it redirects, or why it is neither.

    `where` describes the record's place. With `canonical`, the record must be of this canonical
    URL.
    """
    try:
        member, record = single_member(data, max_page_bytes + MAX_HEAD_BYTES)
        response = read_record(record, max_page_bytes)
    except BadRecord as error:
        return FetchFailure(Reason.BAD_RESPONSE, f"{error}, {where}")
    except TooLarge as error:
        return FetchFailure(Reason.TOO_LARGE, str(error))
    if canonical is not None and canonical_or_none(response.url) != canonical:
        return FetchFailure(
            Reason.BAD_RESPONSE, f"the record is of {response.url[:200]!r}, {where}"
        )
    if response.status in REDIRECTS:
        return ArchivedRedirect(
            absolute(response.url, header(response.headers, "location")),
            member or rewritten(record),
        )
    return judge_response(response, origin, fetch_ms, lambda _: member or rewritten(record))


def canonical_or_none(url: str | None) -> str | None:
    try:
        return canonical_url(url) if url else None
    except BadURL:
        return None


class ArchiveClient:
    """Makes requests to an archive; to be made and used in one event loop, by any number of
    tasks at once. A subclass is an `Archive`.

    Attributes:
      works: whether any answer came from an archive; until then, all other answers mean that it is
        down.
    """

    columns: ClassVar[Sequence[str]] = ("url_id", "url", "posted_url", "created_utc")

    busy: ClassVar[Collection[int]] = (429, 503)
    """Statuses after which a request is retried, in addition to 5xx."""

    tries: float = 3

    def __init__(
        self,
        options: Options,
        holdings: str,
        connections: int,
        delay: float,
        least_pause: float = 0.0,
    ):
        """A client for `connections` requests at once to each host, with `delay` seconds between
        two of them, and `least_pause` seconds without any after a busy answer without
        Retry-After."""
        asking = replace(
            options,
            allowed_ports=(),
            allow_private_hosts=True,  # the user names them
            host_delay=delay,
        )
        self.holdings, self.works = holdings, False
        self._options = options
        self._connections, self._delay, self._least_pause = connections, delay, least_pause
        self._client = Client(asking)
        self._gates: dict[str, Gate] = defaultdict(partial(Gate, delay, connections))
        self._retries = RETRIES

    async def close(self) -> None:
        await self._client.close()

    async def ask(self, urls: pa.Table, recorder: Recorder, before: SegmentReader | None) -> None:
        """Find the page of each URL of `urls` (with `columns`), answers to `recorder`.

        Raises UserError if the archive fails for MAX_FAILURES URLs in a row; but not for those that
        failed before and are retried at the end, since their failures say nothing about the
        archive.
        """
        if before is not None:
            await asyncio.sleep(self._delay)
        self._retries = 0 if recorder.is_last else RETRIES
        most = math.inf if recorder.is_last else MAX_FAILURES
        what = "requests in a row to the archive failed after all retries"
        held = CircuitBreaker(recorder, most, self._is_down, what)

        async def ask(row: int) -> None:
            url_id, url, posted, created = (urls[name][row].as_py() for name in urls.column_names)
            begun = time.monotonic()
            asked = ArchiveQuery(url, posted, target_time(self._options.archive_choice, created))
            await held.take(url_id, await best_capture(self, asked), begun)  # type: ignore[arg-type]

        await for_each(ask, range(len(urls)), self._connections)
        await held.settle()

    async def get(
        self,
        what: str,
        url: URL,
        most: int | None = None,
        stop: Stop = lambda *_: False,
        *,
        headers: Mapping[str, str] | None = None,
        cut: bool = False,
    ) -> HttpResponse:
        """The response, of at most `most` bytes (by default those of a page); `stop`, `headers`
        and `cut` as in `Client.get`. After a temporary failure, there are at most RETRIES more
        requests.

        Raises RequestError with the reason `archive_failed`, whose detail names `what` was requested;
        UserError if the archive asks for a wait longer than LONGEST_PAUSE.
        """
        gate = self._gates[url.raw_host or ""]
        attempts = itertools.count(1)

        def is_busy(response: HttpResponse) -> bool:
            if response.status not in self.busy and response.status < 500:
                return False
            problem = f"status {response.status} {response.beginning()}".strip()
            if response.status in self.busy:
                gate.pause(self._least_pause)
                if (asked := retry_after(response) or 0.0) > LONGEST_PAUSE:
                    raise UserError(
                        f"{what}: the archive asks for a wait of {asked:,.0f} s ({problem}): run "
                        f"the same command "
                        "again after that, with a longer delay between requests; it continues "
                        "where it stopped"
                    )
            if next(attempts) == _SHOWN_AFTER:
                logger.warning(
                    "fetch: %s: %s, %d times; trying again", what, problem[:80], _SHOWN_AFTER
                )
            return True

        get = partial(self._client.get, url, stop, gate, most=most, cut=cut, headers=headers)
        waits = [min(_FIRST_WAIT * 2**n, MAX_RETRY_WAIT) for n in range(self._retries)]
        try:
            response = await with_retries(
                get, gate, waits, is_busy, lambda failure: failure.reason in _PASSING
            )
        except RequestError as failure:
            if failure.reason == Reason.TOO_LARGE:  # concerns the page, and not the archive
                raise
            problem = f"{failure.reason}, {failure.detail}"
            if failure.reason not in _PASSING:
                raise refused(what, problem) from failure
            raise RequestError(Reason.ARCHIVE_FAILED, f"{what}: {problem}") from failure
        if response.status in self.busy or response.status >= 500:
            problem = f"status {response.status} {response.beginning()}".strip()
            raise RequestError(Reason.ARCHIVE_FAILED, f"{what}: {problem}")
        return response

    def _is_down(self, answer: FetchFailure) -> bool:
        return answer.reason == Reason.ARCHIVE_FAILED and not (
            self.works and isinstance(answer, ArchiveReject)
        )


def refused(what: str, problem: str) -> PermanentError:
    """The failure of the request for `what` by an answer that no retry can change."""
    return PermanentError(Reason.ARCHIVE_FAILED, f"{what}: {problem}")
