"""Pages over HTTP: redirects, robots.txt, retries, and a turn at the host before every request."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Awaitable, Callable, Collection, Mapping
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, NamedTuple

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
from owt_pipeline.formats.urls import requested
from owt_pipeline.formats.warc import Response, http_record
from owt_pipeline.stages.fetch.answers import LIVE, MAX_REDIRECTS, Answer, NoPage, Page, Received, judge, refuse_head
from owt_pipeline.stages.fetch.client import Client
from owt_pipeline.stages.fetch.manners import (
    ROBOTS_BYTES,
    Cookies,
    Failed,
    Gate,
    Gates,
    RobotsCache,
    patiently,
    retry_after,
    robots_token,
)
from schemas import Reason
from schemas.reasons import http_reason

if TYPE_CHECKING:
    from owt_pipeline.stages.fetch.stage import Options

RETRIES = 2
"""How often a request is retried after 429, 503 or a failed connection."""

MAX_RETRY_WAIT = 120.0
"""The longest wait before a retry, in seconds; a host that asks for more is not asked again."""

HOST_FAILURES = 20
"""Failed connections and timeouts in a row after which a host is given up."""

_BUSY = (429, 503)
_NO_ROBOTS = (429, *range(500, 600))
"""Statuses of a robots.txt that forbid a complete host, so the request is retried."""

_MOST_BUSY = 5
_FIRST_REST, _LONGEST_REST = 60.0, 3600.0
"""After so many 429 or 503 in a row, a host is closed for so many seconds, after one more for twice as long, and so on.
Its URLs are temporary failures meanwhile."""

_WITNESSES = 5  # hosts that answered last, which are asked whether the network works
_FIRST_BACKOFF = 1.0  # seconds; doubled at each retry, and spread by half of it


class Fetched(NamedTuple):
    """A final response, the redirects that led to it, its beginning (seconds since 1970) and duration.

    Bodies are as sent; a response with more than `max_body_bytes` after decoding is no page.
    """

    received: Received
    redirects: tuple[Received, ...]
    date: int
    ms: int
    max_body_bytes: int

    def answer(self) -> Answer:
        """The page, or why there is none. This takes longer than the request, so it is done in a thread."""
        received, content_type = self.received, content_type_of(self.received.headers)
        try:
            body = b""  # whatever was received of a response that is no page
            if not has_no_page(received.status, received.headers):
                body = decode_body(received.headers, received.body, self.max_body_bytes, strictly=True)
        except (BadMessage, TooLarge) as error:
            reason = Reason.TOO_LARGE if isinstance(error, TooLarge) else Reason.BAD_RESPONSE
            return NoPage(reason, f"redirected to {received.url}: {error}" if self.redirects else str(error))
        response = Response(
            received.url, self.date, received.status, received.headers, content_type, charset_of(content_type), body
        )
        answer = judge(
            response, LIVE, self.ms, lambda digest: self._record(received, digest if body is received.body else None)
        )
        if isinstance(answer, Page):
            return replace(answer, redirects=tuple(map(self._record, self.redirects))) if self.redirects else answer
        if (asked := received.header("retry-after")) and received.status in _BUSY:
            return NoPage(answer.reason, f"{answer.detail}, Retry-After: {asked[:40]}")
        return answer

    def _record(self, received: Received, digest: str | None = None) -> bytes:
        about = {"address": received.address, "truncated": "length" if received.truncated else ""}
        origin = self.redirects[0].url if self.redirects and received is not self.redirects[0] else ""
        return http_record(received.url, self.date, received.head, received.body, digest, origin=origin, **about)


class Fetcher:
    """Fetches pages; to be made and used in one event loop, by any number of tasks at once.

    Attributes:
      gates: the hosts' gates.
      client: makes the requests.
    """

    def __init__(self, options: Options):
        self.options = options
        self.client = Client(options)
        self.gates = Gates(options.host_delay, 1, self.client.remembered, HOST_FAILURES)
        self._retries = RETRIES
        self._agent = robots_token(options.user_agent)
        self._robots = RobotsCache(self._get_robots, self.client.remembered)
        self._answered: deque[str] = deque(maxlen=_WITNESSES)  # origins, the latest at the end
        self._network_works = False

    async def fetch(self, posted_url: str) -> Fetched | NoPage:
        """The final response for a URL as it was posted, or why there is none."""
        try:
            url = requested_url(posted_url)
        except ValueError as error:
            return NoPage(Reason.BAD_URL, f"{error}")
        try:
            return await self._follow(url)
        except Failed as failure:
            return NoPage(failure.reason, failure.detail)

    def try_once(self) -> None:
        """From now on, retry no request; but allow one more to hosts that were given up, and for each robots.txt that
        could not be read."""
        self._retries = 0
        self.gates.forgive()
        self._robots.forget_bans()

    def trust(self, origin: str) -> None:
        """Note an origin that has answered."""
        if origin in self._answered:
            self._answered.remove(origin)
        self._answered.append(origin)

    async def works(self) -> bool:
        """Whether the network works: a host that answered before answers now. If none ever answered, whether a failure
        has shown it, such as a refused connection or the resolver's answer that a name does not exist."""
        for origin in reversed(list(self._answered)):
            if await self._answers(origin):
                return True
        return self._network_works and not self._answered

    async def _answers(self, origin: str) -> bool:
        """Whether a host gives any answer."""
        robots = URL(origin, encoded=True).with_path("/robots.txt")
        gate = self.gates[robots.raw_host or ""]
        try:
            async with gate:
                await self.client.get(robots, lambda *_: True, gate, encoded=True, cut=True)
        except Failed as failure:
            return failure.is_answer
        return True

    async def _follow(self, url: URL) -> Fetched | NoPage:
        started = int(time.time())
        redirects: list[Received] = []
        seen: list[tuple[URL, str | None]] = []
        ms, cookies = 0, Cookies()
        while True:
            cookie = cookies.header(url)
            seen.append((url, cookie))
            try:
                response = await self._get_page(url, ms, {"Cookie": cookie} if cookie else None)
            except Failed as failure:
                if not redirects:
                    raise
                reason = Reason.BAD_REDIRECT if failure.reason == Reason.BAD_URL else failure.reason
                return NoPage(reason, f"redirected to {url}: {failure.detail}")
            ms += response.ms
            if response.status not in REDIRECTS:
                return Fetched(response, tuple(redirects), started, ms, self.options.max_page_bytes)
            redirects.append(response)
            cookies.take(response)
            url = redirect_target(response)
            if (url, cookies.header(url)) in seen:
                return NoPage(Reason.REDIRECT_LOOP, f"back to {url} after {len(redirects)} redirects")
            if len(redirects) > MAX_REDIRECTS:
                return NoPage(Reason.REDIRECT_LOOP, f"more than {MAX_REDIRECTS} redirects")

    async def _get_page(self, url: URL, ms: int, headers: Mapping[str, str] | None) -> Received:
        robots = await self._robots.of(url)
        robots.check(url, self._agent)
        gate = self.gates[url.raw_host or ""]
        gate.delay = max(self.options.host_delay, robots.crawl_delay(self._agent))
        left = max(self.options.timeout - ms / 1000, 0.001)
        get = partial(self.client.get, url, has_no_page, gate, seconds=left, encoded=True, headers=headers)
        return await self._get(get, url, gate, _BUSY, is_page=True)

    async def _get_robots(self, url: URL) -> Received:
        gate = self.gates[url.raw_host or ""]
        get = partial(self.client.get, url, lambda status, _: status != 200, gate, most=ROBOTS_BYTES, cut=True)
        return await self._get(get, url, gate, _NO_ROBOTS)

    async def _get(
        self, get: Callable[[], Awaitable[Received]], url: URL, gate: Gate, busy: Collection[int], is_page: bool = False
    ) -> Received:
        """The result of `get`, called at the turns of `gate`; it is retried after the statuses `busy` and transient
        failures. Raises Failed. A host whose pages are busy too often in a row is closed."""

        async def noted() -> Received:
            try:
                response = await get()
            except Failed as failure:
                self._network_works |= failure.network_works
                if failure.is_answer:
                    self.trust(str(url.origin()))
                raise
            self.trust(str(url.origin()))
            return response

        def is_busy(response: Received) -> bool:
            status = response.status
            gate.busy = gate.busy + 1 if status in _BUSY else 0
            if is_page and gate.busy >= _MOST_BUSY:
                rest = min(_FIRST_REST * 2 ** (gate.busy - _MOST_BUSY), _LONGEST_REST)
                detail = f"not asked: the host answered {gate.busy} times in a row with {status}"
                gate.close(rest, Failed(http_reason(status), detail))
                return False
            if status in busy and (asked := retry_after(response) or 0.0) > MAX_RETRY_WAIT:
                detail = f"not asked: the host answered {status} and asked for {asked:,.0f} s"
                gate.close(asked, Failed(http_reason(status), detail), asked_to=True)
                return False
            return status in busy

        waits = (min(_FIRST_BACKOFF * 2 ** max(n, gate.busy), MAX_RETRY_WAIT) for n in range(self._retries))
        return await patiently(noted, gate, waits, is_busy, lambda failure: failure.transient)


def requested_url(posted: str) -> URL:
    """The URL to request for one as posted; raises ValueError."""
    return URL(requested(posted), encoded=True)


def redirect_target(response: Received) -> URL:
    """The target of a redirect; raises Failed if it cannot be requested."""
    location = response.header("location")
    if not location:
        raise Failed(Reason.BAD_REDIRECT, f"status {response.status} without a Location")
    try:
        return requested_url(str(response.location()))
    except ValueError:
        raise Failed(Reason.BAD_REDIRECT, f"status {response.status} to {location[:200]}") from None


def has_no_page(status: int, headers: Headers) -> bool:
    """Whether the head shows that the response is no page, so that the body need not be read."""
    return status in REDIRECTS or refuse_head(status, content_type_of(headers)) is not None
