"""Teasers of other pages around an article: elements of one kind, side by side, each with a link
and at most a sentence or two.

    <div class="a"> the article </div>
    <ul> <li> <a>Two boats</a> <div>They sail from May on.</div> </li> <li> … </ul>

Those below the last paragraph of an article, within its element, have a date or an image each.

Between the paragraphs of an article, elements of one kind are teasers if each has a title with at
least five words. Titles below an article need no element around title and sentence (`title_runs`).

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
from collections.abc import Iterable, Mapping, Sequence
from itertools import islice

import numpy as np

from owt_pipeline.stages.extract.content.article import article_of, holds
from owt_pipeline.stages.extract.content.boxes import leave_boxes
from owt_pipeline.stages.extract.content.title_runs import runs_of_titles
from owt_pipeline.stages.extract.html.blocks import (
    HEADING,
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
# Between paragraphs, so many elements of one kind are teasers, and each has a title with so many
# words: the names of products and books are shorter.
_MIN_TEASERS_BETWEEN = 2
_MIN_TITLE_WORDS = 5
_NO_TEASER_TAGS = frozenset(("p", "ul", "ol", "dl", "table", "pre", "h2", "h3", "h4", "h5", "h6"))
# Hostile pages have thousands of kinds of elements, and of blocks in one.
_MAX_GROUPS = 30
_MAX_BLOCKS = 1000


def leave_teasers(
    blocks: Sequence[Block], keep: np.ndarray, *, is_declared: bool, is_article: bool
) -> None:
    """Clear `keep` of the blocks of teasers next to an article, and between its paragraphs.

    Args:
      blocks: the blocks of the page.
      keep: which of them are kept.
      is_declared: whether the page's metadata declares an article.
      is_article: whether it does, or the page probably is one.
    """
    kept_indexes = np.flatnonzero(keep).tolist()
    element = article_of([blocks[index] for index in kept_indexes])
    if element is None:
        return
    article, num_paragraphs = element
    if is_article:
        _leave_between(blocks, keep, kept_indexes, article)
    if is_article or num_paragraphs >= _MIN_PARAGRAPHS_OF_ARTICLE:
        leave_boxes(blocks, keep, article)
    # The title of the article, or its first text if there is none.
    titles = [index for index, block in enumerate(blocks) if block.container.tag == "h1"]
    start = titles[0] if titles else _first_in(article, blocks)
    declared = next((one for one in article.ancestors() if one.tag == "article"), None)
    headed = blocks[titles[0]].container.parent if titles else None

    def is_beside(item: Container) -> bool:
        """Return whether an item is beside the article, not a part of a list with a long head."""
        if is_declared or (declared is not None and not holds(declared, item)):
            return True
        is_headed = headed is not None and holds(headed, item)
        return num_paragraphs >= _MIN_PARAGRAPHS_OF_ARTICLE and not is_headed

    for run in runs_of_titles(blocks, keep, article):
        if is_beside(blocks[run[0]].container) and not _has_prices([[blocks[i]] for i in run]):
            keep[run] = False
    groups = _groups(blocks, kept_indexes, article, _end_of_text(article, blocks))
    num_groups = 0
    for kept_items in groups.values():
        indexes = [index for indexes in kept_items.values() for index in indexes]
        item = blocks[indexes[0]].container
        is_inside = holds(article, item)
        is_outside = indexes[-1] < start or item.index >= article.end
        if not is_inside and not is_outside:
            continue
        if not is_beside(item):
            continue
        if num_groups == _MAX_GROUPS:
            break
        num_groups += 1
        if any(_is_title(blocks[i]) or blocks[i].form == HEADING for i in indexes):
            items = _select(kept_items, blocks)
        else:
            # The model may keep the sentences of a few of them, without their titles.
            items = _complete(kept_items, blocks, indexes)
        teasers = list(items.values())
        if len(teasers) < _MIN_TEASERS or not _are_teasers(teasers) or _has_prices(teasers):
            continue
        if not is_inside or (is_declared and _are_marked_as_pages(items, blocks)):
            keep[indexes] = False


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


def _leave_between(
    blocks: Sequence[Block], keep: np.ndarray, kept_indexes: Sequence[int], article: Container
) -> None:
    """Clear `keep` of teasers between the paragraphs of an article, in elements of one kind.

    Paragraphs are between each two of them, and after the last one.
    """
    groups: dict[Key, dict[Container, list[int]]] = {}
    num_paragraphs = 0
    # The number of paragraphs before the latest item of each kind.
    num_before: dict[Key, int] = {}
    in_row: set[Key] = set()
    for index in kept_indexes:
        block = blocks[index]
        if block.container.parent is article and is_prose(block):
            num_paragraphs += 1
            continue
        item = _child_around(block.container, article)
        if item is None or item.tag in _NO_TEASER_TAGS:
            continue
        key = key_of(item)
        items = groups.setdefault(key, {})
        if item not in items and num_before.get(key) == num_paragraphs:
            in_row.add(key)
        num_before[key] = num_paragraphs
        items.setdefault(item, []).append(index)
    num_groups = 0
    for key, items in groups.items():
        is_single = len(items) < _MIN_TEASERS_BETWEEN and key[1] != "aside"
        if is_single or key in in_row or num_before[key] in (0, num_paragraphs):
            continue
        if num_groups == _MAX_GROUPS:
            break
        num_groups += 1
        indexes = [index for of_item in items.values() for index in of_item]
        teasers = list(_complete(items, blocks, indexes).values())
        are_teasers = all(map(_is_teaser, teasers)) and all(map(_has_long_title, teasers))
        if are_teasers and not _has_prices(teasers):
            keep[indexes] = False


def _child_around(container: Container, article: Container) -> Container | None:
    """Return the container around another one that is directly in an article; else None."""
    for ancestor in islice(container.ancestors(), _MAX_DEPTH):
        if ancestor.parent is article:
            return ancestor
    return None


def _has_long_title(item: Sequence[Block]) -> bool:
    """Return whether an item has a linked title that is a sentence rather than a name."""
    titles = filter(_is_title, item)
    return max(map(num_words, titles)) >= _MIN_TITLE_WORDS


def _select(
    items: Mapping[Container, Sequence[int]], blocks: Sequence[Block]
) -> dict[Container, list[Block]]:
    """Return items with their blocks in place of the indexes of these."""
    return {item: [blocks[index] for index in indexes] for item, indexes in items.items()}


def _complete(
    kept_items: Iterable[Container], blocks: Sequence[Block], indexes: Sequence[int]
) -> dict[Container, list[Block]]:
    """Return the items of one kind with all their blocks, also those of which nothing is kept.

    Args:
      kept_items: the items of which something is kept.
      blocks: the blocks of the page.
      indexes: the indexes of the kept blocks of these items.
    """
    key = key_of(next(iter(kept_items)))
    parent = key[0]
    if parent is None:
        return {}
    first = indexes[0]
    while first > max(indexes[0] - _MAX_BLOCKS, 0) and holds(parent, blocks[first - 1].container):
        first -= 1
    items: dict[Container, list[Block]] = {}
    for block in islice(blocks, first, first + 2 * _MAX_BLOCKS):
        if not holds(parent, block.container):
            break
        for container in islice(block.container.ancestors(), _MAX_DEPTH):
            if container.parent is parent:
                if key_of(container) == key:
                    items.setdefault(container, []).append(block)
                break
    return items


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


def _are_teasers(items: Sequence[Sequence[Block]]) -> bool:
    """Return whether each item is a teaser, or all have a title and end with the same link."""
    if all(map(_is_teaser, items)):
        return True
    last_links = {_link_at_end(item) for item in items}
    return len(last_links) == 1 and "" not in last_links


def _link_at_end(item: Sequence[Block]) -> str:
    """Return the text of the link at the end of an item with a title and a sentence; else ""."""
    links = [block for block in item if block.links]
    is_short = sum(map(num_words, item)) <= _MAX_SENTENCE_WORDS
    if len(links) != 1 or links[0] is not item[-1] or item[0].form != HEADING or not is_short:
        return ""
    last = item[-1]
    return last.text[-last.link_chars :] if last.links == 1 and last.link_chars else ""


def _is_teaser(item: Sequence[Block]) -> bool:
    num_titles = 0
    words = 0
    for block in item:
        if block.form == PREFORMATTED:
            return False
        if _is_title(block):
            num_titles += 1
        else:
            words += num_words(block)
    return num_titles > 0 and words <= _MAX_SENTENCE_WORDS


def _is_title(block: Block) -> bool:
    return block.link_chars >= _MIN_LINKED_SHARE * block.chars


def _has_prices(items: Sequence[Sequence[Block]]) -> bool:
    num_priced = sum(any(_PRICE.search(block.text) for block in item) for item in items)
    return num_priced > _MAX_SHARE_WITH_PRICE * len(items)


def _first_in(container: Container, blocks: Sequence[Block]) -> int:
    inside = (i for i, block in enumerate(blocks) if holds(container, block.container))
    return next(inside, 0)
