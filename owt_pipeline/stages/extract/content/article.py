"""The part of a page that holds its article: the element with most prose in its paragraphs."""

from __future__ import annotations

import re
from collections.abc import Sequence

from owt_pipeline.stages.extract.html.blocks import HEADING, Block, Container

MIN_ARTICLE_WORDS = 150
"""A page with fewer words of prose is not an article."""
# The share of the page's words of prose that the article has.
_MIN_ARTICLE_SHARE = 0.7
_MIN_PARAGRAPHS = 3
_MIN_PROSE_CHARS = 80
_MAX_PROSE_LINKED_SHARE = 0.4
_DIGITS = re.compile(r"\d+")


def article_of(blocks: Sequence[Block]) -> tuple[Container, int] | None:
    """Return the container with most of the prose, and the number of its paragraphs.

    Return None for a page of several parts, and for one with little prose.
    """
    words_by_container: dict[Container, int] = {}
    num_by_container: dict[Container, int] = {}
    total = 0
    for block in blocks:
        if not is_prose(block):
            continue
        words = num_words(block)
        total += words
        container = block.container.parent or block.container
        words_by_container[container] = words_by_container.get(container, 0) + words
        num_by_container[container] = num_by_container.get(container, 0) + 1
    if not words_by_container:
        return None
    article = max(words_by_container, key=lambda container: words_by_container[container])
    num_paragraphs = num_by_container[article]
    if words_by_container[article] < max(MIN_ARTICLE_WORDS, _MIN_ARTICLE_SHARE * total):
        return None
    if num_paragraphs < _MIN_PARAGRAPHS:
        return None
    return article, num_paragraphs


def is_prose(block: Block) -> bool:
    """Return whether a block has a sentence or two that are not mostly links."""
    is_linked = block.link_chars >= _MAX_PROSE_LINKED_SHARE * block.chars
    return block.chars > _MIN_PROSE_CHARS and not is_linked and block.form != HEADING


def num_words(block: Block) -> int:
    """Return the number of words between single spaces."""
    return block.text.count(" ") + 1


def key_of(container: Container) -> tuple[Container | None, str, str]:
    """Return what siblings of one kind have in common: parent, tag and first class."""
    first_class = container.names.partition(" ")[0]
    return container.parent, container.tag, _DIGITS.sub("", first_class)


def holds(container: Container, other: Container) -> bool:
    """Return whether a container is another one or is around it."""
    return container.index <= other.index < container.end
