"""Selects the blocks of a page's main content: those whose probability by the model exceeds a cut.

The cut depends on the page: it rises with the probability that the page is an article. Around an
article there is much that looks like text of the article, and on a forum or a list leaving out text
costs more than keeping too much.

Further rules, for some with the labelled and news texts that change without the rule, of 1,957 and
254, and the F1 that it adds:

- A table is kept completely or not at all.
- Prose in surroundings named as a banner, a sidebar or related articles, and a row of nothing but
  links, have a lower probability than by the model, if the page has enough other prose.
- Hidden text is left out if the page shows about as much.
- A heading between two kept blocks needs a lower probability (113 and 5; no F1, but structure).
- A term before its kept definition is kept (12 and 0; no F1, but documentation).
- The lead, with which the page's own description begins, needs a lower probability (125 and 69;
  .0041 on trafilatura's set, .0034 on fundus' news).
- Text that a part of the page repeats is kept once: `repeats`.
- Readers' comments are left out if there is an article, unless the page is one of a forum (4 and 1;
  .0019 on Readability's pages, .0006 on fundus' news, .0002 on WCXB).
- References to other articles and articles after the first one are left out: `references`,
  `next_articles`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from owt_pipeline.stages.extract.content.article import article_of
from owt_pipeline.stages.extract.content.features import PageView, view
from owt_pipeline.stages.extract.content.model import Model
from owt_pipeline.stages.extract.content.next_articles import leave_next_articles
from owt_pipeline.stages.extract.content.page_kind import PageKind
from owt_pipeline.stages.extract.content.references import leave_references
from owt_pipeline.stages.extract.content.repeats import without_repeats
from owt_pipeline.stages.extract.html.blocks import (
    HEADING,
    ROW,
    Block,
    is_prose,
    num_words,
)

# Subtracted from the probability of prose in a banner or a sidebar, and of a row of links.
_LESS_IN_CHROME = 0.3
_LESS_FOR_ROW_OF_LINKS = 0.4
# A block with this many links is a row of links if they make up this share of its text.
_MIN_LINKS_OF_ROW = 5
_MIN_LINKED_SHARE_OF_ROW = 0.85
# With fewer words, the text without its comments is not an article.
_MIN_ARTICLE_WORDS = 150
# Words of other text per word of comments. With more, the comments are few.
_MIN_WORDS_PER_COMMENT_WORD = 3
# The same, if the comments follow the paragraphs of an article in one element.
_MIN_WORDS_PER_FOLLOWING_COMMENT_WORD = 0.3
# By the model, of a page that has further articles below its own.
_MIN_ARTICLE_PROBABILITY = 0.5
_INVISIBLE = "\u00ad\u034f\u200b\u200c\u200d\u200e\u200f\u2060\ufeff \n"
_MAX_INVISIBLE_CHARS = 10
# Visible words per hidden word. With fewer, a script is expected to show the hidden text.
_MIN_VISIBLE_WORDS = 0.7
# A heading between two kept blocks is kept from this share of the lower cut on.
_MIN_HEADING_SHARE = 0.6
_MAX_LINKED_SHARE = 0.5
# With .05, four more of 254 news keep their first paragraph, and WCXB's articles lose .0001.
_MIN_LEAD_PROBABILITY = 0.1
# Two texts that share so many letters and digits at their start begin in the same way.
_NUM_START_LETTERS = 40
# They are among these characters, unless a text has little else than signs and spaces.
_MAX_START_CHARS = 120
MAX_BLOCKS = 50_000
"""Further blocks of a page are left out and counted; each block takes 3 kB of memory."""


class Cut(NamedTuple):
    """The probability from which on a block is kept.

    Attributes:
      lower: on a page that surely is not an article.
      higher: on a page that surely is one. Between the two, the cut rises with the probability of
        an article.
    """

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
      blocks: the blocks of the page.
      kind: the kind of the page by its URL and metadata.
      model: the model of blocks.
      cut: one of FAVORS.
      comments: whether readers' comments belong to the content.
    """
    blocks = blocks[:MAX_BLOCKS]
    if not blocks:
        return []
    page = view(blocks, kind)
    p, article = model.judge(page)
    p = np.maximum(p - _less_for_surroundings(page, blocks), 0)
    keep = _choose(page, _mean_of_tables(page, p), cut, article)
    _keep_headings(page, p, cut, keep)
    _keep_terms(blocks, keep)
    _keep_lead(page, blocks, kind, p, keep)
    if comments:
        keep |= page.in_comments & page.counts.prose
    elif not kind.is_forum:
        _leave_comments(page, blocks, kind, keep)
    if kind.is_article or article >= _MIN_ARTICLE_PROBABILITY:
        leave_next_articles(blocks, keep)
    leave_references(blocks, keep)
    kept = [block for block, is_kept in zip(blocks, keep.tolist(), strict=True) if is_kept]
    kept = [block for block in without_repeats(kept) if _is_visible(block)]
    if any(block.form != HEADING for block in kept):
        # A heading at the end heads nothing.
        while kept[-1].form == HEADING:
            kept.pop()
    return kept


def _is_visible(block: Block) -> bool:
    """Return whether a block has a visible character.

    Editors of pages fill empty paragraphs with characters without width.
    """
    return block.chars > _MAX_INVISIBLE_CHARS or bool(block.text.strip(_INVISIBLE))


def _choose(page: PageView, p: np.ndarray, cut: Cut, article: float) -> np.ndarray:
    """Return which blocks are kept by their probability `p` and the probability of an article."""
    # The lower cut decides on hidden text. On a tiny page the higher cut may keep so little visible
    # text that a script seems to show the hidden text.
    is_left_out = _is_left_hidden(page, p >= cut.lower)
    keep: np.ndarray = (p >= cut.lower + (cut.higher - cut.lower) * article) & ~is_left_out
    return keep


def _keep_headings(page: PageView, p: np.ndarray, cut: Cut, keep: np.ndarray) -> None:
    """Set `keep` of headings between two blocks that are kept, such as `Conclusion`.

    A heading is short, and its words may be those of a menu, so the model is less sure of it.
    """
    counts = page.counts
    is_heading = (counts.form == HEADING) & (counts.links <= _MAX_LINKED_SHARE * counts.chars)
    is_between = np.zeros_like(keep)
    is_between[1:-1] = keep[:-2] & keep[2:]
    keep |= is_between & is_heading & (p >= _MIN_HEADING_SHARE * cut.lower)


def _keep_terms(blocks: Sequence[Block], keep: np.ndarray) -> None:
    """Set `keep` of each `<dt>` before a text of its definition that is kept."""
    for index in (np.flatnonzero(keep[1:]) + 1).tolist():
        container = blocks[index].container
        if container.tag == "dd" or (container.parent and container.parent.tag == "dd"):
            keep[index - 1] |= blocks[index - 1].container.tag == "dt"


def _keep_lead(
    page: PageView, blocks: Sequence[Block], kind: PageKind, p: np.ndarray, keep: np.ndarray
) -> None:
    """Set `keep` of the lead: the first text below the title that begins like a description.

    Labels of similar pages disagree on leads, so the model cannot learn them.
    """
    starts = {start_of(description) for description in kind.descriptions} - {""}
    titles = (index for index, block in enumerate(blocks) if block.container.tag == "h1")
    title = next(titles, len(blocks))
    if not starts:
        return
    for index in np.flatnonzero((p >= _MIN_LEAD_PROBABILITY) & ~page.unshown).tolist():
        if index > title and start_of(blocks[index].text) in starts:
            keep[index] = True
            return


def start_of(text: str) -> str:
    """Return the first letters and digits of a text in lower case; "" if it has fewer."""
    letters = "".join(filter(str.isalnum, text[:_MAX_START_CHARS].lower()))
    return letters[:_NUM_START_LETTERS] if len(letters) >= _NUM_START_LETTERS else ""


def _less_for_surroundings(page: PageView, blocks: Sequence[Block]) -> np.ndarray:
    """Return the number to subtract from the probability of each block.

    It is more than 0 for prose in surroundings named as a banner, a sidebar or related articles,
    and for links in one block, as in the menus of layout tables, if the page has as much other
    prose as an article.
    """
    counts = page.counts
    is_in_chrome = page.in_chrome & counts.prose
    num_links = np.array([block.links for block in blocks])
    # With a separator for each link.
    linked_chars = counts.links + num_links
    is_row = num_links >= _MIN_LINKS_OF_ROW
    is_row &= linked_chars >= _MIN_LINKED_SHARE_OF_ROW * counts.chars
    is_row &= (counts.form != HEADING) & (counts.form != ROW)
    other_words = counts.words[counts.prose & ~is_in_chrome].sum()
    is_next_to_article = other_words >= _MIN_ARTICLE_WORDS
    less: np.ndarray = is_next_to_article * np.maximum(
        _LESS_IN_CHROME * is_in_chrome, _LESS_FOR_ROW_OF_LINKS * is_row
    )
    return less


def _mean_of_tables(page: PageView, p: np.ndarray) -> np.ndarray:
    """Return `p` with the mean of the table for each row."""
    is_row = page.counts.form == ROW
    if not is_row.any():
        return p
    p = p.copy()
    tables = page.tree.container_of_block[is_row]
    weight = page.counts.words[is_row]
    sums = np.bincount(tables, weight * p[is_row])
    means = sums / np.maximum(np.bincount(tables, weight), 1)
    p[is_row] = means[tables]
    return p


def _leave_comments(
    page: PageView, blocks: Sequence[Block], kind: PageKind, keep: np.ndarray
) -> None:
    """Clear `keep` of readers' comments on an article.

    The page declares an article, or has few comments, or they follow the paragraphs of an article.
    """
    comments = page.in_comments & keep
    if not comments.any():
        return
    other_words = _num_words(blocks, keep & ~comments)
    comment_words = _num_words(blocks, comments)
    if other_words < _MIN_ARTICLE_WORDS:
        return
    are_few = other_words >= _MIN_WORDS_PER_COMMENT_WORD * comment_words
    if not kind.is_article and not are_few:
        is_long = other_words >= _MIN_WORDS_PER_FOLLOWING_COMMENT_WORD * comment_words
        if not is_long or not _follow_article(blocks, keep, comments):
            return
    keep[comments] = False


def _num_words(blocks: Sequence[Block], mask: np.ndarray) -> int:
    return sum(num_words(blocks[index]) for index in np.flatnonzero(mask).tolist())


def _follow_article(blocks: Sequence[Block], keep: np.ndarray, comments: np.ndarray) -> bool:
    """Return whether the comments come after the paragraphs of an article in one element."""
    others = [blocks[index] for index in np.flatnonzero(keep & ~comments).tolist()]
    element = article_of(others)
    if element is None:
        return False
    article = element[0]
    last = article.index
    for block in others:
        if is_prose(block) and block.container.parent is article:
            last = max(last, block.container.index)
    return blocks[int(np.flatnonzero(comments)[0])].container.index > last


def _is_left_hidden(page: PageView, keep: np.ndarray) -> np.ndarray:
    """Return which blocks of `keep` are left out, since a style or an attribute hides them.

    None is left out if there is more hidden than visible text, since a script shows it then.
    """
    hidden: np.ndarray = page.unshown & keep
    words = page.counts.words
    if words[keep & ~hidden].sum() < _MIN_VISIBLE_WORDS * words[hidden].sum():
        return np.zeros_like(hidden)
    return hidden
