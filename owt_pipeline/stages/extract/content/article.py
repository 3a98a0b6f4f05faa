"""The part of a page that holds its article: the element with most prose in its paragraphs."""

from __future__ import annotations

from collections.abc import Sequence

from owt_pipeline.stages.extract.html.blocks import Block, Container, is_prose, num_words

MIN_ARTICLE_WORDS = 150
"""A page with fewer words of prose is not an article."""
# The share of the page's words of prose that the article has.
_MIN_ARTICLE_SHARE = 0.7
_MIN_PARAGRAPHS = 3


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


def holds(container: Container, other: Container) -> bool:
    """Return whether a container is another one or is around it."""
    return container.index <= other.index < container.end
