"""Common Crawl's keys of URLs, SURT (Sort-friendly URI Reordering Transform):
`org,commoncrawl)/get-started`.

A key is the URL without what servers mostly ignore, host first and from its end, so that a domain's
pages are neighbours in the order of the keys. The steps are those of Google's Safe Browsing
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


def surt_key(url: str) -> bytes | None:
    """The key of an http or https URL; None for one that has none, and so is in no index."""
    text = re.sub(rb"[\t\r\n]", b"", url.encode("utf-8", "replace").strip())
    parts = _PARTS(text)
    authority = _AUTHORITY(parts[1]) if parts else None
    if parts is None or authority is None:
        return None
    port = int(authority[3] or 0)
    if port > 65535 or not (
        host := _reversed(authority[1].lower()) if authority[1] else _host(authority[2])
    ):
        return None
    if port and port != (443 if text[:6].lower() == b"https:" else 80):
        host += b":%d" % port
    key = host + b")" + _path(parts[2])
    query = _query(parts[3] or b"")
    return key + b"?" + query if query else key


def _host(name: bytes) -> bytes:
    """A host from its end, with commas between its labels; "" for none."""
    host = _unescaped(name)
    if not host.isascii():
        with contextlib.suppress(UnicodeError):  # a label that IDNA does not know
            host = host.decode(errors="ignore").encode("idna")
    host = _escaped(host.replace(b"..", b".").strip(b".")).lower()
    if www := _WWW(host):
        host = host[www.end() :]
    return _reversed(host)


def _reversed(host: bytes) -> bytes:
    return b",".join(reversed(host.split(b".")))


def _path(path: bytes) -> bytes:
    kept: list[bytes] = []
    for segment in _unescaped(path).split(b"/")[1:]:
        if segment == b".." and kept:
            kept.pop()
        elif segment != b".":
            kept.append(segment)
    folders = b"".join(segment + b"/" for segment in kept[:-1] if segment)
    path = _escaped(b"/" + folders + (kept[-1] if kept else b"")).lower()
    return path[:-1] if path.endswith(b"/") and len(path) > 1 else path


def _query(query: bytes) -> bytes:
    fields = sorted(
        _escaped(_unescaped(query)).lower().split(b"&"), key=lambda field: field.split(b"=", 1)
    )
    return b"&".join(fields)


def _unescaped(text: bytes) -> bytes:
    while (once := unquote_to_bytes(text)) != text:
        text = once
    return text


def _escaped(text: bytes) -> bytes:
    return _UNSAFE(lambda match: b"%%%02X" % ord(match.group()), text)
