"""Canonical URLs: one spelling for all variants of a URL under which people post the same page.

    canonical_url("HTTP://www.Example.com:80/a/../b%7e/?utm_source=x&id=1#top") ==
    "https://example.com/b~?id=1"

The rules, in order:

- `&amp;` is `&`: Reddit's API and many dumps escape URLs for HTML. Outer white space, tabs and
  newlines go.
- `http` and `https` are one: the canonical scheme is `https`. Any other scheme is a BadURL.
- The host is in lower case and ASCII (UTS #46, then Punycode, as in browsers), without user,
  password and final dot, and without `www.` if a domain is left. Ports 80 and 443 are removed with
  either scheme.
- Percent-encoding: escapes of letters, digits and `-._~!'()*,:@` are decoded, others are in upper
  case; characters not allowed in a URL are encoded as UTF-8. This matters most for the parentheses
  of Wikipedia's URLs.
- Dot segments are resolved. Slashes at the end of the path are removed (an empty path is `/`);
  inner `//` stay, since archives have URLs in their paths.
- Query parameters for tracking (tracking_parameters.txt) and empty ones are removed. The others
  keep their order, since it matters to some servers, and people copy links with the order of the
  site.
- The fragment, which is never sent to a server, is removed unless it names content: `#!topic/42` or
  `#/video/42`, the routes of pages assembled by a script.

The canonical URL identifies a page. The URL that is fetched is the posted one (`requested`) with
its own escapes: for some servers, `?u=http%3A%2F%2Fx.org%2F` differs from `?u=http://x.org/`.

Ids depend on these rules: a change of them raises the version of the stages that create ids,
collect and import.
"""

from __future__ import annotations

import ipaddress
import re
from functools import lru_cache
from urllib.parse import unquote_to_bytes

import idna
import pyarrow as pa
import pyarrow.compute as pc
import xxhash

from owt_pipeline.formats.tracking import without_tracking

MAX_LENGTH = 8192
"""A longer URL is a BadURL: servers refuse it, and it usually holds data."""


class BadURL(ValueError):
    """The URL cannot be parsed, or is neither http nor https; the message is the reason."""


def canonical_url(url: str) -> str:
    """Return the canonical spelling of a URL, in ASCII.

    A canonical URL is returned unchanged. Raises BadURL, a ValueError, and no other exception.
    """
    return canonicalize(url)[0]


def canonicalize(url: str) -> tuple[str, str]:
    """Return (canonical URL, its host without port) of a URL; raise BadURL."""
    if len(url) > MAX_LENGTH:
        raise BadURL(f"{len(url):,} characters, more than {MAX_LENGTH:,}")
    url = _without_newlines(url.strip(SPACE))
    parts = _PARTS(url)
    if parts is None:
        raise BadURL("no scheme such as https://" if url else "empty")
    scheme, netloc, path, query, fragment = parts.groups()
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
        query = without_tracking(unescaped(_UNSAFE_IN_QUERY(_escape, query)), host)
        if query:
            canonical += "?" + query
    if fragment and fragment[0] in "!/%":
        canonical += _route(fragment)
    if len(canonical) > MAX_LENGTH:
        raise BadURL(f"{len(canonical):,} characters when encoded, more than {MAX_LENGTH:,}")
    return canonical, host


def canonical_column(urls: pa.Array) -> tuple[pa.Array, pa.Array, pa.Array]:
    """Return three columns of strings: canonical URLs, their hosts, and problems.

    A URL with a problem is bad, and its canonical URL and host are null. A null is an empty URL.
    """
    urls = pc.fill_null(urls, "")
    is_short = pc.less(pc.binary_length(urls), MAX_LENGTH)
    # Most links are plain: no part of them needs escaping, resolving or removing. As columns, they
    # take an eighth of the time that they take in `canonicalize`.
    is_plain = pc.and_(pc.match_substring_regex(urls, _PLAIN), is_short)
    bare = pc.replace_substring_regex(urls.filter(is_plain), "^https?://(?:www[.])?", "")
    bare = pc.ascii_rtrim(bare, "/")
    plain_hosts = pc.list_element(pc.split_pattern(bare, "/", max_splits=1), 0)
    root_path = pc.if_else(pc.equal(bare, plain_hosts), "/", "")
    plain_urls = pc.binary_join_element_wise("https://", bare, root_path, "")
    no_problems = pa.nulls(len(bare), pa.string())
    is_other = pc.invert(is_plain)
    others = [_canonical_or_problem(url) for url in urls.filter(is_other).to_pylist()]

    def merged(plain_values: pa.Array, other_values: list[str | None]) -> pa.Array:
        column = pc.replace_with_mask(pa.nulls(len(urls), pa.string()), is_plain, plain_values)
        return pc.replace_with_mask(column, is_other, pa.array(other_values, pa.string()))

    return (
        merged(plain_urls, [canonical for canonical, _, _ in others]),
        merged(plain_hosts, [host for _, host, _ in others]),
        merged(no_problems, [problem for _, _, problem in others]),
    )


def _canonical_or_problem(url: str) -> tuple[str | None, str | None, str | None]:
    """Return (canonical URL, host, problem): either the first two, or only the last."""
    try:
        canonical, host = canonicalize(url)
    except BadURL as problem:
        return None, None, str(problem)
    return canonical, host, None


def host_hash(host: str) -> int:
    """Return the hash of a host. Modulo a generation's number of shards, it is the host's shard."""
    return xxhash.xxh3_64_intdigest(host.encode())


def id_of(canonical: str) -> int:
    """Return the id of a canonical URL: XXH3-64."""
    return xxhash.xxh3_64_intdigest(canonical.encode())


def host_of(canonical: str) -> str:
    """Return the host of a canonical URL, without its port."""
    netloc = canonical.removeprefix("https://").partition("/")[0]
    if netloc.startswith("["):
        # An IPv6 address has colons of its own.
        return netloc[: netloc.index("]") + 1]
    return netloc.partition(":")[0]


def unescaped(url: str) -> str:
    """Return a URL of Reddit's API or a dump without HTML escapes and outer white space."""
    url = url.strip(SPACE)
    while "&amp;" in url:
        url = url.replace("&amp;", "&")
    return url


def unescaped_column(urls: pa.Array) -> pa.Array:
    """Return the column of `unescaped` of each string."""
    return pc.replace_substring_regex(pc.ascii_trim(urls, SPACE), "&(?:amp;)+", "&")


def requested(posted: str) -> str:
    """Return the URL to request for a posted one.

    It is in ASCII, by the URL Standard (https://url.spec.whatwg.org).

    Escapes are kept, characters not allowed in a request are escaped, dot segments are resolved.
    User, password and a fragment that does not name content are removed. It has the same canonical
    URL as `posted`. Raises BadURL.
    """
    parts = _PARTS(_without_newlines(unescaped(posted)))
    if parts is None or parts[1].lower() not in ("http", "https") or not parts[2]:
        raise BadURL(f"not a URL of http or https: {posted[:100]!r}")
    scheme, netloc, path, query, fragment = parts.groups()
    host, port = _ascii_netloc(netloc)
    path = _UNSENT_IN_PATH(_percent_encoded, path.replace("\\", "/"))
    # Most paths have neither, and each search takes as long as the rest of the path.
    if "/." in path or "/%2" in path:
        path = _DOTS(lambda dots: dots[0].lower().replace("%2e", "."), path)
        if _DOT_SEGMENT(path):
            path = _without_dot_segments(path)
    scheme = scheme.lower()
    named_port = f":{port}" if port and port != _PORTS[scheme] else ""
    url = f"{scheme}://{host}{named_port}{path or '/'}"
    # yarl and most servers ignore an empty query.
    if query:
        url += "?" + _UNSENT_IN_QUERY(_percent_encoded, query)
    if fragment and fragment[0] in "!/%":
        url += _route(fragment)
    return url


def redirected(url: str, location: str) -> str:
    """Return the URL to request for a redirect from `url`, by the URL Standard's parser.

    `location` is the header decoded as Latin-1. Servers send UTF-8, or other encodings, whose bytes
    are kept. A target of another scheme than http and https is returned as it is. Raises BadURL for
    a target without a host that can be requested.
    """
    sent_bytes = location.strip(SPACE).encode("latin-1", "replace")
    try:
        text = sent_bytes.decode()
    except UnicodeDecodeError:
        text = _ascii_or_escaped(sent_bytes)
    target = _absolute(url, _without_newlines(text))
    if target[:4].lower() != "http":
        return target
    return requested(target)


def _ascii_or_escaped(data: bytes) -> str:
    return "".join(chr(byte) if byte < 128 else f"%{byte:02X}" for byte in data)


def _absolute(base: str, reference: str) -> str:
    """Return the absolute URL of a reference from the http URL `base`.

    As in browsers, `\\` is `/`, any number of slashes may come before a host, and the scheme of the
    base is ignored if no slashes are after it.
    """
    scheme, _, after_scheme = base.partition("://")
    scheme_match = _SCHEME(reference)
    if scheme_match is not None:
        own_scheme = scheme_match[1].lower()
        if own_scheme not in _PORTS:
            return reference
        reference = reference[scheme_match.end() :]
        if own_scheme != scheme.lower() or _TWO_SLASHES(reference):
            return f"{own_scheme}://{reference.lstrip(_SLASHES)}"
    if _TWO_SLASHES(reference):
        return f"{scheme}://{reference.lstrip(_SLASHES)}"
    netloc, path, query = _AFTER_SCHEME(after_scheme).groups("")  # type: ignore[union-attr]
    # A reference that begins with a fragment keeps path and query; one with a query, the path.
    if reference[:1] not in ("", "#"):
        query = ""
    if reference[:1] in ("/", "\\"):
        path = ""
    elif reference[:1] not in ("", "#", "?"):
        path = path[: path.rfind("/") + 1] or "/"
    return f"{scheme}://{netloc}{path}{query}{reference}"


# For RE2: a URL that loses only `www.` and slashes at its end, with a host that is short enough.
_LABEL = "[a-z0-9_-]"
_SEGMENT = r"/(?:[A-Za-z0-9~_!$'()*+,;=:@-][A-Za-z0-9\-._~!$'()*+,;=:@]*)?"
_PLAIN = rf"^https?://(?:www[.])?(?:[a-vx-z0-9_-]|w[a-vx-z0-9_-]){_LABEL}{{0,60}}(?:[.]{_LABEL}{{1,62}}){{1,3}}(?:{_SEGMENT})*$"

SPACE = "".join(map(chr, range(33)))
SAFE = r"A-Za-z0-9\-._~!$'()*+,;=:@/"
_DECODED = frozenset(b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-._~!'()*,:@")
_NEWLINES = str.maketrans("", "", "\t\n\r")
_PARTS = re.compile(
    r"([A-Za-z][A-Za-z0-9+.\-]*):(?:[/\\]{2}([^/\\?#]*)([^?#]*)(?:\?([^#]*))?(?:#(.*))?)?",
    re.DOTALL,
).match
_NETLOC = re.compile(r"(?:.*@)?(\[[^\]]*\]|[^:]*)(?::([0-9]*))?", re.DOTALL).fullmatch
_HOST = re.compile(r"(?=.{1,253}\Z)(?:[a-z0-9_-]{1,63}\.)*[a-z0-9_-]{1,63}").fullmatch

_UNSAFE_IN_PATH = re.compile(rf"%[0-9A-Fa-f]{{2}}|[^{SAFE}&]", re.DOTALL).sub
_UNSAFE_IN_QUERY = re.compile(rf"%[0-9A-Fa-f]{{2}}|[^{SAFE}?&]", re.DOTALL).sub
_UNSENT_IN_PATH = re.compile(r"[^!-~]|[\"<>^`{}]").sub
_UNSENT_IN_QUERY = re.compile(r"[^!-~]|[\"<>']").sub
_DOTS = re.compile(r"(?<=/)(?:\.|%2[eE]){1,2}(?=/|\Z)").sub
_PORTS = {"http": 80, "https": 443}
_SLASHES = "/\\"
_SCHEME = re.compile(r"([A-Za-z][A-Za-z0-9+.\-]*):").match
_TWO_SLASHES = re.compile(r"[/\\]{2}").match
# Matches after the scheme of a URL: the host and port, the path, and the query with its `?`.
_AFTER_SCHEME = re.compile(r"([^/?#]*)([^?#]*)(\?[^#]*)?").match
_DOT_SEGMENT = re.compile(r"/\.{1,2}(?:/|\Z)").search


def _without_newlines(url: str) -> str:
    # Nearly all URLs have none, and these tests take a twentieth of the time of a search.
    if "\n" in url or "\t" in url or "\r" in url:
        return url.translate(_NEWLINES)
    return url


def _route(fragment: str) -> str:
    """Return `#` and the fragment if it names content; otherwise an empty string."""
    route = unescaped(_UNSAFE_IN_QUERY(_escape, fragment)).rstrip("/")
    if len(route) > 1 and route[0] in ("!", "/"):
        return f"#{route}"
    return ""


def _escape(match: re.Match[str]) -> str:
    """Return an escape in its canonical form, or the escapes of an unsafe character."""
    text = match.group()
    if len(text) != 3:
        return _percent_encoded(match)
    code = int(text[1:], 16)
    if code in _DECODED:
        return chr(code)
    return text.upper()


def _percent_encoded(match: re.Match[str]) -> str:
    return "".join(f"%{byte:02X}" for byte in match.group().encode("utf-8", "surrogatepass"))


def _without_dot_segments(path: str) -> str:
    """Return a path without `.` and `..` (RFC 3986, 5.2.4).

    If the path ends in such a segment, the result ends in a slash.
    """
    resolved: list[str] = []
    segments = path.split("/")[1:]
    for segment in segments:
        if segment == "..":
            del resolved[-1:]
        elif segment != ".":
            resolved.append(segment)
    if segments[-1] in (".", ".."):
        resolved.append("")
    return "/" + "/".join(resolved)


@lru_cache(1 << 16)
def _host_and_port(netloc: str) -> tuple[str, str]:
    """Return the canonical (host, ":port" or "") of an authority; raise BadURL."""
    host, port = _ascii_netloc(netloc)
    while host.startswith("www.") and "." in host[4:]:
        host = host[4:]
    if not port or port in _PORTS.values():
        return host, ""
    return host, f":{port}"


@lru_cache(1 << 14)
def _ascii_netloc(netloc: str) -> tuple[str, int | None]:
    """Return (host, port) of an authority; raise BadURL.

    The host is in lower case and ASCII, without a final dot. The port is None if none is named.
    """
    parts = _NETLOC(netloc)
    if parts is None:
        raise BadURL(f"the host {netloc[:80]!r} cannot be parsed")
    host, port = parts.groups()
    if port and (len(port) > 10 or not 0 < int(port) < 65536):
        raise BadURL(f"the port {port[:10]} is none")
    number = int(port) if port else None
    if host.startswith("["):
        return f"[{_ipv6_address(host[1:-1])}]", number
    try:
        if "%" in host:
            host = unquote_to_bytes(host).decode()
        host = host.lower() if host.isascii() else _to_ascii(host)
    except ValueError:
        # The codecs and idna raise it.
        raise BadURL(f"the host {host[:80]!r} is no domain name") from None
    host = host.rstrip(".")
    if not _HOST(host):
        raise BadURL(f"the host {host[:80]!r} is no domain name")
    return host, number


def _ipv6_address(text: str) -> str:
    """Return an IPv6 address in the spelling of the URL Standard; raise BadURL.

    A zone, as in `fe80::1%eth0`, names an interface of the reader's machine, so no URL has one.
    """
    try:
        if "%" in text:
            raise ValueError
        address = ipaddress.IPv6Address(text)
    except ValueError:
        raise BadURL(f"the host {f'[{text}]'[:80]!r} is no IPv6 address") from None
    if address.ipv4_mapped is not None:
        # From Python 3.13 on, `compressed` writes these with dots.
        number = int(address)
        return f"::ffff:{number >> 16 & 0xFFFF:x}:{number & 0xFFFF:x}"
    return address.compressed


def _to_ascii(host: str) -> str:
    """Return a host after the mapping of UTS #46, in Punycode.

    As in browsers, and unlike in IDNA 2008, emoji are allowed.
    """
    labels = idna.uts46_remap(host, std3_rules=False, transitional=False).split(".")
    return ".".join(map(_punycode, labels))


def _punycode(label: str) -> str:
    if label.isascii():
        return label.lower()
    return "xn--" + label.encode("punycode").decode()
