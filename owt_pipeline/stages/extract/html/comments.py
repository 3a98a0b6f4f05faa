"""Readers' comments by their structure: elements of one kind, side by side below an article.

    <article> … </article>
    <section>
      <div class="item"> <b>Nagy</b> <time>12:30</time> <p>We waited for years.</p> </div>
      <div class="item"> …

The name of their class may be a word of any language, or have no meaning. They are comments in
three cases, each below 150 words of prose:

- each has a line or two with a name and a time, and then a text;
- three or more have a text, and below it a line with a time, with a link or buttons, such as one
  to reply, or with a name above the text;
- three or more of them follow an `<article>`, in the same element, and have sentences only.

The rows of a table are comments if each has a name, a day and a clock, and then a text.

A `<dd>` belongs to the `<dt>` before it. Posts of a forum are not comments: the first one is an
element of the same kind.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from itertools import groupby, islice

from owt_pipeline.stages.extract.html.blocks import (
    HEADING,
    PREFORMATTED,
    ROW,
    Block,
    Container,
    Key,
    is_prose,
    is_without_spaces,
    key_of,
    num_words,
)
from owt_pipeline.stages.extract.html.names import CHROME, COMMENT, HIDDEN

_MIN_ARTICLE_WORDS = 150
_MAX_LINKED_SHARE = 0.4
# Two items with a name and a time above are comments; others from three on.
_MIN_SIGNED = 2
_MIN_OTHERS = 3
# Fewer sentences below an article, in elements without a class, may be a part of it.
_MIN_UNNAMED = 5
# The share of items with a name and a time. A comment may be from `just now`, or removed.
_MIN_SIGNED_SHARE = 0.8
# A shorter block is not taken for the text of a comment.
_MIN_TEXT_CHARS = 25
_MIN_TEXT_CHARS_WITHOUT_SPACES = 12
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
# An item of more blocks is not a comment.
_MAX_BLOCKS_OF_ITEM = 200
_CLOCK = re.compile(r"\b\d{1,2}[:h]\d\d\b")
# A number with one or two words, as in `3 days ago` and `vor 3 Tagen`, after a word or a dot, up
# to the end or a dot. The name before it is often drawn in an element of its own, so that there is
# no space between the two: `Lee3 days ago`.
_AGO = (
    r"(?:^|(?<=[^\W\d])|(?<=[^\W\d] )|[·•] ?)\d{1,2} ?[^\W\d]{1,10}\.?(?: [^\W\d]{1,10})?"
    r"(?=$| ?[·•])"
)
_TIME = re.compile(rf"\b(?:19|20)\d\d\b|{_CLOCK.pattern}|{_AGO}")
_MOMENT = re.compile(rf"{_CLOCK.pattern}|{_AGO}")
_ENDS_WITH_NUMBER = re.compile(r" \d+$")
_NUMBER = re.compile(r"\d+")
# The hour, the minute, and two of a day.
_MIN_NUMBERS_OF_DATE = 4
# The month at the start of a date, as in `May 2024`, `May 2, 2024` and `2. Mai 2024`: not a name.
_MONTH = re.compile(
    r"(?:\d{1,2}\.?(?:st|nd|rd|th)? (?:de )?)?[^\W\d]+\.?,? (?:de )?"
    r"(?:\d{1,2}(?:st|nd|rd|th)?,? )?(?=(?:19|20)\d\d\b)"
)
_WORD = re.compile(r"[^\W\d_]{2,}")
_SENTENCE_ENDS = tuple(".!?…。！？؟\"”»'’)")


def mark_comments(blocks: Sequence[Block]) -> None:
    """Set COMMENT in the kind of each container that is a comment by its structure."""
    start = _end_of_prose(blocks)
    if start is None:
        return
    groups = _groups(blocks, start)
    article = _article_of(blocks[:start])
    is_single = article is not None and key_of(article) not in groups
    keys_before: set[Key] = set()
    keys: set[Key] = set()
    for key, items in groups.items():
        # Paragraphs without a class are the sentences of an item.
        if len(items) < _MIN_SIGNED or key[1:] == ("p", ""):
            continue
        first = next(iter(items))
        is_below = is_single and len(items) >= _MIN_OTHERS and _follows(article, first)
        is_named = key[2] != "" or (len(items) >= _MIN_UNNAMED and key[1] in ("div", "li"))
        is_unsigned = is_below and is_named
        # The first items of most groups are not signed, so the others need not be read.
        first_items = [_blocks_of(item, blocks, items[item]) for item in islice(items, 2)]
        if not is_unsigned and not any(map(_is_signed, first_items)):
            continue
        texts = [_blocks_of(item, blocks, index) for item, index in items.items()]
        if _are_sentences(texts) and (is_unsigned or _are_signed(texts)):
            keys_before = keys_before or _keys_of(blocks[:start])
            if key not in keys_before:
                keys.add(key)
    if keys:
        _mark(blocks[start:], keys)
    _mark_tables([block for block in blocks[start:] if block.form == ROW])


def _mark(blocks: Iterable[Block], keys: set[Key]) -> None:
    """Set COMMENT in the containers around blocks that have one of the keys."""
    # The name and the time of a `<dd>` are in other children of its list.
    lists = {parent for parent, tag, _ in keys if tag == "dd"}
    for block in blocks:
        for container in islice(block.container.ancestors(), _MAX_DEPTH):
            is_in_list = container.tag in ("dt", "dd") and container.parent in lists
            if is_in_list or key_of(container) in keys:
                container.kind |= COMMENT


def _mark_tables(rows: Iterable[Block]) -> None:
    """Set COMMENT in each table whose rows are comments: a name and a time, then a text."""
    for table, rows_of_table in groupby(rows, lambda row: row.container):
        are_signed = list(map(_is_signed_row, rows_of_table))
        num_signed = sum(are_signed)
        if num_signed >= max(_MIN_OTHERS, _MIN_SIGNED_SHARE * len(are_signed)):
            table.kind |= COMMENT


def _is_signed_row(row: Block) -> bool:
    """Return whether the last cell of a row is a text, after cells with a name, a day and a clock.

    A row of a timetable has a clock without a day.
    """
    cells = row.cells or ()
    if len(cells) < 2 or len(cells[-1]) < _MIN_TEXT_CHARS:
        return False
    line = " ".join(cells[:-1])
    if len(line) > _MAX_LINE_CHARS:
        return False
    if len(_NUMBER.findall(line)) < _MIN_NUMBERS_OF_DATE:
        return False
    return _CLOCK.search(line) is not None and _has_name(line, _TIME.search(line))


def _groups(blocks: Sequence[Block], start: int) -> dict[Key, dict[Container, int]]:
    """Return the containers with text after the first `start` blocks, by their kind.

    Each container has the index of its first text.
    """
    groups: dict[Key, dict[Container, int]] = {}
    known: set[Container] = set()
    last_before = blocks[start - 1].container.index
    for index, block in enumerate(islice(blocks, start, None), start):
        if not _is_text(block):
            continue
        for container in islice(block.container.ancestors(), _MAX_DEPTH):
            if container.index <= last_before or container in known:
                break
            known.add(container)
            groups.setdefault(key_of(container), {})[container] = index
    return groups


def _is_text(block: Block) -> bool:
    """Return whether a block may be the text of a comment, or its first paragraph."""
    if block.form in _NO_TEXT_FORMS or block.link_chars >= _MAX_LINKED_SHARE * block.chars:
        return False
    if block.chars >= _MIN_TEXT_CHARS:
        return True
    is_long = block.chars >= _MIN_TEXT_CHARS_WITHOUT_SPACES
    return is_long and is_without_spaces(block, block.text.count(" ") + 1)


def _keys_of(blocks: Iterable[Block]) -> set[Key]:
    """Return the kinds of the containers around blocks."""
    containers: set[Container] = set()
    for block in blocks:
        for container in block.container.ancestors():
            if container in containers:
                break
            containers.add(container)
    return set(map(key_of, containers))


def _blocks_of(item: Container, blocks: Sequence[Block], index: int) -> Sequence[Block]:
    """Return the blocks of an item that has the block at `index`.

    For a `<dd>` these are the blocks from the `<dt>` before it to the next `<dt>`.
    """
    outer = item.parent if item.tag == "dd" and item.parent is not None else item
    first = index
    last = index
    is_complete = False
    while not is_complete and first > 0 and index - first < _MAX_BLOCKS_OF_ITEM:
        before = blocks[first - 1].container
        if not outer.index <= before.index < outer.end:
            break
        is_complete = outer is not item and _is_in_term(before)
        first -= 1
    while last + 1 < len(blocks) and last - index < _MAX_BLOCKS_OF_ITEM:
        after = blocks[last + 1].container
        if not outer.index <= after.index < outer.end:
            break
        if outer is not item and _is_in_term(after):
            break
        last += 1
    return blocks[first : last + 1]


def _is_in_term(container: Container) -> bool:
    return any(one.tag == "dt" for one in islice(container.ancestors(), _MAX_DEPTH))


def _end_of_prose(blocks: Sequence[Block]) -> int | None:
    """Return the number of blocks up to the 150th word of prose; None if there are fewer words."""
    words = 0
    for index, block in enumerate(blocks):
        if is_prose(block):
            words += num_words(block)
            if words >= _MIN_ARTICLE_WORDS:
                return index + 1
    return None


def _article_of(blocks: Sequence[Block]) -> Container | None:
    """Return the `<article>` around the last prose of `blocks`; None if there is none."""
    for block in reversed(blocks):
        if is_prose(block):
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
    """Return whether items have text without titles and few links, and most end a sentence."""
    words = 0
    num_ended = 0
    chars = 0
    link_chars = 0
    for blocks in items:
        for index, block in enumerate(blocks):
            if block.form in _NO_TEXT_FORMS and (index or not _is_headed_by_name(blocks)):
                return False
            words += num_words(block)
            chars += block.chars
            link_chars += block.link_chars
        # The line with a name and a time may be longer than the text.
        texts = [block for block in blocks if not _is_line_with_time(block)] or blocks
        longest = max(texts, key=lambda block: block.chars)
        num_ended += longest.text.endswith(_SENTENCE_ENDS)
    is_text = words >= _MIN_MEAN_WORDS * len(items) and link_chars < _MAX_LINKED_SHARE * chars
    return is_text and num_ended >= _MIN_ENDED_SHARE * len(items)


def _is_headed_by_name(blocks: Sequence[Block]) -> bool:
    """Return whether the first block is a heading with a name, and the second has a clock.

    A heading with a year below it may belong to a part of the text.
    """
    name = blocks[0]
    if name.form != HEADING or name.chars > _MAX_LINE_CHARS or len(blocks) < _MAX_LINES - 1:
        return False
    time = blocks[1]
    if time.chars > _MAX_LINE_CHARS or _CLOCK.search(time.text) is None:
        return False
    return _has_name(name.text, None)


def _are_signed(items: Sequence[Sequence[Block]]) -> bool:
    """Return whether nearly all items are signed."""
    num_above = sum(map(_is_signed_above, items))
    if num_above >= _MIN_SIGNED_SHARE * len(items):
        return True
    num_signed = sum(map(_is_signed, items))
    return len(items) >= _MIN_OTHERS and num_signed >= _MIN_SIGNED_SHARE * len(items)


def _is_signed(blocks: Sequence[Block]) -> bool:
    return _is_signed_above(blocks) or _is_signed_below(blocks)


def _is_signed_above(blocks: Sequence[Block]) -> bool:
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
        has_name |= _has_name(block.text, time)
    return False


def _has_name(line: str, time: re.Match[str] | None) -> bool:
    """Return whether a line has a name before its time, if it has one. `Day 2` is not a name."""
    name = line
    if time is None:
        if _ENDS_WITH_NUMBER.search(line):
            return False
    else:
        month = _MONTH.match(line)
        name = line[month.end() if month else 0 : time.start()]
    return 0 < len(_WORD.findall(name)) <= _MAX_NAME_WORDS


def _is_signed_below(blocks: Sequence[Block]) -> bool:
    """Return whether an item has a text before a line with a time that has a link or buttons.

    Where a name stands above the text, the time is enough.
    """
    position = len(blocks) - 1
    while position > 0 and blocks[position].container.tag == "button":
        position -= 1
    line = blocks[position]
    has_buttons = position < len(blocks) - 1
    if line.chars > _MAX_LINE_CHARS:
        return False
    if not line.links and not has_buttons and not _is_name(blocks[0]):
        return False
    return _MOMENT.search(line.text) is not None and any(map(_is_text, blocks[:position]))


def _is_name(block: Block) -> bool:
    """Return whether a block has a few words and no time, as `Lee` and `Lee said...`."""
    if block.chars > _MAX_LINE_CHARS or _is_line_with_time(block):
        return False
    return _has_name(block.text, None)


def _is_line_with_time(block: Block) -> bool:
    return block.chars <= _MAX_LINE_CHARS and _TIME.search(block.text) is not None
