"""HTTP/1.1 connections: one request at a time on each, and responses bounded in time and size.

httptools (llhttp) decides where a response ends. It is as lenient with old and broken servers as browsers are; but
a response whose end is ambiguous (two lengths, a length that is not a number) is an error. aiohttp's client is not used
as it does not keep the bytes of a response's head, which the WARC record holds as they were sent.
"""

from __future__ import annotations

import asyncio
import re
from collections import OrderedDict
from collections.abc import Callable, Sequence
from ssl import SSLContext, SSLError
from typing import Any, NamedTuple

import aiohappyeyeballs
from aiohappyeyeballs import AddrInfoType
from httptools import HttpParserError, HttpParserUpgrade, HttpResponseParser
from yarl import URL

from owt_pipeline.formats.messages import BadMessage, Headers, TooLarge, header

MAX_HEAD_BYTES = 64 << 10
"""Limit of status line and headers; more than any server sends on purpose."""

MAX_INFORMATIONAL = 20
"""Limit of responses with status 1xx before the final one."""

_SECOND_ADDRESS_DELAY = 0.25
"""Seconds until a host's next address is tried, too, while one does not answer (RFC 8305)."""

_UNBOUNDED = 1e9  # seconds: the caller of `connect` sets the limit

_END_OF_HEAD = re.compile(rb"\n\r?\n")
_FIELD = re.compile(rb"[!#$%&'*+.^_`|~0-9A-Za-z-]+:|[ \t]")

Stop = Callable[[int, Headers], bool]
"""Given status and headers, whether the body need not be read."""

Origin = tuple[str, str | None, int | None]
"""Scheme, host and port: a URL's origin, as a key that costs less than a URL."""


def origin_of(url: URL) -> Origin:
    return url.scheme, url.raw_host, url.port


class ResponseReader:
    """One response to a GET request, parsed from the bytes of a connection as they arrive.

        while not reader.feed(connection.recv()): ...

    Attributes:
      status: its status code; 0 until the head is complete.
      headers: as sent, in order.
      head: the bytes of status line and headers.
      body: its pieces as sent, chunked or not.
      truncated: whether the body is incomplete: cut at the limit, or not read because of `stop`.
      begun: whether any byte arrived.
      reusable: once it is complete, whether the connection can take another request.
    """

    def __init__(self, stop: Stop, wire_bytes: int, *, cut: bool = False):
        """A reader of a response of at most `wire_bytes` of body as sent: a longer one raises TooLarge, or is `cut`."""
        self.status = 0
        self.headers: Headers = []
        self.head = b""
        self.body: list[bytes] = []
        self.truncated = self.begun = self.reusable = False
        self._stop, self._cut = stop, cut
        self._wire_left, self._wire_bytes = wire_bytes, wire_bytes
        self._buffer = b""
        self._informational = 0
        self._length: int | None = None
        self._unread = self._complete = False
        self._parser: Any = self._new_parser()

    def feed(self, data: bytes) -> bool:
        """Take bytes; returns whether the response is complete. Raises BadMessage and TooLarge."""
        self.begun = True
        if not self.head:
            self._buffer += data
            while not self.head:
                if not self._take_head():
                    return False
            data, self._buffer = self._buffer, b""
            self._judge_head()
        return self._take_body(data)

    def end(self) -> None:
        """Take the connection's end; raises BadMessage if the response is not complete."""
        until_closed = self._length is None and not self._is_chunked()
        if not self._complete and not (self.head and until_closed):
            raise BadMessage("the body breaks off")

    def on_header(self, name: bytes, value: bytes) -> None:
        self.headers.append((name.decode("latin-1"), value.decode("latin-1").strip()))

    def on_headers_complete(self) -> None:
        self.status, self._keeps_alive = self._parser.get_status_code(), self._parser.should_keep_alive()

    def on_message_complete(self) -> None:
        self._complete = True

    def _new_parser(self) -> HttpResponseParser:
        parser = HttpResponseParser(self)
        parser.set_dangerous_leniencies(
            lenient_headers=True,
            lenient_chunked_length=True,
            lenient_version=True,
            lenient_data_after_close=True,
            lenient_optional_lf_after_cr=True,
            lenient_optional_cr_before_lf=True,
            lenient_spaces_after_chunk_size=True,
        )
        return parser

    def _take_head(self) -> bool:
        """Take the head of this or of a preceding response (1xx) from the buffer; False if more bytes are needed."""
        end = _END_OF_HEAD.search(self._buffer)
        if not b"HTTP/".startswith(self._buffer[:5]):
            raise BadMessage(f"not HTTP, which begins with a status line, but {self._buffer[:40]!r}")
        if (end.end() if end else len(self._buffer)) > MAX_HEAD_BYTES:
            raise BadMessage(f"a head of more than {MAX_HEAD_BYTES:,} bytes")
        if end is None:
            return False
        head, self._buffer = self._buffer[: end.end()], self._buffer[end.end() :]
        self._parse_head(head)
        if not 100 <= self.status < 200:
            self.head = head
        elif self.status == 101 or self._informational == MAX_INFORMATIONAL:
            what = "status 101: another protocol" if self.status == 101 else f"more than {MAX_INFORMATIONAL} times 1xx"
            raise BadMessage(f"{what}, which nobody asked for")
        else:
            self._informational += 1
            self.status, self.headers, self._complete = 0, [], False
        return True

    def _parse_head(self, head: bytes) -> None:
        try:
            self._parser.feed_data(head)
        except (HttpParserError, HttpParserUpgrade) as error:
            if self.status == 101:
                return
            first, *lines = [line for line in head.split(b"\n") if line.strip()]
            fields = [line for line in lines if _FIELD.match(line)]
            if fields == lines:
                raise BadMessage(f"{str(error)[:1].lower()}{str(error)[1:]} in {head[:60]!r}") from None
            self.headers, self._parser = [], self._new_parser()  # again, without lines that browsers ignore
            self._parse_head(b"\n".join([first, *fields, b"\r\n"]))

    def _judge_head(self) -> None:
        """Find out from the head whether and how to read the body."""
        length = header(self.headers, "content-length")
        if self._complete:
            self._length = 0
        elif length is not None and not self._is_chunked():
            self._length = int(length)
        self._unread = not self._complete and self._stop(self.status, self.headers)
        if self._length is not None and self._length > self._wire_bytes and not (self._cut or self._unread):
            raise TooLarge(f"Content-Length: {self._length:,}, more than {self._wire_bytes:,} bytes")

    def _is_chunked(self) -> bool:
        return (header(self.headers, "transfer-encoding") or "").rpartition(",")[2].strip().lower() == "chunked"

    def _take_body(self, data: bytes) -> bool:
        extra = False  # whether bytes follow the body
        if self._length is not None:
            data, extra = data[: self._length], len(data) > self._length
            self._length -= len(data)
        if len(data) > self._wire_left:
            if not (self._cut or self._unread):
                raise TooLarge(f"more than {self._wire_bytes:,} bytes sent")
            data, self.truncated = data[: self._wire_left], True
        self._wire_left -= len(data)
        if data:
            self.body.append(data)
        if data and not (self.truncated or self._complete):
            try:
                self._parser.feed_data(data)
            except HttpParserError as error:
                if not (self._complete or self._unread):
                    raise BadMessage(f"{str(error)[:1].lower()}{str(error)[1:]} in the body") from None
                extra = True
        if self._unread and not self._complete:
            self.truncated = True
        self.reusable = self._complete and self._keeps_alive and not extra
        if self._complete or self.truncated:
            self._parser = None  # it refers to this object, and so to the body
            return True
        return False


class Silence(asyncio.TimeoutError):
    """No byte arrived for too long."""


class Connection(asyncio.Protocol):
    """A connection to a server, for one exchange after another.

    Attributes:
      address: the server's IP address.
      idle_since: when its last exchange ended, in the event loop's time; 0 if there was none.
    """

    address = ""

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._transport: Any = None
        self._reader: ResponseReader | None = None
        self._complete: asyncio.Future[None] | None = None
        self._silence = self._deadline = self._heard = self.idle_since = 0.0
        self._timer: asyncio.TimerHandle | None = None

    @property
    def is_open(self) -> bool:
        return self._transport is not None and not self._transport.is_closing()

    async def exchange(self, request: bytes, reader: ResponseReader, silence: float, deadline: float) -> None:
        """Send a request, and feed `reader` until the response is complete.

        Raises Silence after `silence` seconds without a byte, asyncio.TimeoutError at `deadline` (in the loop's
        time), the reader's errors, and OSError if the connection is lost; after an error it is closed.
        """
        self._reader, self._complete = reader, self._loop.create_future()
        self._heard, self._silence, self._deadline = self._loop.time(), silence, deadline
        self._transport.write(request)
        if self._timer is None or self._timer.when() > deadline:
            self._watch()
        try:
            await self._complete
        except BaseException:
            self.close()
            raise
        finally:
            self._reader = self._complete = None
            self.idle_since = self._loop.time()

    async def start_tls(self, tls: SSLContext | None, host: str) -> None:
        """Use TLS from now on, also within TLS to a proxy."""
        if tls is not None:
            self._transport = await self._loop.start_tls(self._transport, self, tls, server_hostname=host)

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
        if self._complete is None:
            return
        now, silent_at = self._loop.time(), self._heard + self._silence
        if now >= self._deadline:
            self._finish(asyncio.TimeoutError())
        elif now >= silent_at:
            self._finish(Silence())
        else:
            self._timer = self._loop.call_at(min(silent_at, self._deadline), self._watch)

    def _finish(self, error: BaseException | None = None) -> None:
        if self._complete is not None and not self._complete.done():
            if error is None:
                self._complete.set_result(None)
            else:
                self._complete.set_exception(error)

    def connection_made(self, transport: Any) -> None:
        self._transport = transport

    def data_received(self, data: bytes) -> None:
        if self._reader is None or self._complete is None or self._complete.done():
            self.close()  # bytes without a request, or after the response
            return
        self._heard = self._loop.time()
        try:
            complete = self._reader.feed(data)
        except ValueError as error:
            self._finish(error)
        else:
            if complete:
                self._finish()

    def eof_received(self) -> None:
        if self._reader is not None and self._reader.status >= 200:
            try:
                self._reader.end()
            except ValueError as error:
                self._finish(error)
            else:
                self._finish()

    def connection_lost(self, error: Exception | None) -> None:
        if error is None or isinstance(error, SSLError):  # many servers close TLS connections without a closing alert
            self.eof_received()
        if self._timer is not None:
            self._timer.cancel()
        self._finish(error or ConnectionAbortedError("closed before an answer"))


class ProxyError(ConnectionError):
    """The proxy cannot be reached, or refuses to serve this client."""


class Hop(NamedTuple):
    """A proxy: its TLS context, if it uses TLS, its name, and the request for a tunnel (`CONNECT ...`), or nothing."""

    tls: SSLContext | None
    host: str
    tunnel: bytes


async def connect(infos: Sequence[AddrInfoType], tls: SSLContext | None, host: str, proxy: Hop | None) -> Connection:
    """A connection to the first of these addresses that answers; raises OSError, of which ssl.SSLError is a subclass.

    With a `proxy`, the addresses are the proxy's, and its failures raise ProxyError.
    """
    loop = asyncio.get_running_loop()
    outer, name = (tls, host) if proxy is None else (proxy.tls, proxy.host)
    if proxy is not None and not proxy.tunnel:
        tls = None
    try:
        sock = await aiohappyeyeballs.start_connection(infos, happy_eyeballs_delay=_SECOND_ADDRESS_DELAY, interleave=1)
        try:
            _, connection = await loop.create_connection(
                Connection, sock=sock, ssl=outer, server_hostname=name if outer is not None else None
            )
        except BaseException:
            sock.close()
            raise
        connection.address = sock.getpeername()[0] if sock.fileno() >= 0 else str(infos[0][4][0])
        if proxy is None or not proxy.tunnel:
            return connection
        reader = ResponseReader(lambda *_: True, 0)  # the answer to CONNECT has no body
        await connection.exchange(proxy.tunnel, reader, _UNBOUNDED, loop.time() + _UNBOUNDED)
    except (OSError, BadMessage) as error:
        if proxy is None:
            raise
        raise ProxyError(f"{proxy.host}: {getattr(error, 'strerror', None) or error}") from error
    try:
        if reader.status != 200:
            refusal = f"the proxy refuses: {reader.head.splitlines()[0][:100].decode('latin-1')}"
            raise ProxyError(refusal) if reader.status == 407 else ConnectionError(refusal)
        await connection.start_tls(tls, host)
    except BaseException:
        connection.close()
        raise
    return connection


class IdleConnections:
    """Connections that wait for another request to their origin; the one unused for the longest is closed first."""

    def __init__(self, keep: int, seconds: float):
        """Room for `keep` connections, each for so many seconds."""
        self._keep, self._seconds = keep, seconds
        self._connections: OrderedDict[Connection, Origin] = OrderedDict()  # in the order in which they were put
        self._of_origin: dict[Origin, list[Connection]] = {}

    def take(self, origin: Origin) -> Connection | None:
        """The last used connection to `origin`, or None."""
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
