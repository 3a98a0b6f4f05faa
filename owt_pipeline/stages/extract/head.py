"""A page's own metadata: its `<meta>` elements and its linked data (schema.org)."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from dataclasses import dataclass
from html import unescape
from typing import Any

import orjson

from owt_pipeline.stages.extract.marks import PageRead
from owt_pipeline.stages.extract.names import NAMES

TITLE_NAMES = ("og:title", "twitter:title", "citation_title", "dc.title", "dcterms.title")
_ARTICLES = ("Article", "NewsArticle", "BlogPosting", "ReportageNewsArticle", "TechArticle", "ScholarlyArticle",
             "SocialMediaPosting", "DiscussionForumPosting", "QAPage", "Report", "OpinionNewsArticle")  # fmt: skip
_TAG = re.compile(r"<[^<>]*>")
_MAX_DEPTH = 6
# Written around a script's content for XHTML.
_WRAPPING = re.compile(
    r"^\s*(?://|/\*)?\s*(?:<!\[CDATA\[|<!--)\s*(?:\*/)?|(?://|/\*)?\s*(?:\]\]>|-->)\s*(?:\*/)?\s*$|;\s*$"
)
_POSTS = ("DiscussionForumPosting", "Question", "Answer", "Comment")
_PARTS = ("@graph", "mainEntity", "acceptedAnswer", "suggestedAnswer", "comment", "itemListElement", "item")

KINDS = (
    frozenset(("article", "blog", "news", *(kind.lower() for kind in _ARTICLES))),
    frozenset(("product", "og:product", "product.item", "productgroup", "offer", "individualproduct")),
    frozenset(("discussionforumposting", "qapage", "question", "forum")),
    frozenset(("collectionpage", "itemlist", "searchresultspage", "itemlistpage", "offercatalog", "blog")),
    frozenset(("website",)),
    frozenset(("faqpage",)),
    frozenset(("recipe",)),
    frozenset(("localbusiness", "service", "professionalservice", "organization", "corporation")),
    frozenset(("person", "profilepage", "profile")),
    frozenset(("webpage", "aboutpage", "contactpage")),
)
"""Kinds of pages by the types of Open Graph and schema.org that they declare: bits of `Head.kinds`, articles first."""
ARTICLE, FORUM = 1 << 0, 1 << 2


@dataclass(frozen=True)
class Head:
    """A page's own metadata.

    Attributes:
      data: its linked data, parsed.
      metas: content of each `<meta>` by its name in lower case.
      nodes: the objects that its linked data describes, articles first.
      names: names of the objects of its linked data by their `@id`.
      titles, descriptions: in lower case, each once.
      body: the text of the article or thread in the linked data, in lower case.
      kinds: the kinds of page that it declares, bits by KINDS.
      is_dated, is_signed: whether it states a date of publication, and an author.
    """

    data: list[Any]
    metas: dict[str, str]
    nodes: list[dict[str, Any]]
    names: dict[str, str]
    titles: tuple[str, ...]
    descriptions: tuple[str, ...]
    body: str
    kinds: int
    is_dated: bool
    is_signed: bool

    def name_of(self, value: Any) -> str | None:
        """The name in a value of linked data: a string, an object with a name or an `@id`, or a list of these."""
        if isinstance(value, str):
            return unescape(self.names.get(value, value))
        if isinstance(value, dict):
            return self.name_of(value.get("name")) or self.names.get(str(value.get("@id")))
        if isinstance(value, list):
            names = [name for name in map(self.name_of, value) if name]
            return ", ".join(dict.fromkeys(names)) or None
        return None


def read_head(page: PageRead) -> Head:
    """The metadata of a page."""
    data, metas = [value for value in map(_linked_data, page.scripts) if value is not None], page.metas
    nodes = sorted(_nodes(data, 0), key=lambda node: not is_article(node))
    titles = [page.title, *map(metas.get, TITLE_NAMES)]
    titles += [node.get("headline") for node in nodes]
    descriptions = [*map(metas.get, ("description", "og:description", "twitter:description"))]
    descriptions += [node.get("description") for node in nodes]
    types = {metas.get("og:type", "none").lower().partition(":")[0]}
    for node in nodes:
        kind = node.get("@type")
        types.update(str(one).lower() for one in (kind if isinstance(kind, list) else [kind]))
    return Head(
        data,
        metas,
        nodes,
        dict(_named(data, 0)),
        _plain(titles, 5),
        _plain(descriptions, 40),
        "\n".join(_plain(["\n".join(embedded_texts(value)) for value in data], 150)),
        sum(1 << bit for bit, kinds in enumerate(KINDS) if not types.isdisjoint(kinds)),
        any(map(metas.__contains__, NAMES["meta date"])) or any(node.get("datePublished") for node in nodes),
        any(map(metas.__contains__, NAMES["meta author"])) or any(node.get("author") for node in nodes),
    )


def _plain(texts: list[Any], least: int) -> tuple[str, ...]:
    """`texts` of at least `least` characters, without markup, in lower case, each once."""
    found: dict[str, None] = {}
    for text in texts:
        if isinstance(text, str) and len(text) >= least:
            if "<" in text or "&" in text:
                text = unescape(_TAG.sub(" ", unescape(text)))
            found[" ".join(text.lower().split())] = None
    return tuple(found)


def _nodes(value: Any, depth: int) -> Iterator[dict[str, Any]]:
    """The objects that linked data describes, each before its parts."""
    if isinstance(value, list) and depth < _MAX_DEPTH:
        for item in value:
            yield from _nodes(item, depth + 1)
    elif isinstance(value, dict):
        yield value
        for key in ("@graph", "mainEntity", "mainEntityOfPage"):
            if key in value and depth < _MAX_DEPTH:
                yield from _nodes(value[key], depth + 1)


def _named(value: Any, depth: int) -> Iterator[tuple[str, str]]:
    """(`@id`, name) of the objects in linked data that have both."""
    if depth > _MAX_DEPTH:
        return
    if isinstance(value, dict):
        identifier, name = value.get("@id"), value.get("name")
        if isinstance(identifier, str) and isinstance(name, str):
            yield identifier, unescape(name)
        value = list(value.values())
    if isinstance(value, list):
        for item in value:
            if isinstance(item, (dict, list)):
                yield from _named(item, depth + 1)


def is_article(node: dict[str, Any]) -> bool:
    """Whether an object of linked data is an article or a forum thread."""
    kind = node.get("@type")
    return any(one in _ARTICLES for one in (kind if isinstance(kind, list) else [kind]))


def embedded_texts(value: Any, depth: int = 0) -> Iterator[str]:
    """The texts of articles, reviews and posts in linked data."""
    if depth > _MAX_DEPTH:
        return
    if isinstance(value, list):
        for item in value:
            yield from embedded_texts(item, depth + 1)
    elif isinstance(value, dict):
        keys = ["articleBody", "reviewBody"] + (["text"] if str(value.get("@type")) in _POSTS else [])
        yield from (value[key] for key in keys if isinstance(value.get(key), str))
        for key in _PARTS:
            if key in value:
                yield from embedded_texts(value[key], depth + 1)


def _linked_data(script: str) -> Any:
    """A script's JSON-LD, parsed; None if it is not JSON."""
    for text in (script, _WRAPPING.sub("", script)):
        try:
            return orjson.loads(text)
        except orjson.JSONDecodeError:
            pass
        try:
            return json.loads(text, strict=False)  # accepts line breaks within strings, which are common
        except (ValueError, RecursionError):
            pass
    return None
