"""Selects the blocks of a page's main content: those whose probability by the model exceeds a cut.

The cut depends on the page: it rises with the probability that the page is an article. Around an
article there is much that looks like text of the article, and on a forum or a list leaving out text
costs more than keeping too much. This earns .0015 of F1 on trafilatura's set, .0014 on WCXB and on
fundus' news, by 719 of 1,957 labelled texts and 62 of 254 news texts.

Further rules:

- The lead, with which the page's own description begins, needs a lower probability: .0037 on
  trafilatura's set, .0033 on fundus' news, by 125 and 69 texts.
- Readers' comments are left out if there is an article, unless the page is one of a forum: .0018 on
  Readability's pages, .0006 on fundus' news, by 4 texts and one.
- Articles after the first one are left out: .0018 on fundus' news, by one text of each.
- Text that a part of the page repeats is kept once: `repeats`.
- References to other articles are left out: `references`.
- Prose in surroundings named as a banner, a sidebar or related articles, and a row of nothing but
  links, have a lower probability than by the model, if the page has enough other prose: .0004 on
  trafilatura's set, by 64 texts.
- A table is kept completely or not at all (26 texts, no F1).
- Two rules change fewer texts and no F1, and stay because of what a reader would miss: hidden
  text is left out if the page shows about as much (8), and a term stays with its definition (12).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from owt_pipeline.stages.extract.content.features import PageView, view
from owt_pipeline.stages.extract.content.model import Model
from owt_pipeline.stages.extract.content.page_kind import PageKind
from owt_pipeline.stages.extract.content.references import leave_references
from owt_pipeline.stages.extract.content.repeats import without_repeats
from owt_pipeline.stages.extract.html.blocks import (
    HEADING,
    ROW,
    Block,
    Container,
    is_definition,
)

# Subtracted from the probability of prose in a banner or a sidebar, and of a row of links.
_LESS_IN_CHROME = 0.3
_LESS_FOR_ROW_OF_LINKS = 0.4
# A block with this many links is a row of links if they make up this share of its text.
_MIN_LINKS_OF_ROW = 5
_MIN_LINKED_SHARE_OF_ROW = 0.85
# Visible words per hidden word. With fewer, a script is expected to show the hidden text.
_MIN_VISIBLE_WORDS = 0.7
# With fewer words, a text is not an article.
_MIN_ARTICLE_WORDS = 150
# Words of other text per word of comments. With more, the comments are few.
_MIN_WORDS_PER_COMMENT_WORD = 3
# By the model, of a page that has further articles below its own.
_MIN_ARTICLE_PROBABILITY = 0.5
# A hostile page has thousands.
_MAX_TITLES = 20
_INVISIBLE = "\u00ad\u034f\u200b\u200c\u200d\u200e\u200f\u2060\ufeff \n"
_MAX_INVISIBLE_CHARS = 10
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

    def at(self, article: float) -> float:
        """Return the cut of a page with this probability of an article."""
        return self.lower + (self.higher - self.lower) * article


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
    # The lower cut decides on hidden text. On a tiny page the higher cut may keep so little visible
    # text that a script seems to show the hidden text.
    is_left_out = _is_left_hidden(page, p >= cut.lower)
    keep = (_mean_of_tables(page, p) >= cut.at(article)) & ~is_left_out
    _keep_terms(blocks, keep)
    _keep_lead(page, blocks, kind, p, keep)
    if comments:
        keep |= page.in_comments & page.counts.prose
    elif not kind.is_forum:
        _leave_comments(page, kind, keep)
    if kind.is_article or article >= _MIN_ARTICLE_PROBABILITY:
        _leave_next_articles(page, blocks, keep)
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


def _keep_terms(blocks: Sequence[Block], keep: np.ndarray) -> None:
    """Set `keep` of each `<dt>` before a text of its definition that is kept."""
    for index in (np.flatnonzero(keep[1:]) + 1).tolist():
        if is_definition(blocks[index]):
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


def _is_left_hidden(page: PageView, keep: np.ndarray) -> np.ndarray:
    """Return which blocks of `keep` are left out, since a style or an attribute hides them.

    None is left out if there is more hidden than visible text, since a script shows it then.
    """
    hidden: np.ndarray = page.unshown & keep
    words = page.counts.words
    if words[keep & ~hidden].sum() < _MIN_VISIBLE_WORDS * words[hidden].sum():
        return np.zeros_like(hidden)
    return hidden


def _leave_comments(page: PageView, kind: PageKind, keep: np.ndarray) -> None:
    """Clear `keep` of readers' comments, if the page declares an article or has few comments."""
    comments = page.in_comments & keep
    words = page.counts.words
    comment_words = words[comments].sum()
    other_words = words[keep].sum() - comment_words
    are_few = other_words >= _MIN_WORDS_PER_COMMENT_WORD * comment_words
    if other_words >= _MIN_ARTICLE_WORDS and (kind.is_article or are_few):
        keep[comments] = False


def _leave_next_articles(page: PageView, blocks: Sequence[Block], keep: np.ndarray) -> None:
    """Clear `keep` of the articles that a page loads below its own as the reader scrolls.

    Each is an element of its own with a title of its own. On a list of complete articles, which all
    stay, the title of the first one is a link to its page.
    """
    titles = [block for block in blocks if block.container.tag == "h1"]
    if len(titles) < 2 or titles[0].link_chars:
        return
    positions = np.array([block.container.index for block in blocks])
    words = page.counts.words * page.counts.prose * keep
    first, *others = (_story_around(title.container) for title in titles[:_MAX_TITLES])
    # Without a text, the first title heads a banner, and the article is below it.
    if first is None or not words[_is_in(first, positions)].any():
        return
    for story in others:
        if story is None or story.index < first.end:
            continue
        is_in_story = _is_in(story, positions)
        if words[is_in_story].sum() >= _MIN_ARTICLE_WORDS:
            keep[is_in_story] = False


def _story_around(title: Container) -> Container | None:
    """Return the innermost `<article>` or `<main>` around a title; None if there is none."""
    return next((one for one in title.ancestors() if one.tag in ("article", "main")), None)


def _is_in(container: Container, positions: np.ndarray) -> np.ndarray:
    """Return which containers with these indexes are in a container."""
    is_in: np.ndarray = (container.index <= positions) & (positions < container.end)
    return is_in
