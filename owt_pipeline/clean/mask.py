"""E-mail and IP addresses in text, replaced by ones that are nobody's (RFC 2606, RFC 5737, RFC 3849)."""

from __future__ import annotations

import ipaddress
import re

EMAIL = "email@example.com"
IPV4 = "192.0.2.1"
IPV6 = "2001:db8::1"

_EMAIL = re.compile(r"(?<![\w.+%-])[\w.+%-]{1,64}@(?:[A-Za-z0-9-]{1,63}\.){1,8}[A-Za-z]{2,24}(?![\w-])", re.ASCII)
_IP = re.compile(
    r"(?<![\w.])(?:\d{1,3}\.){3}\d{1,3}(?!\w|\.\d)"
    r"|(?<![\w.:])[23][0-9A-Fa-f]{3}(?::[0-9A-Fa-f]{0,4}){2,7}(?![\w:])",  # the internet's, 2000::/3
    re.ASCII,
)


def mask(text: str) -> tuple[str, int]:
    """`text` with its addresses replaced, and how many there were; IP addresses only where they are public."""
    count = 0
    if "@" in text:
        text, count = _EMAIL.subn(lambda match: EMAIL, text)

    def replaced(match: re.Match[str]) -> str:
        nonlocal count
        try:
            address = ipaddress.ip_address(match[0])
        except ValueError:
            return match[0]
        if not address.is_global:
            return match[0]
        count += 1
        return IPV4 if address.version == 4 else IPV6

    return _IP.sub(replaced, text), count
