"""Readers' comments by their structure: elements of one kind, side by side below an article.

    <article> … </article>
    <section>
      <div class="item"> <b>Nagy</b> <time>12:30</time> <p>We waited for years.</p> </div>
      <div class="item"> …

The name of their class may be a word of any language, or have no meaning. They are comments in two
cases, each below 150 words of prose:

- each has a line or two with a name and a time, and then a text;
- three or more of them follow an `<article>`, in the same element, and have sentences only.

Posts of a forum are not comments: the first one is an element of the same kind.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from itertools import islice

from owt_pipeline.stages.extract.html.blocks import HEADING, PREFORMATTED, ROW, Block, Container
from owt_pipeline.stages.extract.html.names import CHROME, COMMENT, HIDDEN

_MIN_ARTICLE_WORDS = 150
_MIN_PROSE_CHARS = 80
_MAX_LINKED_SHARE = 0.4
# Two items with a name and a time are comments; without these it takes three.
_MIN_SIGNED = 2
_MIN_UNSIGNED = 3
# A shorter block is not taken for the text of a comment.
_MIN_TEXT_CHARS = 25
_NO_TEXT_FORMS = frozenset((HEADING, ROW, PREFORMATTED))
_MIN_MEAN_WORDS = 8
# The share of items whose longest text ends with the end of a sentence.
_MIN_ENDED_SHARE = 0.6
# The lines with a name and a time.
_MAX_LINES = 4
_MAX_LINE_CHARS = 60
_MAX_NAME_WORDS = 4
# Containers around a block that are searched for items. A hostile page has thousands.
_MAX_DEPTH = 12
_DIGITS = re.compile(r"\d+")
# A year, a clock, or a number with one or two words, as in `3 days ago` and `vor 3 Tagen`.
_TIME = re.compile(
    r"\b(?:19|20)\d\d\b|\b\d{1,2}[:h]\d\d\b"
    r"|(?:^|\b[^\W\d]{1,8} )\d{1,2} ?[^\W\d]{1,10}\.?(?: [^\W\d]{1,10})?$"
)
_WORD = re.compile(r"[^\W\d_]{2,}")
_SENTENCE_ENDS = tuple(".!?…。！？\"”»'’)")

_Key = tuple[Container | None, str, str]


def mark_comments(blocks: Sequence[Block]) -> None:
    """Set COMMENT in the kind of each container that is a comment by its structure."""
    start = _end_of_prose(blocks)
    if start is None:
        return
    groups = _groups(blocks, start)
    article = _article_of(blocks[:start])
    is_single = article is not None and _key_of(article) not in groups
    keys_before: set[_Key] = set()
    for key, items in groups.items():
        # Paragraphs without a class are the sentences of an item.
        if len(items) < _MIN_SIGNED or key[1:] == ("p", ""):
            continue
        first = next(iter(items))
        is_below = is_single and len(items) >= _MIN_UNSIGNED and _follows(article, first)
        is_unsigned = is_below and key[2] != ""
        if not is_unsigned and not _is_signed(_blocks_in(first, blocks, items[first])):
            continue
        texts = [_blocks_in(item, blocks, index) for item, index in items.items()]
        if not _are_sentences(texts) or not (is_unsigned or all(map(_is_signed, texts))):
            continue
        keys_before = keys_before or _keys_of(blocks[:start])
        if key not in keys_before:
            for item in items:
                item.kind |= COMMENT


def _groups(blocks: Sequence[Block], start: int) -> dict[_Key, dict[Container, int]]:
    """Return the containers with text after the first `start` blocks, by their kind.

    Each container has the index of its first text.
    """
    groups: dict[_Key, dict[Container, int]] = {}
    known: set[Container] = set()
    last_before = blocks[start - 1].container.index
    for index, block in enumerate(islice(blocks, start, None), start):
        is_linked = block.link_chars >= _MAX_LINKED_SHARE * block.chars
        if block.chars < _MIN_TEXT_CHARS or is_linked or block.form in _NO_TEXT_FORMS:
            continue
        for container in islice(block.container.ancestors(), _MAX_DEPTH):
            if container.index <= last_before or container in known:
                break
            known.add(container)
            groups.setdefault(_key_of(container), {})[container] = index
    return groups


def _key_of(container: Container) -> _Key:
    """Return what siblings of one kind have in common: parent, tag and first class."""
    name = _DIGITS.sub("", container.names.partition(" ")[0])
    return container.parent, container.tag, name


def _keys_of(blocks: Iterable[Block]) -> set[_Key]:
    """Return the kinds of the containers around blocks."""
    containers: set[Container] = set()
    for block in blocks:
        for container in block.container.ancestors():
            if container in containers:
                break
            containers.add(container)
    return set(map(_key_of, containers))


def _blocks_in(item: Container, blocks: Sequence[Block], index: int) -> Sequence[Block]:
    """Return the blocks in a container that has the block at `index`."""
    first = index
    last = index
    while first > 0 and item.index <= blocks[first - 1].container.index < item.end:
        first -= 1
    while last + 1 < len(blocks) and item.index <= blocks[last + 1].container.index < item.end:
        last += 1
    return blocks[first : last + 1]


def _end_of_prose(blocks: Sequence[Block]) -> int | None:
    """Return the number of blocks up to the 150th word of prose; None if there are fewer words."""
    num_words = 0
    for index, block in enumerate(blocks):
        if _is_prose(block):
            num_words += block.text.count(" ") + 1
            if num_words >= _MIN_ARTICLE_WORDS:
                return index + 1
    return None


def _is_prose(block: Block) -> bool:
    is_linked = block.link_chars >= _MAX_LINKED_SHARE * block.chars
    return block.chars > _MIN_PROSE_CHARS and not is_linked and block.form != HEADING


def _article_of(blocks: Sequence[Block]) -> Container | None:
    """Return the `<article>` around the last prose of `blocks`; None if there is none."""
    for block in reversed(blocks):
        if _is_prose(block):
            articles = (one for one in block.container.ancestors() if one.tag == "article")
            return next(articles, None)
    return None


def _follows(article: Container | None, item: Container) -> bool:
    """Return whether an item follows an article that has ended, in the element around both."""
    if article is None or item.index < article.end:
        return False
    ancestors = list(islice(item.ancestors(), _MAX_DEPTH))
    if any(ancestor.kind & (CHROME | HIDDEN) for ancestor in ancestors):
        return False
    return article.parent in ancestors


def _are_sentences(items: Sequence[Sequence[Block]]) -> bool:
    """Return whether items have text without headings and few links, and most end a sentence."""
    num_words = 0
    num_ended = 0
    chars = 0
    link_chars = 0
    for blocks in items:
        for block in blocks:
            if block.form in _NO_TEXT_FORMS:
                return False
            num_words += block.text.count(" ") + 1
            chars += block.chars
            link_chars += block.link_chars
        longest = max(blocks, key=lambda block: block.chars)
        num_ended += longest.text.endswith(_SENTENCE_ENDS)
    is_text = num_words >= _MIN_MEAN_WORDS * len(items) and link_chars < _MAX_LINKED_SHARE * chars
    return is_text and num_ended >= _MIN_ENDED_SHARE * len(items)


def _is_signed(blocks: Sequence[Block]) -> bool:
    """Return whether an item has a text after lines with a name and a time."""
    has_name = False
    has_time = False
    for block in blocks[:_MAX_LINES]:
        if has_name and has_time:
            return block.link_chars < _MAX_LINKED_SHARE * block.chars
        if block.chars > _MAX_LINE_CHARS:
            return False
        time = _TIME.search(block.text)
        has_time |= time is not None
        name = block.text if time is None else block.text[: time.start()]
        has_name |= 0 < len(_WORD.findall(name)) <= _MAX_NAME_WORDS
    return False
