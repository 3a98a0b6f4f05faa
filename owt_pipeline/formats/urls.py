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
from collections import defaultdict
from collections.abc import Mapping
from functools import cache, lru_cache
from importlib.resources import files
from urllib.parse import unquote_to_bytes

import idna
import pyarrow as pa
import pyarrow.compute as pc
import xxhash

MAX_LENGTH = 8192
"""A longer URL is a BadURL: servers refuse it, and it usually holds data."""


class BadURL(ValueError):
    """The URL cannot be parsed, or is neither http nor https; the message says why."""


def canonical_url(url: str) -> str:
    """The canonical spelling of a URL, in ASCII; idempotent. Raises BadURL, a ValueError, and no
    other exception."""
    return canonicalize(url)[0]


def canonicalize(url: str) -> tuple[str, str]:
    """(canonical URL, its host without port) of `url`; raises BadURL."""
    if len(url) > MAX_LENGTH:
        raise BadURL(f"{len(url):,} characters, more than {MAX_LENGTH:,}")
    url = _NEWLINES("", url.strip(SPACE))
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
        query = _without_tracking(unescaped(_UNSAFE_IN_QUERY(_escape, query)), host)
        if query:
            canonical += "?" + query
    if fragment and fragment[0] in "!/%":
        canonical += _route(fragment)
    if len(canonical) > MAX_LENGTH:
        raise BadURL(f"{len(canonical):,} characters when encoded, more than {MAX_LENGTH:,}")
    return canonical, host


def canonical_column(urls: pa.Array) -> tuple[pa.Array, pa.Array, pa.Array]:
    """(canonical URL, its host, why there is neither) of each of `urls`, strings; a null is an
    empty URL.

    Most links are plain: no part of them needs escaping, resolving or removing. As columns, these
    take an eighth of the time that they take in `canonicalize`, through which all others go.
    """
    urls = pc.fill_null(urls, "")
    plain = pc.and_(
        pc.match_substring_regex(urls, _PLAIN), pc.less(pc.binary_length(urls), MAX_LENGTH)
    )
    rest = pc.ascii_rtrim(
        pc.replace_substring_regex(urls.filter(plain), "^https?://(?:www[.])?", ""), "/"
    )
    hosts = pc.list_element(pc.split_pattern(rest, "/", max_splits=1), 0)
    known = pc.binary_join_element_wise(
        "https://", rest, pc.if_else(pc.equal(rest, hosts), "/", ""), ""
    )
    found = [_canonical_or_not(url) for url in urls.filter(pc.invert(plain)).to_pylist()]
    canonical, host, problem = (
        pc.replace_with_mask(
            pc.replace_with_mask(pa.nulls(len(urls), pa.string()), plain, some),
            pc.invert(plain),
            pa.array([row[i] for row in found], pa.string()),
        )
        for i, some in enumerate((known, hosts, pa.nulls(len(known), pa.string())))
    )
    return canonical, host, problem


def _canonical_or_not(url: str) -> tuple[str | None, str | None, str | None]:
    try:
        return (*canonicalize(url), None)
    except BadURL as problem:
        return None, None, str(problem)


def home_of(host: str) -> int:
    """The hash of a host that decides on its shard: modulo the number of shards of a generation."""
    return xxhash.xxh3_64_intdigest(host.encode())


def id_of(canonical: str) -> int:
    """The id of a canonical URL: XXH3-64."""
    return xxhash.xxh3_64_intdigest(canonical.encode())


def host_of(canonical: str) -> str:
    """The host of a canonical URL, without its port."""
    netloc = canonical[8:].partition("/")[0]
    return netloc[: netloc.index("]") + 1] if netloc.startswith("[") else netloc.partition(":")[0]


def unescaped(url: str) -> str:
    """A URL from Reddit's API or a dump, without HTML escapes and outer white space."""
    url = url.strip(SPACE)
    while "&amp;" in url:
        url = url.replace("&amp;", "&")
    return url


def unescaped_column(urls: pa.Array) -> pa.Array:
    """`unescaped` of each of some strings."""
    return pc.replace_substring_regex(pc.ascii_trim(urls, SPACE), "&(?:amp;)+", "&")


def requested(posted: str) -> str:
    """The URL to request for a posted one: in ASCII, by the URL Standard
    (https://url.spec.whatwg.org).

    Escapes are kept, characters not allowed in a request are escaped, dot segments are resolved.
    User, password and a fragment that does not name content are removed. It has the same canonical
    URL as `posted`. Raises BadURL.
    """
    parts = _PARTS(_NEWLINES("", unescaped(posted)))
    if parts is None or parts[1].lower() not in ("http", "https") or not parts[2]:
        raise BadURL(f"not a URL of http or https: {posted[:100]!r}")
    scheme, netloc, path, query, fragment = parts.groups()
    host, port = _ascii_netloc(netloc)
    path = _UNSENT_IN_PATH(_percent_encoded, path.replace("\\", "/"))
    path = _DOTS(lambda dots: dots[0].lower().replace("%2e", "."), path)
    if _DOT_SEGMENT(path):
        path = _without_dot_segments(path)
    named_port = f":{port}" if port and port != _PORTS[scheme.lower()] else ""
    url = f"{scheme.lower()}://{host}{named_port}{path or '/'}"
    if query:  # to yarl and most servers, an empty query is none
        url += "?" + _UNSENT_IN_QUERY(_percent_encoded, query)
    return url + _route(fragment) if fragment and fragment[0] in "!/%" else url


def redirected(url: str, location: str) -> str:
    """Return the URL to request for a redirect from `url`, by the URL Standard's parser.

    `location` is the header decoded as Latin-1. Servers send UTF-8, or other encodings, whose bytes
    are kept. A target of another scheme than http and https is returned as it is. Raises BadURL for
    a target without a host that can be requested.
    """
    sent = location.strip(SPACE).encode("latin-1", "replace")
    try:
        text = sent.decode()
    except UnicodeDecodeError:
        text = "".join(chr(byte) if byte < 128 else f"%{byte:02X}" for byte in sent)
    target = _absolute(url, _NEWLINES("", text))
    return requested(target) if target[:4].lower() == "http" else target


def _absolute(base: str, reference: str) -> str:
    """Return the absolute URL of a reference from the http URL `base`.

    As in browsers, `\\` is `/`, any number of slashes may come before a host, and the scheme of the
    base without slashes after it is no scheme.
    """
    scheme, _, rest = base.partition("://")
    named = _SCHEME(reference)
    if named is not None:
        name = named[1].lower()
        if name not in _PORTS:
            return reference
        reference = reference[named.end() :]
        if name != scheme.lower() or _TWO_SLASHES(reference):
            return f"{name}://{reference.lstrip(_SLASHES)}"
    if _TWO_SLASHES(reference):
        return f"{scheme}://{reference.lstrip(_SLASHES)}"
    netloc, path, query = _AFTER_SCHEME(rest).groups("")  # type: ignore[union-attr]
    if reference[:1] in ("/", "\\"):
        path, query = "", ""
    elif reference[:1] == "?":
        query = ""
    elif reference[:1] not in ("", "#"):
        path, query = path[: path.rfind("/") + 1] or "/", ""
    return f"{scheme}://{netloc}{path}{query}{reference}"


_LABEL = "[a-z0-9_-]"
_SEGMENT = r"/(?:[A-Za-z0-9~_!$'()*+,;=:@-][A-Za-z0-9\-._~!$'()*+,;=:@]*)?"
_PLAIN = rf"^https?://(?:www[.])?(?:[a-vx-z0-9_-]|w[a-vx-z0-9_-]){_LABEL}{{0,60}}(?:[.]{_LABEL}{{1,62}}){{1,3}}(?:{_SEGMENT})*$"
"""For RE2: a URL of which nothing is removed but `www.` and slashes at the end, and whose host
is short enough."""

SPACE = "".join(map(chr, range(33)))
SAFE = r"A-Za-z0-9\-._~!$'()*+,;=:@/"
_DECODED = frozenset(b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-._~!'()*,:@")
_NEWLINES = re.compile(r"[\t\n\r]+").sub
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
# Of an absolute URL: the host and port, the path, and the query with its `?`.
_AFTER_SCHEME = re.compile(r"([^/?#]*)([^?#]*)(\?[^#]*)?").match
_DOT_SEGMENT = re.compile(r"/\.{1,2}(?:/|\Z)").search


def _route(fragment: str) -> str:
    """`#` and the fragment if it names content; else an empty string."""
    route = unescaped(_UNSAFE_IN_QUERY(_escape, fragment)).rstrip("/")
    return f"#{route}" if route[:1] in ("!", "/") and len(route) > 1 else ""


def _escape(match: re.Match[str]) -> str:
    text = match.group()
    if len(text) == 3:
        code = int(text[1:], 16)
        return chr(code) if code in _DECODED else text.upper()
    return _percent_encoded(match)


def _percent_encoded(match: re.Match[str]) -> str:
    return "".join(f"%{byte:02X}" for byte in match.group().encode("utf-8", "surrogatepass"))


def _without_dot_segments(path: str) -> str:
    """Return a path without `.` and `..` (RFC 3986, 5.2.4).

    In place of one of them at its end, there is an empty segment.
    """
    kept: list[str] = []
    *segments, last = path.split("/")[1:]
    for segment in segments:
        if segment == "..":
            del kept[-1:]
        elif segment != ".":
            kept.append(segment)
    if last == "..":
        del kept[-1:]
    kept.append("" if last in (".", "..") else last)
    return "/" + "/".join(kept)


@lru_cache(1 << 16)
def _host_and_port(netloc: str) -> tuple[str, str]:
    """The canonical (host, ":port" or "") of an authority; raises BadURL."""
    host, port = _ascii_netloc(netloc)
    while host.startswith("www.") and "." in host[4:]:
        host = host[4:]
    return host, f":{port}" if port and port not in (80, 443) else ""


def _ascii_netloc(netloc: str) -> tuple[str, int | None]:
    """(host in lower case and ASCII without a final dot, port) of an authority; raises BadURL."""
    parts = _NETLOC(netloc)
    if parts is None:
        raise BadURL(f"the host {netloc[:80]!r} cannot be parsed")
    host, port = parts.groups()
    if port and (len(port) > 10 or not 0 < int(port) < 65536):
        raise BadURL(f"the port {port[:10]} is none")
    number = int(port) if port else None
    if host.startswith("["):
        try:
            return f"[{ipaddress.IPv6Address(host[1:-1]).compressed}]", number
        except ValueError:
            raise BadURL(f"the host {host[:80]!r} is no IPv6 address") from None
    try:
        if "%" in host:
            host = unquote_to_bytes(host).decode()
        host = host.lower() if host.isascii() else _to_ascii(host)
    except ValueError:  # of the codecs, and of idna
        raise BadURL(f"the host {host[:80]!r} is no domain name") from None
    host = host.rstrip(".")
    if not _HOST(host):
        raise BadURL(f"the host {host[:80]!r} is no domain name")
    return host, number


def _to_ascii(host: str) -> str:
    """UTS #46 mapping, then Punycode; like browsers and unlike IDNA 2008, this allows emoji."""
    labels = idna.uts46_remap(host, std3_rules=False, transitional=False).split(".")
    return ".".join(
        label.lower() if label.isascii() else "xn--" + label.encode("punycode").decode()
        for label in labels
    )


@lru_cache(1 << 14)
def _tracks(name: str) -> bool:
    """Whether a parameter tracks readers on every host, by its name."""
    prefixes, names, _ = _tracking()
    return name.lower() in names or name.lower().startswith(prefixes)


@cache
def _tracking() -> tuple[tuple[str, ...], frozenset[str], Mapping[str, frozenset[str]]]:
    """Tracking parameters in lower case: prefixes and names on all hosts; by domain, those of it
    and its subdomains."""
    found: defaultdict[str, set[str]] = defaultdict(set)
    for line in (
        files("owt_pipeline.formats")
        .joinpath("tracking_parameters.txt")
        .read_text("utf-8")
        .split("\n")
    ):
        if line and not line.startswith("#"):
            domain, _, names = line.rpartition(": ")
            found[domain] |= set(names.split())
    general = found.pop("")
    prefixes = tuple(name[:-1] for name in general if name.endswith("*"))
    return (
        prefixes,
        frozenset(general),
        {domain: frozenset(names) for domain, names in found.items()},
    )


@cache
def tracking_pattern() -> str:
    """A regular expression for a tracking parameter, of any domain, in a query in lower case."""
    _, general, of_domain = _tracking()
    names = [
        re.escape(name).replace(r"\*", "[^=&]*")
        for name in sorted(general.union(*of_domain.values()))
    ]
    return f"[?&](?:{'|'.join(names)})(?:[=&]|$)"


def _without_tracking(query: str, host: str) -> str:
    of_host = _names_of_host(host)
    fields = [(field, field.partition("=")[0]) for field in query.split("&") if field]
    return "&".join(
        field for field, name in fields if not _tracks(name) and name.lower() not in of_host
    )


@lru_cache(1 << 14)
def _names_of_host(host: str) -> frozenset[str]:
    *_, of_domain = _tracking()
    labels = host.split(".")
    found: frozenset[str] = frozenset()
    for start in range(len(labels) - 1):
        found |= of_domain.get(".".join(labels[start:]), frozenset())
        if len(labels) - start == 2 or (
            len(labels) - start == 3 and len(labels[-2]) <= 3
        ):  # amazon.com, amazon.co.uk
            found |= of_domain.get(f"{labels[start]}.*", frozenset())
    return found
