"""Politeness: a delay between requests to a host, a limit on requests at once, and hosts given up.

The clients choose the delay and the limit (web/live.py, archives/client.py). A Gate enforces them.
"""

from __future__ import annotations

import asyncio
import email.utils
import math
import random
import time
from collections.abc import Awaitable, Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import TypeVar

from owt_pipeline.stages.fetch.answers import HttpResponse
from schemas import Reason

T = TypeVar("T")

# A Retry-After with this many digits or more is not a number of seconds: 30 years or more.
_TOO_MANY_DIGITS = 10


@dataclass(eq=False)
class RequestError(Exception):
    """A request without a usable response.

    Attributes:
      reason: why.
      detail: the same for a person.
      is_connected: whether there was a connection.
      is_cut_off: whether the head of a response came, but not all of its body.
      is_transient: whether a retry may soon succeed.
      shows_network: whether it shows that the network works, so that the failure is the host's.
    """

    reason: Reason
    detail: str
    is_connected: bool = False
    is_cut_off: bool = False
    is_transient: bool = False
    shows_network: bool = False

    def __str__(self) -> str:
        return f"{self.reason}: {self.detail}"

    @property
    def is_response(self) -> bool:
        """Whether the host responded, which shows that the network works."""
        has_head = self.is_cut_off or self.reason in (Reason.TOO_LARGE, Reason.BAD_RESPONSE)
        return self.is_connected and has_head

    @property
    def is_of_origin(self) -> bool:
        """Whether it came before any response, so that other URLs of the origin fail, too.

        A timeout after the request was sent is not included.
        """
        is_silent = self.is_connected and self.reason == Reason.TIMEOUT
        of_response = (Reason.BAD_RESPONSE, Reason.TOO_LARGE)
        return not (self.is_cut_off or is_silent or self.reason in of_response)

    @property
    def is_of_host(self) -> bool:
        """Whether it means that the host does not respond, whatever the URL.

        A timeout after the request was sent is included.
        """
        reasons = (Reason.CONNECT, Reason.TIMEOUT, Reason.TLS, Reason.DNS)
        return self.reason in reasons and not self.is_cut_off


async def for_each(
    call: Callable[[T], Awaitable[None]], items: Iterable[T], max_concurrent: int
) -> None:
    """Await `call(item)` for each of the items, some at once.

    If one fails, the others are cancelled.
    """
    waiting = iter(items)

    async def work() -> None:
        for item in waiting:
            await call(item)

    tasks = [asyncio.ensure_future(work()) for _ in range(max_concurrent)]
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
      num_failures: how often in a row the host did not respond.
      last_failure: the last of these failures.
      num_busy: how often in a row the host responded that it is busy; live.py counts.
    """

    def __init__(self, delay: float, connections: int, max_failures: float = math.inf):
        """Return a gate that fails all requests after `max_failures` in a row."""
        self.delay = delay
        self.next_turn = 0.0
        self.num_failures = 0
        self.last_failure: RequestError | None = None
        self.num_busy = 0
        self._connections = asyncio.Semaphore(connections)
        self._max_failures = max_failures
        self._closed_until = 0.0
        self._closed_by: RequestError | None = None
        self._is_closed_by_host = False

    async def __aenter__(self) -> None:
        """Wait until a turn is free, and hold one of the connections while the block runs.

        Nothing is reserved before `begin`: another request may take the turn first.
        """
        await self._connections.acquire()
        try:
            # In a loop, since `pause` may postpone the turn meanwhile.
            while (wait := self.next_turn - time.monotonic()) > 0:
                await asyncio.sleep(wait)
        except BaseException:
            self._connections.release()
            raise

    def begin(self) -> None:
        """Take the turn: the request is sent now, which may be later than the block began."""
        self.next_turn = time.monotonic() + self.delay

    async def __aexit__(self, *_: object) -> None:
        self._connections.release()

    def note(self, error: RequestError | None) -> None:
        """Note the failure of a request, or None for any response."""
        if error is None or not error.is_of_host:
            self.last_failure = None
            self.num_failures = 0
            return
        self.last_failure = error
        self.num_failures += 1

    def pause(self, seconds: float) -> None:
        """Postpone the next request, by `seconds` from now."""
        self.next_turn = max(self.next_turn, time.monotonic() + seconds)

    def close(self, seconds: float, error: RequestError, *, asked_to: bool = False) -> None:
        """Fail all requests with `error` for `seconds`, which is too long to wait.

        With `asked_to`, the host wants it, so `reset` does not open the gate.
        """
        self._closed_until = time.monotonic() + seconds
        self._closed_by = error
        self._is_closed_by_host = asked_to

    def reset(self) -> None:
        """Allow one more request to a host that was given up or closed.

        A gate that the host asked to close stays closed.
        """
        self.num_failures = int(min(self.num_failures, self._max_failures - 1))
        if not self._is_closed_by_host:
            self._closed_by = None

    def check_open(self) -> None:
        """Raise RequestError if the gate is closed, or the host has been given up."""
        if self._closed_by is not None and time.monotonic() < self._closed_until:
            raise self._closed_by
        if self.last_failure is not None and self.num_failures >= self._max_failures:
            detail = (
                f"given up after {self.num_failures} failures of the host in a row: "
                f"{self.last_failure.detail}"
            )
            raise RequestError(self.last_failure.reason, detail)


async def with_retries(
    get: Callable[[], Awaitable[HttpResponse]],
    gate: Gate,
    waits: Sequence[float],
    is_busy: Callable[[HttpResponse], bool],
    may_pass: Callable[[RequestError], bool],
) -> HttpResponse:
    """Return the response of `get`, called at a turn of `gate`, which calls `gate.begin`.

    It is called again if the host is busy or a failure may pass. Before each retry, the host is
    left alone for one of `waits`, in seconds and spread by half of it, or for as long as it asks.
    The last response is returned, busy or not; the last failure is raised.
    """
    for wait in (*waits, None):
        async with gate:
            gate.check_open()
            try:
                response = await get()
            except RequestError as error:
                gate.note(error)
                if wait is None or not may_pass(error):
                    raise
                asked_wait = 0.0
            else:
                gate.note(None)
                if not is_busy(response) or wait is None:
                    return response
                asked_wait = retry_after(response) or 0.0
        gate.pause(max(wait * random.uniform(0.5, 1.5), asked_wait))
    raise AssertionError("the last attempt returns or raises")


def retry_after(response: HttpResponse) -> float | None:
    """Return the seconds to wait by the Retry-After header, a number or a date.

    Returns None without a valid header.
    """
    value = (response.header("retry-after") or "").strip()
    if value.isdecimal() and len(value) < _TOO_MANY_DIGITS:
        return float(value)
    try:
        return max(email.utils.parsedate_to_datetime(value).timestamp() - time.time(), 0.0)
    except (TypeError, ValueError, OverflowError):
        return None
