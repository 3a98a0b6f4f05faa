"""E-mail and IP addresses in text, replaced by ones that are nobody's (RFC 2606, RFC 5737)."""

from __future__ import annotations

import ipaddress
import re

EMAIL = "email@example.com"
IP = "192.0.2.1"

_EMAIL = re.compile(r"(?<![\w.+%-])[\w.+%-]{1,64}@(?:[A-Za-z0-9-]{1,63}\.){1,8}[A-Za-z]{2,24}(?![\w-])")
_IPV4 = re.compile(r"(?<![\w.])(?:\d{1,3}\.){3}\d{1,3}(?![\w]|\.\d)")


def mask(text: str) -> tuple[str, int]:
    """`text` with its addresses replaced, and how many there were; IP addresses only where they are public."""
    count = 0
    if "@" in text:
        text, count = _EMAIL.subn(EMAIL, text)

    def replaced(match: re.Match[str]) -> str:
        nonlocal count
        try:
            public = ipaddress.IPv4Address(match[0]).is_global
        except ValueError:
            return match[0]
        count += public
        return IP if public else match[0]

    return _IPV4.sub(replaced, text), count
