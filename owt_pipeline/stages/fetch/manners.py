"""Manners: a delay between requests to a host, a limit on requests at once, and robots.txt."""

from __future__ import annotations

import asyncio
import contextlib
import email.utils
import math
import random
import re
import time
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Iterable
from dataclasses import dataclass
from typing import TypeAlias, TypeVar

from aiohttp import CookieJar
from protego import Protego
from yarl import URL

from owt_pipeline.stages.fetch.answers import Received
from schemas import Reason

T = TypeVar("T")

ROBOTS_BYTES = 500 << 10
"""How much of a robots.txt is parsed; RFC 9309 (2.5) asks for at least this much."""
_ROBOTS_REDIRECTS = 5  # RFC 9309, 2.3.1.2
_ROBOTS_SECONDS = 24 * 3600.0  # RFC 9309, 2.4

_COMPATIBLE = re.compile(r"Mozilla/.*?\bcompatible;\s*([A-Za-z0-9_.-]+)", re.IGNORECASE).match

MAX_CRAWL_DELAY = 60.0
"""The longest Crawl-delay that is obeyed, in seconds."""

Origin: TypeAlias = tuple[str, str | None, int | None]
"""Scheme, host and port, as a key that costs less than a URL."""

Get: TypeAlias = Callable[[URL], Awaitable[Received]]
"""Gets a robots.txt, politely and with retries; raises Failed."""


@dataclass(eq=False)
class Failed(Exception):
    """A request without a usable response.

    Attributes:
      reason: why.
      detail: the same for a person.
      connected: whether there was a connection.
      transient: whether a retry may soon succeed.
      network_works: whether it shows that the network works, so that the failure is the host's.
    """

    reason: Reason
    detail: str
    connected: bool = False
    transient: bool = False
    network_works: bool = False

    def __str__(self) -> str:
        return f"{self.reason}: {self.detail}"

    @property
    def is_answer(self) -> bool:
        """Whether the host answered, which shows that the network works."""
        return self.connected and self.reason in (Reason.TOO_LARGE, Reason.BAD_RESPONSE)

    @property
    def is_of_host(self) -> bool:
        """Whether it means that the host does not answer, whatever the URL."""
        return self.reason in (Reason.CONNECT, Reason.TIMEOUT, Reason.TLS, Reason.DNS)


async def for_each(call: Callable[[T], Awaitable[None]], items: Iterable[T], together: int) -> None:
    """Await `call(item)` for each of the items, `together` of them at once; if one fails, the others are cancelled."""
    left = iter(items)

    async def work() -> None:
        for item in left:
            await call(item)

    tasks = [asyncio.ensure_future(work()) for _ in range(together)]
    try:
        await asyncio.gather(*tasks)
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


class Gate:
    """The turns at one host.

        async with gate:
            gate.begin()
            ...  # one request

    Attributes:
      delay: seconds between the starts of two requests.
      next_turn: when the next request may start, in `time.monotonic` seconds.
      failures: how often in a row the host did not answer; `failure` is the last of these failures.
      busy: how often in a row the host answered that it is busy.
    """

    def __init__(self, delay: float, connections: int, most_failures: float = math.inf):
        """A gate that fails all requests after so many failures in a row."""
        self.delay, self._most_failures = delay, most_failures
        self.next_turn = 0.0
        self.failures = 0
        self.failure: Failed | None = None
        self.busy = 0
        self.connections = asyncio.Semaphore(connections)
        self._closed: tuple[float, Failed] | None = None
        self._asked_to_close = False

    async def __aenter__(self) -> None:
        """Wait for a turn, and hold one of the connections while the block runs."""
        await self.connections.acquire()
        try:
            # In a loop, since `pause` may postpone the turn meanwhile.
            while (wait := self.next_turn - time.monotonic()) > 0:
                await asyncio.sleep(wait)
        except BaseException:
            self.connections.release()
            raise

    def begin(self) -> None:
        """Take the turn: the request is sent now, perhaps later than the gate opened, as it may wait elsewhere."""
        self.next_turn = time.monotonic() + self.delay

    async def __aexit__(self, *_: object) -> None:
        self.connections.release()

    def note(self, failure: Failed | None) -> None:
        """Note the failure of a request, or None for any answer."""
        self.failure = failure if failure is not None and failure.is_of_host else None
        self.failures = self.failures + 1 if self.failure is not None else 0

    def pause(self, seconds: float) -> None:
        """Postpone the next request by so many seconds."""
        self.next_turn = max(self.next_turn, time.monotonic() + seconds)

    def close(self, seconds: float, failure: Failed, *, asked_to: bool = False) -> None:
        """Fail all requests with `failure` for so many seconds, which is too long to wait; if the host asked for it,
        also after `forgive`."""
        self._closed, self._asked_to_close = (time.monotonic() + seconds, failure), asked_to

    def forgive(self) -> None:
        """Allow one more request to a host that was given up or closed, unless it asked for the pause."""
        self.failures = int(min(self.failures, self._most_failures - 1))
        if not self._asked_to_close:
            self._closed = None

    def check_open(self) -> None:
        """Raise Failed if the gate is closed, or the host has been given up."""
        if self._closed is not None and time.monotonic() < self._closed[0]:
            raise self._closed[1]
        if self.failure is not None and self.failures >= self._most_failures:
            detail = f"given up after {self.failures} failures of the host in a row: {self.failure.detail}"
            raise Failed(self.failure.reason, detail)


async def patiently(
    get: Callable[[], Awaitable[Received]],
    gate: Gate,
    waits: Iterable[float],
    is_busy: Callable[[Received], bool],
    may_pass: Callable[[Failed], bool],
) -> Received:
    """The response of `get`, called at a turn of `gate`, and again if the host is busy or a failure may pass.

    Before each retry, the host is left alone for one of `waits`, in seconds and spread by half of it, or for as long as
    it asks. The last response is returned, busy or not; the last failure is raised.
    """
    for wait in (*waits, None):
        async with gate:
            gate.check_open()
            try:
                response = await get()
            except Failed as failure:
                gate.note(failure)
                if wait is None or not may_pass(failure):
                    raise
                asked = 0.0
            else:
                gate.note(None)
                if not is_busy(response) or wait is None:
                    return response
                asked = retry_after(response) or 0.0
        gate.pause(max(wait * random.uniform(0.5, 1.5), asked))
    raise AssertionError("the last attempt returns or raises")


def robots_token(user_agent: str) -> str:
    """The name of a User-Agent in robots.txt: its product, or if it looks like a browser's, the compatible product:
    `mybot` for `Mozilla/5.0 (compatible; mybot/1.0; +mailto:me@example.org)`."""
    named = _COMPATIBLE(user_agent)
    return named[1] if named else user_agent.partition("/")[0].strip()


def retry_after(response: Received) -> float | None:
    """Seconds to wait by the Retry-After header, a number or a date; None without a valid one."""
    value = (response.header("retry-after") or "").strip()
    if value.isdecimal() and len(value) < 10:
        return float(value)
    try:
        return max(email.utils.parsedate_to_datetime(value).timestamp() - time.time(), 0.0)
    except (TypeError, ValueError, OverflowError):
        return None


class Cookies:
    """The cookies of one chain of redirects, which are not kept beyond it."""

    def __init__(self) -> None:
        self._jar: CookieJar | None = None

    def take(self, response: Received) -> None:
        """Keep the cookies that a response sets."""
        values = [value for name, value in response.headers if name.lower() == "set-cookie"]
        if values:
            self._jar = self._jar or CookieJar(quote_cookie=False)
            self._jar.update_cookies_from_headers(values, URL(response.url, encoded=True))

    def header(self, url: URL) -> str | None:
        """The Cookie header for a request, as text that is sent in UTF-8."""
        found = self._jar.filter_cookies(url).output([], "", ";").strip() if self._jar is not None else ""
        return found.encode("latin-1", "ignore").decode("utf-8", "ignore") or None


@dataclass(frozen=True)
class Robots:
    """A host's robots.txt: its `rules` (None: everything is allowed), or why nothing may be fetched (`ban`).

    `read` is when it was read, in `time.monotonic` seconds.
    """

    rules: Protego | None = None
    ban: Failed | None = None
    read: float = 0.0

    def check(self, url: URL, agent: str) -> None:
        """Raise Failed if `url` must not be fetched."""
        if self.ban is not None:
            raise Failed(self.ban.reason, self.ban.detail)
        if self.rules is not None and not self.rules.can_fetch(str(url), agent):
            raise Failed(Reason.ROBOTS, f"forbidden to {agent} by {url.origin()}/robots.txt")

    def crawl_delay(self, agent: str) -> float:
        """The Crawl-delay in seconds, at most MAX_CRAWL_DELAY."""
        delay = self.rules.crawl_delay(agent) if self.rules is not None else None
        return min(max(float(delay or 0), 0.0), MAX_CRAWL_DELAY)


class RobotsCache:
    """The robots.txt of origins, kept for a day; the one that has been unused for the longest is dropped first."""

    def __init__(self, get: Get, remembered: int):
        self._get, self._remembered = get, remembered
        self._tasks: OrderedDict[Origin, asyncio.Task[Robots]] = OrderedDict()

    def forget_bans(self) -> None:
        """Request each robots.txt again that could not be read."""
        for origin, task in list(self._tasks.items()):
            if task.done() and task.result().ban is not None:
                del self._tasks[origin]

    async def of(self, url: URL) -> Robots:
        """The robots.txt for `url`."""
        origin: Origin = (url.scheme, url.raw_host, url.port)
        task = self._tasks.get(origin)
        if task is None or (task.done() and time.monotonic() - task.result().read > _ROBOTS_SECONDS):
            task = self._tasks[origin] = asyncio.ensure_future(read_robots(url.origin(), self._get))
            if len(self._tasks) > self._remembered:
                self._tasks.popitem(last=False)
        self._tasks.move_to_end(origin)
        return task.result() if task.done() else await asyncio.shield(task)


async def read_robots(origin: URL, get: Get) -> Robots:
    """The robots.txt of `origin` by RFC 9309: everything is allowed without one (4xx), nothing if the server fails.

    If the host cannot be reached at all, or answers 429, that is the reason of the ban, so that its pages do not count
    as forbidden.
    """
    url, read = origin.with_path("/robots.txt"), time.monotonic()
    for _ in range(_ROBOTS_REDIRECTS + 1):
        try:
            response = await get(url)
        except Failed as failure:
            is_silent = failure.connected and failure.reason == Reason.TIMEOUT
            reason = Reason.ROBOTS_UNREACHABLE if is_silent else failure.reason
            return Robots(ban=Failed(reason, f"robots.txt: {failure.detail}"), read=read)
        if 300 <= response.status < 400 and response.header("location"):
            with contextlib.suppress(ValueError):
                url = response.location()
                if url.scheme in ("http", "https") and url.raw_host:
                    continue
            break
        if response.status >= 500 or response.status == 429:
            reason = Reason.HTTP_429 if response.status == 429 else Reason.ROBOTS_UNREACHABLE
            return Robots(ban=Failed(reason, f"robots.txt: status {response.status}"), read=read)
        if not 200 <= response.status < 300:
            break
        return Robots(Protego.parse(response.body.decode("utf-8", "replace").removeprefix("\ufeff")), read=read)
    return Robots(read=read)
