"""Series of questions with their answers, such as the FAQ of an article.

    <div class="item"> <h3>What is a sail?</h3> <div>A piece of cloth.</div> </div>
    <div class="item"> <h3>Who made the first?</h3> …

The model is less sure of them than of the article before, and the high cut for articles would take
every other answer. So the series is kept if the mean of its probabilities exceeds the lower cut.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import pairwise

import numpy as np

from owt_pipeline.stages.extract.content.article import holds
from owt_pipeline.stages.extract.html.blocks import (
    HEADING,
    ITEM,
    ROW,
    Block,
    is_prose,
    key_of,
    num_words,
)

_MIN_QUESTIONS = 3
_MAX_QUESTION_CHARS = 250
_MAX_LINKED_SHARE = 0.3
_MAX_BLOCKS_OF_ANSWER = 12
_ENDS = ("?", "？", "؟")
# Signs of a button that opens the answer.
_CONTROLS = " \u00a0+-–−▼▾⌄∨›»"
# A line of a kept series is left out below this share of the lower cut, like a number or a button.
_MIN_SHARE_OF_CUT = 0.5


def keep_answers(
    blocks: Sequence[Block], p: np.ndarray, min_probability: float, keep: np.ndarray
) -> None:
    """Set `keep` of the series of questions and answers that are probable as a whole.

    Args:
      blocks: the blocks of the page.
      p: their probabilities.
      min_probability: the lower cut.
      keep: which of them are kept.
    """
    min_share = _MIN_SHARE_OF_CUT * min_probability
    for start, end in _series(blocks):
        words = np.array([num_words(block) for block in blocks[start:end]])
        if (words * p[start:end]).sum() < min_probability * words.sum():
            continue
        added = []
        for index in range(start, end):
            if not keep[index] and p[index] >= min_share and _is_text(blocks[index]):
                added.append(index)
        keep[added] = True
        if added and start and blocks[start - 1].form == HEADING:
            keep[start - 1] = True


def _is_text(block: Block) -> bool:
    """Return whether a block is a question, a sentence or an item, and not a link or a button."""
    if block.link_chars > _MAX_LINKED_SHARE * block.chars:
        return False
    return block.form == ITEM or is_prose(block) or _is_question(block)


def _series(blocks: Sequence[Block]) -> Iterator[tuple[int, int]]:
    """Yield the first block of each series, and the block after its last one."""
    questions = [index for index, block in enumerate(blocks) if _is_question(block)]
    run: list[int] = []
    for question in questions:
        if run and not _are_of_one_series(blocks, run[-1], question):
            if len(run) >= _MIN_QUESTIONS:
                yield run[0], _end_of_answer(blocks, run)
            run = []
        run.append(question)
    if len(run) >= _MIN_QUESTIONS:
        yield run[0], _end_of_answer(blocks, run)


def _is_question(block: Block) -> bool:
    if block.chars > _MAX_QUESTION_CHARS or block.form == ROW:
        return False
    if not block.text.rstrip(_CONTROLS).endswith(_ENDS):
        return False
    return block.link_chars <= _MAX_LINKED_SHARE * block.chars


def _are_of_one_series(blocks: Sequence[Block], one: int, other: int) -> bool:
    """Return whether two questions are in elements of one kind, with an answer between them."""
    if not 1 < other - one <= _MAX_BLOCKS_OF_ANSWER + 1:
        return False
    return key_of(blocks[one].container)[1:] == key_of(blocks[other].container)[1:]


def _end_of_answer(blocks: Sequence[Block], questions: Sequence[int]) -> int:
    """Return the index after the answer to the last question.

    It ends with the element around the question and its answer. If there is none, it ends before
    the next heading, and has at most as many blocks as the longest answer before.
    """
    last = questions[-1]
    before = blocks[questions[-2]].container
    item = blocks[last].container
    for ancestor in item.ancestors():
        if holds(ancestor, before):
            break
        item = ancestor
    end = last + 1
    if item.end > blocks[last].container.end:
        while end < len(blocks) and holds(item, blocks[end].container):
            end += 1
        return end
    max_blocks = max(other - one for one, other in pairwise(questions))
    parent = item.parent or item
    while end < min(len(blocks), last + max_blocks):
        if blocks[end].form == HEADING or not holds(parent, blocks[end].container):
            break
        end += 1
    return end
