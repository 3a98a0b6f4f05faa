"""Which addresses may be connected to: public ones, on allowed ports, and those that --resolve names."""

from __future__ import annotations

import fnmatch
import ipaddress
import re
from dataclasses import dataclass

from owt_pipeline.engine.errors import UserError

IPAddress = ipaddress.IPv4Address | ipaddress.IPv6Address

_NAT64 = ipaddress.ip_network("64:ff9b::/96")
_GLOBAL_UNICAST = ipaddress.ip_network("2000::/3")
_RULE = re.compile(r"(?P<pattern>[^=\s]+)=(?:\[(?P<v6>[0-9a-fA-F:.]+)\]|(?P<address>[^:\s]+))(?::(?P<port>\d{1,5}))?")


class BlockedAddress(OSError):
    """An address that must not be connected to; the message says which and why."""


@dataclass(frozen=True)
class Rule:
    """Hosts whose name matches `pattern` are at `address`, on `port` (None: the URL's)."""

    pattern: str
    address: str
    port: int | None


@dataclass(frozen=True)
class Addresses:
    """What may be connected to.

    Attributes:
      rules: from `--resolve`; they permit their address and port.
      allowed_ports: ports that a URL may name; none given, every one.
      allow_private: whether addresses that are not public are allowed.
    """

    rules: tuple[Rule, ...] = ()
    allowed_ports: tuple[int, ...] = (80, 443)
    allow_private: bool = False

    def rule(self, host: str) -> Rule | None:
        """The first rule for a host."""
        return next((rule for rule in self.rules if fnmatch.fnmatchcase(host.lower(), rule.pattern)), None)

    def check_port(self, host: str, port: int) -> None:
        """Raise BlockedAddress for a port that is not allowed."""
        if self.allowed_ports and port not in self.allowed_ports and self.rule(host) is None:
            raise BlockedAddress(f"port {port} is not among --allowed_ports")

    def check_address(self, address: str) -> None:
        """Raise BlockedAddress for an address, not from a rule, that is not public."""
        if not self.allow_private and not is_public(ipaddress.ip_address(address.partition("%")[0])):
            raise BlockedAddress(f"the address {address} is not public")


def parse_rules(texts: tuple[str, ...]) -> tuple[Rule, ...]:
    """The rules of `--resolve`; raises UserError for one that is not PATTERN=ADDRESS[:PORT]."""
    rules = []
    for text in texts:
        match = _RULE.fullmatch(text)
        try:
            if match is None or int(match["port"] or 1) not in range(1, 65536):
                raise ValueError
            address = str(ipaddress.ip_address(match["v6"] or match["address"]))
        except ValueError:
            raise UserError(
                f"--resolve: {text!r} is not PATTERN=ADDRESS[:PORT], such as *.test=127.0.0.1:8080 or a.test=[::1]:80"
            ) from None
        rules.append(Rule(match["pattern"].lower(), address, int(match["port"]) if match["port"] else None))
    return tuple(rules)


def is_public(ip: IPAddress) -> bool:
    """Whether an address is one of the public internet, also where it wraps an IPv4 address."""
    if isinstance(ip, ipaddress.IPv6Address):
        wrapped = ip.ipv4_mapped or ip.sixtofour or (ip.teredo[1] if ip.teredo else None)
        if ip in _NAT64:
            wrapped = ipaddress.IPv4Address(int(ip) & 0xFFFFFFFF)
        if wrapped is not None:
            return is_public(wrapped)
        if ip not in _GLOBAL_UNICAST:  # site-local, a local NAT64's, IPv4 in deprecated forms: global to `ipaddress`
            return False
    return ip.is_global and not ip.is_multicast
