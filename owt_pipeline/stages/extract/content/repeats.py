"""Leaves out text that occurs twice: in a part for narrow screens, too, or as a quote.

A single line that repeats, while the other lines around it are new, stays: `Location: Boston` in
two entries of a list, or a heading that the table of contents has before.

The module earns .0020 of F1 on WCXB, by 150 of 1,957 labelled texts.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from itertools import islice

from owt_pipeline.stages.extract.html.blocks import (
    HEADING,
    PREFORMATTED,
    ROW,
    Block,
    Container,
    is_definition,
    kind_of,
    num_words,
)

# A shorter text may occur twice.
_MIN_REPEATED_CHARS = 30
# A part of the page is repeated if it has this share of words that an earlier part has.
_MIN_REPEATED_SHARE = 0.5
# A longer text that repeats is a paragraph, not a line of several entries.
_MAX_SINGLE_CHARS = 200
# Containers around a block whose words are counted. A hostile page has thousands.
_MAX_DEPTH = 30
# A block consists of others if it is long, also as a share of the page, and they make up this share
# of it.
_MIN_JOINED_CHARS = 300
_MIN_SHARE_OF_PAGE = 0.15
_MIN_JOINED_SHARE = 0.9


def without_repeats(kept: Sequence[Block]) -> list[Block]:
    """Return blocks without text that an earlier block has in another part of the page.

    Within one part, lines of a poem may repeat. A single text that repeats, in a part with new
    text, belongs to this part: `Location: Boston` in two entries, or a title that the table of
    contents has before.
    """
    first_by_repeat = _find_repeats(kept)
    if not first_by_repeat:
        return _without_joined(list(kept))
    words = _words_in(kept)
    repeated_words = _words_in([kept[index] for index in first_by_repeat])
    firsts = []
    for index, block in enumerate(kept):
        first = first_by_repeat.get(index)
        if first is not None:
            part = _part_of(block)
            is_single = repeated_words[part] < _MIN_REPEATED_SHARE * words[part]
            is_single &= block.chars <= _MAX_SINGLE_CHARS
            is_single &= first_by_repeat.get(index + 1) != first + 1
            is_single &= first_by_repeat.get(index - 1) not in (first - 1, first)
            is_single &= index - 1 != first
            if not is_single or _is_shown_again(block, kept[first]):
                continue
        firsts.append(block)
    return _without_joined(firsts)


def _words_in(blocks: Sequence[Block]) -> Counter[Container]:
    """Return the number of words of the blocks in each container."""
    words: Counter[Container] = Counter()
    for block in blocks:
        num = num_words(block)
        for container in islice(block.container.ancestors(), _MAX_DEPTH):
            words[container] += num
    return words


def _find_repeats(kept: Sequence[Block]) -> dict[int, int]:
    """Return the indexes of texts that an earlier block has in another part of the page.

    Each has the index of the first block with its text.
    """
    parts_by_text: dict[str, set[Container]] = {}
    first_by_text: dict[str, int] = {}
    first_by_repeat: dict[int, int] = {}
    for index, block in enumerate(kept):
        is_whole = block.form in (ROW, PREFORMATTED) or is_definition(block)
        if block.chars < _MIN_REPEATED_CHARS or is_whole:
            continue
        part = _part_of(block)
        text = _plain(block)
        first = first_by_text.setdefault(text, index)
        parts = parts_by_text.setdefault(text, set())
        if parts and part not in parts:
            first_by_repeat[index] = first
        else:
            parts.add(part)
    return first_by_repeat


def _is_shown_again(block: Block, first: Block) -> bool:
    """Return whether a block shows an earlier one again: the subject of a thread, or a quote.

    A quote is in an element of another kind than the paragraph.
    """
    if first.form == HEADING:
        return block.form == HEADING
    if block.form == HEADING:
        return False
    return kind_of(block.container) != kind_of(first.container)


def _part_of(block: Block) -> Container:
    """Return the part of the page that a block is in: two levels up, within the article."""
    part = block.container
    for _ in range(2):
        if part.parent is not None and "articleBody" not in part.names:
            part = part.parent
    return part


def _without_joined(kept: list[Block]) -> list[Block]:
    """Return blocks without those that consist of others, as if a page repeats its article."""
    chars = sum(block.chars for block in kept)
    min_chars = max(_MIN_JOINED_CHARS, _MIN_SHARE_OF_PAGE * chars)
    long_blocks = []
    for block in kept:
        if block.chars >= min_chars and block.form not in (ROW, PREFORMATTED):
            long_blocks.append(block)
    texts = [_plain(block) for block in kept] if long_blocks else []
    for block in long_blocks:
        joined = _plain(block)
        parts = set()
        for text in texts:
            if _MIN_REPEATED_CHARS <= len(text) < len(joined) and text in joined:
                parts.add(text)
        if len(parts) > 1 and sum(map(len, parts)) >= _MIN_JOINED_SHARE * len(joined):
            kept = [other for other in kept if other is not block]
    return kept


def _plain(block: Block) -> str:
    """Return a block's text in lower case and in one line."""
    text = block.text.lower()
    return " ".join(text.split()) if block.marked is not None or "\n" in text else text
