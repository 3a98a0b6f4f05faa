"""Politeness: a delay between requests to a host, and a limit on requests at once."""

from __future__ import annotations

import asyncio
import email.utils
import math
import random
import time
from collections.abc import Awaitable, Callable, Iterable
from dataclasses import dataclass
from typing import TypeVar

from owt_pipeline.stages.fetch.answers import HttpResponse
from schemas import Reason

T = TypeVar("T")


@dataclass(eq=False)
class RequestError(Exception):
    """A request without a usable response.

    Attributes:
      reason: why.
      detail: the same for a person.
      connected: whether there was a connection.
      is_cut_off: whether the head of a response came, but not all of its body.
      transient: whether a retry may soon succeed.
      network_works: whether it shows that the network works, so that the failure is the host's.
    """

    reason: Reason
    detail: str
    connected: bool = False
    is_cut_off: bool = False
    transient: bool = False
    network_works: bool = False

    def __str__(self) -> str:
        return f"{self.reason}: {self.detail}"

    @property
    def is_answer(self) -> bool:
        """Whether the host answered, which shows that the network works."""
        is_response = self.is_cut_off or self.reason in (Reason.TOO_LARGE, Reason.BAD_RESPONSE)
        return self.connected and is_response

    @property
    def is_of_origin(self) -> bool:
        """Whether no request to the host and port can succeed: none has got as far as an answer."""
        is_answered = self.is_cut_off or (self.connected and self.reason == Reason.TIMEOUT)
        reasons = (Reason.BAD_RESPONSE, Reason.TOO_LARGE)
        return not is_answered and self.reason not in reasons

    @property
    def is_of_host(self) -> bool:
        """Whether it means that the host does not answer, whatever the URL."""
        reasons = (Reason.CONNECT, Reason.TIMEOUT, Reason.TLS, Reason.DNS)
        return self.reason in reasons and not self.is_cut_off


async def for_each(call: Callable[[T], Awaitable[None]], items: Iterable[T], together: int) -> None:
    """Await `call(item)` for each of the items, `together` of them at once; if one fails, the
    others are cancelled."""
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
        self.failure: RequestError | None = None
        self.busy = 0
        self.connections = asyncio.Semaphore(connections)
        self._closed: tuple[float, RequestError] | None = None
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
        """Take the turn: the request is sent now, perhaps later than the gate opened, as it may
        wait elsewhere."""
        self.next_turn = time.monotonic() + self.delay

    async def __aexit__(self, *_: object) -> None:
        self.connections.release()

    def note(self, failure: RequestError | None) -> None:
        """Note the failure of a request, or None for any answer."""
        self.failure = failure if failure is not None and failure.is_of_host else None
        self.failures = self.failures + 1 if self.failure is not None else 0

    def pause(self, seconds: float) -> None:
        """Postpone the next request by so many seconds."""
        self.next_turn = max(self.next_turn, time.monotonic() + seconds)

    def close(self, seconds: float, failure: RequestError, *, asked_to: bool = False) -> None:
        """Fail all requests with `failure` for so many seconds, which is too long to wait; if
        the host asked for it, also after `forgive`."""
        self._closed, self._asked_to_close = (time.monotonic() + seconds, failure), asked_to

    def forgive(self) -> None:
        """Allow one more request to a host that was given up or closed, unless it asked for the
        pause."""
        self.failures = int(min(self.failures, self._most_failures - 1))
        if not self._asked_to_close:
            self._closed = None

    def check_open(self) -> None:
        """Raise RequestError if the gate is closed, or the host has been given up."""
        if self._closed is not None and time.monotonic() < self._closed[0]:
            raise self._closed[1]
        if self.failure is not None and self.failures >= self._most_failures:
            detail = (
                f"given up after {self.failures} failures of the host in a row: "
                f"{self.failure.detail}"
            )
            raise RequestError(self.failure.reason, detail)


async def with_retries(
    get: Callable[[], Awaitable[HttpResponse]],
    gate: Gate,
    waits: Iterable[float],
    is_busy: Callable[[HttpResponse], bool],
    may_pass: Callable[[RequestError], bool],
) -> HttpResponse:
    """The response of `get`, called at a turn of `gate`, and again if the host is busy or a
    failure may pass.

    Before each retry, the host is left alone for one of `waits`, in seconds and spread by half of
    it, or for as long as it asks. The last response is returned, busy or not; the last failure is
    raised.
    """
    for wait in (*waits, None):
        async with gate:
            gate.check_open()
            try:
                response = await get()
            except RequestError as failure:
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


def retry_after(response: HttpResponse) -> float | None:
    """Seconds to wait by the Retry-After header, a number or a date; None without a valid one."""
    value = (response.header("retry-after") or "").strip()
    if value.isdecimal() and len(value) < 10:
        return float(value)
    try:
        return max(email.utils.parsedate_to_datetime(value).timestamp() - time.time(), 0.0)
    except (TypeError, ValueError, OverflowError):
        return None
