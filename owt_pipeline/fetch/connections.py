"""Connections over which requests go, one at a time on each, and those that wait for another."""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from collections.abc import Sequence
from ssl import SSLContext, SSLError
from typing import Any

import aiohappyeyeballs
from aiohappyeyeballs import AddrInfoType
from yarl import URL

from owt_pipeline.fetch.response_parser import ResponseParser

_SECOND_ADDRESS_DELAY = 0.25
"""Seconds until a host's next address is tried beside one that does not answer (RFC 8305)."""


Origin = tuple[str, str | None, int | None]
"""Scheme, host and port: a URL's origin, as a key that costs less than a URL."""


def origin_of(url: URL) -> Origin:
    return url.scheme, url.raw_host, url.port


class Silence(asyncio.TimeoutError):
    """Nothing came for too long, where something still might."""


class Connection(asyncio.Protocol):
    """A connection to a server, for one exchange after another.

    Attributes:
      idle_since: when its last exchange ended, in the event loop's time; 0 where there was none.
    """

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._transport: Any = None
        self._parser: ResponseParser | None = None
        self._whole: asyncio.Future[None] | None = None
        self._silence = self._deadline = self._heard = self.idle_since = 0.0
        self._timer: asyncio.TimerHandle | None = None

    @property
    def is_open(self) -> bool:
        return self._transport is not None and not self._transport.is_closing()

    async def exchange(self, request: bytes, parser: ResponseParser, silence: float, deadline: float) -> None:
        """Send a request, and give what comes to `parser` until the response is whole.

        Raises Silence after `silence` seconds without a byte, asyncio.TimeoutError at `deadline` (in the loop's
        time), what the parser raises, and OSError where the connection is lost; after an error it is closed.
        """
        self._parser, self._whole = parser, self._loop.create_future()
        self._heard, self._silence, self._deadline = self._loop.time(), silence, deadline
        self._transport.write(request)
        if self._timer is None or self._timer.when() > deadline:
            self._watch()
        try:
            await self._whole
        except BaseException:
            self.close()
            raise
        finally:
            self._parser = self._whole = None
            self.idle_since = self._loop.time()

    def close(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
        if self._transport is not None:
            self._transport.abort()

    def _watch(self) -> None:
        """See whether there is too little, and when to look again: rarely, as bytes that come do not move the timer."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if self._whole is None:
            return
        now, silent_at = self._loop.time(), self._heard + self._silence
        if now >= self._deadline:
            self._finish(asyncio.TimeoutError())
        elif now >= silent_at:
            self._finish(Silence())
        else:
            self._timer = self._loop.call_at(min(silent_at, self._deadline), self._watch)

    def _finish(self, error: BaseException | None = None) -> None:
        if self._whole is not None and not self._whole.done():
            if error is None:
                self._whole.set_result(None)
            else:
                self._whole.set_exception(error)

    def connection_made(self, transport: Any) -> None:
        self._transport = transport

    def data_received(self, data: bytes) -> None:
        if self._parser is None or self._whole is None or self._whole.done():
            self.close()  # what nobody asked for, or more than the response
            return
        self._heard = self._loop.time()
        try:
            whole = self._parser.feed(data)
        except ValueError as error:
            self._finish(error)
        else:
            if whole:
                self._finish()

    def eof_received(self) -> None:
        if self._parser is not None and self._parser.status >= 200:
            try:
                self._parser.end()
            except ValueError as error:
                self._finish(error)
            else:
                self._finish()

    def connection_lost(self, error: Exception | None) -> None:
        if error is None or isinstance(error, SSLError):  # many servers end TLS without saying so
            self.eof_received()
        if self._timer is not None:
            self._timer.cancel()
        self._finish(error or ConnectionAbortedError("closed before an answer"))


async def connect(infos: Sequence[AddrInfoType], tls: SSLContext | None, host: str) -> Connection:
    """A connection to the first of these addresses that answers; raises OSError, or ssl.SSLError, which is one."""
    sock = await aiohappyeyeballs.start_connection(infos, happy_eyeballs_delay=_SECOND_ADDRESS_DELAY, interleave=1)
    loop = asyncio.get_running_loop()
    try:
        _, connection = await loop.create_connection(
            Connection, sock=sock, ssl=tls, server_hostname=host if tls is not None else None
        )
    except BaseException:
        sock.close()
        raise
    return connection


class IdleConnections:
    """Connections that wait for another request to their origin; the longest unused go first."""

    def __init__(self, keep: int, seconds: float):
        """Room for `keep` of them, each for so many seconds."""
        self._keep, self._seconds = keep, seconds
        self._connections: OrderedDict[Connection, Origin] = OrderedDict()  # in the order in which they were put
        self._of_origin: dict[Origin, list[Connection]] = {}

    def take(self, origin: Origin) -> Connection | None:
        """One to `origin`, the last used; None without any."""
        while connections := self._of_origin.get(origin):
            connection = connections[-1]
            self._remove(connection)
            if connection.is_open:
                return connection
        return None

    def put(self, origin: Origin, connection: Connection) -> None:
        self._connections[connection] = origin
        self._of_origin.setdefault(origin, []).append(connection)
        while self._connections:
            oldest = next(iter(self._connections))
            if len(self._connections) <= self._keep and connection.idle_since - oldest.idle_since < self._seconds:
                break
            self._remove(oldest)
            oldest.close()

    def close(self) -> None:
        for connection in self._connections:
            connection.close()
        self._connections.clear()
        self._of_origin.clear()

    def _remove(self, connection: Connection) -> None:
        origin = self._connections.pop(connection)
        self._of_origin[origin].remove(connection)
        if not self._of_origin[origin]:
            del self._of_origin[origin]
