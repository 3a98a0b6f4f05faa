"""Politeness: a host gets one request in so many seconds, and so many at once."""

from __future__ import annotations

import asyncio
import time
from collections import OrderedDict, deque

from owt_pipeline.fetch.answers import NoPage
from schemas import Reason


class Slots:
    """So many at once, the others in the order in which they came: asyncio.Semaphore, for crowds that wait.

    async with slots: ...
    """

    def __init__(self, count: int):
        self.count, self.taken = count, 0
        self._waiting: deque[asyncio.Future[None]] = deque()

    async def acquire(self) -> None:
        if self.taken < self.count and not self._waiting:
            self.taken += 1
            return
        turn = asyncio.get_running_loop().create_future()
        self._waiting.append(turn)
        try:
            await turn  # whoever leaves hands its slot over
        except asyncio.CancelledError:
            if turn.done() and not turn.cancelled():
                self.release()
            raise

    def release(self) -> None:
        while self._waiting:
            turn = self._waiting.popleft()
            if not turn.done():
                turn.set_result(None)
                return
        self.taken -= 1

    __aenter__ = acquire

    async def __aexit__(self, *_: object) -> None:
        self.release()


class HostGate:
    """The turns at one host.

        async with gate: ...  # one request

    Attributes:
      delay: seconds between the starts of two requests.
      next_turn: when the next request may start, in `time.monotonic` seconds.
      failures: how often in a row the host did not answer, and `failure` the last of them.
    """

    def __init__(self, delay: float, connections: int):
        self.delay = delay
        self.next_turn = 0.0
        self.failures = 0
        self.failure: NoPage | None = None
        self._connections = Slots(connections)
        self.users = 0

    async def __aenter__(self) -> None:
        """Wait for a turn, and hold one of the host's connections while the block runs."""
        self.users += 1
        try:
            await self._connections.acquire()
            try:
                # In a loop, since `pause` may move the turn away while this waits for it.
                while (wait := self.next_turn - time.monotonic()) > 0:
                    await asyncio.sleep(wait)
            except BaseException:
                self._connections.release()
                raise
        except BaseException:
            self.users -= 1
            raise
        self.next_turn = time.monotonic() + self.delay

    async def __aexit__(self, *_: object) -> None:
        self._connections.release()
        self.users -= 1

    def note(self, failure: NoPage | None) -> None:
        """Note what came of a request: None for an answer, of whatever kind."""
        if failure is not None and failure.reason not in (Reason.CONNECT, Reason.TIMEOUT, Reason.TLS, Reason.DNS):
            failure = None
        self.failures = self.failures + 1 if failure is not None else 0
        self.failure = failure

    def pause(self, seconds: float) -> None:
        """No request for so many seconds: the host asked for it."""
        self.next_turn = max(self.next_turn, time.monotonic() + seconds)


class HostGates:
    """The gates of all hosts of a process; those not in use are forgotten, the longest unused first."""

    def __init__(self, delay: float, connections: int, remembered: int):
        self._delay, self._connections, self._remembered = delay, connections, remembered
        self._gates: OrderedDict[str, HostGate] = OrderedDict()

    def __getitem__(self, host: str) -> HostGate:
        gate = self._gates.get(host)
        if gate is None:
            self._forget()
            gate = self._gates[host] = HostGate(self._delay, self._connections)
        self._gates.move_to_end(host)
        return gate

    def _forget(self) -> None:
        while len(self._gates) >= self._remembered:
            host, gate = next(iter(self._gates.items()))
            if gate.users or gate.next_turn > time.monotonic():
                return
            del self._gates[host]
