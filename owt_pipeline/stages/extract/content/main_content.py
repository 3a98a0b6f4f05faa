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
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from owt_pipeline.stages.extract.content.features import PageView, view
from owt_pipeline.stages.extract.content.model import Model
from owt_pipeline.stages.extract.content.page_kind import PageKind
from owt_pipeline.stages.extract.content.repeats import without_repeats
from owt_pipeline.stages.extract.html.blocks import HEADING, Block, Container

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
    keep = p >= cut.at(article)
    _keep_lead(blocks, kind, p, keep)
    if comments:
        keep |= page.in_comments & page.counts.prose
    elif not kind.is_forum:
        _leave_comments(page, kind, keep)
    if kind.is_article or article >= _MIN_ARTICLE_PROBABILITY:
        _leave_next_articles(page, blocks, keep)
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


def _keep_lead(blocks: Sequence[Block], kind: PageKind, p: np.ndarray, keep: np.ndarray) -> None:
    """Set `keep` of the lead: the first text below the title that begins like a description.

    Labels of similar pages disagree on leads, so the model cannot learn them.
    """
    starts = {start_of(description) for description in kind.descriptions} - {""}
    titles = (index for index, block in enumerate(blocks) if block.container.tag == "h1")
    title = next(titles, len(blocks))
    if not starts:
        return
    for index in np.flatnonzero(p >= _MIN_LEAD_PROBABILITY).tolist():
        if index > title and start_of(blocks[index].text) in starts:
            keep[index] = True
            return


def start_of(text: str) -> str:
    """Return the first letters and digits of a text in lower case; "" if it has fewer."""
    letters = "".join(filter(str.isalnum, text[:_MAX_START_CHARS].lower()))
    return letters[:_NUM_START_LETTERS] if len(letters) >= _NUM_START_LETTERS else ""


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
