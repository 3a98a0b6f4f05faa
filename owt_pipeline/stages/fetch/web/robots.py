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

# A line as Protego reads it, with or without its hyphen and its colon.
_AGENT_LINE = re.compile(r"(\s*user[- ]?agent(?:\s*:|\s)\s*)(.*)", re.IGNORECASE).match
_EVERY_AGENT = re.compile(r"\*(?:\s|$)").match
_PRODUCT = re.compile(r"[\w.-]*").match
_NOBODY = "/"

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

    def __init__(self, get: Get, max_origins: int, agent: str):
        """Return a cache of the robots.txt of `max_origins`; `agent` is our name in them."""
        self._get = get
        self._max_origins = max_origins
        self._agent = agent
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
            task = asyncio.ensure_future(read_robots(url.origin(), self._get, self._agent))
            self._tasks[origin] = task
            if len(self._tasks) > self._max_origins:
                self._tasks.popitem(last=False)
        self._tasks.move_to_end(origin)
        # Others wait for the same task, so it goes on if this one is cancelled.
        return task.result() if task.done() else await asyncio.shield(task)


def _is_outdated(task: asyncio.Task[Robots]) -> bool:
    return task.done() and time.monotonic() - task.result().read_at > _MAX_AGE_SECONDS


def naming(agent: str, text: str) -> str:
    """Return a robots.txt in which the lines that name `agent` have its name and nothing else.

    In `User-agent: my-corpus/1.0 (news)`, the product's name counts, and all of it
    (RFC 9309, 2.2.1). Protego compares the complete line, and takes `my` for `my-corpus`, so lines
    that name others get a name that no crawler has.
    """
    lines = []
    for line in text.splitlines():
        match = _AGENT_LINE(line)
        if match is not None:
            line = f"{match[1]}{_name_for(agent, match[2])}"
        lines.append(line)
    return "\n".join(lines)


def _name_for(agent: str, value: str) -> str:
    """Return `agent` if the value of a line names it, `*` if it means every crawler."""
    value = value.partition("#")[0].strip().lower()
    if not value or _EVERY_AGENT(value):
        return value[:1]
    products = [robots_token(part.strip()) for part in (value, *value.split(","))]
    our_name = agent.lower()
    is_named = any(product == our_name or _PRODUCT(product)[0] == our_name for product in products)  # type: ignore[index]
    return agent if is_named else _NOBODY


async def read_robots(origin: URL, get: Get, agent: str) -> Robots:
    """Return the robots.txt of `origin`, whose lines for `agent` name it exactly.

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
        text = response.body.decode("utf-8", "replace").removeprefix("\ufeff")
        return Robots(Protego.parse(naming(agent, text)), read_at=read_at)
    return Robots(read_at=read_at)
