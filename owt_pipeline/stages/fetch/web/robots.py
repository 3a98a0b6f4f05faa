"""robots.txt by RFC 9309: which URLs a crawler may request, and how often."""

from __future__ import annotations

import asyncio
import contextlib
import re
import time
from collections import OrderedDict
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import TypeAlias

from protego import Protego
from yarl import URL

from owt_pipeline.stages.fetch.answers import HttpResponse
from owt_pipeline.stages.fetch.web.politeness import RequestError
from schemas import Reason

ROBOTS_BYTES = 500 << 10
"""Bytes of a robots.txt that are parsed. RFC 9309 (2.5) requires at least this many."""

# RFC 9309, 2.3.1.2: "at least five consecutive redirects".
_MAX_REDIRECTS = 5

# RFC 9309, 2.4: not longer than a day.
_MAX_AGE_SECONDS = 24 * 3600.0

_COMPATIBLE = re.compile(r"Mozilla/.*?\bcompatible;\s*([A-Za-z0-9_.-]+)", re.IGNORECASE).match

# Only CR and LF end a line (RFC 9309, 2.2), and `str.splitlines`, which Protego calls, ends one at
# these characters also.
_BLANK_BY_OTHER_LINE_END = str.maketrans(dict.fromkeys("\v\f\x1c\x1d\x1e\x85\u2028\u2029", " "))

MAX_CRAWL_DELAY = 60.0
"""A longer Crawl-delay is cut to this many seconds."""

Origin: TypeAlias = tuple[str, str | None, int | None]
"""Scheme, host and port, as a key that costs less than a URL."""

Get: TypeAlias = Callable[[URL], Awaitable[HttpResponse]]
"""Requests a robots.txt, politely and with retries; raises RequestError."""


def robots_token(user_agent: str) -> str:
    """Return the name of a User-Agent in robots.txt: its product.

    If it looks like a browser's, that is the compatible product: `mybot` for `Mozilla/5.0
    (compatible; mybot/1.0; +mailto:me@example.org)`.
    """
    named = _COMPATIBLE(user_agent)
    return named[1] if named else user_agent.partition("/")[0].strip()


@dataclass(frozen=True)
class Robots:
    """A host's robots.txt.

    Attributes:
      rules: its rules; None if everything is allowed, or if there is a ban.
      ban: the error of each URL of the host, if nothing may be fetched; otherwise None.
      read_at: when it was read, in `time.monotonic` seconds.
    """

    rules: Protego | None = None
    ban: RequestError | None = None
    read_at: float = 0.0

    def check(self, url: URL, agent: str) -> None:
        """Raise RequestError if `url` must not be fetched."""
        if self.ban is not None:
            raise RequestError(self.ban.reason, self.ban.detail)
        if self.rules is not None and not self.rules.can_fetch(str(url), agent):
            raise RequestError(Reason.ROBOTS, f"forbidden to {agent} by {url.origin()}/robots.txt")

    def crawl_delay(self, agent: str) -> float:
        """Return the Crawl-delay in seconds, at most MAX_CRAWL_DELAY; 0 without one."""
        delay = self.rules.crawl_delay(agent) if self.rules is not None else None
        return min(max(float(delay or 0), 0.0), MAX_CRAWL_DELAY)


class RobotsCache:
    """The robots.txt of origins, each kept for at most a day.

    If there are too many, the robots.txt that has not been used for the longest time is dropped.
    """

    def __init__(self, get: Get, max_origins: int):
        """Return a cache of the robots.txt of `max_origins`."""
        self._get = get
        self._max_origins = max_origins
        self._tasks: OrderedDict[Origin, asyncio.Task[Robots]] = OrderedDict()

    def forget_bans(self) -> None:
        """Request each robots.txt again that could not be read."""
        for origin, task in list(self._tasks.items()):
            if task.done() and task.result().ban is not None:
                del self._tasks[origin]

    async def of(self, url: URL) -> Robots:
        """Return the robots.txt for `url`, which is requested if it is not known."""
        origin: Origin = (url.scheme, url.raw_host, url.port)
        task = self._tasks.get(origin)
        if task is None or _is_outdated(task):
            task = asyncio.ensure_future(read_robots(url.origin(), self._get))
            self._tasks[origin] = task
            if len(self._tasks) > self._max_origins:
                self._tasks.popitem(last=False)
        self._tasks.move_to_end(origin)
        # Others wait for the same task, so it goes on if this one is cancelled.
        return task.result() if task.done() else await asyncio.shield(task)


def _is_outdated(task: asyncio.Task[Robots]) -> bool:
    return task.done() and time.monotonic() - task.result().read_at > _MAX_AGE_SECONDS


def parse_robots(body: bytes) -> Protego:
    """Return the rules of a robots.txt, as Protego reads its lines."""
    text = body.decode("utf-8", "replace").removeprefix("\ufeff")
    return Protego.parse(text.translate(_BLANK_BY_OTHER_LINE_END))


async def read_robots(origin: URL, get: Get) -> Robots:
    """Return the robots.txt of `origin`.

    By RFC 9309, a missing file (4xx) allows everything, and a file that cannot be read allows
    nothing. If the host itself cannot be reached or responds with 429, the ban has that reason
    instead, so that the host's pages do not count as forbidden.
    """
    url = origin.with_path("/robots.txt")
    read_at = time.monotonic()
    for _ in range(_MAX_REDIRECTS + 1):
        try:
            response = await get(url)
        except RequestError as error:
            is_of_host = error.is_of_origin and url.raw_host == origin.raw_host
            reason = Reason.ROBOTS_UNREACHABLE
            if is_of_host:
                reason = error.reason
            return Robots(ban=RequestError(reason, f"robots.txt: {error.detail}"), read_at=read_at)
        if 300 <= response.status < 400 and response.header("location"):
            with contextlib.suppress(ValueError):
                url = response.location()
                if url.scheme in ("http", "https") and url.raw_host:
                    continue
            break
        if response.status >= 500 or response.status == 429:
            reason = Reason.ROBOTS_UNREACHABLE
            if response.status == 429:
                reason = Reason.HTTP_429
            ban = RequestError(reason, f"robots.txt: status {response.status}")
            return Robots(ban=ban, read_at=read_at)
        if not 200 <= response.status < 300:
            break
        return Robots(parse_robots(response.body), read_at=read_at)
    return Robots(read_at=read_at)
