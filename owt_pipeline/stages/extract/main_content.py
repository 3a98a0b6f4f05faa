"""Selects the blocks of a page's main content: those whose probability by the model exceeds a cut.

The cut depends on the page. If the model is sure of most blocks, doubtful ones are left out; if it is unsure of all of
them, as on forums and lists, leaving out text costs more than keeping too much. So the cut follows from the F1 that the
page's best cut is expected to have by the model's own probabilities. It is stricter the more probable the page is an
article: the text around an article (date, credits, tags, what to read next) resembles the article, while on forums,
lists and pages of services most doubtful blocks belong to the content. A less probable block between two kept blocks is
kept as well, unless the page surely is an article.

Further rules:

- A table or a list is kept completely or not at all; code is kept if the text before and after it is.
- Hidden text is left out if the page shows about as much.
- A paragraph next to prose that is mostly a link ("Read more: ...") has a lower probability than by the model.
- Text that occurs in two parts of the page (for wide and narrow screens, or as a quote) is kept once.
- A term or a question is kept if its answer is.
- Readers' comments on an article are left out.
- A notice about cookies at either end of the text is left out: it is prose like an article, but mentions cookies or
  consent in every sentence, unlike the rest of the page.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from owt_pipeline.stages.extract.blocks import HEADING, ITEM, OTHER, PARAGRAPH, PREFORMATTED, ROW, Block
from owt_pipeline.stages.extract.containers import Container
from owt_pipeline.stages.extract.features import PageView, view
from owt_pipeline.stages.extract.head import Head
from owt_pipeline.stages.extract.model import Model, expected_f1
from owt_pipeline.stages.extract.names import PHRASES

_TEASER_LESS, _TEASER_LINK, _TEASER_CHARS = 0.2, 0.4, 20  # probability subtracted; least share of link; least length
_LEAST_STRICT = 0.5  # least share of the text kept by the cut for other pages that an article keeps
_REPEATED_CHARS = 30  # shorter texts may occur twice
_JOINED_CHARS, _JOINED_SHARE, _JOINED = 300, 0.15, 0.9  # of a joined block: least length, share of page, share joined
_LABEL_OF_CODE, _MOST_LABELS = 20, 3  # most characters of a label, most labels in a row
_LEAST_ARTICLE = 150  # fewest words of an article without its comments
_SHOWN = 0.7  # least words shown per hidden word
MOST_BLOCKS = 50_000
"""Further blocks of a page are left out and counted; each block takes 3 kB of memory."""


class Cut(NamedTuple):
    """A block is kept from a probability of the page's expected F1 - `margin` on, limited to `least` and `most`.

    Between two kept blocks, blocks with a probability of at least `between` are kept as well.
    """

    margin: float
    least: float
    most: float
    between: float = 1.0


_ARTICLES = (0.5, 0.7, 0.93, 0.97)
_STRICT, _LOOSE = Cut(0.15, 0.45, 0.75), Cut(0.50, 0.15, 0.35)
_PROBABLE = Cut(0.20, 0.50, 0.65, between=0.5)
FAVORS = {
    "balanced": (Cut(0.30, 0.25, 0.55, between=0.5), _PROBABLE, _PROBABLE, _STRICT),
    "precision": (_STRICT,) * 4,
    "recall": (_LOOSE,) * 4,
}
"""The cuts for pages that are articles with the probabilities _ARTICLES; linearly interpolated in between."""


def main_content(
    blocks: Sequence[Block],
    containers: Sequence[Container],
    head: Head,
    model: Model,
    favor: Sequence[Cut],
    *,
    comments: bool,
) -> list[Block]:
    """The blocks of the main content, in order.

    Args:
      blocks, containers: the page, as read by `read_blocks`.
      head: the page's own metadata.
      model: the model of blocks.
      favor: one of FAVORS.
      comments: whether readers' comments belong to the content.
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
    if page.counts.words[keep].sum() < _LEAST_STRICT * page.counts.words[most].sum():
        keep = most
    _keep_terms(blocks, containers, keep)
    _keep_code(blocks, forms, keep)
    _leave_hidden(page, keep)
    if comments:
        keep |= page.in_comments & page.counts.prose
    elif article >= _ARTICLES[1]:
        _leave_comments(page, keep)
    kept = _once([block for block, stays in zip(blocks, keep.tolist(), strict=True) if stays], containers)
    if any(block.form != HEADING for block in kept):
        while kept[-1].form == HEADING:
            kept.pop()  # it heads nothing
    return kept


def _cut(page: PageView, p: np.ndarray, likely: np.ndarray, favor: Sequence[Cut], article: float) -> np.ndarray:
    """Which blocks are `likely` enough on a page that is an article with the probability `article`."""
    f1 = expected_f1(page.counts.words, p)
    least = np.interp(article, _ARTICLES, [min(max(f1 - cut.margin, cut.least), cut.most) for cut in favor])
    between = np.interp(article, _ARTICLES, [cut.between for cut in favor])
    keep = likely >= least
    return keep | (_is_between(keep) & (likely >= between))


def _is_teaser(blocks: Sequence[Block], page: PageView) -> np.ndarray:
    """Paragraphs next to prose that are mostly a link."""
    is_next = np.zeros(len(blocks), dtype=bool)
    is_next[1:] = page.counts.prose[:-1]
    is_next[:-1] |= page.counts.prose[1:]
    found = is_next & (page.counts.chars >= _TEASER_CHARS) & (page.counts.links > _TEASER_LINK * page.counts.chars)
    for index in np.flatnonzero(found).tolist():
        found[index] = blocks[index].form in (PARAGRAPH, OTHER)
    return found


def _once(kept: Sequence[Block], containers: Sequence[Container]) -> list[Block]:
    """`kept` without text that an earlier block has in another part of the page; lines of a poem may repeat.

    A list is left out completely or not at all, since lists of facts may have some in common.
    """
    parts: dict[str, set[int]] = {}
    repeats: dict[int, int] = {}  # index of a block → index of the list that it is an item of, or -1
    distinct: set[int] = set()  # lists with other items
    for index, block in enumerate(kept):
        own = containers[block.container]
        around = own.parent if own.tag == "li" else -1
        if (block.chars >= _REPEATED_CHARS or around >= 0) and block.form not in (ROW, PREFORMATTED):
            part = block.container
            for _ in range(2):
                if part >= 0 and not containers[part].is_body_of_article:
                    part = containers[part].parent
            known = parts.setdefault(_plain(block), set())
            if known and part not in known:
                if block.chars >= _REPEATED_CHARS:
                    repeats[index] = around
                continue
            known.add(part)
            if around >= 0:
                distinct.add(around)
    first = [block for index, block in enumerate(kept) if index not in repeats or repeats[index] in distinct]
    return _without_joins(first)


def _without_joins(kept: list[Block]) -> list[Block]:
    """`kept` without blocks that consist of other kept blocks, as where a page repeats its article as one piece."""
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
    """A block's text in lower case and in one line."""
    text = block.text.lower()
    return " ".join(text.split()) if block.marked is not None or "\n" in text else text


def _together(page: PageView, forms: Sequence[str], p: np.ndarray) -> np.ndarray:
    """`p` with the mean of the table for each row, and the mean of the list for each item."""
    p = p.copy()
    for form, group in ((ROW, page.tree.home), (ITEM, page.tree.parent[page.tree.home])):
        if form in forms:
            of_form = np.array([other == form for other in forms])
            numbers, weight = group[of_form], page.counts.words[of_form]
            means = np.bincount(numbers, weight * p[of_form]) / np.maximum(np.bincount(numbers, weight), 1)
            p[of_form] = means[numbers]
    return p


def _is_between(keep: np.ndarray) -> np.ndarray:
    """Which blocks have kept blocks before and after them."""
    before: np.ndarray = np.logical_or.accumulate(keep)
    return before & np.logical_or.accumulate(keep[::-1])[::-1]


def _keep_terms(blocks: Sequence[Block], containers: Sequence[Container], keep: np.ndarray) -> None:
    """Keep a `<dt>` or `<summary>` directly before a kept block that it introduces."""
    for index in range(len(blocks) - 2, -1, -1):
        if keep[index + 1] and not keep[index]:
            own = containers[blocks[index].container]
            if own.tag in ("dt", "summary") and blocks[index + 1].container < containers[own.parent].end:
                keep[index] = True


def _leave_comments(page: PageView, keep: np.ndarray) -> None:
    """Leave out readers' comments, unless there is little other text."""
    comments = page.in_comments & keep
    if page.counts.words[keep & ~comments].sum() >= _LEAST_ARTICLE:
        keep[comments] = False


def _keep_code(blocks: Sequence[Block], forms: Sequence[str], keep: np.ndarray) -> None:
    """Keep preformatted text and formulas between two kept blocks, or between one and the page's end.

    Labels next to code ("Copy", the name of a language) are ignored.
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
    """Leave out text hidden by style or attribute, unless there is more of it than visible text: a script shows it."""
    hidden = page.unshown & keep
    if page.counts.words[keep & ~hidden].sum() >= _SHOWN * page.counts.words[hidden].sum():
        keep[hidden] = False


_NOTICE = re.compile(PHRASES["notice about cookies"], re.IGNORECASE | re.DOTALL)
_BUTTON = re.compile(rf"\W*(?:{PHRASES['button of such a notice']})\b.{{0,24}}", re.IGNORECASE)
_LABEL = 40  # characters; a shorter block before the first sentence of a banner is its heading
_MOST_OF_TEXT, _MOST = 0.4, 2000  # most share of the text and most characters of a notice; more is the page's subject


def without_notice(kept: Sequence[Block]) -> list[Block]:
    """`kept`, the blocks of a page's text, without a notice about cookies at the start or the end."""
    most = min(_MOST, _MOST_OF_TEXT * sum(block.chars for block in kept))
    start = _length_of_notice(kept, most)
    end = len(kept) - _length_of_notice(kept[::-1], most)
    if start < end < len(kept) and kept[end - 1].form == HEADING:
        end -= 1  # the banner's heading
    if end - start == len(kept):
        return list(kept)
    text = list(kept[start:end])
    if sum("cookie" in block.text.lower() for block in text) > 1:
        return list(kept)  # the page is about cookies
    return text


def _length_of_notice(blocks: Sequence[Block], most: float) -> int:
    """How many of the first blocks are a notice of at most `most` characters."""
    chars, length = 0, 0
    for index, block in enumerate(blocks):
        chars += block.chars
        is_notice = _NOTICE.search(block.text, 0, _MOST) is not None  # blocks may have megabytes
        if is_notice and chars > most:
            return 0
        if is_notice or (length and _BUTTON.fullmatch(block.text)):
            length = index + 1
        elif block.chars > _LABEL or length:
            break
    return length
