"""Why a request failed: the reason and the detail, from the error of aiohttp or of the system."""

from __future__ import annotations

import asyncio
import errno
import socket
import ssl
from dataclasses import dataclass, field

import aiohttp
from yarl import URL

from owt_pipeline.formats import messages
from owt_pipeline.formats.messages import BadMessage, Headers, TooLarge
from owt_pipeline.stages.fetch.web.addresses import NO_SUCH_NAME, BlockedAddress
from owt_pipeline.stages.fetch.web.politeness import Gate, RequestError
from schemas import Reason


@dataclass
class Exchange:
    """A request under way: its turn, and facts that aiohttp does not give to its caller.

    Attributes:
      gate: the host's.
      seconds, connect_seconds, silence_seconds: the limits of the request, of finding a connection,
        and of the time without a byte.
      is_proxied: whether it goes to a proxy.
      is_sent: whether it was sent.
      is_fresh: whether a connection was opened for it.
      blocked: why an address of the name must not be connected to.
      address: the server's.
      closed: done once the connection has ended, with the error that it ended with.
    """

    gate: Gate
    seconds: float
    connect_seconds: float
    silence_seconds: float
    is_proxied: bool
    is_sent: bool = False
    is_fresh: bool = False
    blocked: BlockedAddress | None = None
    address: str = ""
    closed: asyncio.Future[None] = field(init=False)


def check_proxy(status: int, headers: Headers) -> None:
    """Raise RequestError for a response of the proxy itself.

    Squid and others respond with 503 if they cannot connect (RFC 9209). HAProxy's 503 has none of
    the headers that servers send.
    """
    if status == 407:
        raise RequestError(Reason.PROXY, "the proxy refuses: status 407")
    names = {name.lower() for name, _ in headers}
    is_bare = not names & {"date", "server", "via", "retry-after"}
    is_marked = bool(names & {"x-squid-error", "proxy-status"})
    if status in (502, 504) or (status == 503 and (is_bare or is_marked)):
        detail = f"the proxy answers with status {status}"
        raise RequestError(Reason.CONNECT, detail, is_transient=True)


def failure_of(
    error: Exception, exchange: Exchange, proxy: URL | None, has_head: bool
) -> RequestError:
    """Return the failure of a request that raised `error`.

    With `has_head`, the head of a response was received.
    """
    text = os_text(error)
    if isinstance(error, TooLarge):
        return RequestError(Reason.TOO_LARGE, str(error))
    if isinstance(error, messages.CutOff):
        return RequestError(Reason.CONNECT, text, is_cut_off=True)
    if isinstance(error, BadMessage):
        return RequestError(Reason.BAD_RESPONSE, text)
    # A number for an address, such as 2130706433 for 127.0.0.1.
    if isinstance(error, aiohttp.InvalidURL):
        return RequestError(Reason.BLOCKED_ADDRESS, text)
    if isinstance(error, asyncio.TimeoutError):
        return _timeout_of(error, exchange)
    if isinstance(error, aiohttp.ClientHttpProxyError):
        reason = Reason.CONNECT
        if error.status == 407:
            reason = Reason.PROXY
        detail = f"the proxy refuses: {error.status} {error.message}"
        return RequestError(reason, detail, is_transient=True)
    if has_head:
        cause = _first_line(getattr(error.__cause__, "message", text))
        return RequestError(Reason.CONNECT, f"the body breaks off: {cause}", is_cut_off=True)
    if isinstance(error, aiohttp.ClientResponseError):
        return RequestError(Reason.BAD_RESPONSE, _first_line(error.message))
    if proxy is not None and getattr(error, "host", None) == proxy.raw_host:
        return RequestError(Reason.PROXY, f"{proxy.raw_host}: {text}", is_transient=True)
    return _connection_failure(error, text, exchange, is_proxied=proxy is not None)


def _timeout_of(error: asyncio.TimeoutError, exchange: Exchange) -> RequestError:
    if not exchange.is_sent:
        seconds = min(exchange.connect_seconds, exchange.seconds)
        detail = f"no connection within {seconds:g} s"
        return RequestError(Reason.TIMEOUT, detail, is_transient=True)
    if isinstance(error, aiohttp.ServerTimeoutError):
        return RequestError(Reason.TIMEOUT, f"nothing came for {exchange.silence_seconds:g} s")
    return RequestError(Reason.TIMEOUT, f"not complete within {exchange.seconds:.3g} s")


def _connection_failure(
    error: Exception, text: str, exchange: Exchange, *, is_proxied: bool
) -> RequestError:
    """Return why there was no connection, or none that lasted until a response."""
    number = getattr(error, "os_error", error).errno if isinstance(error, OSError) else None
    if isinstance(error, aiohttp.ClientConnectorDNSError):
        return RequestError(
            Reason.DNS,
            text,
            is_transient=number == socket.EAI_AGAIN,
            shows_network=number in NO_SUCH_NAME,
        )
    if isinstance(error, (ssl.SSLError, aiohttp.ClientSSLError)) and not _is_end(error):
        return RequestError(Reason.TLS, text)
    if exchange.blocked is not None and not exchange.is_fresh:
        return RequestError(Reason.BLOCKED_ADDRESS, str(exchange.blocked))
    is_refused = not is_proxied and number in (errno.ECONNREFUSED, errno.ECONNRESET)
    return RequestError(Reason.CONNECT, text, is_transient=True, shows_network=is_refused)


def _is_end(error: BaseException) -> bool:
    """Return whether a TLS connection ended within its handshake, which may have any cause."""
    ends = (ssl.SSLEOFError, ssl.SSLZeroReturnError, ConnectionError)
    return isinstance(getattr(error, "os_error", error), ends)


def os_text(error: BaseException) -> str:
    """Return the message of an error, for a person, in one line."""
    error = getattr(error, "certificate_error", getattr(error, "os_error", error))
    if isinstance(error, ssl.SSLCertVerificationError):
        return error.verify_message
    if isinstance(error, aiohttp.ServerDisconnectedError):
        return "closed before an answer"
    if isinstance(error, OSError) and error.strerror:
        return error.strerror
    return " ".join(str(error).split())[:200] or type(error).__name__


def _first_line(message: str) -> str:
    """Return the error without what llhttp found, which its messages go on with."""
    return " ".join(message.partition("\n")[0].rstrip(" :").split())[:200]
