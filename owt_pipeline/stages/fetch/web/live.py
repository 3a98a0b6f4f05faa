"""Pages over HTTP: redirects, robots.txt, retries, and a turn at the host before every request."""

from __future__ import annotations

import asyncio
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
"""The longest wait before a retry, in seconds; a host that asks for more is not asked again."""

HOST_FAILURES = 20
"""Failed connections and timeouts in a row after which a host is given up."""

_BUSY = (429, 503)
_NO_ROBOTS = (429, *range(500, 600))
"""Statuses of a robots.txt that forbid a complete host, so the request is retried."""

_MOST_BUSY = 5
_FIRST_REST, _LONGEST_REST = 60.0, 3600.0
"""After so many 429 or 503 in a row, a host is closed for so many seconds, after one more for
twice as long, and so on. Its URLs are temporary failures meanwhile."""

OUTAGE_HOSTS = 20
"""If so many hosts in a row give no answer, the network, the resolver or the proxy may be down."""

_WITNESSES = 5  # hosts that answered last, which are asked whether the network works
_FIRST_BACKOFF = 1.0  # seconds; doubled at each retry, and spread by half of it


class Fetcher:
    """The client of the live web; to be made and used in one event loop.

    Attributes:
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
        self._retries = RETRIES
        self._agent = robots_token(options.user_agent)
        self._robots = RobotsCache(self._get_robots, self.client.remembered, self._agent)
        # URLs that were answered, by host, the latest at the end; origins are made of few of them.
        self._alive: OrderedDict[str, URL] = OrderedDict()
        self._network_works = False

    async def close(self) -> None:
        await self.client.close()

    async def ask(self, urls: pa.Table, recorder: Recorder, before: SegmentReader | None) -> None:
        """Fetch each URL of `urls` (columns url_id, posted_url, host), answers to `recorder`.

        Only some hosts are open at a time, those with the most URLs first, since they take longest;
        a host's URLs are fetched in the order of the rows. With all hosts open, a large crawl would
        return to each so late that its robots.txt, address and connection would no longer be kept.
        """
        if recorder.is_last:
            self._try_once()
        held = CircuitBreaker(
            recorder, OUTAGE_HOSTS, _is_silent, "hosts in a row gave no answer", self._works
        )
        url_ids = urls["url_id"].to_numpy()
        posted = urls["posted_url"].combine_chunks()
        hosts = rows_by_host(urls["host"])
        del urls  # the hosts' names are not needed any more
        # 80 MB for a million URLs, for the time of the crawl
        pa.default_memory_pool().release_unused()
        if before is not None:
            for url in before.rows(before.pages[:3])["final_url"].to_pylist():
                self._mark_alive(URL(url, encoded=True))
            await asyncio.sleep(self.options.host_delay)

        async def fetch_host(rows: np.ndarray) -> None:
            for row in rows.tolist():
                begun = time.monotonic()
                fetched = await self._fetch(posted[row].as_py())
                await held.take(int(url_ids[row]), fetched, begun, name=str(rows[0]))

        await for_each(fetch_host, hosts, self.options.connections)
        await held.settle()

    async def _fetch(self, posted_url: str) -> FetchedResponse | FetchFailure:
        """The final response for a URL as it was posted, or why there is none."""
        try:
            url = requested_url(posted_url)
        except ValueError as error:
            return FetchFailure(Reason.BAD_URL, f"{error}")
        try:
            return await self._follow(url)
        except RequestError as failure:
            return FetchFailure(failure.reason, failure.detail)

    def _try_once(self) -> None:
        """From now on, retry no request; but allow one more to hosts that were given up, and for
        each robots.txt that could not be read."""
        self._retries = 0
        for gate in self.gates.values():
            gate.forgive()
        self._robots.forget_bans()

    def _mark_alive(self, url: URL) -> None:
        """Note that the host of a URL has answered."""
        host = url.raw_host or ""
        self._alive[host] = url
        self._alive.move_to_end(host)
        if len(self._alive) > _WITNESSES:
            self._alive.popitem(last=False)

    async def _works(self) -> bool:
        """Whether the network works: a host that answered before answers now. If none ever
        answered, whether a failure has shown it, such as a refused connection or the resolver's
        answer that a name does not exist."""
        for url in reversed(list(self._alive.values())):
            if await self._answers(url.origin()):
                return True
        return self._network_works and not self._alive

    async def _answers(self, origin: URL) -> bool:
        """Whether a host gives any answer."""
        robots = origin.with_path("/robots.txt")
        gate = self.gates[robots.raw_host or ""]
        try:
            async with gate:
                await self.client.get(robots, lambda *_: True, gate, encoded=True, cut=True)
        except RequestError as failure:
            return failure.is_answer
        return True

    async def _follow(self, url: URL) -> FetchedResponse | FetchFailure:
        started = int(time.time())
        redirects: list[HttpResponse] = []
        seen: list[tuple[URL, str | None]] = []
        ms, cookies = 0, Cookies()
        while True:
            cookie = cookies.header(url)
            seen.append((url, cookie))
            try:
                response = await self._get_page(url, ms, {"Cookie": cookie} if cookie else None)
            except RequestError as failure:
                if not redirects:
                    raise
                reason = Reason.BAD_REDIRECT if failure.reason == Reason.BAD_URL else failure.reason
                return FetchFailure(reason, f"redirected to {url}: {failure.detail}")
            ms += response.ms
            if response.status not in REDIRECTS:
                return FetchedResponse(
                    response, tuple(redirects), started, ms, self.options.max_page_bytes
                )
            redirects.append(response)
            cookies.take(response)
            url = redirect_target(response)
            if (url, cookies.header(url)) in seen:
                return FetchFailure(
                    Reason.REDIRECT_LOOP, f"back to {url} after {len(redirects)} redirects"
                )
            if len(redirects) > MAX_REDIRECTS:
                return FetchFailure(Reason.REDIRECT_LOOP, f"more than {MAX_REDIRECTS} redirects")

    async def _get_page(self, url: URL, ms: int, headers: Mapping[str, str] | None) -> HttpResponse:
        robots = await self._robots.of(url)
        robots.check(url, self._agent)
        gate = self.gates[url.raw_host or ""]
        gate.delay = max(self.options.host_delay, robots.crawl_delay(self._agent))
        left = max(self.options.timeout - ms / 1000, 0.001)
        get = partial(
            self.client.get, url, has_no_page, gate, seconds=left, encoded=True, headers=headers
        )
        return await self._get(get, url, gate, _BUSY, is_page=True)

    async def _get_robots(self, url: URL) -> HttpResponse:
        gate = self.gates[url.raw_host or ""]
        get = partial(
            self.client.get, url, lambda status, _: status != 200, gate, most=ROBOTS_BYTES, cut=True
        )
        return await self._get(get, url, gate, _NO_ROBOTS)

    async def _get(
        self,
        get: Callable[[], Awaitable[HttpResponse]],
        url: URL,
        gate: Gate,
        busy: Collection[int],
        is_page: bool = False,
    ) -> HttpResponse:
        """The result of `get`, called at the turns of `gate`; it is retried after the statuses
        `busy` and transient failures. Raises RequestError. A host whose pages are busy too often in a
        row is closed."""

        async def noted() -> HttpResponse:
            try:
                response = await get()
            except RequestError as failure:
                self._network_works |= failure.network_works
                if failure.is_answer:
                    self._mark_alive(url)
                raise
            self._mark_alive(url)
            return response

        def is_busy(response: HttpResponse) -> bool:
            status = response.status
            gate.busy = gate.busy + 1 if status in _BUSY else 0
            if is_page and gate.busy >= _MOST_BUSY:
                rest = min(_FIRST_REST * 2 ** (gate.busy - _MOST_BUSY), _LONGEST_REST)
                detail = f"not asked: the host answered {gate.busy} times in a row with {status}"
                gate.close(rest, RequestError(http_reason(status), detail))
                return False
            if status in busy and (asked := retry_after(response) or 0.0) > MAX_RETRY_WAIT:
                detail = f"not asked: the host answered {status} and asked for {asked:,.0f} s"
                gate.close(asked, RequestError(http_reason(status), detail), asked_to=True)
                return False
            return status in busy

        waits = (
            min(_FIRST_BACKOFF * 2 ** max(n, gate.busy), MAX_RETRY_WAIT)
            for n in range(self._retries)
        )

        def may_pass(failure: RequestError) -> bool:
            # All URLs of a host wait for its robots.txt; a page is asked for again at the end.
            return failure.transient or (failure.is_cut_off and not is_page)

        return await with_retries(noted, gate, waits, is_busy, may_pass)


def requested_url(posted: str) -> URL:
    """The URL to request for one as posted; raises ValueError."""
    return URL(requested(posted), encoded=True)


def redirect_target(response: HttpResponse) -> URL:
    """The target of a redirect; raises RequestError if it cannot be requested."""
    location = response.header("location")
    if not location:
        raise RequestError(Reason.BAD_REDIRECT, f"status {response.status} without a Location")
    try:
        return requested_url(str(response.location()))
    except ValueError:
        raise RequestError(
            Reason.BAD_REDIRECT, f"status {response.status} to {location[:200]}"
        ) from None


def _is_silent(answer: FetchFailure) -> bool:
    return answer.reason in (Reason.DNS, Reason.CONNECT, Reason.TIMEOUT, Reason.PROXY)


def rows_by_host(hosts: pa.ChunkedArray) -> Iterator[np.ndarray]:
    """The rows of each host, in order; hosts with the most rows first. The iterator does not
    hold `hosts`."""
    encoded = hosts.dictionary_encode().unify_dictionaries()
    codes = np.concatenate([chunk.indices.to_numpy() for chunk in encoded.chunks])
    counts = np.bincount(codes)
    rows = np.argsort(codes, kind="stable").astype(np.int32)  # by host
    ends = np.cumsum(counts)
    order = np.argsort(-counts, kind="stable").tolist()
    return (rows[ends[host] - counts[host] : ends[host]] for host in order)


class Cookies:
    """The cookies of one chain of redirects, which are not kept beyond it."""

    def __init__(self) -> None:
        self._jar: CookieJar | None = None

    def take(self, response: HttpResponse) -> None:
        """Keep the cookies that a response sets."""
        values = [value for name, value in response.headers if name.lower() == "set-cookie"]
        if values:
            self._jar = self._jar or CookieJar(quote_cookie=False)
            self._jar.update_cookies_from_headers(values, URL(response.url, encoded=True))

    def header(self, url: URL) -> str | None:
        """The Cookie header for a request, as text that is sent in UTF-8."""
        found = (
            self._jar.filter_cookies(url).output([], "", ";").strip()
            if self._jar is not None
            else ""
        )
        return found.encode("latin-1", "ignore").decode("utf-8", "ignore") or None
