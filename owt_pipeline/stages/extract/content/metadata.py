"""A page's metadata: title, author, date, site name, language and licence.

The sources are its `<meta>` elements (Open Graph, Dublin Core and other common names), its linked
data (schema.org) and its markup.

A licence counts only if the page declares it for itself: by `rel="license"`, in its data, or by a
link to Creative Commons next to a statement about licensing. A link alone does not count, since
most are credits of pictures. Creative Commons licences are given by SPDX identifier
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

from owt_pipeline.stages.extract.html.marks import BylineCandidate, ParsedPage
from owt_pipeline.stages.extract.html.names import COMMENT, NAMES

_ARTICLES = frozenset(NAMES["article types"])
_FORUMS = frozenset(("discussionforumposting", "qapage", "question", "forum"))
_DESCRIBED = ("@graph", "mainEntity", "mainEntityOfPage")  # where linked data has what the page is
_MAX_DEPTH = 6
_DATA = re.compile(
    r"(?:\[\s*)?\{.*\}(?:\s*\])?", re.DOTALL
)  # without what is written around it for XHTML

_EARLIEST = date(1991, 8, 6)  # the first page of the web
_LANGUAGE = re.compile(r"\s*([a-zA-Z]{2})(?:[-_][\w-]*)?\s*(?:,|$)")
_SEPARATOR = re.compile(r"\s+(?:[|–—·•»:]+|-+)\s+")
_NOT_WORDS = re.compile(r"\W+")
_NUMBER = re.compile(r"\b\d{2}")  # a byline's date or a member's number of posts
_BY = re.compile(
    r"^(?:(?:written|posted|published|story|words|article|text)\s+)?(?:by|par|por|von)\b:?\s+|^by:",
    re.IGNORECASE,
)
_ISO = re.compile(r"(?<!\d)((?:19|20)\d\d)[-/.]?(0[1-9]|1[0-2])[-/.]?(0[1-9]|[12]\d|3[01])(?!\d)")
# The rest of a byline after the name: a date, a count, a separator.
_AFTER_NAME = re.compile(
    r"\s*(?:[|·•/\n]|\s[-–—]\s|\bon\s|\b(?:last )?updated\b|\bpublished\b"
    r"|(?:,\s*|\s+)(?:(?:jan|feb|mar|apr|may|jun|jul|aug|sep|oct|nov|dec)[a-z]*\.?\s+)?\d).*$",
    re.IGNORECASE | re.DOTALL,
)
# What a byline adds to a name: a day of the week, or what the person does there.
_AFTER_PERSON = re.compile(
    r"(?:\s*,\s*(?:montag|dienstag|mittwoch|donnerstag|freitag|samstag|sonntag|lundi|mardi"
    r"|mercredi|jeudi|vendredi|samedi|dimanche|lunes|martes|miércoles|jueves|viernes|sábado"
    r"|domingo)|(?:\s*,\s*|\s+)(?:(?:mon|tues|wednes|thurs|fri|satur|sun)day"
    r"|(?:(?:senior|chief|deputy|managing|contributing|staff|freelance|associate|assistant|guest"
    r"|political|national|foreign|lead|special|former|news|tech|science|health|business|sports?"
    r"|games|autos|culture|travel|AI)\s+)*"
    r"(?:writer|reporter|editor|correspondent|contributor|columnist|journalist|photographer"
    r"|moderator|verified|subscriber|member)))\b.*$",
    re.IGNORECASE | re.DOTALL,
)
_MIN_WORDS_OF_NAME = 2  # before a role; "Staff Writer" and "Guest Author" are left as they are
_SCRIPT_OBJECT = re.compile(r"\[object \w+\]|undefined|null|NaN")
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
_NO_NAMES = ("author", "admin", "administrator")  # defaults of templates and systems
_LONGEST = 300  # a longer text is not a title, a name, or a statement on a licence

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
    """What a page says of itself in `<meta>` elements and linked data.

    Attributes:
      nodes: the objects that its linked data describes, articles first.
      names: names of the objects of its linked data by their `@id`.
      is_article, is_forum: whether it says that it is an article (or a thread of a forum), and a
        forum.
    """

    nodes: list[dict[str, Any]]
    names: dict[str, str]
    is_article: bool
    is_forum: bool

    def name_of(self, value: Any) -> str | None:
        """The name in a value of linked data: a string, an object with a name or an `@id`, or a
        list of these."""
        if isinstance(value, str):
            return unescape(self.names.get(value, value))
        if isinstance(value, dict):
            return self.name_of(value.get("name")) or self.names.get(str(value.get("@id")))
        if isinstance(value, list):
            names = [name for name in map(self.name_of, value) if name]
            return ", ".join(dict.fromkeys(names)) or None
        return None


def read_head(page: ParsedPage) -> Head:
    """What a page says of itself."""
    data = list(map(_linked_data, page.scripts))
    nodes = sorted(_objects(data, _DESCRIBED), key=lambda node: not _is_article(node))
    named = [(node.get("@id"), node.get("name")) for node in _objects(data)]
    types = {page.metas.get("og:type", "").lower().partition(":")[0]}.union(*map(_types, nodes))
    return Head(
        nodes,
        {
            key: unescape(name)
            for key, name in named
            if isinstance(key, str) and isinstance(name, str)
        },
        not types.isdisjoint({"article", "blog", "news"} | _ARTICLES),
        not types.isdisjoint(_FORUMS),
    )


def _linked_data(script: str) -> Any:
    """A script's JSON-LD, parsed; None if it is not JSON."""
    match = _DATA.search(script)
    try:
        return orjson.loads(match[0]) if match else None
    except orjson.JSONDecodeError:
        return None


def _objects(value: Any, keys: Sequence[str] = (), depth: int = 0) -> Iterator[dict[str, Any]]:
    """The objects in linked data, each before its parts: those under `keys`; all if there are
    none."""
    if depth > _MAX_DEPTH:
        return
    if isinstance(value, list):
        for item in value:
            yield from _objects(item, keys, depth + 1)
    elif isinstance(value, dict):
        yield value
        for part in map(value.get, keys or value):
            if isinstance(part, (dict, list)):  # most are texts
                yield from _objects(part, keys, depth + 1)


def _types(node: dict[str, Any]) -> list[str]:
    kind = node.get("@type")
    return [str(one).lower() for one in (kind if isinstance(kind, list) else [kind])]


def _is_article(node: dict[str, Any]) -> bool:
    return not _ARTICLES.isdisjoint(_types(node))


def read_metadata(page: ParsedPage, head: Head, url: str, fetched_at: int) -> dict[str, str | None]:
    """The metadata of a page, as fields of `Extracted`.

    Args:
      page: the page.
      head: what `read_head` returns for it.
      url: its URL.
      fetched_at: time of the fetch, in seconds since 1970; no date of publication is later.
    """
    metas, nodes = page.metas, head.nodes
    publishers = [
        node.get("name") for node in nodes if node.get("@type") == "WebSite" and "name" in node
    ][:1]
    publishers += [node.get("publisher") for node in nodes if _is_article(node)]
    sites = [*map(metas.get, NAMES["meta site"]), *map(head.name_of, publishers)]
    site_name = next(filter(None, map(_short, sites)), None)
    return {
        "title": _title(page, head, site_name),
        "author": _author(page, head),
        "date": _date(page, head, url, fetched_at),
        "site_name": site_name,
        "language": _language(page.language, metas),
        "license": _license(page, head),
    }


def _title(page: ParsedPage, head: Head, site: str | None) -> str | None:
    """The heading that is part of one of the page's titles, its only heading, or a title without
    the site's name."""
    declared = [
        page.title,
        page.metas.get("og:title"),
        *(head.name_of(n.get("headline")) for n in head.nodes),
    ]
    titles = [title for title in map(_short, declared) if title]
    sites = {"", _words(site or "")}
    headings = [
        text for text in filter(None, map(_short, page.headings)) if _words(text) not in sites
    ]
    places = {text: [_words(title).find(_words(text)) for title in titles] for text in headings}
    agreed = [text for text in headings if max(places[text], default=-1) >= 0]
    if agreed:  # those that no title begins with, and shorter ones, may be the site's name
        return max(agreed, key=lambda text: (0 in places[text], len(text)))
    if len(headings) == 1 and (
        not titles or set(_words(headings[0]).split()) & set(_words(titles[0]).split())
    ):
        return headings[0]
    if titles:
        return _SEPARATOR.split(titles[0])[0] or titles[0]
    return headings[0] if headings else None


def _author(page: ParsedPage, head: Head) -> str | None:
    stated = [*map(page.metas.get, NAMES["meta author"])]
    stated += [head.name_of(node.get("author") or node.get("creator")) for node in head.nodes]
    for one in stated:
        if name := _name_of_person(one):
            return name
    for element in page.marked:
        if _is_author(element) and not _is_of_another(element):
            text = (element.name or element).text[:_LONGEST]
            if name := _name_of_person(_AFTER_NAME.sub("", _BY.sub("", text))):
                return name
    return None


def _is_author(element: BylineCandidate) -> bool:
    get = element.attributes.get
    if get("rel") == "author" or get("itemprop") == "author":
        return True
    names = get("class") or ""
    return _NAMES_AUTHOR.search(names) is not None and _NAMES_OTHER_AUTHOR.search(names) is None


def _is_date(element: BylineCandidate) -> bool:
    get = element.attributes.get
    if element.tag != "time" and get("itemprop") != "datePublished":
        return False
    return not _NAMES_OTHER_DATE.search(get("class") or "") and not _is_of_another(element)


def _is_of_another(element: BylineCandidate) -> bool:
    """Whether an element is of another story, or of a reader's comment."""
    for around in element.container.ancestors():
        if around.kind & COMMENT or around.tag in ("nav", "aside", "footer"):
            return True
        if around.parent is not None and around.names and _NAMES_OTHERS.search(around.names):
            return True
    return False


def _name_of_person(text: str | None) -> str | None:
    """`text` without "By" if it may be a name; else None."""
    name = _without_role(_BY.sub("", _short(text) or ""))
    if (
        2 < len(name) < 100
        and not _SCRIPT_OBJECT.fullmatch(name)
        and name.lower() not in _NO_NAMES
        and "://" not in name
        and not name.startswith(("www.", "@"))
        and not _NUMBER.search(name)
    ):
        return name
    return None


def _without_role(text: str) -> str:
    """Return a byline without a role, a badge or a weekday after its name."""
    name = _AFTER_PERSON.sub("", text)
    if name == text or len(name.split()) < _MIN_WORDS_OF_NAME:
        return text
    return name


def _date(page: ParsedPage, head: Head, url: str, fetched_at: int) -> str | None:
    metas, nodes = page.metas, head.nodes

    def candidates() -> Iterator[Any]:
        published = [
            metas.get("article:published_time"),
            *(n.get("datePublished") for n in nodes if _is_article(n)),
        ]
        yield min(
            filter(None, map(_iso_date, published)), default=None
        )  # a later one is that of a new version
        yield from map(metas.get, NAMES["meta date"])
        for key in ("datePublished", "dateCreated", "uploadDate"):
            yield from (node.get(key) for node in nodes)
        yield url
        for element in filter(_is_date, page.marked):
            yield (
                element.attributes.get("datetime")
                or element.attributes.get("content")
                or element.text[:100]
            )

    latest = (datetime.fromtimestamp(fetched_at, timezone.utc) + timedelta(days=1)).date()
    for found in map(_iso_date, candidates()):
        if found is not None and _EARLIEST <= found <= latest:
            return found.isoformat()
    return None


def _iso_date(text: Any) -> date | None:
    """The first date in a text, by year, month and day (`2019-05-03`, `20190503`): other orders
    are not clear."""
    match = _ISO.search(str(text))
    try:
        return date(*map(int, match.groups())) if match else None
    except ValueError:
        return None


def _language(of_root: str | None, metas: dict[str, str]) -> str | None:
    for label in (of_root, *(metas.get(name) for name in NAMES["meta language"])):
        if label and (match := _LANGUAGE.match(label)):
            return match[1].lower()
    return None


def _short(text: str | None) -> str | None:
    text = " ".join((text or "").split())
    return text if 0 < len(text) <= _LONGEST else None


def _words(text: str) -> str:
    return _NOT_WORDS.sub(" ", text.lower()).strip()


def _license(page: ParsedPage, head: Head) -> str | None:
    """The licence that a page declares; None if it declares none or several different ones."""
    links = [link for link in page.licences if not _is_credit(link)]
    stated = [node.get("license") for node in head.nodes]
    for candidates in (
        [link.attributes["href"] for link in links if link.attributes["rel"]],
        [
            one.get("url") or one.get("@id") or one.get("name") if isinstance(one, dict) else one
            for one in stated
        ],
        map(page.metas.get, NAMES["meta license"]),
        [link.attributes["href"] for link in links if _is_statement(link)],
    ):
        found = list(dict.fromkeys(filter(None, map(_named, candidates))))
        if found:
            return found[0] if len(found) == 1 else None
    return None


def _is_credit(link: BylineCandidate) -> bool:
    """Whether a link belongs to a picture or a comment, not to the page."""
    return any(
        one.tag in ("figure", "figcaption", "blockquote", "li")
        for one in link.container.ancestors()
    )


def _is_statement(link: BylineCandidate) -> bool:
    """Whether a link to Creative Commons is in a statement about the page's licence."""
    is_short = len(link.text) <= _LONGEST
    return is_short and bool(
        _CREATIVE_COMMONS.search(link.attributes["href"]) and _DECLARES.search(link.text)
    )


def _named(text: Any) -> str | None:
    """The licence with this URL or name; None if it is not a licence."""
    text = " ".join(text.split()) if isinstance(text, str) else ""
    if match := _CREATIVE_COMMONS.search(text):
        kind, version, country, public, public_version = match.groups()
        if public:
            return f"{'CC0' if public.lower() == 'zero' else 'CC-PDM'}-{public_version}"
        parts = ["CC", kind.upper(), version, country and country.upper()]
        return "-".join(part for part in parts if part)
    if (
        "://" not in text
        and not _DECLARES.search(text)
        and not re.match(r"(?:CC|MIT|Apache|GPL|GFDL|BSD)\b", text)
    ):
        return None  # "All rights reserved", or a publisher's name
    return _short(text)
