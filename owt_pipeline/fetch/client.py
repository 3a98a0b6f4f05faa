"""One HTTP request within limits: what comes back is a response, or a failure that has a reason."""

from __future__ import annotations

import asyncio
import ipaddress
import socket
import ssl
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import aiohttp
from yarl import URL

from owt_pipeline.fetch.addresses import Addresses, BlockedAddress
from owt_pipeline.fetch.answers import NoPage
from owt_pipeline.fetch.http_message import BadMessage, BodyDecoder, Headers, TooLarge, brotli_available, header
from owt_pipeline.fetch.resolver import CheckingResolver
from schemas import Reason

_MAX_HEADER_BYTES = 64 << 10
_MAX_HEADERS = 500


@dataclass(frozen=True)
class Limits:
    """Times in seconds, sizes in bytes.

    Attributes:
      connect: for name, connection and TLS.
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


@dataclass(frozen=True)
class Received:
    """A response as it was received; `body` is decoded, or empty where `stop` said so; `ms` to the last byte."""

    url: URL
    status: int
    status_line: str
    headers: Headers
    body: bytes
    ms: int

    def header(self, name: str) -> str | None:
        return header(self.headers, name)


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


Stop = Callable[[int, Headers], bool]
"""Given status and headers, whether to leave the body unread."""


class Client:
    """Requests over one pool of connections; to be made and used in one event loop."""

    def __init__(
        self, addresses: Addresses, user_agent: str, *, verify_tls: bool, keep_alive: float, remembered_names: int
    ):
        self._addresses = addresses
        self._resolver = CheckingResolver(addresses)
        connector = aiohttp.TCPConnector(
            resolver=self._resolver,
            limit=0,  # the caller's business
            ttl_dns_cache=600,
            dns_cache_max_size=remembered_names,
            keepalive_timeout=keep_alive,
            ssl=verify_tls,
        )
        self._session = aiohttp.ClientSession(
            connector=connector,
            cookie_jar=aiohttp.DummyCookieJar(),
            auto_decompress=False,  # decoded here, under a limit
            read_bufsize=1 << 16,
            max_line_size=_MAX_HEADER_BYTES,
            max_field_size=_MAX_HEADER_BYTES,
            max_headers=_MAX_HEADERS,
            headers={
                "User-Agent": user_agent,
                "Accept": "text/html,application/xhtml+xml;q=0.9,*/*;q=0.1",
                "Accept-Language": "en,*;q=0.5",
                "Accept-Encoding": "gzip, deflate, br" if brotli_available() else "gzip, deflate",
            },
        )

    async def close(self) -> None:
        await self._session.close()
        await self._resolver.close()

    async def get(
        self, url: URL, limits: Limits, stop: Stop, *, cut: bool = False, headers: Mapping[str, str] | None = None
    ) -> Received:
        """The response to a GET request; redirects are not followed. Raises Failed.

        A body beyond its limits is Failed, or, with `cut`, cut there. `headers` are sent beside the usual ones.
        """
        started = time.monotonic()
        timeout = aiohttp.ClientTimeout(total=limits.total, connect=limits.connect, sock_read=limits.silence)
        try:
            self._check(url)
            async with self._session.get(url, timeout=timeout, allow_redirects=False, headers=headers) as response:
                received = [(k.decode("latin-1"), v.decode("latin-1")) for k, v in response.raw_headers]
                body = b"" if stop(response.status, received) else await _body(response, received, limits, cut)
        except (aiohttp.ClientError, OSError, asyncio.TimeoutError, ValueError) as error:
            raise _failure(error, limits) from error
        version = f"{response.version.major}.{response.version.minor}" if response.version else "1.1"
        status_line = f"HTTP/{version} {response.status} {response.reason or ''}".rstrip()
        return Received(url, response.status, status_line, received, body, round((time.monotonic() - started) * 1000))

    def _check(self, url: URL) -> None:
        """Raise BlockedAddress for a port or a literal address; names are checked when they are resolved."""
        host, port = url.raw_host or "", url.port or 0
        self._addresses.check_port(host, port)
        if self._addresses.rule(host) is None and _is_literal(host):
            self._addresses.check_address(host)


async def _body(response: aiohttp.ClientResponse, headers: Headers, limits: Limits, cut: bool) -> bytes:
    pieces: list[bytes] = []
    try:
        length = header(headers, "content-length") or ""
        if length.isdecimal() and int(length) > limits.wire_bytes and not cut:
            raise TooLarge(f"Content-Length: {int(length):,}, more than {limits.wire_bytes:,} bytes")
        decoder = BodyDecoder(header(headers, "content-encoding") or "", limits.body_bytes)
        received = 0
        async for data in response.content.iter_any():
            received += len(data)
            if received > limits.wire_bytes:
                raise TooLarge(f"more than {limits.wire_bytes:,} bytes sent")
            pieces.append(decoder.feed(data))
        decoder.finish()
    except TooLarge:
        response.close()
        if not cut:
            raise
    return b"".join(pieces)


def _failure(error: Exception, limits: Limits) -> Failed:
    """The reason a user would expect for what aiohttp raised."""
    cause = error.os_error if isinstance(error, aiohttp.ClientConnectorError) else error.__cause__
    text = " ".join(str(error).split())[:200] or type(error).__name__
    if isinstance(error, BlockedAddress) or isinstance(cause, BlockedAddress):
        return Failed(Reason.BLOCKED_ADDRESS, str(cause if isinstance(cause, BlockedAddress) else error))
    if isinstance(error, aiohttp.InvalidURL):
        return Failed(Reason.BAD_URL, text)
    if isinstance(error, TooLarge):
        return Failed(Reason.TOO_LARGE, text, connected=True)
    if isinstance(error, BadMessage):
        return Failed(Reason.BAD_RESPONSE, text, connected=True)
    if isinstance(error, aiohttp.ClientConnectorDNSError):
        temporary = isinstance(cause, socket.gaierror) and cause.errno == socket.EAI_AGAIN
        return Failed(Reason.DNS, _os_text(cause) or text, transient=temporary)
    if isinstance(error, (aiohttp.ClientSSLError, ssl.SSLError)) or isinstance(cause, ssl.SSLError):
        return Failed(Reason.TLS, _os_text(cause) or text)
    if isinstance(error, aiohttp.ConnectionTimeoutError):
        return Failed(Reason.TIMEOUT, f"no connection within {limits.connect:g} s", transient=True)
    if isinstance(error, aiohttp.SocketTimeoutError):
        return Failed(Reason.TIMEOUT, f"nothing came for {limits.silence:g} s", connected=True)
    if isinstance(error, asyncio.TimeoutError):
        return Failed(Reason.TIMEOUT, f"not whole within {limits.total:.3g} s", connected=True)
    if isinstance(error, aiohttp.ClientPayloadError):
        broken = isinstance(cause, OSError) or "ConnectionResetError(" in text  # aiohttp tells only in its text
        message = cause.message if isinstance(cause, aiohttp.http.HttpProcessingError) else text
        detail = " ".join(f"the body breaks off: {message}".split())[:200]
        return Failed(Reason.CONNECT if broken else Reason.BAD_RESPONSE, detail, connected=True)
    if isinstance(error, aiohttp.ServerDisconnectedError):
        return Failed(Reason.CONNECT, "closed before an answer", connected=True, transient=True)
    if isinstance(error, aiohttp.ClientResponseError):
        return Failed(Reason.BAD_RESPONSE, f"not valid HTTP: {' '.join(error.message.split())[:160]}", connected=True)
    if isinstance(error, OSError):
        return Failed(Reason.CONNECT, _os_text(error) or text, transient=True)
    return Failed(Reason.BAD_RESPONSE, text, connected=True)


def _os_text(error: Any) -> str:
    if isinstance(error, ssl.SSLCertVerificationError):
        return str(error.verify_message)
    if isinstance(error, OSError) and error.strerror:
        return error.strerror
    return " ".join(str(error).split())[:200] if error is not None else ""


def _is_literal(host: str) -> bool:
    try:
        ipaddress.ip_address(host.partition("%")[0])
    except ValueError:
        return False
    return True
