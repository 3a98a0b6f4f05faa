"""A page's own metadata: its `<meta>` elements and its linked data (schema.org), which may hold its text.

Some pages have their text only as data, which a script displays, and almost none in their markup.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from html import unescape
from typing import Any

import orjson
from lxml import etree

from owt_pipeline.stages.extract.names import NAMES
from owt_pipeline.stages.extract.tree import text_of

TITLE_NAMES = ("og:title", "twitter:title", "citation_title", "dc.title", "dcterms.title")
_ARTICLES = ("Article", "NewsArticle", "BlogPosting", "ReportageNewsArticle", "TechArticle", "ScholarlyArticle",
             "SocialMediaPosting", "DiscussionForumPosting", "QAPage", "Report", "OpinionNewsArticle")  # fmt: skip
_TAG = re.compile(r"<[^<>]*>")
_ELEMENT = re.compile(r"</?[a-zA-Z][^<>]*>")
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


@dataclass(frozen=True)
class Head:
    """A page's own metadata.

    Attributes:
      data: its linked data, parsed.
      metas: content of each `<meta>` by its name in lower case.
      nodes: the objects that its linked data describes, articles first.
      titles, descriptions: in lower case, each once.
      body: the text of the article or thread in the linked data, in lower case.
      kinds: the kinds of page that it declares, bits by KINDS.
      is_dated, is_signed: whether it states a date of publication, and an author.
    """

    data: list[Any]
    metas: dict[str, str]
    nodes: list[dict[str, Any]]
    titles: tuple[str, ...]
    descriptions: tuple[str, ...]
    body: str
    kinds: int
    is_dated: bool
    is_signed: bool


def read_head(root: etree._Element) -> Head:
    """The metadata of the page `root`."""
    data, metas = _linked_data(root), _metas(root)
    nodes = sorted(_nodes(data, 0), key=lambda node: not is_article(node))
    title = next(root.iter("title"), None)
    titles = [text_of(title) if title is not None else "", *map(metas.get, TITLE_NAMES)]
    titles += [name_of(node.get("headline")) for node in nodes]
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


def _metas(root: etree._Element) -> dict[str, str]:
    """Content of each `<meta>` by its name in lower case; the first one wins."""
    metas: dict[str, str] = {}
    for meta in root.iter("meta"):
        content = meta.get("content")
        name = meta.get("property") or meta.get("name") or meta.get("itemprop") or meta.get("http-equiv")
        if content and name:
            content = " ".join(content.split())
            if content:
                for single in name.lower().split():  # some elements have several names
                    metas.setdefault(single.replace("dc:", "dc.").replace("dcterms:", "dcterms."), content)
    return metas


def _nodes(value: Any, depth: int) -> Iterator[dict[str, Any]]:
    """The objects that linked data describes, each before its parts."""
    if isinstance(value, list) and depth < 6:
        for item in value:
            yield from _nodes(item, depth + 1)
    elif isinstance(value, dict):
        yield value
        for key in ("@graph", "mainEntity", "mainEntityOfPage"):
            if key in value and depth < 6:
                yield from _nodes(value[key], depth + 1)


def is_article(node: dict[str, Any]) -> bool:
    """Whether an object of linked data is an article or a forum thread."""
    kind = node.get("@type")
    return any(one in _ARTICLES for one in (kind if isinstance(kind, list) else [kind]))


def name_of(value: Any) -> str | None:
    """The name in a value of linked data: a string, an object with a name, or a list of these."""
    if isinstance(value, str):
        return value
    if isinstance(value, dict):
        return name_of(value.get("name"))
    if isinstance(value, list):
        names = [name for name in map(name_of, value) if name]
        return ", ".join(dict.fromkeys(names)) or None
    return None


def _linked_data(root: etree._Element) -> list[Any]:
    """The page's JSON-LD (schema.org), parsed; scripts that are not JSON are skipped."""
    found = []
    for script in root.iter("script"):
        # The text last, since lxml copies it, and most scripts are long.
        if (script.get("type") or "").strip().lower() == "application/ld+json" and (text := script.text):
            value = _parse(text)
            if value is None:
                value = _parse(_WRAPPING.sub("", text))
            if value is not None:
                found.append(value)
    return found


def embedded_text(root: etree._Element, data: list[Any], write: Callable[[str], str], between: str) -> str:
    """The posts of a Discourse forum, or the longest article or thread in the linked data; else an empty string.

    Args:
      root: the page.
      data: its linked data.
      write: converts a piece of HTML to text.
      between: the separator of posts.
    """
    posts = list(_discourse_posts(root))
    if posts:
        return between.join(map(write, posts))
    texts = ["\n".join(embedded_texts(value)) for value in data]
    text = max(texts, key=len, default="")
    return write(text) if _ELEMENT.search(text) else unescape(text).strip()


def _discourse_posts(root: etree._Element) -> Iterator[str]:
    """The HTML of each post, which Discourse preloads as JSON within JSON in an attribute."""
    holder = root.find(".//*[@data-preloaded]")
    topics = _parse(holder.get("data-preloaded") or "") if holder is not None else None
    if not isinstance(topics, dict):
        return
    for key, value in topics.items():
        topic = _parse(value) if key.startswith("topic_") and isinstance(value, str) else None
        stream = topic.get("post_stream") if isinstance(topic, dict) else None
        posts = stream.get("posts") if isinstance(stream, dict) else None
        for post in posts if isinstance(posts, list) else []:
            if isinstance(post, dict) and isinstance(post.get("cooked"), str):
                yield post["cooked"]


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


def _parse(text: str) -> Any:
    try:
        return orjson.loads(text)
    except orjson.JSONDecodeError:
        pass
    try:
        return json.loads(text, strict=False)  # accepts line breaks within strings, which are common
    except (ValueError, RecursionError):
        return None
