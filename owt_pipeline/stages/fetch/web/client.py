"""One HTTP request within limits, by aiohttp: a response, or a RequestError with a reason."""

from __future__ import annotations

import asyncio
import socket
import time
import urllib.request
from collections.abc import Callable, Mapping
from contextvars import ContextVar
from functools import lru_cache, partial
from typing import TYPE_CHECKING, Any

import aiohttp
from yarl import URL

from owt_pipeline.formats import messages
from owt_pipeline.formats.messages import BadMessage, Headers, TooLarge
from owt_pipeline.stages.fetch.answers import HttpResponse
from owt_pipeline.stages.fetch.web.addresses import (
    Addresses,
    AddrInfo,
    BlockedAddress,
    RuledResolver,
    parse_rules,
)
from owt_pipeline.stages.fetch.web.failures import (
    Exchange,
    check_proxy,
    failure_of,
    os_text,
)
from owt_pipeline.stages.fetch.web.politeness import Gate, RequestError
from schemas import Reason

if TYPE_CHECKING:
    from owt_pipeline.stages.fetch.options import Options

CONNECT_SECONDS = 15.0
"""For resolving a name, and again for a connection."""
SILENCE_SECONDS = 30.0
"""Without a byte, before the head and within the body."""

MAX_LINE_BYTES = 64 << 10
"""Limit of the status line and of each header; more than any server sends on purpose."""
MAX_HEADERS = 500

_KEEP_NAMES_SECONDS = 600

# Connections are kept for this long, and for two turns of their host. Longer for all hosts would
# take too many files.
_KEEP_ALIVE_SECONDS = 3

# Robots.txt are kept for more hosts than are open, since redirects lead to others.
_HOSTS_PER_CONNECTION = 4
_OTHER_HOSTS = 1000

Stop = Callable[[int, Headers], bool]
"""Given status and headers, whether the body need not be read."""


_exchange: ContextVar[Exchange] = ContextVar("_exchange")


class _Response(aiohttp.ClientResponse):
    async def start(self, connection: Any) -> aiohttp.ClientResponse:
        """Begin the host's turn, since the request has been sent.

        Finding a name and a connection takes no time of the turn.
        """
        exchange = _exchange.get()
        exchange.gate.begin()
        exchange.is_sent = True
        # It is None if the connection has been lost, and then `start` raises an error.
        if closed := connection.protocol.closed:
            exchange.closed = closed
            # The error of a connection that waits for its next request belongs to no request.
            closed.remove_done_callback(_ignore_error)
            closed.add_done_callback(_ignore_error)
        exchange.address = (connection.transport.get_extra_info("peername") or ("",))[0]
        try:
            await super().start(connection)
        except (aiohttp.ClientOSError, aiohttp.ServerDisconnectedError) as error:
            # After these errors, aiohttp sends the request again at once. That suits a connection
            # that was kept and has ended; on a fresh one it would be a second request in one turn.
            if exchange.is_fresh:
                raise aiohttp.ClientConnectionError(os_text(error)) from error
            raise
        return self


class Client:
    """Makes requests over HTTP/1.1; to be made and used in one event loop, by any number of
    tasks at once.

    Attributes:
      num_remembered: how many hosts' robots.txt are kept.
    """

    def __init__(self, options: Options):
        self._options = options
        self._addresses = Addresses(
            parse_rules(options.resolve), options.allowed_ports, options.allow_private_hosts
        )
        self._resolver = RuledResolver(self._addresses, min(CONNECT_SECONDS, options.timeout))
        self.num_remembered = _HOSTS_PER_CONNECTION * options.connections + _OTHER_HOSTS
        # The requests to a host follow each other.
        self._route = lru_cache(2 * options.connections)(self._find_route)
        self._session = self._new_session()
        # Once, since it goes through all variables.
        self._proxies = urllib.request.getproxies_environment()

    def _new_session(self) -> aiohttp.ClientSession:
        connector = aiohttp.TCPConnector(
            limit=0,
            keepalive_timeout=_KEEP_ALIVE_SECONDS + 2 * self._options.host_delay,
            resolver=self._resolver,
            ttl_dns_cache=_KEEP_NAMES_SECONDS,
            socket_factory=self._open_socket,
            ssl=self._options.verify_tls,
        )
        return aiohttp.ClientSession(
            connector=connector,
            headers=request_headers(self._options.user_agent),
            cookie_jar=aiohttp.DummyCookieJar(),
            auto_decompress=False,
            response_class=_Response,
            max_line_size=MAX_LINE_BYTES,
            max_field_size=MAX_LINE_BYTES,
            max_headers=MAX_HEADERS,
        )

    async def look_up(self, url: URL) -> None:
        """Ask the resolver for the name of a host, although its address may still be known.

        The resolver of a proxy is not asked. Raises RequestError without an address.
        """
        host = url.raw_host or ""
        if self._route(url.scheme, host, url.port or 0) is not None:
            return
        try:
            await self._resolver.resolve(host)
        except OSError as error:
            raise RequestError(Reason.DNS, os_text(error)) from error

    async def close(self) -> None:
        await self._session.close()
        await self._resolver.close()

    async def get(
        self,
        url: URL,
        stop: Stop,
        gate: Gate,
        *,
        seconds: float | None = None,
        max_bytes: int | None = None,
        encoded: bool = False,
        cut: bool = False,
        headers: Mapping[str, str] | None = None,
    ) -> HttpResponse:
        """Return the response to a GET request; redirects are not followed.

        To be called within `gate`, the host's. The wait for its turn does not count as the
        request's time.

        Args:
          stop: given status and headers, returns whether the body need not be read.
          seconds: limit of its time; by default that of pages.
          max_bytes: limit of its body, as sent and decoded; by default that of pages.
          encoded: whether only the transfer encoding of the body is removed. Its decoded size is
            not checked then.
          cut: whether a body that is larger is cut there, rather than an error.
          headers: sent in addition to the usual ones.

        Raises:
          RequestError: there is no usable response.
        """
        proxy = self._route(url.scheme, url.raw_host or "", url.port or 0)
        while (wait := gate.next_turn - time.monotonic()) > 0:
            await asyncio.sleep(wait)
        gate.begin()
        seconds = seconds or self._options.timeout
        max_bytes = max_bytes or self._options.max_page_bytes
        exchange = Exchange(
            gate, seconds, CONNECT_SECONDS, SILENCE_SECONDS, is_proxied=proxy is not None
        )
        started = time.monotonic()
        has_head = False
        token = _exchange.set(exchange)
        try:
            response = await self._session.get(
                url,
                proxy=proxy,
                headers=headers,
                allow_redirects=False,
                timeout=_timeout(seconds, CONNECT_SECONDS, SILENCE_SECONDS),
            )
            has_head = True
            received = await _receive(response, url, max_bytes, stop, cut, started, exchange)
            if proxy is not None:
                check_proxy(received.status, received.headers)
            if not encoded:
                received = received._replace(body=_decode(received, max_bytes, cut))
        except (BadMessage, TooLarge, aiohttp.ClientError, OSError, asyncio.TimeoutError) as error:
            failure = failure_of(error, exchange, proxy, has_head)
            if exchange.is_sent:
                is_to_host = proxy is None or url.scheme == "https" or has_head
                failure.shows_network = proxy is None
                failure.is_connected = is_to_host
            raise failure from error
        finally:
            # The task may be kept, and with it all that it knows of the connection.
            _exchange.reset(token)
        return received

    def _open_socket(self, info: AddrInfo) -> socket.socket:
        """Return a socket for an address that may be connected to, or for the proxy's.

        Every connection is made here, and no name is resolved again, so changing the address
        between check and connection (DNS rebinding) is of no use.
        """
        exchange = _exchange.get()
        try:
            if not exchange.is_proxied:
                self._addresses.check_address(info[4][0])
        except BlockedAddress as error:
            # The name's next address is tried, which may hide this error.
            exchange.blocked = error
            raise
        exchange.is_fresh = True
        return socket.socket(*info[:3])

    def _find_route(self, scheme: str, host: str, port: int) -> URL | None:
        """Return the proxy for a URL; None for a direct connection.

        Raises RequestError for a port or a name that is not allowed.
        """
        # A rule of --resolve permits its address and every port.
        if self._addresses.rule(host) is not None:
            return None
        proxy = self._proxy(scheme, f"{host}:{port}")
        try:
            self._addresses.check_port(host, port)
            # The proxy resolves other names, in a network of its operator's.
            if proxy is not None:
                self._addresses.check_literal(host)
        except BlockedAddress as error:
            raise RequestError(Reason.BLOCKED_ADDRESS, str(error)) from error
        return proxy

    def _proxy(self, scheme: str, host: str) -> URL | None:
        """Return the proxy for a host, by the options or the environment."""
        text = self._options.proxy or self._proxies.get(scheme, "")
        if not text:
            return None
        if urllib.request.proxy_bypass_environment(host, self._proxies):  # type: ignore[attr-defined]
            return None
        return URL(text if "://" in text else f"http://{text}")


def request_headers(user_agent: str) -> dict[str, str]:
    """Return the headers of each request."""
    return {
        "User-Agent": user_agent,
        "Accept": "text/html,application/xhtml+xml;q=0.9,*/*;q=0.1",
        "Accept-Language": "en,*;q=0.5",
        "Accept-Encoding": messages.ACCEPT_ENCODING,
    }


# A new object for each request takes time, and most requests have the same limits.
@lru_cache(1 << 10)
def _timeout(total: float, connect: float, silence: float) -> aiohttp.ClientTimeout:
    return aiohttp.ClientTimeout(total, sock_connect=connect, sock_read=silence)


async def _receive(
    response: aiohttp.ClientResponse,
    url: URL,
    max_bytes: int,
    stop: Stop,
    cut: bool,
    started: float,
    exchange: Exchange,
) -> HttpResponse:
    """Return the response with its body as sent, without its transfer encoding.

    `started` is when the request began, in `time.monotonic` seconds.
    The connection can be used again if all of it was read. Raises BadMessage, TooLarge, and
    aiohttp's errors.
    """
    try:
        if response.status < 200:
            raise BadMessage(f"status {response.status}: another protocol, which nobody asked for")
        headers = _headers(response)
        if stop(response.status, headers):
            body = b""
            is_truncated = not response.content.is_eof()
            if not is_truncated:
                body = response.content.read_nowait()
        else:
            length = response.content_length or 0
            if length > max_bytes and not cut:
                raise TooLarge(f"Content-Length: {length:,}, more than {max_bytes:,} bytes")
            body, is_truncated = await _read_body(response, exchange, max_bytes, cut)
        return HttpResponse(
            str(url),
            response.status,
            headers,
            _status_line(response),
            body,
            ms=round((time.monotonic() - started) * 1000),
            truncated=is_truncated,
            address="" if exchange.is_proxied else exchange.address,
        )
    finally:
        if not response.content.at_eof():
            response.close()


def _headers(response: aiohttp.ClientResponse) -> Headers:
    """Return the headers for the record, which describe its body.

    The body is recorded without its transfer encoding, so the name of this header changes.
    """
    headers = [
        (name.decode("latin-1"), value.strip().decode("latin-1"))
        for name, value in response.raw_headers
    ]
    if "Transfer-Encoding" not in response.headers:
        return headers
    renamed = []
    for name, value in headers:
        prefix = "X-Crawler-" if name.lower() == "transfer-encoding" else ""
        renamed.append((prefix + name, value))
    return renamed


async def _read_body(
    response: aiohttp.ClientResponse, exchange: Exchange, max_bytes: int, cut: bool
) -> tuple[bytes, bool]:
    """Return a body, and whether it was cut at `max_bytes`; raises TooLarge without `cut`."""
    end_body = partial(_end_body, response)
    closed = exchange.closed
    closed.add_done_callback(end_body)
    try:
        # A future that is done calls back only later.
        if closed.done():
            end_body(closed)
        body = await _read_content(response.content, max_bytes, cut)
    finally:
        closed.remove_done_callback(end_body)
    if error := response.content.exception():
        raise error
    return body


def _end_body(response: aiohttp.ClientResponse, closed: asyncio.Future[None]) -> None:
    """End a body with an error if its connection was lost within it.

    aiohttp lets a body wait for the time limit after damaged chunks. If a body ends with the
    connection, aiohttp takes it for complete although the connection was broken.
    """
    content = response.content
    error = closed.exception()
    has_end = "Content-Length" in response.headers or "Transfer-Encoding" in response.headers
    is_broken = error is not None and not has_end
    if content.exception() is None and (is_broken or not content.is_eof()):
        content.set_exception(aiohttp.ClientPayloadError("the connection was broken"))


def _ignore_error(closed: asyncio.Future[None]) -> None:
    closed.exception()


async def _read_content(
    content: aiohttp.StreamReader, max_bytes: int, cut: bool
) -> tuple[bytes, bool]:
    pieces = []
    num_left = max_bytes
    while piece := await content.readany():
        if len(piece) > num_left:
            if not cut:
                raise TooLarge(f"more than {max_bytes:,} bytes sent")
            pieces.append(piece[:num_left])
            return b"".join(pieces), True
        num_left -= len(piece)
        pieces.append(piece)
    return b"".join(pieces), False


def _status_line(response: aiohttp.ClientResponse) -> bytes:
    version = response.version or aiohttp.HttpVersion11
    reason = (response.reason or "").encode("utf-8", "surrogateescape")
    return b"HTTP/%d.%d %d %s" % (*version, response.status, reason)


def _decode(received: HttpResponse, max_bytes: int, cut: bool) -> bytes:
    """Return the decoded body, with `cut` as far as it goes."""
    try:
        return messages.decode_body(received.headers, received.body, max_bytes, strictly=True)
    except (TooLarge, messages.CutOff) as error:
        # A body that is cut here ends within its encoding; another one has to be complete.
        is_cut_here = received.truncated or isinstance(error, TooLarge)
        if not cut or not is_cut_here:
            raise
        return error.within
