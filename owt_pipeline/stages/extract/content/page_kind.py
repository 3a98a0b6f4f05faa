"""The kind of a page by its URL and by what its metadata declares: article, thread, shop, list.

The model sees it as features that all blocks of the page share. A URL is optional, and a page
without one has zeros; one labelled page in six is learned without its URL
(`benchmarks/extraction_model/examples.py`), so that the model does not depend on it.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlsplit

from owt_pipeline.stages.extract.content.metadata import Head
from owt_pipeline.stages.extract.html.names import NAMES

_ARTICLE_TYPES = frozenset(NAMES["article types"]) | {"article", "blog", "news"}
_TYPES = (
    _ARTICLE_TYPES,
    frozenset(("product", "product.item", "productgroup", "offer", "individualproduct")),
    frozenset(("discussionforumposting", "qapage", "question", "forum")),
    frozenset(
        ("collectionpage", "itemlist", "searchresultspage", "itemlistpage", "offercatalog", "blog")
    ),
    frozenset(("website",)),
    frozenset(("faqpage",)),
    frozenset(("recipe",)),
    frozenset(("localbusiness", "service", "professionalservice", "organization", "corporation")),
    frozenset(("person", "profilepage", "profile")),
    frozenset(("webpage", "aboutpage", "contactpage")),
)
"""Kinds of pages by the types of Open Graph and schema.org, in lower case."""

_THREAD_WORDS = frozenset(
    "forum forums thread threads showthread topic topics viewtopic discussion discussions"
    " community communities".split()
)
_WORDS = (
    _THREAD_WORDS | frozenset("board boards question questions answers comments".split()),
    frozenset(
        "shop store product products item items dp buy cart catalog collection collections"
        " category".split()
    ),
    frozenset(
        "docs doc documentation manual manuals guide guides reference api wiki help support learn"
        " tutorial tutorials handbook faq kb man".split()
    ),
    frozenset(
        "category categories tag tags topics archive archives search list lists index browse"
        " directory page all".split()
    ),
    frozenset(
        "news article articles blog blogs story stories post posts opinion magazine press politics"
        " sport sports business world".split()
    ),
)
"""Words in the URLs of forums, shops, manuals, lists and articles."""

# A segment with more words is a title, which may contain a word for a community or a product.
_MAX_WORDS_OF_NAME = 2
_WORD = re.compile(r"[a-z]+")
_DIGIT = re.compile(r"\d")
_DATED = re.compile(r"(?<!\d)(?:19|20)\d\d[-/_.]?(?:0?[1-9]|1[0-2])(?![\d])|/(?:19|20)\d{6}")


@dataclass(frozen=True)
class PageKind:
    """The kind of a page by its URL and metadata.

    Attributes:
      features: the numbers for the model, the same for all blocks of the page.
      is_article: whether the metadata declares an article.
      is_forum: whether the metadata declares a thread, or the URL is one of a forum.
      descriptions: how the metadata describes the page, often by its first sentences.
    """

    features: tuple[float, ...]
    is_article: bool
    is_forum: bool
    descriptions: tuple[str, ...]


def read_page_kind(url: str, metas: Mapping[str, str], head: Head) -> PageKind:
    """Return the kind of a page.

    Args:
      url: the page's URL; empty if it is not known.
      metas: the content of its `<meta>` elements by name.
      head: its linked data.
    """
    types = {metas.get("og:type", "none").lower().partition(":")[0]}
    for node in head.nodes:
        declared = node.get("@type")
        types.update(str(one).lower() for one in _as_list(declared))
    is_dated = _has_meta(metas, "meta date") or _has_value(head, "datePublished")
    is_signed = _has_meta(metas, "meta author") or _has_value(head, "author")
    of_url, is_forum_url = _read_url(url)
    of_types = [float(not types.isdisjoint(kind)) for kind in _TYPES]
    return PageKind(
        features=(*of_url, *of_types, float(is_dated), float(is_signed)),
        is_article=head.is_article,
        is_forum=head.is_forum or is_forum_url,
        descriptions=(metas.get("description", ""), metas.get("og:description", "")),
    )


def _read_url(url: str) -> tuple[list[float], bool]:
    """Return the features of a URL, and whether it is one of a forum."""
    host, path, query = _split_url(url)
    segments = [segment for segment in path.split("/") if segment]
    last = segments[-1] if segments else ""
    words: set[str] = set()
    for name in (*host.split("."), *segments):
        words_of_name = _WORD.findall(name)
        if len(words_of_name) <= _MAX_WORDS_OF_NAME:
            words.update(words_of_name)
    features = [
        float(bool(host)),
        float(len(segments)),
        float(len(path)),
        float(len(last)),
        float(last.count("-") + last.count("_")),
        float(len(_DIGIT.findall(last))),
        float(bool(query)),
        float(_DATED.search(path) is not None),
    ]
    features += [float(not words.isdisjoint(of_kind)) for of_kind in _WORDS]
    return features, not words.isdisjoint(_THREAD_WORDS)


def _split_url(url: str) -> tuple[str, str, str]:
    """Return host, path and query of a URL in lower case; empty ones if it is not one."""
    try:
        parts = urlsplit(url.lower())
    except ValueError:
        return "", "", ""
    if parts.scheme not in ("http", "https"):
        return "", "", ""
    return parts.netloc, parts.path, parts.query


def _as_list(value: Any) -> list[Any]:
    return value if isinstance(value, list) else [value]


def _has_meta(metas: Mapping[str, str], kind: str) -> bool:
    return any(name in metas for name in NAMES[kind])


def _has_value(head: Head, key: str) -> bool:
    return any(node.get(key) for node in head.nodes)
