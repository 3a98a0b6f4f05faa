"""robots.txt by RFC 9309, parsed by protego: one a host, scheme and port, asked for once."""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from collections.abc import Awaitable, Callable
from dataclasses import dataclass

from protego import Protego
from yarl import URL

from owt_pipeline.fetch.answers import NoPage
from owt_pipeline.fetch.client import Failed, Received
from owt_pipeline.fetch.connections import Origin, origin_of
from schemas import Reason

MAX_BYTES = 500 << 10
"""What is parsed of a robots.txt; RFC 9309 (2.5) asks for no less."""

MAX_REDIRECTS = 5  # RFC 9309, 2.3.1.2

MAX_CRAWL_DELAY = 60.0
"""A host that asks for more seconds between two requests gets this many."""

Get = Callable[[URL], Awaitable[Received]]
"""Gets a robots.txt, politely and with retries; raises Failed."""


@dataclass(frozen=True)
class Robots:
    """What a robots.txt says: `rules` (None: all is allowed), or why nothing may be fetched."""

    rules: Protego | None = None
    ban: NoPage | None = None

    def refuse(self, url: URL, agent: str) -> NoPage | None:
        """Why `url` must not be fetched; None if it may be."""
        if self.ban is not None:
            return self.ban
        if self.rules is not None and not self.rules.can_fetch(str(url), agent):
            return NoPage(Reason.ROBOTS, f"forbidden to {agent} by {url.origin()}/robots.txt")
        return None

    def crawl_delay(self, agent: str) -> float:
        """Seconds between two requests that it asks for, up to MAX_CRAWL_DELAY."""
        delay = self.rules.crawl_delay(agent) if self.rules is not None else None
        return min(max(float(delay or 0), 0.0), MAX_CRAWL_DELAY)


class RobotsCache:
    """The robots.txt of every origin asked for, the longest unused forgotten first."""

    def __init__(self, get: Get, remembered: int):
        self._get, self._remembered = get, remembered
        self._tasks: OrderedDict[Origin, asyncio.Task[Robots]] = OrderedDict()

    async def of(self, url: URL) -> Robots:
        """The robots.txt for `url`; raises Failed where the host does not answer."""
        origin = origin_of(url)
        task = self._tasks.get(origin)
        if task is None:
            task = self._tasks[origin] = asyncio.ensure_future(read_robots(url.origin(), self._get))
            if len(self._tasks) > self._remembered:
                self._tasks.popitem(last=False)
        self._tasks.move_to_end(origin)
        return task.result() if task.done() else await asyncio.shield(task)


async def read_robots(origin: URL, get: Get) -> Robots:
    """The robots.txt of `origin`, which allows all where it is absent and bans all where the server fails.

    A host that cannot be reached at all bans for that reason, so that its pages are not counted as forbidden.
    """
    url = origin.with_path("/robots.txt")
    for _ in range(MAX_REDIRECTS + 1):
        try:
            response = await get(url)
        except Failed as failure:
            answer = failure.answer
            if failure.connected and answer.reason == Reason.TIMEOUT:
                return Robots(ban=NoPage(Reason.ROBOTS, f"robots.txt is unreachable, which bans: {answer.detail}"))
            if answer.reason != Reason.BLOCKED_ADDRESS:
                answer = NoPage(answer.reason, f"robots.txt: {answer.detail}")
            return Robots(ban=answer)
        location = response.header("location")
        if 300 <= response.status < 400 and location:
            try:
                url = response.location()
                if url.scheme not in ("http", "https") or not url.raw_host:
                    return Robots()
            except ValueError:
                return Robots()
            continue
        if response.status >= 500 or response.status == 429:
            return Robots(ban=NoPage(Reason.ROBOTS, f"robots.txt is unreachable, which bans: status {response.status}"))
        if not 200 <= response.status < 300:
            return Robots()
        return Robots(Protego.parse(response.body.decode("utf-8", "replace").removeprefix("\ufeff")))
    return Robots()
