"""Which blocks of a page are its main content: those that the model finds probable enough.

How probable is enough depends on the page. Where the model is sure of most blocks, a doubtful one is better left out;
where it is sure of none, as on forums and lists, text that is left out costs more than text that is kept. So the cut
follows from the F1 that the best cut of the page can be expected to have by the model's own probabilities.

A table or a list belongs completely or not at all, and code belongs where the text before and after it does.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from owt_pipeline.extract.blocks import HEADING, ITEM, PREFORMATTED, ROW, Block, Container
from owt_pipeline.extract.features import PageView, view
from owt_pipeline.extract.model import Model
from owt_pipeline.extract.names import COMMENT
from owt_pipeline.extract.surroundings import expected_f1

MOST_BLOCKS = 50_000
"""What comes after that many blocks of a page is left out: judging takes 3 kB a block."""


@dataclass(frozen=True)
class Cut:
    """From which probability on a block is kept: the page's expected F1 less `margin`, between `least` and `most`."""

    margin: float
    least: float
    most: float


BALANCED = Cut(0.30, 0.25, 0.50)
PRECISION = Cut(0.15, 0.45, 0.75)
RECALL = Cut(0.50, 0.15, 0.35)


def main_content(
    blocks: Sequence[Block],
    containers: Sequence[Container],
    title: str,
    model: Model,
    cut: Cut = BALANCED,
    *,
    comments: bool = False,
) -> list[Block]:
    """The blocks of the main content, in order.

    Args:
      blocks, containers: the page, as `read_blocks` reads it.
      title: the text of its `<title>`.
      model: which judges the blocks.
      cut: how readily text is left out.
      comments: readers' comments belong to the content.
    """
    blocks = blocks[:MOST_BLOCKS]
    if not blocks:
        return []
    page = view(blocks, containers, title)
    p = model.probabilities(page)
    least = min(max(expected_f1(page.weight, p) - cut.margin, cut.least), cut.most)
    forms = [PREFORMATTED if block.is_formula else block.form for block in blocks]
    keep = _together(page, forms, p) >= least
    _keep_code(forms, keep)
    if comments:
        keep |= _is_comment(blocks, containers)
    kept = [block for block, stays in zip(blocks, keep.tolist(), strict=True) if stays]
    if any(block.form != HEADING for block in kept):
        while kept[-1].form == HEADING:
            kept.pop()  # it heads nothing
    return kept


def _together(page: PageView, forms: Sequence[str], p: np.ndarray) -> np.ndarray:
    """`p`, with the mean of its table for each row, and of its list for each item."""
    p = p.copy()
    for form, group in ((ROW, page.container), (ITEM, page.parent[page.container])):
        of_form = np.array([other == form for other in forms])
        if of_form.any():
            numbers, weight = group[of_form], page.weight[of_form]
            means = np.bincount(numbers, weight * p[of_form]) / np.maximum(np.bincount(numbers, weight), 1)
            p[of_form] = means[numbers]
    return p


def _keep_code(forms: Sequence[str], keep: np.ndarray) -> None:
    """Keep preformatted text, and formulas, between two kept blocks or between one and the page's end."""
    before = False
    waiting: list[int] = []
    for index, form in enumerate(forms):
        if form == PREFORMATTED:
            waiting.append(index)
            continue
        if before and keep[index]:
            keep[waiting] = True
        waiting = []
        before = bool(keep[index])
    if before:
        keep[waiting] = True


def _is_comment(blocks: Sequence[Block], containers: Sequence[Container]) -> np.ndarray:
    """Prose in a container whose names say that it holds readers' comments."""
    within: list[bool] = []
    for container in containers:
        within.append(bool(container.kind & COMMENT) or (container.parent >= 0 and within[container.parent]))
    return np.array([within[block.container] and block.is_prose for block in blocks])
