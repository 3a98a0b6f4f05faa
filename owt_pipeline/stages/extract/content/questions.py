"""Keeps questions with their answers.

In interviews and lists of questions, the model is less sure of a short line than of the text below.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from owt_pipeline.stages.extract.html.blocks import HEADING, ROW, Block

_ENDS = ("?", "？", "؟", "՞", "?»", "?”", '?"', "?“")
# Signs of a button that opens the answer.
_CONTROLS = " \u00a0+-–−▼▾⌄∨›»"
_MAX_QUESTION_CHARS = 250
_MIN_ANSWER_CHARS = 20
_MAX_LINKED_SHARE = 0.3
# On a forum, of an earlier post.
_QUOTES = frozenset(("blockquote", "aside"))


def keep_questions(blocks: Sequence[Block], keep: np.ndarray) -> None:
    """Set `keep` of each question right before a text that is kept."""
    candidates = np.flatnonzero(~keep[:-1] & keep[1:]).tolist()
    for index in candidates:
        question = blocks[index]
        answer = blocks[index + 1]
        if question.chars > _MAX_QUESTION_CHARS or question.form == ROW or answer.form == HEADING:
            continue
        if question.link_chars > _MAX_LINKED_SHARE * question.chars:
            continue
        if any(container.tag in _QUOTES for container in question.container.ancestors()):
            continue
        if answer.chars >= _MIN_ANSWER_CHARS and question.text.rstrip(_CONTROLS).endswith(_ENDS):
            keep[index] = True
