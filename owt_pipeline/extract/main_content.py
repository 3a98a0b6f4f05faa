"""Which blocks of a page are its main content: those that the model finds probable enough.

How probable is enough depends on the page. Where the model is sure of most blocks, a doubtful one is better left out;
where it is sure of none, as on forums and lists, text that is left out costs more than text that is kept. So the cut
follows from the F1 that the best cut of the page can be expected to have by the model's own probabilities.

A table or a list belongs completely or not at all, and code belongs where the text before and after it does. What
the page hides does not belong while it shows about as much. A paragraph next to prose that is for the most part a link
("Read more: ...") is kept less readily than the model says. Text that the page has in two places, as for wide and for
narrow screens or in a quote of the post above, is kept once.
A notice about cookies at one end of the text goes: it is prose as good as an article's, of which a short page may have
less, but it speaks of cookies and consent in every sentence, and the rest of the page does not.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from owt_pipeline.extract.blocks import HEADING, ITEM, OTHER, PARAGRAPH, PREFORMATTED, ROW, Block
from owt_pipeline.extract.containers import Container
from owt_pipeline.extract.features import PageView, view
from owt_pipeline.extract.head import Head
from owt_pipeline.extract.model import Model, expected_f1
from owt_pipeline.extract.names import PHRASES

_TEASER_LESS, _TEASER_LINK, _TEASER_CHARS = 0.2, 0.4, 20  # off its probability; its share of link, and its least length
_REPEATED_CHARS = 30  # a shorter text may well occur twice
_SHOWN = 0.7  # how much text is to be shown for a word that is hidden
MOST_BLOCKS = 50_000
"""What comes after that many blocks of a page is left out: judging takes 3 kB a block."""


@dataclass(frozen=True)
class Cut:
    """From which probability on a block is kept: the page's expected F1 less `margin`, between `least` and `most`."""

    margin: float
    least: float
    most: float


BALANCED = Cut(0.30, 0.25, 0.55)
PRECISION = Cut(0.15, 0.45, 0.75)
RECALL = Cut(0.50, 0.15, 0.35)


def main_content(
    blocks: Sequence[Block],
    containers: Sequence[Container],
    head: Head,
    model: Model,
    cut: Cut = BALANCED,
    *,
    comments: bool = False,
) -> list[Block]:
    """The blocks of the main content, in order.

    Args:
      blocks, containers: the page, as `read_blocks` reads it.
      head: what the page says of itself.
      model: which judges the blocks.
      cut: how readily text is left out.
      comments: readers' comments belong to the content.
    """
    blocks = blocks[:MOST_BLOCKS]
    if not blocks:
        return []
    page = view(blocks, containers, head)
    p = np.maximum(model.probabilities(page) - _TEASER_LESS * _is_teaser(blocks, page), 0)
    least = min(max(expected_f1(page.weight, p) - cut.margin, cut.least), cut.most)
    forms = [PREFORMATTED if block.marked is not None and block.is_formula else block.form for block in blocks]
    keep = _together(page, forms, p) >= least
    _keep_code(forms, keep)
    _leave_hidden(page, keep)
    if comments:
        keep |= page.in_comments & page.prose
    kept = _once([block for block, stays in zip(blocks, keep.tolist(), strict=True) if stays], containers)
    if any(block.form != HEADING for block in kept):
        while kept[-1].form == HEADING:
            kept.pop()  # it heads nothing
    return kept


def _is_teaser(blocks: Sequence[Block], page: PageView) -> np.ndarray:
    """Paragraphs next to prose that are for the most part a link."""
    is_next = np.zeros(len(blocks), dtype=bool)
    is_next[1:] = page.prose[:-1]
    is_next[:-1] |= page.prose[1:]
    found = is_next & (page.chars >= _TEASER_CHARS) & (page.link_chars > _TEASER_LINK * page.chars)
    for index in np.flatnonzero(found).tolist():
        found[index] = blocks[index].form in (PARAGRAPH, OTHER)
    return found


def _once(kept: Sequence[Block], containers: Sequence[Container]) -> list[Block]:
    """`kept` without text that an earlier block has in another part of the page. Lines of one poem may repeat."""
    parts: dict[str, set[int]] = {}
    first = []
    for block in kept:
        if block.chars >= _REPEATED_CHARS and block.form not in (ROW, PREFORMATTED):
            part = block.container
            for _ in range(2):
                part = containers[part].parent if part >= 0 else part
            text = block.text.lower()
            if block.marked is not None or "\n" in text:
                text = " ".join(text.split())
            known = parts.setdefault(text, set())
            if known and part not in known:
                continue
            known.add(part)
        first.append(block)
    return first


def _together(page: PageView, forms: Sequence[str], p: np.ndarray) -> np.ndarray:
    """`p`, with the mean of its table for each row, and of its list for each item."""
    p = p.copy()
    for form, group in ((ROW, page.container), (ITEM, page.parent[page.container])):
        if form in forms:
            of_form = np.array([other == form for other in forms])
            numbers, weight = group[of_form], page.weight[of_form]
            means = np.bincount(numbers, weight * p[of_form]) / np.maximum(np.bincount(numbers, weight), 1)
            p[of_form] = means[numbers]
    return p


def _keep_code(forms: Sequence[str], keep: np.ndarray) -> None:
    """Keep preformatted text, and formulas, between two kept blocks or between one and the page's end."""
    if PREFORMATTED not in forms:
        return
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


def _leave_hidden(page: PageView, keep: np.ndarray) -> None:
    """Leave out what the page hides by style or attribute, unless it has much less to show: then a script shows it."""
    hidden = page.unshown & keep
    if page.weight[keep & ~hidden].sum() >= _SHOWN * page.weight[hidden].sum():
        keep[hidden] = False


_NOTICE = re.compile(PHRASES["notice about cookies"], re.IGNORECASE | re.DOTALL)
_BUTTON = re.compile(rf"\W*(?:{PHRASES['button of such a notice']})\b.{{0,24}}", re.IGNORECASE)
_LABEL = 40  # characters; a shorter block before the first sentence of a banner is its heading
_MOST_OF_TEXT, _MOST = 0.4, 2000  # what is more than this share of the text, or longer, is what the page is about


def without_notice(kept: Sequence[Block]) -> list[Block]:
    """`kept`, the blocks of a page's text, without a notice about cookies at its start or its end."""
    most = min(_MOST, _MOST_OF_TEXT * sum(block.chars for block in kept))
    start = _length_of_notice(kept, most)
    end = len(kept) - _length_of_notice(kept[::-1], most)
    if start < end < len(kept) and kept[end - 1].form == HEADING:
        end -= 1  # the banner's
    if end - start == len(kept):
        return list(kept)
    text = list(kept[start:end])
    if sum("cookie" in block.text.lower() for block in text) > 1:
        return list(kept)  # the page is about cookies
    return text


def _length_of_notice(blocks: Sequence[Block], most: float) -> int:
    """How many of the first blocks are a notice, of at most `most` characters."""
    chars, length = 0, 0
    for index, block in enumerate(blocks):
        chars += block.chars
        is_notice = _NOTICE.search(block.text, 0, _MOST) is not None  # some blocks have megabytes
        if is_notice and chars > most:
            return 0
        if is_notice or (length and _BUTTON.fullmatch(block.text)):
            length = index + 1
        elif block.chars > _LABEL or length:
            break
    return length
