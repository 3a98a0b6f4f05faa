"""What a page says of itself: title, author, date, site name and language.

From its `<meta>` elements (Open Graph, Dublin Core and the names in use before and beside them), its linked data
(schema.org), and its markup, all on the tree that the text is read from.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import datetime, timedelta, timezone
from itertools import islice
from typing import Any

from lxml import etree

from owt_pipeline.extract.tree import PERMALINK, text_of

_TITLE_NAMES = ("og:title", "twitter:title", "citation_title", "dc.title", "dcterms.title")
_AUTHOR_NAMES = (
    "author", "article:author", "citation_author", "dc.creator", "dcterms.creator", "parsely-author", "sailthru.author",
    "byl", "og:article:author",
)  # fmt: skip
_DATE_NAMES = (
    "article:published_time", "og:article:published_time", "datepublished", "citation_publication_date",
    "citation_date", "dc.date.issued", "dcterms.issued", "dc.date", "dcterms.date", "dcterms.created", "pubdate",
    "publishdate", "publish-date", "publish_date", "publication_date", "sailthru.date", "parsely-pub-date",
    "article.published", "article:published", "date", "rnews:datepublished",
)  # fmt: skip
_SITE_NAMES = ("og:site_name", "application-name", "citation_journal_title", "dc.publisher", "publisher")
_LANGUAGE_NAMES = ("content-language", "language", "dc.language", "og:locale")

_EARLIEST = datetime(1991, 8, 6)  # the first page of the web
_DATE = re.compile(r"((?:19|20)\d\d)[-/.]?(0[1-9]|1[0-2])[-/.]?(0[1-9]|[12]\d|3[01])(?!\d)")
_DATE_IN_URL = re.compile(r"/((?:19|20)\d\d)[/-](0[1-9]|1[0-2])[/-](0[1-9]|[12]\d|3[01])(?=\D)")
_LANGUAGE = re.compile(r"\s*([a-zA-Z]{2})(?:[-_][\w-]*)?\s*(?:,|$)")
_SEPARATOR = re.compile(r"\s+(?:[|–—·•»:]+|-+)\s+")
_NOT_WORDS = re.compile(r"\W+")
_NUMBER = re.compile(r"\b\d{2}")  # a byline's date, or a member's count of posts: more than a name
_BY = re.compile(r"^(?:written |posted )?by:?\s+", re.IGNORECASE)
_NO_NAMES = ("author", "admin", "administrator")  # what a template or a system left there
_LONGEST = 300  # a longer title or name is something else


@dataclass(frozen=True)
class Metadata:
    """See `Extracted`."""

    title: str | None = None
    author: str | None = None
    date: str | None = None
    site_name: str | None = None
    language: str | None = None


def read_metadata(root: etree._Element, data: list[Any], url: str, fetched_at: int) -> Metadata:
    """The metadata of a page.

    Args:
      root: the page.
      data: its linked data, as `linked_data` reads it.
      url: where it was.
      fetched_at: when, in seconds since 1970: a date after it is none of publication.
    """
    metas = _metas(root)
    nodes = list(_nodes(data, 0))
    site_name = _first(metas, _SITE_NAMES) or _name(_of_type(nodes, ("WebSite",), "name"))
    return Metadata(
        title=_title(root, metas, nodes, site_name),
        author=_author(root, metas, nodes),
        date=_date(root, metas, nodes, url, fetched_at),
        site_name=site_name,
        language=_language(root, metas),
    )


def _metas(root: etree._Element) -> dict[str, str]:
    """Content of each `<meta>` by its name in lower case; the first of several."""
    metas: dict[str, str] = {}
    for meta in root.iter("meta"):
        content = meta.get("content")
        name = meta.get("property") or meta.get("name") or meta.get("itemprop") or meta.get("http-equiv")
        if content and name:
            content = " ".join(content.split())
            if content:
                metas.setdefault(name.strip().lower(), content)
    return metas


def _nodes(value: Any, depth: int) -> Iterator[dict[str, Any]]:
    """The things that linked data describes, a page's own before what they contain."""
    if isinstance(value, list) and depth < 6:
        for item in value:
            yield from _nodes(item, depth + 1)
    elif isinstance(value, dict):
        yield value
        for key in ("@graph", "mainEntity", "mainEntityOfPage"):
            if key in value and depth < 6:
                yield from _nodes(value[key], depth + 1)


def _title(root: etree._Element, metas: dict[str, str], nodes: list[dict[str, Any]], site: str | None) -> str | None:
    """The heading that the page's own titles agree with, or the title without the site's name."""
    element = root.find(".//title")
    declared = [_short(text_of(element)) if element is not None else None]
    declared += [_short(metas.get(name)) for name in _TITLE_NAMES]
    declared += [_short(_name(node.get("headline"))) for node in nodes]
    titles = [title for title in declared if title]
    headings = [text for text in (_short(text_of(heading).rstrip(PERMALINK)) for heading in root.iter("h1")) if text]
    headings = [text for text in headings if _words(text) and _words(text) != _words(site or "")]
    agreed = [text for text in headings if any(_words(text) in _words(title) for title in titles)]
    if agreed:
        return max(agreed, key=len)  # a shorter one may be the site's name
    if len(headings) == 1:
        return headings[0]
    return _without_site(titles[0], site) if titles else (headings[0] if headings else None)


def _without_site(title: str, site: str | None) -> str:
    parts = _SEPARATOR.split(title)
    if len(parts) > 1 and site and _words(parts[0]) == _words(site):
        return parts[1]
    return parts[0] or title


def _author(root: etree._Element, metas: dict[str, str], nodes: list[dict[str, Any]]) -> str | None:
    def candidates() -> Iterator[str | None]:
        yield from map(metas.get, _AUTHOR_NAMES)
        yield from (_name(node.get("author") or node.get("creator")) for node in nodes)
        for path in (
            './/a[@rel="author"]',
            './/*[@itemprop="author"]',
            './/*[@class="author"]',
            './/*[@class="byline"]',
        ):
            found = root.find(path)
            yield text_of(found) if found is not None else None

    for candidate in candidates():
        name = _BY.sub("", _short(candidate) or "")
        if (
            2 < len(name) < 100
            and name.lower() not in _NO_NAMES
            and "://" not in name
            and not name.startswith(("www.", "@"))
            and not _NUMBER.search(name)
        ):
            return name
    return None


def _date(
    root: etree._Element, metas: dict[str, str], nodes: list[dict[str, Any]], url: str, fetched_at: int
) -> str | None:
    def candidates() -> Iterator[Any]:
        yield from map(metas.get, _DATE_NAMES)
        yield from (node.get(key) for key in ("datePublished", "dateCreated", "uploadDate") for node in nodes)
        for found in root.iterfind('.//*[@itemprop="datePublished"]'):
            yield found.get("content") or found.get("datetime")
        if match := _DATE_IN_URL.search(url):
            yield "-".join(match.groups())
        yield from (time.get("datetime") for time in root.iterfind(".//time[@pubdate]"))
        yield from (time.get("datetime") for time in islice(root.iter("time"), 1))

    latest = datetime.fromtimestamp(fetched_at, timezone.utc).replace(tzinfo=None) + timedelta(days=1)
    for candidate in candidates():
        if isinstance(candidate, str) and (match := _DATE.search(candidate)):
            try:
                date = datetime(*map(int, match.groups()))  # type: ignore[arg-type]
            except ValueError:
                continue
            if _EARLIEST <= date <= latest:
                return date.strftime("%Y-%m-%d")
    return None


def _language(root: etree._Element, metas: dict[str, str]) -> str | None:
    for label in (root.get("lang"), root.get("xml:lang"), *(metas.get(name) for name in _LANGUAGE_NAMES)):
        if label and (match := _LANGUAGE.match(label)):
            return match[1].lower()
    return None


def _first(metas: dict[str, str], names: tuple[str, ...]) -> str | None:
    return next((text for text in (_short(metas.get(name)) for name in names) if text), None)


def _of_type(nodes: list[dict[str, Any]], types: tuple[str, ...], key: str) -> Any:
    return next((node[key] for node in nodes if node.get("@type") in types and key in node), None)


def _name(value: Any) -> str | None:
    """The name in a value of linked data: a string, something with a name, or several of them."""
    if isinstance(value, str):
        return value
    if isinstance(value, dict):
        return _name(value.get("name"))
    if isinstance(value, list):
        names = [name for name in map(_name, value) if name]
        return ", ".join(dict.fromkeys(names)) or None
    return None


def _short(text: str | None) -> str | None:
    text = " ".join((text or "").split())
    return text if 0 < len(text) <= _LONGEST else None


def _words(text: str) -> str:
    return _NOT_WORDS.sub(" ", text.lower()).strip()
