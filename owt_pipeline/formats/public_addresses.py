"""Which IP addresses are public, by IANA's registries (`special_addresses.txt`)."""

from __future__ import annotations

import functools
import ipaddress
from importlib.resources import files

IPAddress = ipaddress.IPv4Address | ipaddress.IPv6Address
IPNetwork = ipaddress.IPv4Network | ipaddress.IPv6Network

_NAT64 = ipaddress.ip_network("64:ff9b::/96")


def is_public(ip: IPAddress) -> bool:
    """Return whether an address is public, by `special_addresses.txt`.

    An IPv6 address that wraps an IPv4 address is judged by that. `ipaddress.is_global` is not
    asked, since its answer depends on the patch level of Python.
    """
    if isinstance(ip, ipaddress.IPv6Address):
        wrapped = _wrapped_address(ip)
        if wrapped is not None:
            return is_public(wrapped)
    for block, is_reachable in _special_blocks():
        if ip in block:
            return is_reachable
    return True


@functools.cache
def _special_blocks() -> list[tuple[IPNetwork, bool]]:
    """Return the blocks of `special_addresses.txt`, and whether each is globally reachable.

    Smaller blocks come first, so that the first block with an address is the one that counts.
    """
    text = files(__package__).joinpath("special_addresses.txt").read_text("utf-8")
    blocks: list[tuple[IPNetwork, bool]] = []
    for line in text.splitlines():
        if line and not line.startswith("#"):
            block, is_reachable, _ = line.split(" ", 2)
            blocks.append((ipaddress.ip_network(block), {"yes": True, "no": False}[is_reachable]))
    return sorted(blocks, key=lambda item: -item[0].prefixlen)


def _wrapped_address(ip: ipaddress.IPv6Address) -> ipaddress.IPv4Address | None:
    """Return the IPv4 address that an IPv6 address stands for; None for another one."""
    if ip in _NAT64:
        return ipaddress.IPv4Address(int(ip) & 0xFFFFFFFF)
    teredo_client = ip.teredo[1] if ip.teredo else None
    return ip.ipv4_mapped or ip.sixtofour or teredo_client
