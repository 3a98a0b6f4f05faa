"""A page's metadata: title, author, date, site name, language and licence.

The sources are its `<meta>` elements (Open Graph, Dublin Core and other common names), its linked data (schema.org) and
its markup.

A licence counts only if the page declares it for itself: by `rel="license"`, in its data, or by a link to Creative
Commons next to a statement about licensing. A link alone does not count, since most are credits of pictures. Creative
Commons licences are given by SPDX identifier (`CC-BY-SA-4.0`), others as the page names them: by URL or in words.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from datetime import date, datetime, timedelta, timezone
from functools import cache
from itertools import islice
from typing import Any

from lxml import etree

from owt_pipeline.stages.extract.head import TITLE_NAMES, Head, is_article, name_of
from owt_pipeline.stages.extract.names import NAMES, finder
from owt_pipeline.stages.extract.tree import PERMALINK, text_of

_AUTHOR_NAMES, _DATE_NAMES = NAMES["meta author"], NAMES["meta date"]
_SITE_NAMES, _LANGUAGE_NAMES = NAMES["meta site"], NAMES["meta language"]

_EARLIEST = date(1991, 8, 6)  # the first page of the web
_DATE_IN_URL = re.compile(r"/((?:19|20)\d\d)[/-](0[1-9]|1[0-2])[/-](0[1-9]|[12]\d|3[01])(?=\D)")
_LANGUAGE = re.compile(r"\s*([a-zA-Z]{2})(?:[-_][\w-]*)?\s*(?:,|$)")
_SEPARATOR = re.compile(r"\s+(?:[|–—·•»:]+|-+)\s+")
_SCHEME = re.compile(r"\s*https?:", re.IGNORECASE)
_LEAST_SHARE = 0.2  # of the words of a page's only heading in its title
_NOT_WORDS = re.compile(r"\W+")
_NUMBER = re.compile(r"\b\d{2}")  # a byline's date or a member's number of posts
_BY = re.compile(
    r"^(?:(?:written|posted|published|story|words|article|text)\s+)?(?:by|par|por|von)\b:?\s+|^by:", re.IGNORECASE
)
# Dates in text: `2019-05-03`, `May 3rd, 2019`, `3. Mai 2019`, `3 de mayo de 2019`, `3.5.2019`, `2019年5月3日`.
# `3/5/2019` is ambiguous and ignored.
_ISO = re.compile(r"(?<!\d)((?:19|20)\d\d)[-/.]?(0[1-9]|1[0-2])[-/.]?(0[1-9]|[12]\d|3[01])(?!\d)")
_YEAR = r"((?:19|20)\d\d)(?!\d)"
_MONTHS = [
    "jan jän ene gen sty", "feb fév fev", "mar mär maa mrt", "apr avr abr", "may mai mag maj mei", "jun juin giu",
    "jul juil lug", "aug aoû ago", "sep set", "oct okt ott out", "nov", "dec dez dic déc",
]  # fmt: skip
_MONTH_OF = {prefix: number for number, prefixes in enumerate(_MONTHS, 1) for prefix in prefixes.split()}
MONTH = rf"((?:{'|'.join(sorted(_MONTH_OF, key=len, reverse=True))})[^\W\d_]{{0,7}})"
"""A month's name or abbreviation in a dozen languages; one group."""
_DAY_FIRST = re.compile(
    rf"(?<!\d)(\d{{1,2}})(?:st|nd|rd|th|er|º|\.)?\s+(?:de\s+|of\s+)?{MONTH}[.,]?\s+(?:de\s+|del\s+)?{_YEAR}",
    re.IGNORECASE,
)
_MONTH_FIRST = re.compile(rf"\b{MONTH}\.?\s+(\d{{1,2}})(?:st|nd|rd|th)?,?\s+{_YEAR}", re.IGNORECASE)
_DOTTED = re.compile(rf"(?<![\d.])(\d{{1,2}})\.\s?(\d{{1,2}})\.\s?{_YEAR}")
_SLASHED = re.compile(rf"(?<![\d/])(\d{{1,2}})/(\d{{1,2}})/{_YEAR}")
_CJK = re.compile(r"((?:19|20)\d\d)\s*[年년]\s*(\d{1,2})\s*[月월]\s*(\d{1,2})\s*[日일]")
# The rest of a byline after the name: a date, a count, a separator.
_AFTER_NAME = re.compile(
    r"\s*(?:[|·•/\n]|\s[-–—]\s|\bon\s|\b(?:last )?updated\b|\bpublished\b).*$"
    rf"|(?:,\s*|\s+)(?:{MONTH}\.?\s+)?\d.*$",
    re.IGNORECASE | re.DOTALL,
)
_HOLDS_MARK = finder(re.compile(r"uthor|yline|[dD]ate|publish|timestamp|posted"))  # in classes of authors and dates
_NAMES_AUTHOR = re.compile(
    r"(?:^|\s)(?:(?:[a-z]+[-_]+)*(?:by-?line|by-?author|author)(?:s|[-_]+(?:name|link|text|vcard|by-?line))*"
    r"|[A-Za-z]*(?:Byline|Author|AuthorName))(?:\s|$)"
)
_NAMES_OTHER_AUTHOR = re.compile(r"comment|reply|related|sidebar|widget|avatar|(?<!v)card|quote", re.IGNORECASE)
_NAMES_DATE = re.compile(r"[dD]ate|(?<!status-)publish(?!er)|timestamp|yline|posted")
_NAMES_OTHER_DATE = re.compile(
    r"updat(?!e[ds]?-?publi)|modif|comment|related|copyright|footer|event|birth|valid|review", re.IGNORECASE
)
_NO_NAMES = ("author", "admin", "administrator")  # defaults of templates and systems
_LONGEST = 300  # a longer text is not a title or name
_Marked = Callable[[], list[etree._Element]]


_CREATIVE_COMMONS = re.compile(
    r"creativecommons\.org/(?:licenses/([a-z-]+?)(?:/(\d\.\d))?(?:/([a-z]{2}))?|publicdomain/(zero|mark)/(\d\.\d))(?=[/?#]|$)",
    re.IGNORECASE,
)
_META_NAMES = NAMES["meta license"]
_DECLARES = re.compile(
    r"licen[cs]|lizen[zs]|licenci|licença|ライセンス|лиценз|except where|unless otherwise|some rights reserved",
    re.IGNORECASE,
)
_LONGEST_LICENSE = 200
_LINKS = 20  # most links to Creative Commons to check: a page of pictures has one for each
_AROUND = 300  # most characters of the paragraph around a link to a licence


def read_metadata(root: etree._Element, head: Head, url: str, fetched_at: int) -> dict[str, str | None]:
    """The metadata of a page, as fields of `Extracted`.

    Args:
      root: the page.
      head: its `<meta>` elements and linked data, from `read_head`.
      url: its URL.
      fetched_at: time of the fetch, in seconds since 1970; no date of publication is later.
    """
    metas, nodes = head.metas, head.nodes
    publishers = [node.get("name") for node in nodes if node.get("@type") == "WebSite" and "name" in node][:1]
    publishers += [node.get("publisher") for node in nodes if is_article(node)]
    site_name = _first(metas, _SITE_NAMES) or next(filter(None, (_short(name_of(p)) for p in publishers)), None)
    marked = cache(lambda: _marked(root))
    return {
        "title": _title(root, metas, nodes, site_name, url),
        "author": _author(marked, metas, nodes),
        "date": _date(marked, metas, nodes, url, fetched_at),
        "site_name": site_name,
        "language": _language(root, metas),
        "license": _license(root, metas, nodes),
    }


def _title(
    root: etree._Element, metas: dict[str, str], nodes: list[dict[str, Any]], site: str | None, url: str
) -> str | None:
    """The heading that is part of one of the page's titles, or a title without the site's name.

    On other pages than the home page, the last part of the title is the site's name, and so is a link to the home page.
    """
    element = next(root.iter("title"), None)
    declared = [_short(text_of(element)) if element is not None else None]
    declared += [_short(metas.get(name)) for name in TITLE_NAMES]
    declared += [_short(name_of(node.get("headline"))) for node in nodes]
    titles = [title for title in declared if title]
    host, _, path = url.partition("//")[2].partition("/")
    sites = {"", _words(site or "")}
    if titles and path:
        sites |= {_words(_SEPARATOR.split(titles[0])[-1])} - set(map(_words, titles))
    headings = [
        text
        for heading in root.iter("h1")
        if (text := _short(text_of(heading).rstrip(PERMALINK)))
        and _words(text) not in sites
        and not (path and _links_home(heading, host))
    ]
    agreed = [text for text in headings if any(_words(text) in _words(title) for title in titles)]
    if agreed:
        return max(agreed, key=len)  # shorter ones may be the site's name
    if len(headings) == 1 and (not titles or _share(headings[0], titles[0]) >= _LEAST_SHARE):
        return headings[0]
    return _without_site(titles[0], site) if titles else (headings[0] if headings else None)


def _links_home(heading: etree._Element, host: str) -> bool:
    """Whether a heading is the site's name: a link to its home page."""
    links = (*heading.iter("a"), *heading.iterancestors("a"))
    return any(_SCHEME.sub("", link.get("href") or "") in ("/", f"//{host}", f"//{host}/") for link in links)


def _share(heading: str, title: str) -> float:
    """The share of the words of `heading` that are in `title`."""
    words = set(_words(heading).split())
    return len(words & set(_words(title).split())) / len(words)


def _without_site(title: str, site: str | None) -> str:
    parts = _SEPARATOR.split(title)
    if len(parts) > 1 and site and _words(parts[0]) == _words(site):
        return parts[1]
    return parts[0] or title


def _marked(root: etree._Element) -> list[etree._Element]:
    """The elements of a page whose names suggest an author or a date."""
    found = []
    for element in root.iter():  # an XPath takes twice as long
        for name, value in element.items():
            if name == "class":
                if _HOLDS_MARK[value]:
                    break
            elif name == "itemprop":
                if value in ("author", "datePublished"):
                    break
            elif name == "rel" and value == "author":
                break
        else:
            if element.tag != "time":
                continue
        found.append(element)
    return found


def _author(marked: _Marked, metas: dict[str, str], nodes: list[dict[str, Any]]) -> str | None:
    for stated in (
        *map(metas.get, _AUTHOR_NAMES),
        *(name_of(node.get("author") or node.get("creator")) for node in nodes),
    ):
        if name := _name_of_person(stated):
            return name
    for element in islice((e for e in marked() if _is_author(e)), 12):
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
    """`text` without "By" if it may be a name; else None."""
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
        published = [metas.get("article:published_time"), *(n.get("datePublished") for n in nodes if is_article(n))]
        yield min(filter(None, map(_stated_date, published)), default=None)  # a later one is that of a new version
        yield from (_stated_date(metas.get(name)) for name in _DATE_NAMES)
        for key in ("datePublished", "dateCreated", "uploadDate"):
            yield from (_stated_date(node.get(key)) for node in nodes)
        if match := _DATE_IN_URL.search(url):
            yield iso_date("-".join(match.groups()))
        elements = list(islice(filter(_is_date, marked()), 20))
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


def _language(root: etree._Element, metas: dict[str, str]) -> str | None:
    for label in (root.get("lang"), root.get("xml:lang"), *(metas.get(name) for name in _LANGUAGE_NAMES)):
        if label and (match := _LANGUAGE.match(label)):
            return match[1].lower()
    return None


def _first(metas: dict[str, str], names: tuple[str, ...]) -> str | None:
    return next((text for text in (_short(metas.get(name)) for name in names) if text), None)


def _short(text: str | None) -> str | None:
    text = " ".join((text or "").split())
    return text if 0 < len(text) <= _LONGEST else None


def _words(text: str) -> str:
    return _NOT_WORDS.sub(" ", text.lower()).strip()


def iso_date(text: str) -> date | None:
    """The first date in `text` written as year, month, day."""
    match = _ISO.search(text)
    return _day(*match.groups()) if match else None


def date_in_text(text: str) -> date | None:
    """The date in `text`, in any of the formats above; None if there is none or it is ambiguous."""
    found = iso_date(text)
    if found is not None:
        return found
    if match := _CJK.search(text):
        return _day(*match.groups())
    if match := _DAY_FIRST.search(text):
        return _day(match[3], _month(match[2]), match[1])
    if match := _MONTH_FIRST.search(text):
        return _day(match[3], _month(match[1]), match[2])
    if match := _DOTTED.search(text):
        return _day(match[3], match[2], match[1])
    if match := _SLASHED.search(text):
        first, second = int(match[1]), int(match[2])
        if first > 12 or first == second:
            return _day(match[3], second, first)
        return _day(match[3], first, second) if second > 12 else None
    return None


def _month(name: str) -> int:
    name = name.lower()
    return _MONTH_OF.get(name[:4]) or _MONTH_OF[name[:3]]


def _day(year: str, month: str | int, day: str | int) -> date | None:
    try:
        return date(int(year), int(month), int(day))
    except ValueError:
        return None


def _license(root: etree._Element, metas: dict[str, str], nodes: list[dict[str, Any]]) -> str | None:
    """The licence that the page `root` declares; None if it declares none or several different ones."""
    related, linked = [], []
    for element in root.iter("link", "a", "area"):
        relation, target = element.get("rel"), element.get("href")
        if target is not None and relation is not None and "licen" in relation:
            if {"license", "licence"} & set(relation.lower().split()):
                related.append(element)
        elif target is not None and "creativecommons.org/" in target:
            linked.append(element)
    for candidates in (
        (_named(element.get("href")) for element in related if element.tag == "link"),
        (_of_data(node.get("license")) for node in nodes),
        (_named(element.get("href")) for element in related if not _is_credit(element)),
        (_named(metas.get(name)) for name in _META_NAMES),
        _of_statements(linked),
    ):
        found = list(dict.fromkeys(filter(None, candidates)))
        if found:
            return found[0] if len(found) == 1 else None
    return None


def _of_statements(links: list[etree._Element]) -> Iterator[str | None]:
    for link in links[:_LINKS]:
        above = link.getparent()
        if above is None or _is_credit(link) or not _CREATIVE_COMMONS.search(link.get("href")):
            continue
        said = text_of(above)
        if len(said) < 40 and above.getparent() is not None:
            said = text_of(above.getparent())
        if len(said) <= _AROUND and _DECLARES.search(said):
            yield _named(link.get("href"))


def _is_credit(link: etree._Element) -> bool:
    """Whether a link belongs to a picture or a comment, not to the page."""
    return any(above.tag in ("figure", "figcaption", "blockquote", "li") for above in link.iterancestors())


def _of_data(value: Any) -> str | None:
    if isinstance(value, dict):
        value = value.get("url") or value.get("@id") or value.get("name")
    return _named(value) if isinstance(value, str) else None


def _named(text: str | None) -> str | None:
    """The licence with this URL or name; None if it is not a licence."""
    text = " ".join((text or "").split())
    if match := _CREATIVE_COMMONS.search(text):
        kind, version, country, public, public_version = match.groups()
        if public:
            return f"{'CC0' if public.lower() == 'zero' else 'CC-PDM'}-{public_version}"
        parts = ["CC", kind.upper(), version, country and country.upper()]
        return "-".join(part for part in parts if part)
    if "://" not in text and not _DECLARES.search(text) and not re.match(r"(?:CC|MIT|Apache|GPL|GFDL|BSD)\b", text):
        return None  # "All rights reserved", or a publisher's name
    return text if 0 < len(text) <= _LONGEST_LICENSE else None
