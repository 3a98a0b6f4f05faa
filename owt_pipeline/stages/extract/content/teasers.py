"""Teasers of other pages around an article: elements of one kind, side by side, each with a link
and at most a sentence or two.

    <div class="a"> the article </div>
    <ul> <li> <a>Two boats</a> <div>They sail from May on.</div> </li> <li> … </ul>

Those below the last paragraph of an article, within its element, have a date or an image each.

A list of offers on a page that is a list has the same form. So teasers are left out only next to an
article: most of the page's prose is in one element, they are outside it and not between the page's
title and it, and few have a price. The introduction of a list may be as long as a short article, so
one of three more conditions has to hold:

- The page's metadata declares an article.
- An `<article>` contains the prose, but not the teasers.
- The prose has five paragraphs or more, and the element with the title does not contain the
  teasers.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from itertools import islice

import numpy as np

from owt_pipeline.stages.extract.content.article import article_of, holds
from owt_pipeline.stages.extract.html.blocks import (
    PREFORMATTED,
    Block,
    Container,
    Key,
    is_prose,
    key_of,
    num_words,
)

# An introduction of a list has few paragraphs, and the title of the list may be above both.
_MIN_PARAGRAPHS_OF_ARTICLE = 5
_MIN_TEASERS = 5
# A block is a title if links make up at least this share of its characters.
_MIN_LINKED_SHARE = 0.8
# A teaser has at most this many words besides its titles.
_MAX_SENTENCE_WORDS = 40
_MAX_SHARE_WITH_PRICE = 0.3
_PRICE = re.compile(r"[$€£¥₹]\s?\d|\d\s?(?:[€£¥₹]|kr\b|zł|Kč|USD\b|EUR\b|CHF\b)")
_DATE = re.compile(r"\b(?:19|20)\d\d\b|\b\d{1,2}[:h]\d\d\b")
# A teaser's element is at most this many containers above its blocks.
_MAX_DEPTH = 8


def leave_teasers(blocks: Sequence[Block], keep: np.ndarray, *, is_declared: bool) -> None:
    """Clear `keep` of the blocks of teasers next to an article.

    Args:
      blocks: the blocks of the page.
      keep: which of them are kept.
      is_declared: whether the page's metadata declares an article.
    """
    kept_indexes = np.flatnonzero(keep).tolist()
    element = article_of([blocks[index] for index in kept_indexes])
    if element is None:
        return
    article, num_paragraphs = element
    # The title of the article, or its first text if there is none.
    titles = [index for index, block in enumerate(blocks) if block.container.tag == "h1"]
    start = titles[0] if titles else _first_in(article, blocks)
    declared = next((one for one in article.ancestors() if one.tag == "article"), None)
    headed = blocks[titles[0]].container.parent if titles else None
    groups = _groups(blocks, kept_indexes, article, _end_of_text(article, blocks))
    for items in groups.values():
        if len(items) < _MIN_TEASERS:
            continue
        all_indexes = [index for indexes in items.values() for index in indexes]
        item = blocks[all_indexes[0]].container
        is_inside = holds(article, item)
        is_outside = all_indexes[-1] < start or item.index >= article.end
        if not is_inside and not is_outside:
            continue
        teasers = [[blocks[index] for index in indexes] for indexes in items.values()]
        if not all(map(_is_teaser, teasers)) or _has_prices(teasers):
            continue
        if is_inside and not (is_declared and _are_marked_as_pages(items, blocks)):
            continue
        is_article = is_declared or (declared is not None and not holds(declared, item))
        is_headed = headed is not None and holds(headed, item)
        if is_article or (num_paragraphs >= _MIN_PARAGRAPHS_OF_ARTICLE and not is_headed):
            keep[all_indexes] = False


def _groups(
    blocks: Sequence[Block], kept_indexes: Sequence[int], article: Container, end_of_text: int
) -> dict[Key, dict[Container, list[int]]]:
    """Return the items around an article or below its last paragraph, by their kind.

    Each item has the indexes of its blocks that are kept.
    """
    groups: dict[Key, dict[Container, list[int]]] = {}
    for index in kept_indexes:
        for container in islice(blocks[index].container.ancestors(), _MAX_DEPTH):
            if container.parent is article or holds(container, article):
                break
            if container.index < end_of_text and holds(article, container):
                break
            items = groups.setdefault(key_of(container), {})
            items.setdefault(container, []).append(index)
    return groups


def _end_of_text(article: Container, blocks: Sequence[Block]) -> int:
    """Return the index of the container after the last paragraph directly in an article."""
    end = article.index
    for block in blocks:
        if block.container.parent is article and is_prose(block):
            end = block.container.end
    return end


def _are_marked_as_pages(items: Iterable[Container], blocks: Sequence[Block]) -> bool:
    """Return whether each item has a date or an image: links that belong to a text have not."""
    marked: set[Container] = set()
    for block in blocks:
        if block.images or _DATE.search(block.text):
            marked.update(islice(block.container.ancestors(), _MAX_DEPTH))
    return marked.issuperset(items)


def _is_teaser(item: Sequence[Block]) -> bool:
    num_titles = 0
    words = 0
    for block in item:
        if block.form == PREFORMATTED:
            return False
        if block.link_chars >= _MIN_LINKED_SHARE * block.chars:
            num_titles += 1
        else:
            words += num_words(block)
    return num_titles > 0 and words <= _MAX_SENTENCE_WORDS


def _has_prices(items: Sequence[Sequence[Block]]) -> bool:
    num_priced = sum(any(_PRICE.search(block.text) for block in item) for item in items)
    return num_priced > _MAX_SHARE_WITH_PRICE * len(items)


def _first_in(container: Container, blocks: Sequence[Block]) -> int:
    inside = (i for i, block in enumerate(blocks) if holds(container, block.container))
    return next(inside, 0)
