"""Pages over HTTP: redirects, robots.txt, retries, and a turn at the host before every request."""

from __future__ import annotations

import asyncio
import math
import time
from collections import OrderedDict, defaultdict
from collections.abc import Awaitable, Callable, Collection, Iterator, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, ClassVar

import numpy as np
import pyarrow as pa
from aiohttp import CookieJar
from yarl import URL

from owt_pipeline.formats.messages import REDIRECTS
from owt_pipeline.formats.urls import requested
from owt_pipeline.stages.fetch.answers import (
    MAX_REDIRECTS,
    FetchedResponse,
    FetchFailure,
    HttpResponse,
    has_no_page,
)
from owt_pipeline.stages.fetch.recorder import CircuitBreaker, Recorder
from owt_pipeline.stages.fetch.web.client import Client
from owt_pipeline.stages.fetch.web.politeness import (
    Gate,
    RequestError,
    for_each,
    retry_after,
    with_retries,
)
from owt_pipeline.stages.fetch.web.robots import ROBOTS_BYTES, RobotsCache, robots_token
from schemas import Reason
from schemas.reasons import http_reason

if TYPE_CHECKING:
    from owt_pipeline.stages.fetch.options import Options
    from owt_pipeline.stages.fetch.segments import SegmentReader

RETRIES = 2
"""How often a request is retried after 429, 503 or a failed connection."""

MAX_RETRY_WAIT = 120.0
"""The longest wait before a retry, in seconds. A host that wants a longer one is closed."""

HOST_FAILURES = 20
"""Connections that fail, and timeouts, in a row after which a host is given up."""

_BUSY = (429, 503)

# Statuses of a robots.txt that forbid a complete host, so the request is retried.
_NO_ROBOTS = (429, *range(500, 600))

# After the fifth 429 or 503 in a row, a host is closed for a minute, after one more for twice as
# long, and so on. Its URLs are temporary failures meanwhile.
_MAX_BUSY = 5
_FIRST_REST = 60.0
_MAX_REST = 3600.0

OUTAGE_HOSTS = 20
"""Hosts in a row without a response, after which the network, the resolver or the proxy may be
down."""

# The hosts that responded last: a request to such a host shows whether the network works.
_MAX_WITNESSES = 5

# Seconds before the first retry; doubled at each retry, and spread by half of it.
_FIRST_BACKOFF = 1.0

# A request has at least this much of the time of its URL, however long the redirects took.
_MIN_SECONDS = 0.001

# To know hosts that respond, these many pages of an earlier lease are enough.
_NUM_KNOWN_PAGES = 3


class Fetcher:
    """The client of the live web; to be made and used in one event loop.

    Attributes:
      columns: the columns of urls/ that it needs.
      gates: the hosts' gates.
      client: makes the requests.
    """

    columns: ClassVar[Sequence[str]] = ("url_id", "posted_url", "host")

    def __init__(self, options: Options):
        self.options = options
        self.client = Client(options)
        self.gates: dict[str, Gate] = defaultdict(
            partial(Gate, options.host_delay, 1, HOST_FAILURES)
        )
        self._num_retries = RETRIES
        self._agent = robots_token(options.user_agent)
        self._robots = RobotsCache(self._get_robots, self.client.num_remembered)
        # A URL of each host that responded, the latest at the end. Origins are made of few of them.
        self._alive: OrderedDict[str, URL] = OrderedDict()
        self._has_seen_network = False
        # When the last response came, in `time.monotonic` seconds.
        self._last_response = -math.inf

    async def close(self) -> None:
        await self.client.close()

    async def fetch_all(
        self, urls: pa.Table, recorder: Recorder, earlier_results: SegmentReader | None
    ) -> None:
        """Fetch each URL of `urls` (with `columns`), and give the results to `recorder`.

        Only some hosts are open at a time, those with the most URLs first, since they take longest;
        a host's URLs are fetched in the order of the rows. With all hosts open, a large crawl would
        return to each so late that its robots.txt, address and connection would no longer be kept.
        """
        if recorder.is_last_try:
            self._allow_last_requests()
        breaker = CircuitBreaker(
            recorder,
            OUTAGE_HOSTS,
            _is_silent,
            "hosts in a row gave no answer",
            self._is_network_up,
        )
        url_ids = urls["url_id"].to_numpy()
        posted_urls = urls["posted_url"].combine_chunks()
        hosts = rows_by_host(urls["host"])
        # The hosts' names are not needed any more: 80 MB for a million URLs, for the time of the
        # crawl.
        del urls
        pa.default_memory_pool().release_unused()
        if earlier_results is not None:
            known_pages = earlier_results.rows(earlier_results.pages[:_NUM_KNOWN_PAGES])
            for url in known_pages["final_url"].to_pylist():
                self._mark_alive(URL(url, encoded=True))
            await asyncio.sleep(self.options.host_delay)

        async def fetch_host(rows: np.ndarray) -> None:
            name = str(rows[0])
            for row in rows.tolist():
                started = time.monotonic()
                result = await self._fetch(posted_urls[row].as_py())
                has_response = self._last_response >= started
                await breaker.take(
                    int(url_ids[row]), result, started, name=name, has_response=has_response
                )

        await for_each(fetch_host, hosts, self.options.connections)
        await breaker.settle()

    async def _fetch(self, posted_url: str) -> FetchedResponse | FetchFailure:
        """Return the final response for a URL as it was posted, or why there is none."""
        try:
            url = requested_url(posted_url)
        except ValueError as error:
            return FetchFailure(Reason.BAD_URL, f"{error}")
        try:
            return await self._follow(url)
        except RequestError as error:
            return FetchFailure(error.reason, error.detail)

    def _allow_last_requests(self) -> None:
        """Retry no request from now on.

        But allow one more to hosts that were given up, and for each robots.txt that could not be
        read.
        """
        self._num_retries = 0
        for gate in self.gates.values():
            gate.reset()
        self._robots.forget_bans()

    def _mark_alive(self, url: URL) -> None:
        """Note that the host of a URL has responded."""
        self._last_response = time.monotonic()
        host = url.raw_host or ""
        self._alive[host] = url
        self._alive.move_to_end(host)
        if len(self._alive) > _MAX_WITNESSES:
            self._alive.popitem(last=False)

    async def _is_network_up(self) -> bool:
        """Return whether a host that responded before responds now.

        If none ever did, return whether a failure has shown that the network works, such as a
        refused connection or the resolver's response that a name does not exist.
        """
        for url in reversed(list(self._alive.values())):
            if await self._responds(url.origin()):
                return True
        return self._has_seen_network and not self._alive

    async def _responds(self, origin: URL) -> bool:
        """Return whether a host gives any response."""
        robots = origin.with_path("/robots.txt")
        gate = self.gates[robots.raw_host or ""]
        try:
            async with gate:
                await self.client.look_up(robots)
                await self.client.get(robots, lambda *_: True, gate, encoded=True, cut=True)
        except RequestError as error:
            return error.is_response
        return True

    async def _follow(self, url: URL) -> FetchedResponse | FetchFailure:
        """Return the final response for a URL, with the redirects that led to it.

        Raises RequestError if the first request fails.
        """
        date = int(time.time())
        redirects: list[HttpResponse] = []
        seen: list[tuple[URL, str | None]] = []
        cookies = Cookies()
        ms = 0
        while True:
            cookie = cookies.header(url)
            seen.append((url, cookie))
            headers = {"Cookie": cookie} if cookie else None
            try:
                response = await self._get_page(url, ms, headers)
            except RequestError as error:
                if not redirects:
                    raise
                reason = Reason.BAD_REDIRECT if error.reason == Reason.BAD_URL else error.reason
                detail = f"redirected to {url}: {error.detail}"
                return FetchFailure(reason, detail)
            ms += response.ms
            if response.status not in REDIRECTS:
                max_bytes = self.options.max_page_bytes
                return FetchedResponse(response, tuple(redirects), date, ms, max_bytes)
            redirects.append(response)
            cookies.take(response)
            url = redirect_target(response)
            # With another cookie, the same URL may lead on.
            if (url, cookies.header(url)) in seen:
                detail = f"back to {url} after {len(redirects)} redirects"
                return FetchFailure(Reason.REDIRECT_LOOP, detail)
            if len(redirects) > MAX_REDIRECTS:
                return FetchFailure(Reason.REDIRECT_LOOP, f"more than {MAX_REDIRECTS} redirects")

    async def _get_page(self, url: URL, ms: int, headers: Mapping[str, str] | None) -> HttpResponse:
        """Return the response to one request of a page, if robots.txt allows it.

        `ms` is what the redirects before it took.
        """
        robots = await self._robots.of(url)
        robots.check(url, self._agent)
        gate = self.gates[url.raw_host or ""]
        gate.delay = max(self.options.host_delay, robots.crawl_delay(self._agent))
        seconds = max(self.options.timeout - ms / 1000, _MIN_SECONDS)
        get = partial(
            self.client.get, url, has_no_page, gate, seconds=seconds, encoded=True, headers=headers
        )
        return await self._get(get, url, gate, _BUSY, is_page=True)

    async def _get_robots(self, url: URL) -> HttpResponse:
        gate = self.gates[url.raw_host or ""]
        get = partial(
            self.client.get,
            url,
            lambda status, _: not 200 <= status < 300,
            gate,
            max_bytes=ROBOTS_BYTES,
            cut=True,
        )
        return await self._get(get, url, gate, _NO_ROBOTS)

    async def _get(
        self,
        get: Callable[[], Awaitable[HttpResponse]],
        url: URL,
        gate: Gate,
        busy_statuses: Collection[int],
        is_page: bool = False,
    ) -> HttpResponse:
        """Return the result of `get`, called at the turns of `gate`; raises RequestError.

        It is retried after `busy_statuses` and transient failures. A host whose pages are busy too
        often in a row is closed.
        """

        async def get_and_note() -> HttpResponse:
            try:
                response = await get()
            except RequestError as error:
                self._has_seen_network |= error.shows_network
                if error.is_response:
                    self._mark_alive(url)
                raise
            self._mark_alive(url)
            return response

        def is_busy(response: HttpResponse) -> bool:
            status = response.status
            if status in _BUSY:
                gate.num_busy += 1
            else:
                gate.num_busy = 0
            if status not in busy_statuses:
                return False
            rest = 0.0
            if is_page and gate.num_busy >= _MAX_BUSY:
                rest = min(_FIRST_REST * 2 ** (gate.num_busy - _MAX_BUSY), _MAX_REST)
            # A host that is closed anyway is still left alone for as long as it asks.
            asked_wait = retry_after(response) or 0.0
            if asked_wait > (rest or MAX_RETRY_WAIT):
                detail = f"not asked: the host answered {status} and asked for {asked_wait:,.0f} s"
                gate.close(asked_wait, RequestError(http_reason(status), detail), asked_to=True)
                return False
            if rest:
                detail = (
                    f"not asked: the host answered {gate.num_busy} times in a row with {status}"
                )
                gate.close(rest, RequestError(http_reason(status), detail))
                return False
            return True

        def may_pass(error: RequestError) -> bool:
            # All URLs of a host wait for its robots.txt; a page is requested again at the end.
            return error.is_transient or (error.is_cut_off and not is_page)

        # A host that was busy before this request gets a longer wait from the first retry on.
        waits = [
            min(_FIRST_BACKOFF * 2 ** max(n, gate.num_busy), MAX_RETRY_WAIT)
            for n in range(self._num_retries)
        ]
        return await with_retries(get_and_note, gate, waits, is_busy, may_pass)


def requested_url(posted: str) -> URL:
    """Return the URL to request for one as posted; raises ValueError."""
    return URL(requested(posted), encoded=True)


def redirect_target(response: HttpResponse) -> URL:
    """Return the target of a redirect; raises RequestError if it cannot be requested."""
    location = response.header("location")
    if not location:
        detail = f"status {response.status} without a Location"
        raise RequestError(Reason.BAD_REDIRECT, detail)
    try:
        return requested_url(str(response.location()))
    except ValueError:
        detail = f"status {response.status} to {location[:200]}"
        raise RequestError(Reason.BAD_REDIRECT, detail) from None


def _is_silent(failure: FetchFailure) -> bool:
    return failure.reason in (Reason.DNS, Reason.CONNECT, Reason.TIMEOUT, Reason.PROXY)


def rows_by_host(hosts: pa.ChunkedArray) -> Iterator[np.ndarray]:
    """Return the rows of each host, in order; hosts with the most rows first.

    The iterator does not hold `hosts`.
    """
    encoded = hosts.dictionary_encode().unify_dictionaries()
    codes = np.concatenate([chunk.indices.to_numpy() for chunk in encoded.chunks])
    num_rows = np.bincount(codes)
    rows = np.argsort(codes, kind="stable").astype(np.int32)
    ends = np.cumsum(num_rows)
    order = np.argsort(-num_rows, kind="stable").tolist()
    return (rows[ends[host] - num_rows[host] : ends[host]] for host in order)


class Cookies:
    """The cookies of one chain of redirects, which are not kept beyond it."""

    def __init__(self) -> None:
        # Made for the first cookie, since most URLs have none.
        self._jar: CookieJar | None = None

    def take(self, response: HttpResponse) -> None:
        """Keep the cookies that a response sets."""
        values = [value for name, value in response.headers if name.lower() == "set-cookie"]
        if not values:
            return
        if self._jar is None:
            self._jar = CookieJar(quote_cookie=False)
        self._jar.update_cookies_from_headers(values, URL(response.url, encoded=True))

    def header(self, url: URL) -> str | None:
        """Return the Cookie header for a request, as text that is sent in UTF-8; None for none."""
        if self._jar is None:
            return None
        text = self._jar.filter_cookies(url).output([], "", ";").strip()
        return text.encode("latin-1", "ignore").decode("utf-8", "ignore") or None
