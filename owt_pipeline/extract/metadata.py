"""What a page says of itself: title, author, date, site name, language and licence.

From its `<meta>` elements (Open Graph, Dublin Core and the names in use before and beside them), its linked data
(schema.org), and its markup, all on the tree that the text is read from.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import date, datetime, timedelta, timezone
from functools import cached_property, lru_cache
from itertools import islice
from typing import Any

from lxml import etree

from owt_pipeline.extract.dates import MONTH, date_in_text, iso_date
from owt_pipeline.extract.licenses import read_license
from owt_pipeline.extract.tree import PERMALINK, text_of

_TITLE_NAMES = ("og:title", "twitter:title", "citation_title", "dc.title", "dcterms.title")
_AUTHOR_NAMES = (
    "article:author", "dc.creator", "dcterms.creator", "parsely-author", "author", "citation_author", "sailthru.author",
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

_EARLIEST = date(1991, 8, 6)  # the first page of the web
_DATE_IN_URL = re.compile(r"/((?:19|20)\d\d)[/-](0[1-9]|1[0-2])[/-](0[1-9]|[12]\d|3[01])(?=\D)")
_LANGUAGE = re.compile(r"\s*([a-zA-Z]{2})(?:[-_][\w-]*)?\s*(?:,|$)")
_SEPARATOR = re.compile(r"\s+(?:[|–—·•»:]+|-+)\s+")
_NOT_WORDS = re.compile(r"\W+")
_NUMBER = re.compile(r"\b\d{2}")  # a byline's date, or a member's count of posts: more than a name
_BY = re.compile(
    r"^(?:(?:written|posted|published|story|words|article|text)\s+)?(?:by|par|por|von)\b:?\s+|^by:", re.IGNORECASE
)
# What follows a name in a byline: a date, a count, a separator.
_AFTER_NAME = re.compile(
    r"\s*(?:[|·•/\n]|\s[-–—]\s|\bon\s|\b(?:last )?updated\b|\bpublished\b).*$"
    rf"|(?:,\s*|\s+)(?:{MONTH}\.?\s+)?\d.*$",
    re.IGNORECASE | re.DOTALL,
)
_MARKED = re.compile(r"uthor|yline|[dD]ate|publish|timestamp|posted")  # what classes of such elements hold
_NAMES_AUTHOR = re.compile(
    r"(?:^|\s)(?:(?:[a-z]+[-_]+)*(?:by-?line|by-?author|author)(?:s|[-_]+(?:name|link|text|vcard|by-?line))*"
    r"|[A-Za-z]*(?:Byline|Author|AuthorName))(?:\s|$)"
)
_NAMES_OTHER_AUTHOR = re.compile(r"comment|reply|related|sidebar|widget|avatar|(?<!v)card|quote", re.IGNORECASE)
_NAMES_DATE = re.compile(r"[dD]ate|(?<!status-)publish(?!er)|timestamp|yline|posted")
_NAMES_OTHER_DATE = re.compile(
    r"updat(?!e[ds]?-?publi)|modif|comment|related|copyright|footer|event|birth|valid|review", re.IGNORECASE
)
_ARTICLES = ("Article", "NewsArticle", "BlogPosting", "ReportageNewsArticle", "TechArticle", "ScholarlyArticle",
             "SocialMediaPosting", "DiscussionForumPosting", "QAPage", "Report", "OpinionNewsArticle")  # fmt: skip
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
    license: str | None = None


def read_metadata(root: etree._Element, data: list[Any], url: str, fetched_at: int) -> Metadata:
    """The metadata of a page.

    Args:
      root: the page.
      data: its linked data, as `linked_data` reads it.
      url: where it was.
      fetched_at: when, in seconds since 1970: a date after it is none of publication.
    """
    metas = _metas(root)
    nodes = sorted(_nodes(data, 0), key=lambda node: not _is_article(node))
    site_name = _first(metas, _SITE_NAMES) or _short(_name(_of_type(nodes, ("WebSite",), "name")))
    site_name = site_name or next(
        filter(None, (_short(_name(n.get("publisher"))) for n in nodes if _is_article(n))), None
    )
    marked = _Marked(root)
    return Metadata(
        title=_title(root, metas, nodes, site_name),
        author=_author(marked, metas, nodes),
        date=_date(marked, metas, nodes, url, fetched_at),
        site_name=site_name,
        language=_language(root, metas),
        license=read_license(root, metas, nodes),
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
                for single in name.lower().split():  # some give several in one
                    metas.setdefault(single.replace("dc:", "dc.").replace("dcterms:", "dcterms."), content)
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


class _Marked:
    """The elements of a page whose names say something of an author or a date, found once and only where needed."""

    def __init__(self, root: etree._Element) -> None:
        self._root = root

    @cached_property
    def elements(self) -> list[etree._Element]:
        return [element for element in self._root.iter() if element.tag == "time" or _is_marked(element)]


def _is_marked(element: etree._Element) -> bool:
    classes = element.get("class")
    if classes is not None and _holds_mark(classes):
        return True
    return element.get("itemprop") in ("author", "datePublished") or element.get("rel") == "author"


@lru_cache(maxsize=4096)
def _holds_mark(classes: str) -> bool:
    return _MARKED.search(classes) is not None


def _author(marked: _Marked, metas: dict[str, str], nodes: list[dict[str, Any]]) -> str | None:
    for stated in (
        *map(metas.get, _AUTHOR_NAMES),
        *(_name(node.get("author") or node.get("creator")) for node in nodes),
    ):
        if name := _name_of_person(stated):
            return name
    for element in islice((e for e in marked.elements if _is_author(e)), 12):
        inner = element.find(".//*[@itemprop='name']")
        inner = element.find(".//*[@class='fn']") if inner is None else inner
        text = text_of(element if inner is None else inner)[:_LONGEST]
        if name := _name_of_person(_AFTER_NAME.sub("", _BY.sub("", text))):
            return name
    return None


def _is_author(element: etree._Element) -> bool:
    if element.get("rel") == "author" or element.get("itemprop") == "author":
        return True
    names = element.get("class") or ""
    return _NAMES_AUTHOR.search(names) is not None and _NAMES_OTHER_AUTHOR.search(names) is None


def _is_date(element: etree._Element) -> bool:
    names = element.get("class") or ""
    if _NAMES_OTHER_DATE.search(names):
        return False
    return element.tag == "time" or element.get("itemprop") == "datePublished" or bool(_NAMES_DATE.search(names))


def _name_of_person(text: str | None) -> str | None:
    """`text` if it can be a name, without "By"."""
    name = _BY.sub("", _short(text) or "")
    if (
        2 < len(name) < 100
        and name.lower() not in _NO_NAMES
        and "://" not in name
        and not name.startswith(("www.", "@"))
        and not _NUMBER.search(name)
    ):
        return name
    return None


def _date(marked: _Marked, metas: dict[str, str], nodes: list[dict[str, Any]], url: str, fetched_at: int) -> str | None:
    def candidates() -> Iterator[date | None]:
        published = [metas.get("article:published_time"), *(n.get("datePublished") for n in nodes if _is_article(n))]
        yield min(filter(None, map(_stated_date, published)), default=None)  # the later one is a new version's
        yield from (_stated_date(metas.get(name)) for name in _DATE_NAMES)
        for key in ("datePublished", "dateCreated", "uploadDate"):
            yield from (_stated_date(node.get(key)) for node in nodes)
        if match := _DATE_IN_URL.search(url):
            yield iso_date("-".join(match.groups()))
        elements = list(islice(filter(_is_date, marked.elements), 20))
        for element in elements:
            yield iso_date(element.get("datetime") or element.get("content") or "")
        for element in elements:
            text = text_of(element)
            yield date_in_text(text) if len(text) < 100 else None

    latest = (datetime.fromtimestamp(fetched_at, timezone.utc) + timedelta(days=1)).date()
    for found in candidates():
        if found is not None and _EARLIEST <= found <= latest:
            return found.isoformat()
    return None


def _stated_date(value: Any) -> date | None:
    return date_in_text(value) if isinstance(value, str) else None


def _is_article(node: dict[str, Any]) -> bool:
    kind = node.get("@type")
    return any(one in _ARTICLES for one in (kind if isinstance(kind, list) else [kind]))


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
