"""Common Crawl's keys of URLs, SURT (Sort-friendly URI Reordering Transform):
`org,commoncrawl)/get-started`.

A key is the URL without what servers mostly ignore, host first and from its end, so that a domain's
pages are neighbours in the order of the keys. The steps come from Google's Safe Browsing
(https://developers.google.com/safe-browsing/v4/urls-hashing#canonicalization) and, after them, of
the Wayback Machine: no user, `www.`, default port and slash at the end; all in lower case;
parameters sorted. Common Crawl makes its keys with the Internet Archive's library `surt`, whose
results the tests compare with these. It also removes session ids and reads numbers as addresses,
which is left out: a capture with another session id is another URL.
"""

from __future__ import annotations

import contextlib
import re
from urllib.parse import unquote_to_bytes

_PARTS = re.compile(rb"https?://([^/?#]*)([^?#]*)(?:\?([^#]*))?", re.IGNORECASE | re.DOTALL).match
_AUTHORITY = re.compile(rb"(?:.*@)?(?:\[([^\]]*)\]|([^:]*))(?::([0-9]{0,5}))?", re.DOTALL).fullmatch
_WWW = re.compile(rb"www[0-9]*\.").match
_UNSAFE = re.compile(rb"[^!-~]|[#%]").sub
_MAX_PORT = 65535


def surt_key(url: str) -> bytes | None:
    """Return the key of an http or https URL; None for one that has none, and so is in no index."""
    text = re.sub(rb"[\t\r\n]", b"", url.encode("utf-8", "replace").strip())
    parts = _PARTS(text)
    authority = _AUTHORITY(parts[1]) if parts else None
    if parts is None or authority is None:
        return None
    ipv6, name, port_text = authority.groups()
    port = int(port_text or 0)
    host = _reverse_labels(ipv6.lower()) if ipv6 else _key_of_host(name)
    if port > _MAX_PORT or not host:
        return None
    default_port = 443 if text[:6].lower() == b"https:" else 80
    if port and port != default_port:
        host += b":%d" % port
    key = host + b")" + _key_of_path(parts[2])
    query = _key_of_query(parts[3] or b"")
    return key + b"?" + query if query else key


def _key_of_host(name: bytes) -> bytes:
    """Return a host from its end, with commas between its labels; "" for none."""
    host = _unescape(name)
    if not host.isascii():
        # A label that IDNA does not know stays as it is.
        with contextlib.suppress(UnicodeError):
            host = host.decode(errors="ignore").encode("idna")
    host = _escape(host.replace(b"..", b".").strip(b".")).lower()
    if www := _WWW(host):
        host = host[www.end() :]
    return _reverse_labels(host)


def _reverse_labels(host: bytes) -> bytes:
    return b",".join(reversed(host.split(b".")))


def _key_of_path(path: bytes) -> bytes:
    segments: list[bytes] = []
    for segment in _unescape(path).split(b"/")[1:]:
        if segment == b".." and segments:
            segments.pop()
        elif segment != b".":
            segments.append(segment)
    folders = b"".join(segment + b"/" for segment in segments[:-1] if segment)
    last = segments[-1] if segments else b""
    path = _escape(b"/" + folders + last).lower()
    return path[:-1] if path.endswith(b"/") and len(path) > 1 else path


def _key_of_query(query: bytes) -> bytes:
    fields = _escape(_unescape(query)).lower().split(b"&")
    fields.sort(key=lambda field: field.split(b"=", 1))
    return b"&".join(fields)


def _unescape(text: bytes) -> bytes:
    """Return the text without escapes, also those that appear when others are removed."""
    while True:
        unescaped = unquote_to_bytes(text)
        if unescaped == text:
            return text
        text = unescaped


def _escape(text: bytes) -> bytes:
    return _UNSAFE(lambda match: b"%%%02X" % ord(match.group()), text)
