"""One HTTP request within limits: what comes back is a response, or a failure that has a reason."""

from __future__ import annotations

import asyncio
import functools
import socket
import ssl
from collections.abc import Mapping
from dataclasses import dataclass
from typing import NamedTuple

from yarl import URL

from owt_pipeline.fetch.addresses import Addresses, BlockedAddress
from owt_pipeline.fetch.answers import NoPage
from owt_pipeline.fetch.connections import Connection, IdleConnections, Silence, connect, origin_of
from owt_pipeline.fetch.http_message import BadMessage, BodyDecoder, Headers, TooLarge, brotli_available, header
from owt_pipeline.fetch.resolver import CheckingResolver
from owt_pipeline.fetch.response_parser import ResponseParser, Stop
from schemas import Reason


@dataclass(frozen=True)
class Limits:
    """Times in seconds, sizes in bytes.

    Attributes:
      connect: for the name, and again for connection and TLS.
      silence: without a byte, before the head and within the body.
      total: from request to last byte.
      wire_bytes: of a body as sent.
      body_bytes: of a body as decoded.
    """

    connect: float
    silence: float
    total: float
    wire_bytes: int
    body_bytes: int


class Received(NamedTuple):
    """A response as it was received; `body` is empty where `stop` said so; `ms` to the last byte."""

    url: str
    status: int
    status_line: str
    headers: Headers
    body: bytes
    ms: int

    def header(self, name: str) -> str | None:
        return header(self.headers, name)

    def location(self) -> URL:
        """Where its Location header leads, absolute; raises ValueError where that is no URL."""
        # Servers send Location in UTF-8, which is read as Latin-1 like all headers.
        text = (self.header("location") or "").strip().encode("latin-1").decode("utf-8", "replace")
        return URL(self.url).join(parse_url(text))


class Failed(Exception):
    """A request without a usable response.

    Attributes:
      answer: why.
      connected: whether there was a connection.
      transient: whether it may succeed when tried again soon.
    """

    def __init__(self, reason: Reason, detail: str, *, connected: bool = False, transient: bool = False):
        super().__init__(f"{reason}: {detail}")
        self.answer = NoPage(reason, detail)
        self.connected, self.transient = connected, transient


def parse_url(text: str) -> URL:
    """yarl's URL; raises ValueError, and nothing else."""
    try:
        return URL(text)
    except IndexError:  # for brackets behind a name
        raise ValueError(f"not a URL: {text[:100]!r}") from None


class Client:
    """Requests over HTTP/1.1; to be made and used in one event loop, by any number of tasks at once."""

    def __init__(
        self,
        addresses: Addresses,
        user_agent: str,
        *,
        verify_tls: bool,
        keep_alive: float,
        kept_connections: int,
        remembered_names: int,
    ):
        """A client that keeps up to `kept_connections` open, each for `keep_alive` seconds after a response."""
        self._addresses = addresses
        self._resolver = CheckingResolver(addresses, remembered_names)
        self._idle = IdleConnections(kept_connections, keep_alive)
        self._verify_tls = verify_tls
        self._headers = {
            "User-Agent": user_agent,
            "Accept": "text/html,application/xhtml+xml;q=0.9,*/*;q=0.1",
            "Accept-Language": "en,*;q=0.5",
            "Accept-Encoding": "gzip, deflate, br" if brotli_available() else "gzip, deflate",
        }
        self._usual_lines = _lines(self._headers)

    async def close(self) -> None:
        self._idle.close()
        self._resolver.close()
        await asyncio.sleep(0)  # in which the connections' sockets are closed

    async def get(
        self,
        url: URL,
        limits: Limits,
        stop: Stop,
        *,
        encoded: bool = False,
        cut: bool = False,
        headers: Mapping[str, str] | None = None,
    ) -> Received:
        """The response to a GET request; redirects are not followed. Raises Failed.

        Its body is decoded, or with `encoded` as its Content-Encoding says, its decoded size unchecked. A body beyond
        its limits is Failed, or, with `cut`, cut there. `headers` are sent beside the usual ones.
        """
        started = asyncio.get_running_loop().time()
        lines = _lines({**self._headers, **headers}) if headers else self._usual_lines
        request = f"GET {url.raw_path_qs} HTTP/1.1\r\nHost: {url.host_port_subcomponent}\r\n{lines}\r\n".encode()
        parser = ResponseParser(stop, limits.wire_bytes, cut=cut)
        try:
            await self._exchange(url, request, parser, limits, started + limits.total)
            body = b"".join(parser.body) if encoded else _decoded(parser, limits.body_bytes, cut)
        except (BadMessage, TooLarge, OSError, asyncio.TimeoutError) as error:
            raise _failure(error, limits, parser) from error
        ms = round((asyncio.get_running_loop().time() - started) * 1000)
        return Received(str(url), parser.status, parser.status_line, parser.headers, body, ms)

    async def _exchange(
        self, url: URL, request: bytes, parser: ResponseParser, limits: Limits, deadline: float
    ) -> None:
        origin = origin_of(url)
        connection = self._idle.take(origin)
        if connection is not None:
            try:
                await connection.exchange(request, parser, limits.silence, deadline)
            except ConnectionError:
                if parser.begun:
                    raise
                connection = None  # the server closed it while the request was on its way
        if connection is None:
            connection = await self._connect(url, min(limits.connect, limits.total))
            await connection.exchange(request, parser, limits.silence, deadline)
        if parser.reusable:
            self._idle.put(origin, connection)
        else:
            connection.close()

    async def _connect(self, url: URL, seconds: float) -> Connection:
        """A connection to the URL's host, at an address and port that are allowed; raises Failed."""
        host, port = url.raw_host or "", url.port or 0
        tls = _tls_context(self._verify_tls) if url.scheme == "https" else None

        try:
            self._addresses.check_port(host, port)
            infos = await self._resolver.resolve(host, port, seconds)
        except BlockedAddress as error:
            raise Failed(Reason.BLOCKED_ADDRESS, str(error)) from error
        except (OSError, UnicodeError) as error:
            temporary = isinstance(error, socket.gaierror) and error.errno == socket.EAI_AGAIN
            raise Failed(Reason.DNS, _os_text(error), transient=temporary) from error
        try:
            return await asyncio.wait_for(connect(infos, tls, host), seconds)
        except asyncio.TimeoutError as error:
            raise Failed(Reason.TIMEOUT, f"no connection within {seconds:g} s", transient=True) from error
        except ssl.SSLError as error:
            raise Failed(Reason.TLS, _os_text(error)) from error
        except OSError as error:
            raise Failed(Reason.CONNECT, _os_text(error), transient=True) from error


def _decoded(parser: ResponseParser, limit: int, cut: bool) -> bytes:
    decoder = BodyDecoder(header(parser.headers, "content-encoding") or "", limit)
    try:
        body = decoder.feed(b"".join(parser.body))
    except TooLarge as error:
        if not cut:
            raise
        return error.within
    if not parser.cut:
        decoder.finish()
    return body


def _failure(error: Exception, limits: Limits, parser: ResponseParser) -> Failed:
    """The reason a user would expect for what became of a request on a connection."""
    if isinstance(error, TooLarge):
        return Failed(Reason.TOO_LARGE, str(error), connected=True)
    if isinstance(error, BadMessage):
        return Failed(Reason.BAD_RESPONSE, str(error), connected=True)
    if isinstance(error, Silence):
        return Failed(Reason.TIMEOUT, f"nothing came for {limits.silence:g} s", connected=True)
    if isinstance(error, asyncio.TimeoutError):
        return Failed(Reason.TIMEOUT, f"not whole within {limits.total:.3g} s", connected=True)
    if isinstance(error, ssl.SSLError):
        return Failed(Reason.TLS, _os_text(error), connected=True)
    if parser.status:
        return Failed(Reason.CONNECT, f"the body breaks off: {_os_text(error)}", connected=True)
    return Failed(Reason.CONNECT, _os_text(error), connected=True, transient=True)


def _os_text(error: Exception) -> str:
    if isinstance(error, ssl.SSLCertVerificationError):
        return error.verify_message
    if isinstance(error, OSError) and error.strerror:
        return error.strerror
    return " ".join(str(error).split())[:200] or type(error).__name__


def _lines(headers: Mapping[str, str]) -> str:
    return "".join(f"{name}: {value}\r\n" for name, value in headers.items())


@functools.lru_cache(maxsize=2)
def _tls_context(verify: bool) -> ssl.SSLContext:
    context = ssl.create_default_context()
    context.set_alpn_protocols(["http/1.1"])
    if not verify:
        context.check_hostname = False
        context.verify_mode = ssl.CERT_NONE
    return context
