"""Patient requests to archives on the web: an archive that is busy or down for some minutes costs no page.

A request that fails temporarily is retried, with growing waits. If it still fails while others succeed, its URL is
rejected. If many fail in a row, the archive is down: the run stops, and continues when it is run again.
"""

from __future__ import annotations

import asyncio
import math
import random
from collections import defaultdict
from collections.abc import Collection, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, ClassVar

from yarl import URL

from owt_pipeline.errors import UserError
from owt_pipeline.stages.fetch.answers import NoPage, Received
from owt_pipeline.stages.fetch.breaker import Breaker
from owt_pipeline.stages.fetch.client import Client, Limits, Stop
from owt_pipeline.stages.fetch.manners import Failed, Gate, Gates, retry_after, tried_once
from owt_pipeline.stages.fetch.recorder import Recorder
from schemas import Reason

if TYPE_CHECKING:
    from owt_pipeline.stages.fetch.sources import Crawl
    from owt_pipeline.stages.fetch.stage import Options

LONGEST_PAUSE = 3600.0
"""The longest Retry-After, in seconds, that is waited for; if an archive asks for more, the run ends."""

RETRIES = 10
"""How often a request is retried after a failed connection, a timeout, 429 or 5xx."""

MAX_RETRY_WAIT = 60.0
"""The longest wait before such a retry, in seconds; the first one is a second, each further one twice as long."""

MAX_FAILURES = 20
"""Failed requests in a row, after all retries, after which the archive is down."""

BUSY = (403, 429, 503)
"""Statuses with which Common Crawl answers too many requests."""

_PASSING = (Reason.DNS, Reason.CONNECT, Reason.PROXY, Reason.TIMEOUT, Reason.BAD_RESPONSE)
_FIRST_WAIT = 1.0  # seconds; doubled at each retry, and spread by half of it


class Refused(Failed):
    """An answer that no retry can change, such as 404 for a file that the index names."""


class Refusal(NoPage):
    """Why a URL has no page, although the archive answered."""


def outcome(failure: Failed) -> NoPage:
    """The outcome of the URL whose request failed."""
    return (Refusal if isinstance(failure, Refused) else NoPage)(failure.reason, failure.detail)


class ArchiveClient:
    """Makes requests to an archive; to be made and used in one event loop, by any number of tasks at once."""

    of_page: ClassVar[tuple[Reason, ...]] = ()
    """Reasons that concern the page, and not the archive."""

    busy: ClassVar[Collection[int]] = (429, 503)
    """Statuses after which a request is retried, in addition to 5xx."""

    least_pause = 0.0
    """Seconds without any request after a busy answer without Retry-After."""

    def __init__(self, options: Options, crawl: Crawl, connections: int, delay: float, gate: Gate | None = None):
        """A client for `connections` requests at once to the index, and as many to the data, with `delay` seconds
        between two requests of all processes of the crawl: to each host, or through one `gate`."""
        asking = replace(
            options,
            allowed_ports=(),
            allow_private_hosts=True,  # the user names them
            connections=2 * connections,
            host_delay=delay,
        )
        self._options, self._limits, self._crawl, self._gate = options, Limits.of_page(options), crawl, gate
        self._connections, self._delay = connections, delay
        self._client = Client(asking, crawl.may_ask)
        self._gates = Gates(delay, connections, self._client.remembered)
        self._refused: defaultdict[str, float] = defaultdict(float)  # by host and folder, before the first that was not
        self._waiting = ""

    async def close(self) -> None:
        await self._client.close()

    def status(self) -> str:
        return f"{self._client.requests:,} requests{self._waiting}"

    async def get(
        self,
        what: str,
        url: URL,
        most: int = 0,
        stop: Stop = lambda *_: False,
        *,
        headers: Mapping[str, str] | None = None,
        cut: bool = False,
        retries: float = math.inf,
    ) -> Received:
        """The response, of at most `most` bytes (0: by the options); `stop`, `headers` and `cut` as in `Client.get`.
        After a temporary failure, there are at most `retries` and RETRIES more requests.

        Raises Failed with the reason `archive_failed`, whose detail names `what` was requested; UserError if the
        archive asks for a wait longer than LONGEST_PAUSE.
        """
        limits = replace(self._limits, wire_bytes=most, body_bytes=most) if most else self._limits
        gate = self._gate or self._gates[url.raw_host or ""]
        gate.delay = self.delay
        problem = ""
        retries = 0 if tried_once.get() else int(min(retries, RETRIES))
        for attempt in range(retries + 1):
            asked = pause = 0.0
            async with gate:
                try:
                    response = await self._client.get(url, limits, stop, gate, cut=cut, headers=headers)
                except Failed as failure:
                    if failure.reason in self.of_page:
                        raise
                    if failure.reason not in _PASSING:
                        raise self.refused(url, what, f"{failure.reason}, {failure.detail}") from failure
                    problem = f"{failure.reason}, {failure.detail}"
                else:
                    if response.status not in self.busy and response.status < 500:
                        self._waiting = ""
                        return response
                    problem = f"status {response.status} {response.beginning()}".strip()
                    if response.status in self.busy:
                        asked = retry_after(response) or 0.0
                        pause = asked or max(self.least_pause, min(_FIRST_WAIT, MAX_RETRY_WAIT))
            if asked > LONGEST_PAUSE:
                raise UserError(
                    f"{what}: the archive asks for a wait of {asked:,.0f} s ({problem}): run the same command again "
                    "after that, with a longer delay between requests; it continues where it stopped"
                )
            if attempt < retries:
                wait = min(_FIRST_WAIT * 2**attempt, MAX_RETRY_WAIT) * random.uniform(0.5, 1.5)
                gate.pause(pause)
                self._waiting = f", waiting after {attempt + 1} failures of one: {problem[:80]}"
                await asyncio.sleep(max(wait, pause))
        raise archive_failed(what, problem)

    async def get_part(self, what: str, url: URL, most: int, span: str) -> Received:
        """The response with the bytes `span` of a file; raises Failed as `get` does, and for any status but 206."""
        headers = {"Range": f"bytes={span}", "Accept-Encoding": "identity"}
        # The complete file, sent by a server that does not know ranges, is not read.
        response = await self.get(what, url, most, lambda status, _: status != 206, headers=headers)
        if response.status != 206:
            raise self.refused(url, what, f"status {response.status} where a part (206) was asked for")
        self.accepted(url)
        return response

    def accepted(self, url: URL) -> None:
        """Note that the server answers as an archive does."""
        self._refused[_place(url)] = -math.inf

    def refused(self, url: URL, what: str, problem: str) -> Refused:
        """The failure for an answer that no retry can change; raises UserError if there were no other answers."""
        self._refused[_place(url)] += 1
        if self._refused[_place(url)] >= MAX_FAILURES:
            raise UserError(
                f"none of {MAX_FAILURES} answers came from an archive; the last one, {what}: {problem}. "
                "Check the address and run the same command again: it continues where it stopped"
            )
        return Refused(Reason.ARCHIVE_FAILED, f"{what}: {problem}")

    @property
    def delay(self) -> float:
        """Seconds between two requests of this process."""
        return self._delay * self._crawl.workers()


def _place(url: URL) -> str:
    """Host and first folder of a URL, by which index and data differ."""
    return f"{url.raw_authority}/{url.raw_path.split('/')[1]}"


def archive_failed(what: str, problem: str) -> Failed:
    return Failed(Reason.ARCHIVE_FAILED, f"{what}: {problem}")


def breaker(recorder: Recorder) -> Breaker:
    """The breaker for an archive that is down after MAX_FAILURES in a row. URLs that failed before and are retried
    at the end say nothing about the archive, so all of their failures are outcomes."""
    what = "requests in a row to the archive failed after all retries"
    return Breaker(recorder, math.inf if recorder.is_last else MAX_FAILURES, _is_down, what)


def _is_down(answer: NoPage) -> bool:
    return answer.reason == Reason.ARCHIVE_FAILED and not isinstance(answer, Refusal)
