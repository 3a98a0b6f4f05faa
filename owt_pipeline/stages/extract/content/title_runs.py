"""Runs of linked titles below an article, in elements of one kind, with a sentence or two each.

    <dl> <dt><a>Two boats</a></dt> <dd>They sail from May on.</dd> <dt> … </dl>
    <table> <tr> <td><a>Two boats</a></td> <td>They sail from May on.</td> </tr> … </table>

No element has to be around a title and its sentence. Both may be in one block, if the title comes
first: in a list of sources the link is anywhere.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np

from owt_pipeline.stages.extract.html.blocks import (
    HEADING,
    PREFORMATTED,
    ROW,
    Block,
    Container,
    key_of,
    num_words,
)

_MIN_TITLES = 5
_MIN_TITLE_CHARS = 15
_MAX_SENTENCES = 2
# Words of the sentences of one title.
_MAX_SENTENCE_WORDS = 40
# In a block with several titles, each on a line of its own, at least this share is linked.
_MIN_LINKED_SHARE = 0.4


def runs_of_titles(
    blocks: Sequence[Block], keep: np.ndarray, article: Container
) -> Iterator[list[int]]:
    """Yield the indexes of each run of titles and sentences of which something is kept."""
    start = len(blocks)
    while start > 0 and blocks[start - 1].container.index >= article.end:
        start -= 1
    if not keep[start:].any():
        return
    run: list[int] = []
    num_titles = 0
    num_sentences = 0
    kind: tuple[str, str] | None = None
    for index in range(start, len(blocks)):
        block = blocks[index]
        num_in_block = _num_titles(block)
        kind_of_block = key_of(block.container)[1:]
        is_title = num_in_block > 0 and kind in (None, kind_of_block)
        if not is_title and not (run and num_sentences < _MAX_SENTENCES and _is_sentence(block)):
            if num_titles >= _MIN_TITLES and keep[run].any():
                yield run
            run = []
            num_titles = 0
            kind = None
            is_title = num_in_block > 0
        if is_title:
            run.append(index)
            num_titles += num_in_block
            num_sentences = 0
            kind = kind_of_block
        elif run:
            run.append(index)
            num_sentences += 1
    if num_titles >= _MIN_TITLES and keep[run].any():
        yield run


def _num_titles(block: Block) -> int:
    """Return the number of titles at the starts of a block's lines; 0 for all other blocks.

    In a row of a table, the title is a cell.
    """
    if block.form == ROW:
        return int(_has_linked_cell(block))
    if not block.links or block.link_chars < _MIN_TITLE_CHARS * block.links:
        return 0
    share = block.link_chars / block.chars
    if (1 - share) * num_words(block) > _MAX_SENTENCE_WORDS * block.links:
        return 0
    if block.links > 1:
        has_lines = block.text.count("\n") >= block.links - 1
        return block.links if has_lines and share >= _MIN_LINKED_SHARE else 0
    return int(_begins_with_link(block))


def _has_linked_cell(row: Block) -> bool:
    if row.link_chars < _MIN_TITLE_CHARS or num_words(row) > 2 * _MAX_SENTENCE_WORDS:
        return False
    return any(len(cell) == row.link_chars for cell in row.cells or ())


def _begins_with_link(block: Block) -> bool:
    """Return whether a word ends where the link would end if the block began with it."""
    if block.link_chars >= block.chars:
        return True
    last = block.text[block.link_chars - 1]
    following = block.text[block.link_chars]
    if last.isspace():
        return False
    is_glued = last.islower() and following.isupper()
    return is_glued or not (last.isalnum() and following.isalnum())


def _is_sentence(block: Block) -> bool:
    """Return whether a block may be the sentence below a title."""
    if block.links or block.form in (HEADING, PREFORMATTED):
        return False
    return num_words(block) <= _MAX_SENTENCE_WORDS
