"""A page's metadata: title, author, date, site name, language and licence.

The sources are its `<meta>` elements (Open Graph, Dublin Core and other common names), its linked data (schema.org) and
its markup.

A licence counts only if the page declares it for itself: by `rel="license"`, in its data, or by a link to Creative
Commons next to a statement about licensing. A link alone does not count, since most are credits of pictures. Creative
Commons licences are given by SPDX identifier (`CC-BY-SA-4.0`), others as the page names them: by URL or in words.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from datetime import date, datetime, timedelta, timezone
from typing import Any

from owt_pipeline.stages.extract.head import TITLE_NAMES, Head, is_article
from owt_pipeline.stages.extract.marks import Licence, Marked, PageRead
from owt_pipeline.stages.extract.names import COMMENT, NAMES

_AUTHOR_NAMES, _DATE_NAMES = NAMES["meta author"], NAMES["meta date"]
_SITE_NAMES, _LANGUAGE_NAMES = NAMES["meta site"], NAMES["meta language"]

_EARLIEST = date(1991, 8, 6)  # the first page of the web
_DATE_IN_URL = re.compile(r"/((?:19|20)\d\d)[/-](0[1-9]|1[0-2])[/-](0[1-9]|[12]\d|3[01])(?=\D)")
_LANGUAGE = re.compile(r"\s*([a-zA-Z]{2})(?:[-_][\w-]*)?\s*(?:,|$)")
_SEPARATOR = re.compile(r"\s+(?:[|–—·•»:]+|-+)\s+")
_NOT_WORDS = re.compile(r"\W+")
_NUMBER = re.compile(r"\b\d{2}")  # a byline's date or a member's number of posts
_BY = re.compile(
    r"^(?:(?:written|posted|published|story|words|article|text)\s+)?(?:by|par|por|von)\b:?\s+|^by:", re.IGNORECASE
)
_ISO = re.compile(r"(?<!\d)((?:19|20)\d\d)[-/.]?(0[1-9]|1[0-2])[-/.]?(0[1-9]|[12]\d|3[01])(?!\d)")
_MONTH = r"(?:jan|feb|mar|apr|may|jun|jul|aug|sep|oct|nov|dec)[a-z]*"
_WEEKDAY = (
    r"(?:mon|tues|wednes|thurs|fri|satur|sun)day|montag|dienstag|mittwoch|donnerstag|freitag|samstag|sonntag|lundi|mardi"
    r"|mercredi|jeudi|vendredi|samedi|dimanche|lunes|martes|miércoles|jueves|viernes|sábado|domingo|(?:lune|marte|mercole"
    r"|giove|vener)dì|sabato|domenica|maandag|dinsdag|woensdag|donderdag|vrijdag|zaterdag|zondag"
)
# The rest of a byline after the name: a date, a count, a separator.
_AFTER_NAME = re.compile(
    r"\s*(?:[|·•/\n]|\s[-–—]\s|\bon\s|\b(?:last )?updated\b|\bpublished\b).*$"
    rf"|(?:,\s*|\s+)(?:{_WEEKDAY})\b.*$|(?:,\s*|\s+)(?:(?:mon|tue|wed|thu|fri|sat|sun),?\s+)?(?:{_MONTH}\.?\s+)?\d.*$",
    re.IGNORECASE | re.DOTALL,
)
_NAMES_AUTHOR = re.compile(
    r"(?:^|\s)(?:(?:[a-z]+[-_]+)*(?:by-?line|by-?author|author)(?:s|[-_]+(?:name|link|text|vcard|by-?line))*"
    r"|[A-Za-z]*(?:Byline|Author|AuthorName))(?:\s|$)"
)
_NAMES_OTHER_AUTHOR = re.compile(r"comment|reply|related|sidebar|widget|avatar|(?<!v)card|quote", re.IGNORECASE)
_NAMES_DATE = re.compile(r"[dD]ate|(?<!status-)publish(?!er)|timestamp|yline|posted")
_NAMES_OTHER_DATE = re.compile(
    r"updat(?!e[ds]?-?publi)|modif|comment|related|copyright|footer|event|birth|valid|review", re.IGNORECASE
)
# Names around a date that is not the page's: of another story, or of a comment.
_NAMES_OTHERS = re.compile(
    r"related|recommend|recirc|teaser|(?<!no-)sidebar|popular|trending|most-?read|latest|up-?next|also-?(?:like|read)"
    r"|more-?(?:stories|news|posts|articles|from|like)|read-?more|outbrain|taboola",
    re.IGNORECASE,
)
_NO_NAMES = ("author", "admin", "administrator")  # defaults of templates and systems
_LONGEST = 300  # a longer text is not a title or name


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
_LONGEST_STATEMENT = 300  # most characters of the paragraph around a link to a licence


def read_metadata(page: PageRead, head: Head, url: str, fetched_at: int) -> dict[str, str | None]:
    """The metadata of a page, as fields of `Extracted`.

    Args:
      page: the page.
      head: its `<meta>` elements and linked data, from `read_head`.
      url: its URL.
      fetched_at: time of the fetch, in seconds since 1970; no date of publication is later.
    """
    metas, nodes = head.metas, head.nodes
    publishers = [node.get("name") for node in nodes if node.get("@type") == "WebSite" and "name" in node][:1]
    publishers += [node.get("publisher") for node in nodes if is_article(node)]
    site_name = _first(metas, _SITE_NAMES) or next(filter(None, (_short(head.name_of(p)) for p in publishers)), None)
    return {
        "title": _title(page, head, site_name),
        "author": _author(page.marked, head),
        "date": _date(page.marked, head, url, fetched_at),
        "site_name": site_name,
        "language": _language(page.language, metas),
        "license": _license(page, head),
    }


def _title(page: PageRead, head: Head, site: str | None) -> str | None:
    """The heading that is part of one of the page's titles, its only heading, or a title without the site's name."""
    declared = [page.title, *map(head.metas.get, TITLE_NAMES), *(head.name_of(n.get("headline")) for n in head.nodes)]
    titles = [title for title in map(_short, declared) if title]
    sites = {"", _words(site or "")}
    headings = [text for text in filter(None, map(_short, page.headings)) if _words(text) not in sites]
    agreed = [text for text in headings if any(_words(text) in _words(title) for title in titles)]
    if agreed:
        return max(agreed, key=len)  # shorter ones may be the site's name
    if len(headings) == 1 and (not titles or set(_words(headings[0]).split()) & set(_words(titles[0]).split())):
        return headings[0]
    if titles:
        return _SEPARATOR.split(titles[0])[0] or titles[0]
    return headings[0] if headings else None


def _author(marked: Iterable[Marked], head: Head) -> str | None:
    stated = [*map(head.metas.get, _AUTHOR_NAMES)]
    stated += [head.name_of(node.get("author") or node.get("creator")) for node in head.nodes]
    for one in stated:
        if name := _name_of_person(one):
            return name
    for element in marked:
        if _is_author(element) and not _is_of_another(element):
            text = (element.name or element).text[:_LONGEST]
            if name := _name_of_person(_AFTER_NAME.sub("", _BY.sub("", text))):
                return name
    return None


def _is_author(element: Marked) -> bool:
    get = element.attributes.get
    if get("rel") == "author" or get("itemprop") == "author":
        return True
    names = get("class") or ""
    return _NAMES_AUTHOR.search(names) is not None and _NAMES_OTHER_AUTHOR.search(names) is None


def _is_date(element: Marked) -> bool:
    names = element.attributes.get("class") or ""
    if _NAMES_OTHER_DATE.search(names) or _is_of_another(element):
        return False
    if element.tag == "time" or element.attributes.get("itemprop") == "datePublished":
        return True
    return _NAMES_DATE.search(names) is not None


def _is_of_another(element: Marked) -> bool:
    """Whether an element is of another story, or of a reader's comment."""
    for around in element.container.around():
        if around.kind & COMMENT or around.tag in ("nav", "aside", "footer"):
            return True
        if around.parent is not None and around.names and _NAMES_OTHERS.search(around.names):
            return True
    return False


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


def _date(marked: Iterable[Marked], head: Head, url: str, fetched_at: int) -> str | None:
    metas, nodes = head.metas, head.nodes

    def candidates() -> Iterator[date | None]:
        published = [metas.get("article:published_time"), *(n.get("datePublished") for n in nodes if is_article(n))]
        yield min(filter(None, map(_stated_date, published)), default=None)  # a later one is that of a new version
        yield from (_stated_date(metas.get(name)) for name in _DATE_NAMES)
        for key in ("datePublished", "dateCreated", "uploadDate"):
            yield from (_stated_date(node.get(key)) for node in nodes)
        if match := _DATE_IN_URL.search(url):
            yield date_in_text("-".join(match.groups()))
        elements = list(filter(_is_date, marked))
        for element in elements:
            yield date_in_text(element.attributes.get("datetime") or element.attributes.get("content") or "")
        for element in elements:
            yield date_in_text(element.text[:100])

    latest = (datetime.fromtimestamp(fetched_at, timezone.utc) + timedelta(days=1)).date()
    for found in candidates():
        if found is not None and _EARLIEST <= found <= latest:
            return found.isoformat()
    return None


def _stated_date(value: Any) -> date | None:
    return date_in_text(value) if isinstance(value, str) else None


def _language(of_root: str | None, metas: dict[str, str]) -> str | None:
    for label in (of_root, *(metas.get(name) for name in _LANGUAGE_NAMES)):
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


def date_in_text(text: str) -> date | None:
    """The first date in `text` whose order is clear: year, month, day (`2019-05-03`, `20190503`)."""
    match = _ISO.search(text)
    try:
        return date(*map(int, match.groups())) if match else None
    except ValueError:
        return None


def _license(page: PageRead, head: Head) -> str | None:
    """The licence that a page declares; None if it declares none or several different ones."""
    stated = [licence for licence in page.licences if licence.is_stated]
    for candidates in (
        (_named(licence.target) for licence in stated if licence.tag == "link"),
        (_of_data(node.get("license")) for node in head.nodes),
        (_named(licence.target) for licence in stated if licence.tag != "link" and not _is_credit(licence)),
        (_named(head.metas.get(name)) for name in _META_NAMES),
        (_named(licence.target) for licence in page.licences if _is_statement(licence)),
    ):
        found = list(dict.fromkeys(filter(None, candidates)))
        if found:
            return found[0] if len(found) == 1 else None
    return None


def _is_statement(licence: Licence) -> bool:
    """Whether a link to Creative Commons is in a statement about the page's licence."""
    if licence.is_stated or _is_credit(licence) or not _CREATIVE_COMMONS.search(licence.target):
        return False
    return len(licence.said) <= _LONGEST_STATEMENT and _DECLARES.search(licence.said) is not None


def _is_credit(licence: Licence) -> bool:
    """Whether a link belongs to a picture or a comment, not to the page."""
    return any(one.tag in ("figure", "figcaption", "blockquote", "li") for one in licence.container.around())


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
