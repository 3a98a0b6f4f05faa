"""Requests to archives on the web, which are patient: an archive that is busy or down for minutes costs no page.

A request is tried again, with growing waits, after all that time may mend. What still fails is the failure of its URL
while others succeed, and the archive's where many fail in a row: then the run stops, and continues later.
"""

from __future__ import annotations

import asyncio
import math
import random
import time
from collections import defaultdict, deque
from collections.abc import Collection, Coroutine, Iterable, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, ClassVar

from yarl import URL

from owt_pipeline.errors import UserError
from owt_pipeline.fetch.answers import Answer, NoPage, Received
from owt_pipeline.fetch.client import Client
from owt_pipeline.fetch.connections import Stop
from owt_pipeline.fetch.live import client_options, limits_of
from owt_pipeline.fetch.manners import Failed, Gate, Gates, retry_after, tried_once
from owt_pipeline.fetch.recorder import Recorder
from schemas import Reason

if TYPE_CHECKING:
    from owt_pipeline.fetch.sources import Crawl
    from owt_pipeline.fetch.stage import Options

LONGEST_PAUSE = 3600.0
"""Seconds that are waited where an archive asks for it (Retry-After); the run ends where it asks for more."""

BUSY = (403, 429, 503)
"""Statuses by which Common Crawl says that it is asked too often."""

FIRST_TRIES = 3
"""Retries of the requests that a run begins with: a misspelt host should not take minutes to be one."""

_PASSING = (Reason.DNS, Reason.CONNECT, Reason.PROXY, Reason.TIMEOUT, Reason.BAD_RESPONSE)
_FIRST_WAIT = 1.0  # seconds; doubled at each retry, and spread by half of it


class Refused(Failed):
    """An answer that no retry mends, such as 404 for a file that the index names."""


class Refusal(NoPage):
    """Why a URL has no page in an archive that answered."""


def outcome(failure: Failed) -> NoPage:
    """What a failure is for the URL that was asked for."""
    return (Refusal if isinstance(failure, Refused) else NoPage)(failure.reason, failure.detail)


class ArchiveClient:
    """Asks an archive; made and used in one event loop, by any number of tasks at once."""

    of_page: ClassVar[tuple[Reason, ...]] = ()
    """Reasons of failures that are not the archive's."""

    busy: ClassVar[Collection[int]] = (429, 503)
    """Statuses by which the archive asks for patience; a 5xx is waited for as well."""

    least_pause = 0.0
    """Seconds without any request after a 429 or 503 that does not say for how long."""

    def __init__(self, options: Options, crawl: Crawl, connections: int, delay: float, gate: Gate | None = None):
        """A client that makes so many requests at once, to index and data each, with `delay` seconds between two of all
        processes of the crawl: to each host, or through one gate."""
        live = client_options(options)
        requests = replace(
            live,
            addresses=replace(live.addresses, allowed_ports=(), allow_private=True),  # the user names them
            connections=2 * connections,
            address_delay=0.0,
            address_connections=2 * connections,
            keep_alive=max(15.0, 2 * delay),
        )
        self._options, self._limits, self._crawl, self._gate = options, limits_of(options), crawl, gate
        self._connections, self._delay = connections, delay
        self._client = Client(requests, crawl.may_ask)
        self._gates = Gates(delay, connections, requests.remembered)
        self._refused: defaultdict[str, float] = defaultdict(float)  # by host and folder, before the first that was not
        self._waiting = ""

    async def close(self) -> None:
        await self._client.close()

    def status(self) -> str:
        return f"{self._client.slots.taken:,} requests{self._waiting}"

    async def get(
        self,
        what: str,
        url: URL,
        most: int = 0,
        stop: Stop = lambda *_: False,
        *,
        headers: Mapping[str, str] | None = None,
        cut: bool = False,
    ) -> Received:
        """The response, of at most `most` bytes (0: as the options have it); `stop`, `headers`, `cut` as `Client.get`.

        Raises Failed with the reason `archive_failed`, whose detail says `what` was asked for; UserError where the
        archive asks for more patience than is had.
        """
        options, limits = self._options, self._limits
        limits = replace(limits, wire_bytes=most, body_bytes=most) if most else limits
        gate = self._gate or self._gates[url.raw_host or ""]
        gate.delay = self.delay
        problem = ""
        retries = 0 if tried_once.get() else options.archive_retries
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
                    about = " ".join(response.body[:200].decode("utf-8", "replace").split())
                    problem = f"status {response.status} {about}".strip()
                    if response.status in self.busy:
                        asked = retry_after(response) or 0.0
                        pause = asked or max(self.least_pause, min(_FIRST_WAIT, options.archive_retry_wait))
            if asked > LONGEST_PAUSE:
                raise UserError(
                    f"{what}: the archive asks to come back in {asked:,.0f} s ({problem}): run again then, "
                    "it continues where it stopped; and with a longer delay between requests"
                )
            if attempt < retries:
                wait = min(_FIRST_WAIT * 2**attempt, options.archive_retry_wait) * random.uniform(0.5, 1.5)
                gate.pause(pause)
                self._waiting = f", waiting after {attempt + 1} failures of one: {problem[:80]}"
                await asyncio.sleep(max(wait, pause))
        raise archive_failed(what, problem)

    async def get_part(self, what: str, url: URL, most: int, span: str) -> Received:
        """The response with the bytes `span` of a file; raises Failed as `get` does, also where it is another."""
        headers = {"Range": f"bytes={span}", "Accept-Encoding": "identity"}
        # A complete file, sent by a server that knows no ranges, is not read.
        response = await self.get(what, url, most, lambda status, _: status != 206, headers=headers)
        if response.status != 206:
            raise self.refused(url, what, f"status {response.status} where a part (206) was asked for")
        self.accepted(url)
        return response

    def accepted(self, url: URL) -> None:
        """Note that an answer was that of an archive."""
        self._refused[_place(url)] = -math.inf

    def refused(self, url: URL, what: str, problem: str) -> Refused:
        """The failure that an answer is which no retry mends; raises UserError where there were no others."""
        self._refused[_place(url)] += 1
        if self._refused[_place(url)] >= self._options.host_failures:
            raise UserError(
                f"none of {self._options.host_failures} answers was that of an archive, at last {what}: {problem}; "
                "check the address; the run continues where it stopped"
            )
        return Refused(Reason.ARCHIVE_FAILED, f"{what}: {problem}")

    @property
    def delay(self) -> float:
        """Seconds between two requests of this process."""
        return self._delay * self._crawl.workers()


def _place(url: URL) -> str:
    """What index and data differ in: their host, or their first folder."""
    return f"{url.raw_authority}/{url.raw_path.split('/')[1]}"


def archive_failed(what: str, problem: str) -> Failed:
    return Failed(Reason.ARCHIVE_FAILED, f"{what}: {problem}")


async def at_once(coroutines: Iterable[Coroutine[None, None, None]]) -> None:
    """Await them all; where one fails, the others end first."""
    tasks = [asyncio.ensure_future(coroutine) for coroutine in coroutines]
    try:
        await asyncio.gather(*tasks)
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


class HeldBack:
    """Failures of an archive, held back until it is known whether they are those of their URLs or of the archive.

    An archive that is down is no reason to turn URLs away: those are asked for again by the next run. A failure is
    that of its URL once a later request succeeds, or where nothing is left to ask for. URLs that have failed before,
    and are asked for once more at the end, are no sample of the archive: however many of them fail, that is theirs.
    """

    def __init__(self, recorder: Recorder, most: int):
        """Failures that go to `recorder`; `most` in a row are the archive's."""
        self._recorder, self._most = recorder, math.inf if recorder.is_last else most
        self._held: deque[tuple[float, int, NoPage]] = deque()  # when, and whose

    async def take(self, url_id: int, answer: Answer, begun: float) -> None:
        """Give the answer of a request that was begun then; raises UserError after too many failures in a row."""
        if isinstance(answer, NoPage) and answer.reason == Reason.ARCHIVE_FAILED and not isinstance(answer, Refusal):
            self._held.append((time.monotonic(), url_id, answer))
            if len(self._held) >= self._most:
                raise UserError(
                    f"the archive failed {self._most} times in a row, each time after all retries, at last: "
                    f"{answer.detail}; run again later: it continues where it stopped"
                )
            return
        await self.settle(begun)
        await self._recorder.take(url_id, answer)

    async def settle(self, begun: float = math.inf) -> None:
        """Record the failures before `begun`, when a request that succeeded was begun; at the end, all."""
        while self._held and self._held[0][0] < begun:
            _, url_id, answer = self._held.popleft()
            await self._recorder.take(url_id, answer)
