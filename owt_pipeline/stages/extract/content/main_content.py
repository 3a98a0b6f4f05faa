"""Selects the blocks of a page's main content: those whose probability by the model exceeds a cut.

The cut depends on the page: it rises with the probability that the page is an article. Around an
article there is much that looks like text of the article, and on a forum or a list leaving out text
costs more than keeping too much. Where the higher cut would leave out a large part of the text, the
model is unsure of the page, and the lower cut holds.

Further rules:

- A table or a list is kept completely or not at all.
- Prose in surroundings named as a banner, a sidebar or what to read next, and a row of links alone,
  have a lower probability than by the model, if the page has enough other prose.
- Hidden text is left out if the page shows about as much.
- Text that occurs in two parts of the page (for wide and narrow screens, or as a quote) is kept
  once.
- Readers' comments are left out if there is an article, unless the page is one of a forum.
- Teasers of other pages, and what stands within an article and is not its text, are left out, and
  questions stay before their answers: `teasers`, `asides`, `questions`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from owt_pipeline.stages.extract.content.article import article_of, is_prose
from owt_pipeline.stages.extract.content.asides import leave_asides
from owt_pipeline.stages.extract.content.features import PageView, view
from owt_pipeline.stages.extract.content.model import Model
from owt_pipeline.stages.extract.content.page_kind import PageKind
from owt_pipeline.stages.extract.content.questions import keep_questions
from owt_pipeline.stages.extract.content.teasers import leave_teasers
from owt_pipeline.stages.extract.html.blocks import (
    HEADING,
    ITEM,
    PREFORMATTED,
    ROW,
    Block,
    Container,
)

_CHROME_LESS, _ROW_LESS = 0.3, 0.4  # probability subtracted
_REPEATED_CHARS = 30  # shorter texts may occur twice
_JOINED_CHARS, _JOINED_SHARE, _JOINED = (
    300,
    0.15,
    0.9,
)  # of a joined block: least length, share of page, share joined
_ROW_LINKS, _ROW_LINKED = 5, 0.85  # of a row of links: fewest links, and their part of its text
_FEW_COMMENTS = 3  # least words of other text per word of comments on a page that is no forum
# The same, if the comments follow the paragraphs of an article in one element.
_MIN_SHARE_OF_COMMENTS = 0.3
_LEAST_ARTICLE = 150  # fewest words of an article without its comments
_MIN_ARTICLE_PROBABILITY = 0.5  # by the model, of a page that has further articles below its own
_INVISIBLE = "\u00ad\u034f\u200b\u200c\u200d\u200e\u200f\u2060\ufeff \n"
_MAX_INVISIBLE_CHARS = 10
_SHOWN = 0.7  # least words shown per hidden word
MAX_BLOCKS = 50_000
"""Further blocks of a page are left out and counted; each block takes 3 kB of memory."""


# If the higher cut keeps less than this share of the words that the lower cut keeps, the lower cut
# holds.
_MIN_SHARE_KEPT = 0.7


class Cut(NamedTuple):
    """The probability from which on a block is kept: `lower` on a page that surely is not an
    article, `higher` on one that surely is, and between them by the probability of an article."""

    lower: float
    higher: float


FAVORS = {
    "balanced": Cut(lower=0.40, higher=0.60),
    "precision": Cut(lower=0.55, higher=0.75),
    "recall": Cut(lower=0.20, higher=0.35),
}


def main_content(
    blocks: Sequence[Block], kind: PageKind, model: Model, cut: Cut, *, comments: bool
) -> list[Block]:
    """Return the blocks of the main content, in order.

    Args:
      blocks: those of the page.
      kind: what the page's URL and metadata say of its kind.
      model: the model of blocks.
      cut: one of FAVORS.
      comments: whether readers' comments belong to the content.
    """
    blocks = blocks[:MAX_BLOCKS]
    if not blocks:
        return []
    page = view(blocks, kind)
    p, article = model.judge(page)
    p = np.maximum(p - _secondary(page, blocks), 0)
    keep = _choose(page, _together(page, p), cut, article)
    if comments:
        keep |= page.in_comments & page.counts.prose
    elif not kind.is_forum:
        _leave_comments(page, blocks, kind, keep)
    leave_teasers(blocks, keep, is_declared=kind.is_article)
    leave_asides(blocks, keep, is_article=kind.is_article or article >= _MIN_ARTICLE_PROBABILITY)
    keep_questions(blocks, keep)
    kept = _once([block for block, stays in zip(blocks, keep.tolist(), strict=True) if stays])
    kept = [block for block in kept if _is_visible(block)]
    if any(block.form != HEADING for block in kept):
        while kept[-1].form == HEADING:
            kept.pop()  # it heads nothing
    return kept


def _is_visible(block: Block) -> bool:
    """Return whether a block has more than characters without width, with which editors of pages
    fill empty paragraphs."""
    return block.chars > _MAX_INVISIBLE_CHARS or bool(block.text.strip(_INVISIBLE))


def _choose(page: PageView, p: np.ndarray, cut: Cut, article: float) -> np.ndarray:
    """Return which blocks are kept by their probability `p` and that of an article."""
    at_lower = p >= cut.lower
    at_cut = p >= cut.lower + (cut.higher - cut.lower) * article
    # The lower cut decides on hidden text for both: of a tiny page the higher one may keep so
    # little that the hidden text looks like what a script shows.
    is_left_out = _is_left_hidden(page, at_lower)
    at_lower &= ~is_left_out
    at_cut &= ~is_left_out
    words = page.counts.words
    if words[at_cut].sum() < _MIN_SHARE_KEPT * words[at_lower].sum():
        return at_lower
    return at_cut


def _secondary(page: PageView, blocks: Sequence[Block]) -> np.ndarray:
    """What is subtracted from the probability of prose in surroundings named as a banner, a
    sidebar or what to read next, and of links in one block, as in the menus of layout tables;
    next to as much other prose as an article has."""
    counts = page.counts
    named = page.in_chrome & counts.prose
    links = np.array([block.links for block in blocks])
    row = (links >= _ROW_LINKS) & (
        counts.links + links >= _ROW_LINKED * counts.chars
    )  # with what separates them
    row &= (counts.form != HEADING) & (counts.form != ROW)
    is_next_to_article = counts.words[counts.prose & ~named].sum() >= _LEAST_ARTICLE
    less: np.ndarray = is_next_to_article * np.maximum(_CHROME_LESS * named, _ROW_LESS * row)
    return less


def _once(kept: Sequence[Block]) -> list[Block]:
    """`kept` without text that an earlier block has in another part of the page; lines of a poem
    may repeat."""
    parts: dict[str, set[Container]] = {}
    first = []
    for block in kept:
        part = block.container
        if block.chars >= _REPEATED_CHARS and block.form not in (ROW, PREFORMATTED):
            for _ in range(2):
                if part.parent is not None and "articleBody" not in part.names:
                    part = part.parent
            known = parts.setdefault(_plain(block), set())
            if known and part not in known:
                continue
            known.add(part)
        first.append(block)
    return _without_joins(first)


def _without_joins(kept: list[Block]) -> list[Block]:
    """`kept` without blocks that consist of other kept blocks, as where a page repeats its
    article as one piece."""
    least = max(_JOINED_CHARS, _JOINED_SHARE * sum(block.chars for block in kept))
    long = [
        block for block in kept if block.chars >= least and block.form not in (ROW, PREFORMATTED)
    ]
    texts = [_plain(block) for block in kept] if long else []
    for block in long:
        joined = _plain(block)
        within = {
            text for text in texts if _REPEATED_CHARS <= len(text) < len(joined) and text in joined
        }
        if len(within) > 1 and sum(map(len, within)) >= _JOINED * len(joined):
            kept = [other for other in kept if other is not block]
    return kept


def _plain(block: Block) -> str:
    """A block's text in lower case and in one line."""
    text = block.text.lower()
    return " ".join(text.split()) if block.marked is not None or "\n" in text else text


def _together(page: PageView, p: np.ndarray) -> np.ndarray:
    """`p` with the mean of the table for each row, and the mean of the list for each item."""
    p = p.copy()
    for form, group in (
        (ROW, page.tree.container_of_block),
        (ITEM, page.tree.parent[page.tree.container_of_block]),
    ):
        of_form = page.counts.form == form
        if of_form.any():
            numbers, weight = group[of_form], page.counts.words[of_form]
            means = np.bincount(numbers, weight * p[of_form]) / np.maximum(
                np.bincount(numbers, weight), 1
            )
            p[of_form] = means[numbers]
    return p


def _leave_comments(
    page: PageView, blocks: Sequence[Block], kind: PageKind, keep: np.ndarray
) -> None:
    """Leave out readers' comments on an article: the page says that it is one, or has few
    comments, or they follow the paragraphs of an article."""
    comments = page.in_comments & keep
    others = page.counts.words[keep & ~comments].sum()
    words = page.counts.words[comments].sum()
    if others < _LEAST_ARTICLE or not words:
        return
    are_few = others >= _FEW_COMMENTS * words
    if not kind.is_article and not are_few:
        is_long = others >= _MIN_SHARE_OF_COMMENTS * words
        if not is_long or not _follow_article(blocks, keep, comments):
            return
    keep[comments] = False


def _follow_article(blocks: Sequence[Block], keep: np.ndarray, comments: np.ndarray) -> bool:
    """Return whether the comments come after the paragraphs of an article in one element."""
    others = [blocks[index] for index in np.flatnonzero(keep & ~comments).tolist()]
    found = article_of(others)
    if found is None:
        return False
    article = found[0]
    last = article.index
    for block in others:
        if is_prose(block) and block.container.parent is article:
            last = max(last, block.container.index)
    return blocks[int(np.flatnonzero(comments)[0])].container.index > last


def _is_left_hidden(page: PageView, keep: np.ndarray) -> np.ndarray:
    """Return which blocks of `keep` are left out, since a style or an attribute hides them; none
    if there is more of them than visible text, since a script shows them then."""
    hidden: np.ndarray = page.unshown & keep
    words = page.counts.words
    if words[keep & ~hidden].sum() < _SHOWN * words[hidden].sum():
        return np.zeros_like(hidden)
    return hidden
