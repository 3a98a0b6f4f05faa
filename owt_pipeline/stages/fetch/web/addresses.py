"""Names and addresses: which address a name has, and which may be connected to.

Public addresses on allowed ports may be, and those of --resolve.
"""

from __future__ import annotations

import asyncio
import contextlib
import fnmatch
import ipaddress
import re
import socket
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

from aiohttp.abc import AbstractResolver, ResolveResult

from owt_pipeline.errors import UserError
from owt_pipeline.formats.public_addresses import is_public

AddrInfo = tuple[Any, ...]
"""Family, type, protocol, canonical name and socket address, as by `socket.getaddrinfo`."""

NO_SUCH_NAME = (socket.EAI_NONAME, getattr(socket, "EAI_NODATA", socket.EAI_NONAME))
"""The system's errors for names without an address."""

_RULE = re.compile(
    r"(?P<pattern>[^=\s]+)=(?:\[(?P<v6>[0-9a-fA-F:.]+)\]|(?P<address>[^:\s]+))(?::(?P<port>\d{1,5}))?"
)

_IPV4_AS_NUMBERS = re.compile(
    r"(?:0x[0-9a-f]*|[0-9]+)(?:\.(?:0x[0-9a-f]*|[0-9]+)){0,3}", re.IGNORECASE
)

# Lookups at once; each needs a thread, started on demand. A name whose servers are dead occupies a
# thread for as long as the system's resolver waits, about 20 seconds, whoever still waits for it.
# With few threads, the links of ten years ago would occupy them all.
_MAX_LOOKUPS = 512


class BlockedAddress(OSError):
    """An address that must not be connected to; the message names it and the reason."""


@dataclass(frozen=True)
class Rule:
    """Hosts whose name matches `pattern` are at `address`, on `port` (None: the URL's)."""

    pattern: str
    address: str
    port: int | None


@dataclass(frozen=True)
class Addresses:
    """The addresses that may be connected to.

    Attributes:
      rules: from `--resolve`; they permit their address and port.
      allowed_ports: ports that a URL may name; if empty, every port.
      allow_private: whether addresses that are not public are allowed.
    """

    rules: tuple[Rule, ...] = ()
    allowed_ports: tuple[int, ...] = (80, 443)
    allow_private: bool = False

    def rule(self, host: str) -> Rule | None:
        """Return the first rule for a host; None if there is none."""
        for rule in self.rules:
            if fnmatch.fnmatchcase(host.lower(), rule.pattern):
                return rule
        return None

    def check_port(self, host: str, port: int) -> None:
        """Raise BlockedAddress for a port that is not allowed."""
        if self.allowed_ports and port not in self.allowed_ports and self.rule(host) is None:
            raise BlockedAddress(f"port {port} is not among --allowed_ports")

    def check_literal(self, host: str) -> None:
        """Raise BlockedAddress for a host that is itself an address that is not public.

        A proxy resolves all other names, and its operator decides which addresses of its network
        it connects to.
        """
        name = host.rstrip(".").lower()
        if not self.allow_private and (name == "localhost" or name.endswith(".localhost")):
            raise BlockedAddress(f"the name {host} means the proxy itself")
        address = _address_in(host)
        if address is not None:
            self.check_address(address)

    def check_address(self, address: str) -> None:
        """Raise BlockedAddress for an address, not from a rule, that is not public."""
        if self.allow_private or isinstance(address, _Permitted):
            return
        if not is_public(ipaddress.ip_address(address.partition("%")[0])):
            raise BlockedAddress(f"the address {address} is not public")


def _address_in(host: str) -> str | None:
    """Return the address that a host is, also as a number; None for a name."""
    with contextlib.suppress(ValueError):
        return str(ipaddress.ip_address(host))
    if not _IPV4_AS_NUMBERS.fullmatch(host):
        return None
    # Such as 2130706433, which resolvers read as 127.0.0.1.
    with contextlib.suppress(OSError):
        return socket.inet_ntoa(socket.inet_aton(host))
    return None


def parse_rules(texts: tuple[str, ...]) -> tuple[Rule, ...]:
    """Return the rules of `--resolve`; raises UserError for one that cannot be read."""
    rules = []
    for text in texts:
        try:
            rules.append(_parse_rule(text))
        except ValueError:
            raise UserError(
                f"--resolve: {text!r} is not PATTERN=ADDRESS[:PORT], such as *.test=127.0.0.1:8080 "
                "or a.test=[::1]:80"
            ) from None
    return tuple(rules)


def _parse_rule(text: str) -> Rule:
    """Return the rule PATTERN=ADDRESS[:PORT]; raises ValueError."""
    match = _RULE.fullmatch(text)
    if match is None:
        raise ValueError(text)
    port = int(match["port"]) if match["port"] else None
    if port is not None and port not in range(1, 65536):
        raise ValueError(text)
    address = str(ipaddress.ip_address(match["v6"] or match["address"]))
    return Rule(match["pattern"].lower(), address, port)


class _Permitted(str):
    """An address from `--resolve`."""


class RuledResolver(AbstractResolver):
    """The system's resolver, after the rules of `addresses`."""

    def __init__(self, addresses: Addresses, seconds: float):
        """Return a resolver that waits `seconds` for a response."""
        self._addresses = addresses
        self._seconds = seconds
        self._threads = ThreadPoolExecutor(_MAX_LOOKUPS, thread_name_prefix="dns")

    async def resolve(
        self, host: str, port: int = 0, family: socket.AddressFamily = socket.AF_UNSPEC
    ) -> list[ResolveResult]:
        """Return the addresses of `host`, unchecked.

        Raises OSError if it has none or no response comes.
        """
        if (rule := self._addresses.rule(host)) is not None:
            return [_result(host, _Permitted(rule.address), rule.port or port)]
        infos = await self._look_up(host, port, family)
        return [_result(host, str(info[4][0]), port) for info in infos]

    async def _look_up(self, host: str, port: int, family: socket.AddressFamily) -> list[AddrInfo]:
        """Return what the system's resolver has of a name; raises socket.gaierror."""
        lookup = asyncio.get_running_loop().run_in_executor(
            self._threads,
            socket.getaddrinfo,
            host,
            port,
            family,
            socket.SOCK_STREAM,
            0,
            socket.AI_ADDRCONFIG,
        )
        try:
            return await asyncio.wait_for(lookup, self._seconds)
        except asyncio.TimeoutError:
            problem = f"no answer about the name within {self._seconds:g} s"
            raise socket.gaierror(socket.EAI_AGAIN, problem) from None
        # A label that is too long.
        except UnicodeError as error:
            raise socket.gaierror(socket.EAI_NONAME, f"no name: {error}") from error

    async def close(self) -> None:
        self._threads.shutdown(wait=False, cancel_futures=True)


def _result(name: str, address: str, port: int) -> ResolveResult:
    family = socket.AF_INET6 if ":" in address else socket.AF_INET
    return ResolveResult(
        hostname=name,
        host=address,
        port=port,
        family=family,
        proto=socket.IPPROTO_TCP,
        flags=socket.AI_NUMERICHOST,
    )
