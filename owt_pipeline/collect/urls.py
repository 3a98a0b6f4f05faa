"""Canonical URLs: one spelling for the variants under which people post the same page.

    canonical_url("HTTP://www.Example.com:80/a/../b%7e/?utm_source=x&id=1#top") == "https://example.com/b~?id=1"

The rules, in order:

- `&amp;` is `&`: Reddit's API and many dumps escape URLs for HTML. Outer white space, tabs and newlines go.
- `http` and `https` are one: the canonical scheme is `https`. Any other scheme is a BadURL.
- The host is in lower case and ASCII (UTS #46, then Punycode, as in browsers), without user and password,
  without `www.` (as long as a domain is left), without a final dot. Ports 80 and 443 go, whatever the scheme.
- Percent-encoding: escapes of letters, digits and `-._~!'()*,:@` are decoded, others in upper case; what may not
  stand in a URL is encoded as UTF-8. Wikipedia's parentheses are the variant of this that matters most.
- Dot segments are resolved; slashes at the end of the path go (an empty path is `/`); inner `//` stay, since
  archives have URLs in their paths.
- Query parameters that track readers go (tracking_parameters.txt), as do empty ones. The order of the others
  stays: some servers read it, and people copy links in the order in which the site wrote them.
- The fragment goes, `#!` too: it is never sent to a server.

The canonical URL names a page; the URL as posted is what is fetched.
"""

from __future__ import annotations

import ipaddress
import re
from functools import lru_cache
from importlib.resources import files
from urllib.parse import unquote_to_bytes

import idna
import xxhash

MAX_LENGTH = 8192
"""A longer URL is a BadURL: servers refuse it, and it is data in disguise."""


class BadURL(ValueError):
    """A URL that cannot be parsed, or is neither http nor https; the message says why."""


def canonical_url(url: str) -> str:
    """The canonical spelling of `url`, pure ASCII; the same for what it returns. Raises BadURL, and nothing else."""
    return canonicalize(url)[0]


def canonicalize(url: str) -> tuple[str, str]:
    """(canonical URL, its host without port) of `url`; raises BadURL."""
    if "&amp;" in url:
        url = unescaped(url)
    simple = _SIMPLE(url)
    if simple is None or len(url) > 253 or "/." in url:
        return _canonicalize_any(url)
    host, path, query = simple.groups()
    if host.startswith("www."):
        return _canonicalize_any(url)
    path = path.rstrip("/") or "/" if path else "/"
    if query:
        query = _without_tracking(query)
        if query:
            return f"https://{host}{path}?{query}", host
    return f"https://{host}{path}", host


def url_id(canonical: str) -> int:
    """The id of a canonical URL: XXH3-64."""
    return xxhash.xxh3_64_intdigest(canonical.encode())


def host_of(canonical: str) -> str:
    """The host of a canonical URL, without its port."""
    netloc = canonical[8:].partition("/")[0]
    return netloc[: netloc.index("]") + 1] if netloc.startswith("[") else netloc.partition(":")[0]


def unescaped(url: str) -> str:
    """A URL as Reddit's API or a dump has it, without HTML escapes and outer white space: fit to be requested."""
    url = url.strip(SPACE)
    while "&amp;" in url:
        url = url.replace("&amp;", "&")
    return url


SPACE = "".join(map(chr, range(33)))
SAFE = r"A-Za-z0-9\-._~!$'()*+,;=:@/"
_DECODED = frozenset(b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-._~!'()*,:@")
KEPT_ESCAPE = "%(?:[0189A-F][0-9A-F]|2[02-6BF]|3[B-F]|5[B-E]|60|7[BCDF])"
"""A regular expression for the percent-escapes that are canonical as they are: in upper case, not of _DECODED."""

# Most URLs need no more than a look: nothing to decode, encode, resolve or lower.
_SIMPLE = re.compile(
    rf"https?://(?:www\.)?((?:[a-z0-9-]{{1,63}}\.)+[a-z]{{2,63}})(/[{SAFE}]*)?(?:\?([{SAFE}?&]*))?(?:#.*)?", re.DOTALL
).fullmatch
_NEWLINES = re.compile(r"[\t\n\r]+").sub
_PARTS = re.compile(r"([A-Za-z][A-Za-z0-9+.\-]*):(?:[/\\]{2}([^/\\?#]*)([^?#]*)(?:\?([^#]*))?)?", re.DOTALL).match
_NETLOC = re.compile(r"(?:.*@)?(\[[^\]]*\]|[^:]*)(?::([0-9]*))?", re.DOTALL).fullmatch
_HOST = re.compile(r"(?=.{1,253}\Z)(?:[a-z0-9_-]{1,63}\.)*[a-z0-9_-]{1,63}").fullmatch

_UNSAFE_IN_PATH = re.compile(rf"%[0-9A-Fa-f]{{2}}|[^{SAFE}&]", re.DOTALL).sub
_UNSAFE_IN_QUERY = re.compile(rf"%[0-9A-Fa-f]{{2}}|[^{SAFE}?&]", re.DOTALL).sub
_DOT_SEGMENT = re.compile(r"/\.{1,2}(?:/|\Z)").search


def _canonicalize_any(url: str) -> tuple[str, str]:
    if len(url) > MAX_LENGTH:
        raise BadURL(f"{len(url):,} characters, more than {MAX_LENGTH:,}")
    url = _NEWLINES("", url.strip(SPACE))
    parts = _PARTS(url)
    if parts is None:
        raise BadURL("no scheme such as https://" if url else "empty")
    scheme, netloc, path, query = parts.groups()
    if scheme.lower() not in ("http", "https"):
        raise BadURL(f"the scheme {scheme[:40]} is neither http nor https")
    if not netloc:
        raise BadURL("no host")
    host, port = _host_and_port(netloc)
    path = unescaped(_UNSAFE_IN_PATH(_escape, path.replace("\\", "/")))
    if _DOT_SEGMENT(path):
        path = _without_dot_segments(path)
    canonical = f"https://{host}{port}{path.rstrip('/') or '/'}"
    if query:
        query = _without_tracking(unescaped(_UNSAFE_IN_QUERY(_escape, query)))
        if query:
            canonical += "?" + query
    return canonical, host


def _escape(match: re.Match[str]) -> str:
    text = match.group()
    if len(text) == 3:
        code = int(text[1:], 16)
        return chr(code) if code in _DECODED else text.upper()
    return "".join(f"%{byte:02X}" for byte in text.encode("utf-8", "surrogatepass"))


def _without_dot_segments(path: str) -> str:
    """RFC 3986, section 5.2.4."""
    kept: list[str] = []
    segments = path.split("/")[1:]
    for segment in segments:
        if segment == "..":
            if kept:
                kept.pop()
        elif segment != ".":
            kept.append(segment)
    return "/" + "/".join(kept)


@lru_cache(1 << 16)
def _host_and_port(netloc: str) -> tuple[str, str]:
    """(host, ":port" or "") of an authority; raises BadURL."""
    parts = _NETLOC(netloc)
    if parts is None:
        raise BadURL(f"the host {netloc[:80]!r} cannot be parsed")
    host, port = parts.groups()
    if port and (len(port) > 10 or not 0 < int(port) < 65536):
        raise BadURL(f"the port {port[:10]} is none")
    port = f":{int(port)}" if port and int(port) not in (80, 443) else ""
    if host.startswith("["):
        try:
            return f"[{ipaddress.IPv6Address(host[1:-1]).compressed}]", port
        except ValueError:
            raise BadURL(f"the host {host[:80]!r} is no IPv6 address") from None
    try:
        if "%" in host:
            host = unquote_to_bytes(host).decode()
        host = host.lower() if host.isascii() else _to_ascii(host)
    except ValueError:  # of the codecs, and of idna
        raise BadURL(f"the host {host[:80]!r} is no domain name") from None
    host = host.rstrip(".")
    while host.startswith("www.") and "." in host[4:]:
        host = host[4:]
    if not _HOST(host):
        raise BadURL(f"the host {host[:80]!r} is no domain name")
    return host, port


def _to_ascii(host: str) -> str:
    """UTS #46 mapping, then Punycode; like browsers and unlike IDNA 2008, it lets emoji through."""
    labels = idna.uts46_remap(host, std3_rules=False, transitional=False).split(".")
    return ".".join(
        label.lower() if label.isascii() else "xn--" + label.encode("punycode").decode() for label in labels
    )


def _without_tracking(query: str) -> str:
    return "&".join([field for field in query.split("&") if field and not _tracks(field.partition("=")[0])])


@lru_cache(1 << 14)
def _tracks(name: str) -> bool:
    return name.lower() in TRACKING_NAMES or name.lower().startswith(TRACKING_PREFIXES)


def _tracking_parameters() -> tuple[frozenset[str], tuple[str, ...]]:
    lines = files("owt_pipeline.collect").joinpath("tracking_parameters.txt").read_text("utf-8").split("\n")
    names = [line.strip() for line in lines if line.strip() and not line.startswith("#")]
    return (
        frozenset(name for name in names if not name.endswith("*")),
        tuple(name[:-1] for name in names if name.endswith("*")),
    )


TRACKING_NAMES, TRACKING_PREFIXES = _tracking_parameters()
