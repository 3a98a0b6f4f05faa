"""One HTTP request within limits: its result is a response, or a failure with a reason."""

from __future__ import annotations

import asyncio
import base64
import errno
import functools
import logging
import resource
import socket
import ssl
import time
import urllib.request
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

from aiohappyeyeballs import AddrInfoType
from yarl import URL

from owt_pipeline.formats.messages import ACCEPT_ENCODING, BadMessage, CutOff, Headers, TooLarge, decode_body
from owt_pipeline.stages.fetch.addresses import Addresses, BlockedAddress, CheckingResolver, parse_rules
from owt_pipeline.stages.fetch.answers import Received
from owt_pipeline.stages.fetch.connections import (
    Connection,
    Hop,
    IdleConnections,
    ProxyError,
    ResponseReader,
    Silence,
    Stop,
    connect,
    origin_of,
)
from owt_pipeline.stages.fetch.manners import Failed, Gate, Slots
from schemas import Reason

if TYPE_CHECKING:
    from owt_pipeline.stages.fetch.stage import Options

logger = logging.getLogger("owt")

CONNECT_SECONDS = 15.0
"""For resolving a name, and again for a connection."""
SILENCE_SECONDS = 30.0
"""Without a byte, before the head and within the body."""

_NO_SUCH_NAME = (socket.EAI_NONAME, getattr(socket, "EAI_NODATA", socket.EAI_NONAME))

_NO_RESOLVER = 3
"""After so many names without an answer, a machine behind a proxy is assumed to have no resolver for the internet."""


@dataclass(frozen=True)
class Limits:
    """Times in seconds, sizes in bytes.

    Attributes:
      connect: for resolving the name, and again for connection and TLS.
      silence: without a byte, before the head and within the body.
      total: from the request to the last byte.
      wire_bytes: size of a body as sent.
      body_bytes: size of a body after decoding.
    """

    connect: float
    silence: float
    total: float
    wire_bytes: int
    body_bytes: int

    @classmethod
    def of_page(cls, options: Options) -> Limits:
        """The limits of a page, by the stage's options."""
        total, size = options.timeout, options.max_page_bytes
        return cls(min(CONNECT_SECONDS, total), min(SILENCE_SECONDS, total), total, size, size)


class _Route(NamedTuple):
    """The addresses to connect to for a URL, and the proxy at these addresses, if there is one."""

    infos: Sequence[AddrInfoType]
    proxy: URL | None


class Client:
    """Makes requests over HTTP/1.1; to be made and used in one event loop, by any number of tasks at once.

    Attributes:
      connections: how many requests may be under way at the same time; `slots` has one for each.
      remembered: how many hosts' addresses, turns and robots.txt are kept.
    """

    def __init__(self, options: Options, may_ask: Callable[[], bool] = lambda: True):
        """A client by the stage's options, which makes no request while `may_ask` returns False."""
        self._options, self._may_ask = options, may_ask
        self._addresses = Addresses(parse_rules(options.resolve), options.allowed_ports, options.allow_private_hosts)
        connections = _allowed_connections(options.connections)
        self.remembered = 4 * connections + 1000  # more than are open: redirects lead to others
        self._resolver = CheckingResolver(self._addresses, self.remembered)
        self._idle = IdleConnections(connections, max(15.0, 2 * options.host_delay))
        self.connections, self.slots = connections, Slots(connections)
        self._headers = {
            "User-Agent": options.user_agent,
            "Accept": "text/html,application/xhtml+xml;q=0.9,*/*;q=0.1",
            "Accept-Language": "en,*;q=0.5",
            "Accept-Encoding": ACCEPT_ENCODING,
        }
        self._usual_lines = _lines(self._headers)
        self._unresolved = 0  # names in a row for which the resolver gave no answer
        self._proxies = urllib.request.getproxies_environment()  # once, since it goes through all variables

    async def close(self) -> None:
        self._idle.close()
        self._resolver.close()
        await asyncio.sleep(0)  # lets the connections close their sockets

    async def get(
        self,
        url: URL,
        limits: Limits,
        stop: Stop,
        gate: Gate,
        *,
        encoded: bool = False,
        cut: bool = False,
        headers: Mapping[str, str] | None = None,
    ) -> Received:
        """The response to a GET request; redirects are not followed. Raises Failed.

        To be called within `gate`, the host's. The wait for its turn does not count as the request's time.

        The body is decoded; with `encoded`, it is left as sent and its decoded size is not checked. A body beyond its
        limits raises Failed, or is cut there with `cut`. `stop` says, given status and headers, whether the body need
        not be read. `headers` are sent in addition to the usual ones.
        """
        route = await self._route(url, limits.connect)
        reader = ResponseReader(stop, limits.wire_bytes, cut=cut)
        request = self._request(url, route.proxy, headers)
        async with self.slots:
            while (wait := gate.next_turn - time.monotonic()) > 0 or not self._may_ask():
                await asyncio.sleep(max(wait, 0.01))
            gate.begin()
            started = asyncio.get_running_loop().time()
            try:
                connection = await self._exchange(url, route, request, reader, limits, started + limits.total)
                if route.proxy is not None:
                    _check_proxy(reader.status, reader.headers)
                body = b"".join(reader.body)
                if not encoded:
                    body = _decoded(reader.headers, body, limits.body_bytes, cut)
            except (BadMessage, TooLarge, OSError, asyncio.TimeoutError) as error:
                failure = _failure(error, limits, reader)
                failure.network_works = route.proxy is None
                failure.connected = route.proxy is None or url.scheme == "https" or reader.begun  # to the host
                raise failure from error
            ms = round((asyncio.get_running_loop().time() - started) * 1000)
        ip = "" if route.proxy else connection.address
        return Received(str(url), reader.status, reader.headers, reader.head, body, ms, reader.truncated, ip)

    def _request(self, url: URL, proxy: URL | None, headers: Mapping[str, str] | None) -> bytes:
        lines = _lines({**self._headers, **headers}) if headers else self._usual_lines
        target = url.raw_path_qs
        if proxy is not None and url.scheme == "http":
            target, lines = str(url.with_fragment(None)), lines + _proxy_authorization(proxy)
        begin = f"GET {target} HTTP/1.1\r\nHost: {url.host_port_subcomponent}\r\n"
        return begin.encode() + f"{lines}\r\n".encode("latin-1", "replace")  # a cookie's bytes as they were received

    async def _exchange(
        self, url: URL, route: _Route, request: bytes, reader: ResponseReader, limits: Limits, deadline: float
    ) -> Connection:
        origin = origin_of(url)
        connection = self._idle.take(origin)
        if connection is not None:
            try:
                await connection.exchange(request, reader, limits.silence, deadline)
            except ConnectionError:
                if reader.begun:
                    raise
                connection = None  # the server closed it while the request was on its way
        if connection is None:
            connection = await self._connect(url, route, min(limits.connect, limits.total))
            await connection.exchange(request, reader, limits.silence, deadline)
        if reader.reusable:
            self._idle.put(origin, connection)
        else:
            connection.close()
        return connection

    async def _route(self, url: URL, seconds: float) -> _Route:
        """The addresses to connect to, where address and port are allowed; raises Failed."""
        host, port = url.raw_host or "", url.port or 0
        proxy = None if self._addresses.rule(host) else self._proxy(url.scheme, f"{host}:{port}")
        try:
            self._addresses.check_port(host, port)
            if proxy is None:
                return _Route(await self._resolver.resolve(host, port, seconds), None)
            await self._check_behind_proxy(host, port, seconds)
        except BlockedAddress as error:
            raise Failed(Reason.BLOCKED_ADDRESS, str(error)) from error
        except (OSError, UnicodeError) as error:
            number = error.errno if isinstance(error, socket.gaierror) else None
            temporary, is_known = number == socket.EAI_AGAIN, number in _NO_SUCH_NAME
            raise Failed(Reason.DNS, _os_text(error), transient=temporary, network_works=is_known) from error
        try:
            return _Route(await self._resolver.look_up(proxy.raw_host or "", proxy.port or 80, seconds), proxy)
        except (OSError, UnicodeError) as error:
            raise Failed(Reason.PROXY, f"{proxy.raw_host}: {_os_text(error)}", transient=True) from error

    async def _check_behind_proxy(self, host: str, port: int, seconds: float) -> None:
        """Raise BlockedAddress for a host that must not be requested from the proxy: its name is private by its form,
        or this machine's resolver knows the name and its address is private."""
        self._addresses.check_name(host)
        if not self._addresses.allow_private and self._unresolved < _NO_RESOLVER:
            try:
                await self._resolver.resolve(host, port, seconds)
                self._unresolved = 0
            except BlockedAddress:
                raise
            except OSError as error:  # the proxy may know the name
                self._unresolved = 0 if getattr(error, "errno", 0) == socket.EAI_NONAME else self._unresolved + 1

    def _proxy(self, scheme: str, host: str) -> URL | None:
        """The proxy for a host by the options or the environment."""
        text = self._options.proxy or self._proxies.get(scheme, "")
        if text and urllib.request.proxy_bypass_environment(host, self._proxies):  # type: ignore[attr-defined]
            return None
        return URL(text if "://" in text else f"http://{text}") if text else None

    async def _connect(self, url: URL, route: _Route, seconds: float) -> Connection:
        """A connection to the URL's host, through the proxy if there is one; raises Failed."""
        tls = _tls_context(self._options.verify_tls) if url.scheme == "https" else None
        hop = None
        if (proxy := route.proxy) is not None:
            to = f"{url.host_subcomponent}:{url.port}"
            tunnel = f"CONNECT {to} HTTP/1.1\r\nHost: {to}\r\n{_proxy_authorization(proxy)}\r\n" if tls else ""
            proxy_tls = _tls_context(self._options.verify_tls) if proxy.scheme == "https" else None
            hop = Hop(proxy_tls, proxy.raw_host or "", tunnel.encode())
        try:
            return await asyncio.wait_for(connect(route.infos, tls, url.raw_host or "", hop), seconds)
        except asyncio.TimeoutError as error:
            raise Failed(Reason.TIMEOUT, f"no connection within {seconds:g} s", transient=True) from error
        except ssl.SSLError as error:
            raise Failed(Reason.TLS, _os_text(error)) from error
        except ProxyError as error:
            raise Failed(Reason.PROXY, _os_text(error), transient=True) from error
        except OSError as error:
            refused = route.proxy is None and error.errno in (errno.ECONNREFUSED, errno.ECONNRESET)
            raise Failed(Reason.CONNECT, _os_text(error), transient=True, network_works=refused) from error


def _allowed_connections(wanted: int) -> int:
    """The number of connections that are wanted, or as many as the system's limit on open files allows.

    The soft limit is raised as far as needed.
    """
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    needed = 2 * wanted + 500  # kept-alive connections, and the files of shards and libraries
    if hard != resource.RLIM_INFINITY:
        needed = min(needed, hard)
    if soft != resource.RLIM_INFINITY and soft < needed:
        resource.setrlimit(resource.RLIMIT_NOFILE, (needed, hard))
    allowed = max((needed - 500) // 2, 16)
    if allowed < wanted:
        logger.warning("fetch: %d connections at once, not %d: the system allows %d files", allowed, wanted, hard)
    return min(wanted, allowed)


def _check_proxy(status: int, headers: Headers) -> None:
    """Raise Failed for an answer of the proxy itself: Squid and others answer 503 if they cannot connect (RFC 9209);
    HAProxy's 503 has none of the headers that servers send."""
    if status == 407:
        raise Failed(Reason.PROXY, "the proxy refuses: status 407")
    names = {name.lower() for name, _ in headers}
    is_bare = not names & {"date", "server", "via", "retry-after"}
    if status in (502, 504) or (status == 503 and (is_bare or names & {"x-squid-error", "proxy-status"})):
        raise Failed(Reason.CONNECT, f"the proxy answers with status {status}", transient=True)


def _decoded(headers: Headers, body: bytes, limit: int, cut: bool) -> bytes:
    try:
        return decode_body(headers, body, limit, strictly=True)
    except (TooLarge, CutOff) as error:
        if not cut:
            raise
        return error.within


def _failure(error: Exception, limits: Limits, reader: ResponseReader) -> Failed:
    """The failure of a request whose connection raised `error`."""
    if isinstance(error, TooLarge):
        return Failed(Reason.TOO_LARGE, str(error))
    if isinstance(error, BadMessage):
        return Failed(Reason.BAD_RESPONSE, str(error))
    if isinstance(error, Silence):
        return Failed(Reason.TIMEOUT, f"nothing came for {limits.silence:g} s")
    if isinstance(error, asyncio.TimeoutError):
        return Failed(Reason.TIMEOUT, f"not complete within {limits.total:.3g} s")
    if isinstance(error, ssl.SSLError):
        return Failed(Reason.TLS, _os_text(error))
    if reader.status:
        return Failed(Reason.CONNECT, f"the body breaks off: {_os_text(error)}")
    return Failed(Reason.CONNECT, _os_text(error), transient=True)


def _os_text(error: Exception) -> str:
    if isinstance(error, ssl.SSLCertVerificationError):
        return error.verify_message
    if isinstance(error, OSError) and error.strerror:
        return error.strerror
    return " ".join(str(error).split())[:200] or type(error).__name__


def _lines(headers: Mapping[str, str]) -> str:
    return "".join(f"{name}: {value}\r\n" for name, value in headers.items())


def _proxy_authorization(proxy: URL) -> str:
    if proxy.user is None:
        return ""
    credentials = base64.b64encode(f"{proxy.user}:{proxy.password or ''}".encode()).decode()
    return f"Proxy-Authorization: Basic {credentials}\r\n"


@functools.lru_cache(maxsize=2)
def _tls_context(verify: bool) -> ssl.SSLContext:
    context = ssl.create_default_context()
    context.set_alpn_protocols(["http/1.1"])
    if not verify:
        context.check_hostname = False
        context.verify_mode = ssl.CERT_NONE
    return context
