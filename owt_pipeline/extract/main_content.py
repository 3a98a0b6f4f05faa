"""Which blocks of a page are its main content: those that the model finds probable enough.

How probable is enough depends on the page. Where the model is sure of most blocks, a doubtful one is better left out;
where it is sure of none, as on forums and lists, text that is left out costs more than text that is kept. So the cut
follows from the F1 that the best cut of the page can be expected to have by the model's own probabilities. And it is
stricter the more probable it is that the page is an article: what is around an article (its date, credits, tags, what
to read next) is as like text as the article itself, while on forums, in lists and on services' pages, most of what is
doubtful belongs. Between two blocks that are kept, a less probable one is kept, too, but on what surely is an article.

A table or a list belongs completely or not at all, and code belongs where the text before and after it does. What
the page hides does not belong while it shows about as much. A paragraph next to prose that is for the most part a link
("Read more: ...") is kept less readily than the model says. Text that the page has in two places, as for wide and for
narrow screens or in a quote of the post above, is kept once. A term or a question stays where its answer does. Readers'
comments on an article are not part of it.
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
_LEAST_STRICT = 0.5  # of the text that the cut for other pages keeps: an article does not lose more
_REPEATED_CHARS = 30  # a shorter text may well occur twice
_JOINED_CHARS, _JOINED_SHARE, _JOINED = 300, 0.15, 0.9  # of a block of others joined: length, of the page, theirs
_LABEL_OF_CODE, _MOST_LABELS = 20, 3  # characters of one, and how many there are in a row
_LEAST_ARTICLE = 150  # words without which what has comments is no article
_SHOWN = 0.7  # how much text is to be shown for a word that is hidden
MOST_BLOCKS = 50_000
"""What comes after that many blocks of a page is left out, and counted: judging takes 3 kB a block."""


@dataclass(frozen=True)
class Cut:
    """From which probability on a block is kept: the page's expected F1 less `margin`, between `least` and `most`.

    One between two kept blocks is kept from `between` on.
    """

    margin: float
    least: float
    most: float
    between: float = 1.0

    def of(self, f1: float) -> float:
        """The least probability of a kept block, on a page with this expected F1."""
        return min(max(f1 - self.margin, self.least), self.most)


@dataclass(frozen=True)
class Favor:
    """How readily text is left out of pages that are no articles, that probably are, and that surely are."""

    other: Cut
    probable: Cut
    sure: Cut

    def of(self, f1: float, article: float) -> tuple[float, float]:
        """The least probability of a kept block, and of one between two: on a page with this expected F1 that is an
        article with this probability. From one cut to the next, they change with the probability."""
        cuts = (self.other, self.probable, self.probable, self.sure)
        least = np.interp(article, _ARTICLES, [cut.of(f1) for cut in cuts])
        return float(least), float(np.interp(article, _ARTICLES, [cut.between for cut in cuts]))


_STRICT = Cut(0.15, 0.45, 0.75)
_LOOSE = Cut(0.50, 0.15, 0.35)
BALANCED = Favor(Cut(0.30, 0.25, 0.55, between=0.5), Cut(0.20, 0.50, 0.65, between=0.5), _STRICT)
PRECISION = Favor(_STRICT, _STRICT, _STRICT)
RECALL = Favor(_LOOSE, _LOOSE, _LOOSE)
_ARTICLES = (0.5, 0.7, 0.93, 0.97)  # probabilities: no article up to the first, probably one between the middle ones


def main_content(
    blocks: Sequence[Block],
    containers: Sequence[Container],
    head: Head,
    model: Model,
    favor: Favor = BALANCED,
    *,
    comments: bool = False,
) -> list[Block]:
    """The blocks of the main content, in order.

    Args:
      blocks, containers: the page, as `read_blocks` reads it.
      head: what the page says of itself.
      model: which judges the blocks.
      favor: how readily text is left out.
      comments: readers' comments belong to the content.
    """
    blocks = blocks[:MOST_BLOCKS]
    if not blocks:
        return []
    page = view(blocks, containers, head)
    p, article = model.judge(page)
    p = np.maximum(p - _TEASER_LESS * _is_teaser(blocks, page), 0)
    forms = [PREFORMATTED if block.marked is not None and block.is_formula else block.form for block in blocks]
    likely = _together(page, forms, p)
    keep, most = (_cut(page, p, likely, favor, certainty) for certainty in (article, 0.0))
    if page.weight[keep].sum() < _LEAST_STRICT * page.weight[most].sum():
        keep = most
    _keep_terms(blocks, containers, keep)
    _keep_code(blocks, forms, keep)
    _leave_hidden(page, keep)
    if comments:
        keep |= page.in_comments & page.prose
    elif article >= _ARTICLES[1]:
        _leave_comments(page, keep)
    kept = _once([block for block, stays in zip(blocks, keep.tolist(), strict=True) if stays], containers)
    if any(block.form != HEADING for block in kept):
        while kept[-1].form == HEADING:
            kept.pop()  # it heads nothing
    return kept


def _cut(page: PageView, p: np.ndarray, likely: np.ndarray, favor: Favor, article: float) -> np.ndarray:
    """Which blocks are `likely` enough on a page that is an `article` with this probability."""
    least, between = favor.of(expected_f1(page.weight, p), article)
    keep = likely >= least
    return keep | (_is_between(keep) & (likely >= between))


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
                if part >= 0 and not containers[part].is_body_of_article:
                    part = containers[part].parent
            known = parts.setdefault(_plain(block), set())
            if known and part not in known:
                continue
            known.add(part)
        first.append(block)
    return _without_joins(first)


def _without_joins(kept: list[Block]) -> list[Block]:
    """`kept` without blocks that are other kept ones joined, as where a page has its article again as one piece."""
    least = max(_JOINED_CHARS, _JOINED_SHARE * sum(block.chars for block in kept))
    long = [block for block in kept if block.chars >= least and block.form not in (ROW, PREFORMATTED)]
    texts = [_plain(block) for block in kept] if long else []
    for block in long:
        joined = _plain(block)
        within = {text for text in texts if _REPEATED_CHARS <= len(text) < len(joined) and text in joined}
        if len(within) > 1 and sum(map(len, within)) >= _JOINED * len(joined):
            kept = [other for other in kept if other is not block]
    return kept


def _plain(block: Block) -> str:
    """What a block reads, in lower case and in one line."""
    text = block.text.lower()
    return " ".join(text.split()) if block.marked is not None or "\n" in text else text


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


def _is_between(keep: np.ndarray) -> np.ndarray:
    """Which blocks have kept ones before and after them."""
    before: np.ndarray = np.logical_or.accumulate(keep)
    return before & np.logical_or.accumulate(keep[::-1])[::-1]


def _keep_terms(blocks: Sequence[Block], containers: Sequence[Container], keep: np.ndarray) -> None:
    """Keep a `<dt>` or `<summary>` right before a kept block of what it heads."""
    for index in range(len(blocks) - 2, -1, -1):
        if keep[index + 1] and not keep[index]:
            own = containers[blocks[index].container]
            if own.tag in ("dt", "summary") and blocks[index + 1].container < containers[own.parent].end:
                keep[index] = True


def _leave_comments(page: PageView, keep: np.ndarray) -> None:
    """Leave out readers' comments on an article, unless there is next to nothing else."""
    comments = page.in_comments & keep
    if page.weight[keep & ~comments].sum() >= _LEAST_ARTICLE:
        keep[comments] = False


def _keep_code(blocks: Sequence[Block], forms: Sequence[str], keep: np.ndarray) -> None:
    """Keep preformatted text, and formulas, between two kept blocks or between one and the page's end.

    A label next to it ("Copy", the name of a language) is no block between.
    """
    if PREFORMATTED not in forms:
        return
    before, labels = False, 0
    waiting: list[int] = []
    for index, form in enumerate(forms):
        if form == PREFORMATTED:
            waiting.append(index)
            labels = 0
            continue
        if not keep[index] and blocks[index].chars <= _LABEL_OF_CODE and labels < _MOST_LABELS:
            labels += 1
            continue
        labels = 0
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
