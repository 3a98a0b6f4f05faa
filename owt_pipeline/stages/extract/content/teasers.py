"""Teasers of other pages around an article: elements of one kind, side by side, each with a link
and at most a sentence or two.

    <div class="a"> the article </div>
    <ul> <li> <a>Two boats</a> <div>They sail from May on.</div> </li> <li> … </ul>

A list of offers on a page that is a list has the same form. So teasers are left out only next to an
article: most of the page's prose is in one element, they are neither in it nor between the page's
title and it, and few have a price.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

import numpy as np

from owt_pipeline.stages.extract.html.blocks import HEADING, PREFORMATTED, Block, Container

_MIN_PARAGRAPHS, _MIN_ARTICLE_WORDS = 3, 150
_MIN_ARTICLE_SHARE = 0.7  # of the words of prose that are kept
_MIN_TEASERS = 5
_MIN_LINKED_SHARE = 0.8  # of the characters of a title
_MAX_SENTENCE_WORDS = 40  # of the text next to a title
_MIN_PROSE_CHARS = 80
_MAX_PROSE_LINKED_SHARE = 0.4
_MAX_SHARE_WITH_PRICE = 0.3
_PRICE = re.compile(r"[$€£¥₹]\s?\d|\d\s?(?:[€£¥₹]|kr\b|zł|Kč|USD\b|EUR\b|CHF\b)")
_MAX_DEPTH = 8  # containers around a block that may be an item

_Key = tuple[Container | None, str, str]


def leave_teasers(blocks: Sequence[Block], keep: np.ndarray) -> None:
    """Clear `keep` of the blocks of teasers next to an article."""
    kept = [index for index, is_kept in enumerate(keep.tolist()) if is_kept]
    article = _article_of([blocks[index] for index in kept])
    if article is None:
        return
    # The title of the article, or its first text if there is none.
    titles = [index for index, block in enumerate(blocks) if block.container.tag == "h1"]
    start = titles[0] if titles else _first_in(article, blocks)
    indexes_by_item: dict[Container, list[int]] = {}
    for index in kept:
        container: Container | None = blocks[index].container
        for _ in range(_MAX_DEPTH):
            if container is None or _holds(container, article) or _holds(article, container):
                break
            indexes_by_item.setdefault(container, []).append(index)
            container = container.parent
    groups: dict[_Key, list[list[int]]] = {}
    for item, indexes in indexes_by_item.items():
        key = item.parent, item.tag, item.names.partition(" ")[0]
        groups.setdefault(key, []).append(indexes)
    for items in groups.values():
        first, last = items[0][0], items[-1][-1]
        is_outside = last < start or blocks[first].container.index >= article.end
        if len(items) < _MIN_TEASERS or not is_outside:
            continue
        teasers = [[blocks[index] for index in indexes] for indexes in items]
        if all(map(_is_teaser, teasers)) and not _has_prices(teasers):
            for indexes in items:
                keep[indexes] = False


def _article_of(kept: Sequence[Block]) -> Container | None:
    """Return the container with most of the prose in its paragraphs; None for a page of parts."""
    words_by_container: dict[Container, int] = {}
    num_by_container: dict[Container, int] = {}
    total = 0
    for block in kept:
        is_linked = block.link_chars >= _MAX_PROSE_LINKED_SHARE * block.chars
        if block.chars <= _MIN_PROSE_CHARS or is_linked or block.form == HEADING:
            continue
        words = block.text.count(" ") + 1
        total += words
        container = block.container.parent or block.container
        words_by_container[container] = words_by_container.get(container, 0) + words
        num_by_container[container] = num_by_container.get(container, 0) + 1
    if not words_by_container:
        return None
    article = max(words_by_container, key=lambda container: words_by_container[container])
    words = words_by_container[article]
    if words < max(_MIN_ARTICLE_WORDS, _MIN_ARTICLE_SHARE * total):
        return None
    return article if num_by_container[article] >= _MIN_PARAGRAPHS else None


def _holds(container: Container, other: Container) -> bool:
    return container.index <= other.index < container.end


def _is_teaser(item: Sequence[Block]) -> bool:
    num_titles = num_words = 0
    for block in item:
        if block.form == PREFORMATTED:
            return False
        if block.link_chars >= _MIN_LINKED_SHARE * block.chars:
            num_titles += 1
        else:
            num_words += block.text.count(" ") + 1
    return num_titles > 0 and num_words <= _MAX_SENTENCE_WORDS


def _has_prices(items: Sequence[Sequence[Block]]) -> bool:
    num_priced = sum(any(_PRICE.search(block.text) for block in item) for item in items)
    return num_priced > _MAX_SHARE_WITH_PRICE * len(items)


def _first_in(container: Container, blocks: Sequence[Block]) -> int:
    inside = (i for i, block in enumerate(blocks) if _holds(container, block.container))
    return next(inside, 0)
