"""A page's metadata: title, author, date, site name, language and licence.

The sources are its `<meta>` elements (Open Graph, Dublin Core and other common names), its linked
data (schema.org) and its markup.

A licence counts only if the page declares it for itself: by `rel="license"`, in its data, or by a
link to Creative Commons next to a statement about licensing. A link without one does not count,
since most are credits of pictures. Creative Commons licences are given by SPDX identifier
(`CC-BY-SA-4.0`), others as the page names them: by URL or in words.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import date, datetime, timedelta, timezone
from html import unescape
from typing import Any

import orjson

from owt_pipeline.stages.extract.content.bylines import (
    is_script_value,
    name_in_byline,
    name_of_person,
)
from owt_pipeline.stages.extract.html.blocks import Container
from owt_pipeline.stages.extract.html.marks import BylineCandidate, ParsedPage
from owt_pipeline.stages.extract.html.names import COMMENT, NAMES

_ARTICLES = frozenset(NAMES["article types"])
_FORUMS = frozenset(("discussionforumposting", "qapage", "question", "forum"))
# The keys under which linked data describes the page.
_DESCRIBED = ("@graph", "mainEntity", "mainEntityOfPage")
_MAX_DEPTH = 6
# JSON without the comment signs that are written around it for XHTML.
_DATA = re.compile(r"(?:\[\s*)?\{.*\}(?:\s*\])?", re.DOTALL)

# The first page of the web.
_EARLIEST_DATE = date(1991, 8, 6)
_LANGUAGE = re.compile(r"\s*([a-zA-Z]{2})(?:[-_][\w-]*)?\s*(?:,|$)")
_SEPARATOR = re.compile(r"\s+(?:[|–—·•»:]+|-+)\s+")
_NOT_WORDS = re.compile(r"\W+")
_ISO = re.compile(r"(?<!\d)((?:19|20)\d\d)[-/.]?(0[1-9]|1[0-2])[-/.]?(0[1-9]|[12]\d|3[01])(?!\d)")
_NAMES_AUTHOR = re.compile(r"(?:^|[\s_-]|(?<=[a-z]))(?:[bB]y-?line|[aA]uthor)s?(?=$|[\s_A-Z-])")
_NAMES_OTHER_AUTHOR = re.compile(
    r"comment|reply|related|sidebar|widget|avatar|(?<!v)card|quote", re.IGNORECASE
)
_NAMES_OTHER_DATE = re.compile(r"updat|modif|event|review", re.IGNORECASE)
# Names around a byline or a date that is not the page's: of another story.
_NAMES_OTHERS = re.compile(
    r"related|recommend|recirc|teaser|(?<!no-)sidebar|popular|trending|most-?read|latest|up-?next|more-|outbrain|taboola",
    re.IGNORECASE,
)
# Elements after a byline that may be in it. A hostile page has thousands.
_MAX_FOLLOWING = 20
# A longer text is not a title, a name, or a statement on a licence.
_MAX_STATEMENT_CHARS = 300

_CREATIVE_COMMONS = re.compile(
    r"creativecommons\.org/(?:licenses/([a-z-]+?)(?:/(\d\.\d))?(?:/([a-z]{2}))?|publicdomain/(zero|mark)/(\d\.\d))(?=[/?#]|$)",
    re.IGNORECASE,
)
_DECLARES = re.compile(
    r"licen[cs]|lizen[zs]|licenci|licença|ライセンス|лиценз|except where|unless otherwise|some "
    r"rights "
    r"reserved",
    re.IGNORECASE,
)


@dataclass(frozen=True)
class Head:
    """The metadata in a page's `<meta>` elements and linked data.

    Attributes:
      nodes: the objects that its linked data describes, articles first.
      names: names of the objects of its linked data by their `@id`.
      is_article: whether it declares an article, or a thread of a forum.
      is_forum: whether it declares a thread of a forum.
    """

    nodes: list[dict[str, Any]]
    names: dict[str, str]
    is_article: bool
    is_forum: bool

    def name_of(self, value: Any) -> str | None:
        """Return the name in a value of linked data; None if it has none.

        A value is a string, an object with a name or an `@id`, or a list of these.
        """
        if isinstance(value, str):
            return unescape(self.names.get(value, value))
        if isinstance(value, dict):
            return self.name_of(value.get("name")) or self.names.get(str(value.get("@id")))
        if isinstance(value, list):
            names = [
                name for name in map(self.name_of, value) if name and not is_script_value(name)
            ]
            return ", ".join(dict.fromkeys(names)) or None
        return None


def read_head(page: ParsedPage) -> Head:
    """Return the metadata in a page's head and linked data."""
    data = list(map(_linked_data, page.scripts))
    nodes = sorted(_objects(data, _DESCRIBED), key=lambda node: not _is_article(node))
    name_by_id = {}
    for node in _objects(data):
        identifier = node.get("@id")
        name = node.get("name")
        if isinstance(identifier, str) and isinstance(name, str):
            name_by_id[identifier] = unescape(name)
    types = {page.metas.get("og:type", "").lower().partition(":")[0]}.union(*map(_types, nodes))
    return Head(
        nodes=nodes,
        names=name_by_id,
        is_article=not types.isdisjoint({"article", "blog", "news"} | _ARTICLES),
        is_forum=not types.isdisjoint(_FORUMS),
    )


def _linked_data(script: str) -> Any:
    """Return a script's JSON-LD, parsed; None if it is not JSON."""
    match = _DATA.search(script)
    try:
        return orjson.loads(match[0]) if match else None
    except orjson.JSONDecodeError:
        return None


def _objects(value: Any, keys: Sequence[str] = (), depth: int = 0) -> Iterator[dict[str, Any]]:
    """Yield the objects in linked data, each before its parts.

    Only parts under `keys` are searched; all parts if `keys` is empty.
    """
    if depth > _MAX_DEPTH:
        return
    if isinstance(value, list):
        for item in value:
            yield from _objects(item, keys, depth + 1)
    elif isinstance(value, dict):
        yield value
        for part in map(value.get, keys or value):
            # Most parts are texts.
            if isinstance(part, (dict, list)):
                yield from _objects(part, keys, depth + 1)


def _types(node: dict[str, Any]) -> list[str]:
    declared = node.get("@type")
    types = declared if isinstance(declared, list) else [declared]
    return [str(name).lower() for name in types]


def _is_article(node: dict[str, Any]) -> bool:
    return not _ARTICLES.isdisjoint(_types(node))


def read_metadata(page: ParsedPage, head: Head, url: str, fetched_at: int) -> dict[str, str | None]:
    """Return the metadata of a page, as fields of `Extracted`.

    Args:
      page: the page.
      head: its head, by `read_head`.
      url: its URL.
      fetched_at: time of the fetch, in seconds since 1970; no date of publication is later.
    """
    site_name = _site_name(page, head)
    return {
        "title": _title(page, head, site_name),
        "author": _author(page, head),
        "date": _date(page, head, url, fetched_at),
        "site_name": site_name,
        "language": _language(page.language, page.metas),
        "license": _license(page, head),
    }


def _site_name(page: ParsedPage, head: Head) -> str | None:
    """Return the name of the site; None if the page does not declare it."""
    websites = []
    for node in head.nodes:
        if node.get("@type") == "WebSite" and "name" in node:
            websites.append(node.get("name"))
    publishers = [node.get("publisher") for node in head.nodes if _is_article(node)]
    names = [page.metas.get(key) for key in NAMES["meta site"]]
    names += [head.name_of(declared) for declared in websites[:1] + publishers]
    return next(filter(None, map(_short, names)), None)


def _title(page: ParsedPage, head: Head, site: str | None) -> str | None:
    """Return the title of a page; None if it has none.

    It is the heading that is part of one of the page's titles, its only heading, or a title without
    the site's name.
    """
    headlines = [head.name_of(node.get("headline")) for node in head.nodes]
    declared = [page.title, page.metas.get("og:title"), *headlines]
    titles = []
    for title in map(_short, declared):
        if title and not title.startswith("[object "):
            titles.append(title)
    sites = {"", _words(site or "")}
    headings = []
    for text in map(_short, page.headings):
        if text and _words(text) not in sites:
            headings.append(text)
    if any(not _is_undefined(text) for text in titles + headings):
        titles = [title for title in titles if not _is_undefined(title)]
        headings = [text for text in headings if not _is_undefined(text)]
    # Where each heading begins in each title; -1 if it does not occur in it.
    starts = {text: [_words(title).find(_words(text)) for title in titles] for text in headings}
    in_titles = [text for text in headings if max(starts[text], default=-1) >= 0]
    if in_titles:
        # A shorter heading, or one that no title begins with, may be the site's name.
        return max(in_titles, key=lambda text: (0 in starts[text], len(text)))
    if not titles:
        return headings[0] if headings else None
    if len(headings) == 1:
        shared_words = set(_words(headings[0]).split()) & set(_words(titles[0]).split())
        if shared_words:
            return headings[0]
    return _SEPARATOR.split(titles[0])[0] or titles[0]


def _is_undefined(title: str) -> bool:
    """Return whether a script or a template has written a title, or its first part."""
    return is_script_value(_SEPARATOR.split(title)[0])


def _author(page: ParsedPage, head: Head) -> str | None:
    """Return the name of the author; None if the page does not have it."""
    declared = [page.metas.get(key) for key in NAMES["meta author"]]
    declared += [head.name_of(node.get("author") or node.get("creator")) for node in head.nodes]
    for text in map(_short, declared):
        if text and (name := name_of_person(text)):
            return name
    title = _title_container(page)
    for index, element in enumerate(page.marked):
        if not _is_author(element) or _is_of_another(element, title):
            continue
        byline = (element.name or element).text[:_MAX_STATEMENT_CHARS]
        name = name_in_byline(byline)
        following = page.marked[index + 1 : index + 1 + _MAX_FOLLOWING]
        if name and not _lists_others(element, following, title):
            return name
    return None


def _lists_others(
    element: BylineCandidate, following: Sequence[BylineCandidate], title: Container | None
) -> bool:
    """Return whether an element before the title lists authors of other stories.

    Sites list authors that one can follow. Below the title, a list of names is the byline.
    """
    if title is None or element.container.end > title.index:
        return False
    for other in following:
        is_in_element = element.container.holds(other.container)
        if is_in_element and _is_author(other) and _is_of_another(other, title):
            return True
    return False


def _is_author(element: BylineCandidate) -> bool:
    get = element.attributes.get
    if get("rel") == "author" or get("itemprop") == "author":
        return True
    names = get("class") or ""
    return _NAMES_AUTHOR.search(names) is not None and _NAMES_OTHER_AUTHOR.search(names) is None


def _is_date(element: BylineCandidate, title: Container | None) -> bool:
    get = element.attributes.get
    if element.tag != "time" and get("itemprop") != "datePublished":
        return False
    is_other_date = _NAMES_OTHER_DATE.search(get("class") or "") is not None
    return not is_other_date and not _is_of_another(element, title)


def _title_container(page: ParsedPage) -> Container | None:
    """Return the container of the first `<h1>`."""
    containers = (block.container for block in page.blocks if block.container.tag == "h1")
    return next(containers, None)


def _is_of_another(element: BylineCandidate, title: Container | None) -> bool:
    """Return whether an element belongs to another story, or to a reader's comment.

    It is in an `<article>` that ends before the page's title, or in a list before the article.
    """
    is_in_list = False
    for container in element.container.ancestors():
        if container.kind & COMMENT or container.tag in ("nav", "aside", "footer"):
            return True
        is_before = title is not None and container.end <= title.index
        if container.tag == "li":
            is_in_list = is_before
        elif container.tag == "article":
            if is_before:
                return True
            is_in_list = False
        is_named = container.parent is not None and container.names
        if is_named and _NAMES_OTHERS.search(container.names):
            return True
    return is_in_list


def _date(page: ParsedPage, head: Head, url: str, fetched_at: int) -> str | None:
    """Return the date of publication as YYYY-MM-DD; None if there is none up to the fetch."""
    latest = (datetime.fromtimestamp(fetched_at, timezone.utc) + timedelta(days=1)).date()
    for candidate in map(_iso_date, _date_candidates(page, head, url)):
        if candidate is not None and _EARLIEST_DATE <= candidate <= latest:
            return candidate.isoformat()
    return None


def _date_candidates(page: ParsedPage, head: Head, url: str) -> Iterator[Any]:
    """Yield texts that may have the date of publication, the most trustworthy first."""
    published = [page.metas.get("article:published_time")]
    published += [node.get("datePublished") for node in head.nodes if _is_article(node)]
    # A later date belongs to a new version.
    yield min(filter(None, map(_iso_date, published)), default=None)
    yield from map(page.metas.get, NAMES["meta date"])
    for key in ("datePublished", "dateCreated", "uploadDate"):
        yield from (node.get(key) for node in head.nodes)
    yield url
    title = _title_container(page)
    for element in page.marked:
        if not _is_date(element, title):
            continue
        get = element.attributes.get
        yield get("datetime") or get("content") or element.text[:100]


def _iso_date(text: Any) -> date | None:
    """Return the first date in a text by year, month and day; None if there is none.

    That is `2019-05-03` or `20190503`. Other orders are ambiguous.
    """
    match = _ISO.search(str(text))
    try:
        return date(*map(int, match.groups())) if match else None
    except ValueError:
        return None


def _language(of_root: str | None, metas: dict[str, str]) -> str | None:
    """Return the ISO 639-1 code that a page declares; None if it declares none."""
    labels = [of_root, *(metas.get(name) for name in NAMES["meta language"])]
    for label in labels:
        if label and (match := _LANGUAGE.match(label)):
            return match[1].lower()
    return None


def _short(text: str | None) -> str | None:
    """Return a text in one line; None if it is empty or long."""
    text = " ".join((text or "").split())
    return text if 0 < len(text) <= _MAX_STATEMENT_CHARS else None


def _words(text: str) -> str:
    return _NOT_WORDS.sub(" ", text.lower()).strip()


def _license(page: ParsedPage, head: Head) -> str | None:
    """Return the licence of a page; None if it declares none or several different ones."""
    links = [link for link in page.licences if not _is_credit(link)]
    # The most trustworthy source first.
    sources: list[list[Any]] = [
        [link.attributes["href"] for link in links if link.attributes["rel"]],
        [_license_of_node(node) for node in head.nodes],
        [page.metas.get(key) for key in NAMES["meta license"]],
        [link.attributes["href"] for link in links if _is_statement(link)],
    ]
    for candidates in sources:
        licences = list(dict.fromkeys(filter(None, map(_named, candidates))))
        if licences:
            return licences[0] if len(licences) == 1 else None
    return None


def _license_of_node(node: dict[str, Any]) -> Any:
    """Return the URL or the name of the licence in an object of linked data."""
    declared = node.get("license")
    if isinstance(declared, dict):
        return declared.get("url") or declared.get("@id") or declared.get("name")
    return declared


def _is_credit(link: BylineCandidate) -> bool:
    """Return whether a link belongs to a picture or a comment, not to the page."""
    tags = ("figure", "figcaption", "blockquote", "li")
    return any(container.tag in tags for container in link.container.ancestors())


def _is_statement(link: BylineCandidate) -> bool:
    """Return whether a link to Creative Commons is in a statement about the page's licence."""
    is_short = len(link.text) <= _MAX_STATEMENT_CHARS
    return is_short and bool(
        _CREATIVE_COMMONS.search(link.attributes["href"]) and _DECLARES.search(link.text)
    )


def _named(text: Any) -> str | None:
    """Return the licence with this URL or name; None if it is not a licence."""
    if not isinstance(text, str):
        return None
    text = " ".join(text.split())
    if match := _CREATIVE_COMMONS.search(text):
        kind, version, country, public, public_version = match.groups()
        if public:
            name = "CC0" if public.lower() == "zero" else "CC-PDM"
            return f"{name}-{public_version}"
        parts = ["CC", kind.upper(), version, country and country.upper()]
        return "-".join(part for part in parts if part)
    if (
        "://" not in text
        and not _DECLARES.search(text)
        and not re.match(r"(?:CC|MIT|Apache|GPL|GFDL|BSD)\b", text)
    ):
        # "All rights reserved", or a publisher's name.
        return None
    return _short(text)
