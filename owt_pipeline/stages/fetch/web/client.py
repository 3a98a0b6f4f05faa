"""One HTTP request within limits, by aiohttp: its result is a response, or a failure with a
reason."""

from __future__ import annotations

import asyncio
import errno
import socket
import ssl
import time
import urllib.request
from collections.abc import Callable, Mapping
from contextvars import ContextVar
from dataclasses import dataclass
from functools import lru_cache
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
from owt_pipeline.stages.fetch.web.framing import Connector
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

_NO_SUCH_NAME = (socket.EAI_NONAME, getattr(socket, "EAI_NODATA", socket.EAI_NONAME))

Stop = Callable[[int, Headers], bool]
"""Given status and headers, whether the body need not be read."""


@dataclass
class _Exchange:
    """A request under way: its turn, and what aiohttp does not tell otherwise."""

    gate: Gate
    seconds: float
    is_proxied: bool
    is_sent: bool = False
    is_fresh: bool = False  # whether a connection was opened for it
    blocked: BlockedAddress | None = None
    address: str = ""


_exchange: ContextVar[_Exchange] = ContextVar("_exchange")


class _Response(aiohttp.ClientResponse):
    async def start(self, connection: Any) -> aiohttp.ClientResponse:
        """Called when the request has been sent: name and connection took no time of the host's
        turn."""
        exchange = _exchange.get()
        exchange.gate.begin()
        exchange.is_sent = True
        exchange.address = (connection.transport.get_extra_info("peername") or ("",))[0]
        try:
            await super().start(connection)
        except (aiohttp.ClientOSError, aiohttp.ServerDisconnectedError) as error:
            if exchange.is_fresh:  # aiohttp would send the request again at once
                raise aiohttp.ClientConnectionError(_os_text(error)) from error
            raise
        return self


class Client:
    """Makes requests over HTTP/1.1; to be made and used in one event loop, by any number of
    tasks at once.

    Attributes:
      remembered: how many hosts' robots.txt are kept.
    """

    def __init__(self, options: Options):
        self._options = options
        self._addresses = Addresses(
            parse_rules(options.resolve), options.allowed_ports, options.allow_private_hosts
        )
        self._resolver = RuledResolver(self._addresses, min(CONNECT_SECONDS, options.timeout))
        self.remembered = (
            4 * options.connections + 1000
        )  # more than are open: redirects lead to others
        self._session = self._new_session()
        self._proxies = (
            urllib.request.getproxies_environment()
        )  # once, since it goes through all variables

    def _new_session(self) -> aiohttp.ClientSession:
        connector = Connector(
            limit=0,
            keepalive_timeout=3
            + 2 * self._options.host_delay,  # longer for all hosts would take too many files
            resolver=self._resolver,
            ttl_dns_cache=_KEEP_NAMES_SECONDS,
            socket_factory=self._open,
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
        most: int | None = None,
        encoded: bool = False,
        cut: bool = False,
        headers: Mapping[str, str] | None = None,
    ) -> HttpResponse:
        """The response to a GET request; redirects are not followed. Raises RequestError.

        To be called within `gate`, the host's. The wait for its turn does not count as the
        request's time.

        It takes at most so many `seconds`, and its body has at most so many bytes, as sent and
        decoded; the options of pages are the default. The body is decoded; with `encoded`, only its
        transfer encoding is removed and its decoded size is not checked. A body that is larger
        raises RequestError, or is cut there with `cut`. `stop` says, given status and headers, whether
        the body need not be read. `headers` are sent in addition to the usual ones.
        """
        proxy = self._route(url)
        while (wait := gate.next_turn - time.monotonic()) > 0:
            await asyncio.sleep(wait)
        gate.begin()
        seconds = seconds or self._options.timeout
        most = most or self._options.max_page_bytes
        exchange, started, begun = (
            _Exchange(gate, seconds, proxy is not None),
            time.monotonic(),
            False,
        )
        token = _exchange.set(exchange)
        try:
            response = await self._session.get(
                url,
                proxy=proxy,
                headers=headers,
                allow_redirects=False,
                timeout=_timeout(seconds, CONNECT_SECONDS, SILENCE_SECONDS),
            )
            begun = True
            received = await _received(response, url, most, stop, cut)
            if proxy is not None:
                _check_proxy(received.status, received.headers)
            if not encoded:
                received = received._replace(body=_decoded(received, most, cut))
        except (BadMessage, TooLarge, aiohttp.ClientError, OSError, asyncio.TimeoutError) as error:
            failure = _failure(error, exchange, proxy, begun)
            if exchange.is_sent:
                failure.network_works = proxy is None
                failure.connected = proxy is None or url.scheme == "https" or begun  # to the host
            raise failure from error
        finally:
            _exchange.reset(
                token
            )  # the task may be kept, and with it all that it knows of the connection
        ms = round((time.monotonic() - started) * 1000)
        return received._replace(ms=ms, address="" if proxy else exchange.address)

    def _open(self, info: AddrInfo) -> socket.socket:
        """A socket for an address that may be connected to, or for the proxy's: every connection
        is made here, and no name is resolved again, so changing the address between check and
        connection (DNS rebinding) is of no use."""
        exchange = _exchange.get()
        try:
            if not exchange.is_proxied:
                self._addresses.check_address(info[4][0])
        except (
            BlockedAddress
        ) as error:  # the name's next address is tried, which may hide this error
            exchange.blocked = error
            raise
        exchange.is_fresh = True
        return socket.socket(*info[:3])

    def _route(self, url: URL) -> URL | None:
        """The proxy, if there is one; raises RequestError for a port or a name that is not allowed."""
        host, port = url.raw_host or "", url.port or 0
        proxy = None if self._addresses.rule(host) else self._proxy(url.scheme, f"{host}:{port}")
        try:
            self._addresses.check_port(host, port)
            if proxy is not None:  # which resolves other names, in a network of its operator's
                self._addresses.check_literal(host)
        except BlockedAddress as error:
            raise RequestError(Reason.BLOCKED_ADDRESS, str(error)) from error
        return proxy

    def _proxy(self, scheme: str, host: str) -> URL | None:
        """The proxy for a host by the options or the environment."""
        text = self._options.proxy or self._proxies.get(scheme, "")
        if text and urllib.request.proxy_bypass_environment(host, self._proxies):  # type: ignore[attr-defined]
            return None
        return URL(text if "://" in text else f"http://{text}") if text else None


def request_headers(user_agent: str) -> dict[str, str]:
    """Return the headers of each request."""
    return {
        "User-Agent": user_agent,
        "Accept": "text/html,application/xhtml+xml;q=0.9,*/*;q=0.1",
        "Accept-Language": "en,*;q=0.5",
        "Accept-Encoding": messages.ACCEPT_ENCODING,
    }


@lru_cache(1 << 10)
def _timeout(total: float, connect: float, silence: float) -> aiohttp.ClientTimeout:
    return aiohttp.ClientTimeout(total, sock_connect=connect, sock_read=silence)


async def _received(
    response: aiohttp.ClientResponse, url: URL, most: int, stop: Stop, cut: bool
) -> HttpResponse:
    """The response with its body, as sent but for its transfer encoding; the connection can be
    used again if all of it was read. Raises BadMessage, TooLarge, and aiohttp's errors."""
    try:
        if response.status < 200:
            raise BadMessage(f"status {response.status}: another protocol, which nobody asked for")
        raw = [(name, value.strip()) for name, value in response.raw_headers]
        if any(
            name.lower() == b"transfer-encoding" for name, _ in raw
        ):  # the records' headers describe their bodies
            raw = [
                (b"X-Crawler-" * (name.lower() in _OF_TRANSFER) + name, value)
                for name, value in raw
            ]
        headers = [(name.decode("latin-1"), value.decode("latin-1")) for name, value in raw]
        pieces, left, truncated = [], most, False
        if stop(response.status, headers):
            truncated = not response.content.is_eof()
            pieces = [] if truncated else [response.content.read_nowait()]
        else:
            length = messages.header(headers, "content-length") or ""
            if length.isdecimal() and int(length) > most and not cut:
                raise TooLarge(f"Content-Length: {int(length):,}, more than {most:,} bytes")
            while piece := await response.content.readany():
                if truncated := len(piece) > left:
                    if not cut:
                        raise TooLarge(f"more than {most:,} bytes sent")
                    pieces.append(piece[:left])
                    break
                left -= len(piece)
                pieces.append(piece)
        version = response.version or aiohttp.HttpVersion11
        reason = (response.reason or "").encode("utf-8", "surrogateescape")
        lines = [
            b"HTTP/%d.%d %d %s" % (*version, response.status, reason),
            *(b"%s: %s" % field for field in raw),
        ]
        head = b"\r\n".join([*lines, b"", b""])
        return HttpResponse(
            str(url), response.status, headers, head, b"".join(pieces), 0, truncated
        )
    finally:
        if not response.content.at_eof():
            response.close()


def _decoded(received: HttpResponse, limit: int, cut: bool) -> bytes:
    try:
        return messages.decode_body(received.headers, received.body, limit, strictly=True)
    except (TooLarge, messages.CutOff) as error:
        # A body that is cut here ends within its encoding; another one has to be complete.
        is_cut_here = received.truncated or isinstance(error, TooLarge)
        if not cut or not is_cut_here:
            raise
        return error.within


_OF_TRANSFER = (b"transfer-encoding", b"content-length")


def _check_proxy(status: int, headers: Headers) -> None:
    """Raise RequestError for an answer of the proxy itself: Squid and others answer 503 if they cannot
    connect (RFC 9209); HAProxy's 503 has none of the headers that servers send."""
    if status == 407:
        raise RequestError(Reason.PROXY, "the proxy refuses: status 407")
    names = {name.lower() for name, _ in headers}
    is_bare = not names & {"date", "server", "via", "retry-after"}
    if status in (502, 504) or (
        status == 503 and (is_bare or names & {"x-squid-error", "proxy-status"})
    ):
        raise RequestError(
            Reason.CONNECT, f"the proxy answers with status {status}", transient=True
        )


def _failure(error: Exception, exchange: _Exchange, proxy: URL | None, begun: bool) -> RequestError:
    """The failure of a request that raised `error`; `begun` says whether a head was received."""
    text = _os_text(error)
    if isinstance(error, TooLarge):
        return RequestError(Reason.TOO_LARGE, str(error))
    if isinstance(error, messages.CutOff):
        return RequestError(Reason.CONNECT, text, is_cut_off=True)
    if isinstance(error, BadMessage):
        return RequestError(Reason.BAD_RESPONSE, text)
    if isinstance(
        error, aiohttp.InvalidURL
    ):  # a number for an address, such as 2130706433 for 127.0.0.1
        return RequestError(Reason.BLOCKED_ADDRESS, text)
    if isinstance(error, asyncio.TimeoutError):
        if not exchange.is_sent:
            return RequestError(
                Reason.TIMEOUT,
                f"no connection within {min(CONNECT_SECONDS, exchange.seconds):g} s",
                transient=True,
            )
        is_silence = isinstance(error, aiohttp.ServerTimeoutError)
        silence, total = (
            f"nothing came for {SILENCE_SECONDS:g} s",
            f"not complete within {exchange.seconds:.3g} s",
        )
        return RequestError(Reason.TIMEOUT, silence if is_silence else total)
    if isinstance(error, aiohttp.ClientHttpProxyError):
        reason = Reason.PROXY if error.status == 407 else Reason.CONNECT
        return RequestError(
            reason, f"the proxy refuses: {error.status} {error.message}", transient=True
        )
    if begun:
        cause = _first_line(getattr(error.__cause__, "message", text))
        return RequestError(Reason.CONNECT, f"the body breaks off: {cause}", is_cut_off=True)
    if isinstance(error, aiohttp.ClientResponseError):
        return RequestError(Reason.BAD_RESPONSE, _first_line(error.message))
    if proxy is not None and getattr(error, "host", None) == proxy.raw_host:
        return RequestError(Reason.PROXY, f"{proxy.raw_host}: {text}", transient=True)
    number = getattr(error, "os_error", error).errno if isinstance(error, OSError) else None
    if isinstance(error, aiohttp.ClientConnectorDNSError):
        return RequestError(
            Reason.DNS,
            text,
            transient=number == socket.EAI_AGAIN,
            network_works=number in _NO_SUCH_NAME,
        )
    if isinstance(error, (ssl.SSLError, aiohttp.ClientSSLError)) and not _is_end(error):
        return RequestError(Reason.TLS, text)
    if exchange.blocked is not None and not exchange.is_fresh:
        return RequestError(Reason.BLOCKED_ADDRESS, str(exchange.blocked))
    is_refused = proxy is None and number in (errno.ECONNREFUSED, errno.ECONNRESET)
    return RequestError(Reason.CONNECT, text, transient=True, network_works=is_refused)


def _is_end(error: BaseException) -> bool:
    """Return whether a TLS connection ended within its handshake, which says nothing of TLS."""
    ends = (ssl.SSLEOFError, ssl.SSLZeroReturnError, ConnectionError)
    return isinstance(getattr(error, "os_error", error), ends)


def _os_text(error: BaseException) -> str:
    error = getattr(error, "certificate_error", getattr(error, "os_error", error))
    if isinstance(error, ssl.SSLCertVerificationError):
        return error.verify_message
    if isinstance(error, aiohttp.ServerDisconnectedError):
        return "closed before an answer"
    if isinstance(error, OSError) and error.strerror:
        return error.strerror
    return " ".join(str(error).split())[:200] or type(error).__name__


def _first_line(message: str) -> str:
    """The error: llhttp's messages go on with what it found."""
    return " ".join(message.partition("\n")[0].rstrip(" :").split())[:200]
