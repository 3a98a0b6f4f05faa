"""Which blocks of a page are its main content.

1. Containers whose names say navigation, sidebar, share buttons, comments, hidden and so on are left out, unless the
   page as a whole contradicts: names lie, but what holds most of a page's prose is no sidebar. In the same way a word
   is not believed that would leave out most of the page, if in many small pieces.
2. Of what is left, the content is the innermost container that holds most of the prose: among those whose names say
   so (`article`, `entry-content`), or, where the page is mostly prose, any that holds nearly all of it.
3. In it, runs of links, the labels of buttons, and parts headed "Related" or "About the author" near the end go.

The thresholds were set on one half of WCXB's development pages and checked on the other (split by host):
`benchmarks/extract.py`. Around each of them, the result hardly changes.
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass

from owt_pipeline.extract.blocks import HEADING, PREFORMATTED, Block, Container
from owt_pipeline.extract.labels import heads_afterwards, is_label
from owt_pipeline.extract.names import CHROME, COMMENT, HEADER, HEADINGS, HIDDEN

_LEFT_OUT = HIDDEN | CHROME | COMMENT


@dataclass(frozen=True)
class Thresholds:
    """How readily text is left out.

    Attributes:
      contradicted: the share of a page's prose from which on a name that would leave it out is not believed.
      named_share: the share of the prose that a container named for content must hold.
      unnamed_share: the share that any other must hold.
      mostly_prose: the share of prose in the text from which on a page is taken for an article.
      link_run: that many blocks in a row that are mostly links are no text.
      short_link: and a single one shorter than this.
      listing: if less than this share of the text remains without links, the page is a list of links on purpose.
    """

    contradicted: float = 0.5
    named_share: float = 0.6
    unnamed_share: float = 0.9
    mostly_prose: float = 0.6
    link_run: int = 3
    short_link: int = 20
    listing: float = 0.4


BALANCED = Thresholds()
PRECISION = Thresholds(named_share=0.5, unnamed_share=0.8, link_run=1, short_link=200, listing=0.0)
RECALL = Thresholds(contradicted=0.3, named_share=0.95, unnamed_share=1.0, link_run=6, short_link=0, listing=0.6)

_SHORT_POST = 400  # characters of prose; if comments have more of it than the rest of the page, they are the page
_FORM_SHARE = 0.3  # a form with this share of the page's text is the page (as in ASP.NET)
_LINKS = 0.7  # a block is mostly links from this share of its characters on, if it is shorter than
_LONG_LINK = 200
_AFTERWARDS_FROM = 0.5  # the share of the text that comes before what "follows the article"
_AFTERWARDS_SHARE = 0.25  # and the most that such a part may have


def main_content(
    blocks: list[Block], containers: list[Container], thresholds: Thresholds = BALANCED, *, comments: bool = False
) -> list[Block]:
    """The blocks of the main content, in order. `comments`: readers' comments belong to it."""
    _sum_up(blocks, containers)
    total = containers[0].chars
    left_out = _left_out(blocks, containers, total, thresholds.contradicted, comments)
    shown = [block for block in blocks if not left_out[block.container]]
    root = _root(shown, containers, left_out, thresholds)
    within = _within(root, containers, comments)
    content = [block for block in shown if within[block.container]]
    text = _without_links(content, thresholds)
    if _chars(text) < thresholds.listing * _chars(content):
        text = [block for block in content if block.chars >= 15]
    text = _without_afterwards(text, containers)
    text = [block for block in text if block.form == PREFORMATTED or not is_label(block.text)]
    while text and text[-1].form == HEADING:
        text.pop()
    return text


def _sum_up(blocks: list[Block], containers: list[Container]) -> None:
    """Set each container's `chars`, `prose` and `has_title`, its descendants' included."""
    for block in blocks:
        container = containers[block.container]
        container.chars += block.chars
        if block.is_prose:
            container.prose += block.chars
        if block.form == HEADING and container.tag == "h1":
            container.has_title = True
    for container in reversed(containers[1:]):  # each comes after its parent
        parent = containers[container.parent]
        parent.chars += container.chars
        parent.prose += container.prose
        parent.has_title |= container.has_title


def _left_out(
    blocks: list[Block], containers: list[Container], total: int, contradicted: float, comments: bool
) -> list[int]:
    """For each container what it is, and is left out as, by itself or by one around it."""
    enough_prose = contradicted * max(containers[0].prose, 1)
    disbelieved = _disbelieved(containers, enough_prose)
    kinds: list[int] = []
    in_article = [False] * len(containers)
    for index, container in enumerate(containers):
        around = container.parent
        in_article[index] = container.tag in ("article", "main", "section") or (around >= 0 and in_article[around])
        kind = container.kind
        is_root = container.tag in ("body", "html", "main")
        if kind & CHROME and (
            is_root
            or container.because in disbelieved
            or container.prose > enough_prose
            or (
                container.tag in ("form", "fieldset")
                and (container.chars > _FORM_SHARE * total or container.prose > 0.5 * container.chars)
            )
        ):
            kind &= ~CHROME
        if kind & COMMENT and (is_root or comments):
            kind &= ~COMMENT
        if kind & HIDDEN and (is_root or container.prose > enough_prose):
            kind &= ~HIDDEN
        if kind & HEADER and not (
            container.has_title or container.prose > 200 or in_article[index] or container.chars > 0.4 * total
        ):
            kind |= CHROME
        kinds.append((kind | kinds[around] if around >= 0 else kind) & _LEFT_OUT)
    return _comments_are_the_page(blocks, kinds)


def _disbelieved(containers: list[Container], enough_prose: float) -> set[str]:
    """The words that would leave out most of the page's prose, each taken by itself."""
    disbelieved: set[str] = set()
    while True:  # one that is no longer believed may uncover another within
        prose: dict[str, int] = defaultdict(int)
        below = [False] * len(containers)
        for index, container in enumerate(containers):
            below[index] = index > 0 and below[container.parent]
            if container.kind & _LEFT_OUT and not below[index] and container.prose <= enough_prose:
                below[index] = container.because not in disbelieved
                prose[container.because] += container.prose
        found = {word for word, chars in prose.items() if chars > enough_prose} - disbelieved
        if not found:
            return disbelieved
        disbelieved |= found


def _comments_are_the_page(blocks: list[Block], kinds: list[int]) -> list[int]:
    """`kinds` without comments, where those are what a page is for: a thread below a link or a short question."""
    post = sum(block.chars for block in blocks if block.is_prose and not kinds[block.container])
    if post >= _SHORT_POST:
        return kinds
    replies = sum(block.chars for block in blocks if block.is_prose and kinds[block.container] == COMMENT)
    return [kind & ~COMMENT for kind in kinds] if replies > post else kinds


def _root(shown: list[Block], containers: list[Container], left_out: list[int], thresholds: Thresholds) -> int:
    """The index of the container that holds the content; 0, the body, where none stands out."""
    prose = sum(block.chars for block in shown if block.is_prose)
    named = _innermost(containers, left_out, thresholds.named_share * max(prose, 1), named=True)
    if named is not None:
        return named
    if prose > thresholds.mostly_prose * _chars(shown):
        return _innermost(containers, left_out, thresholds.unnamed_share * prose, named=False) or 0
    return 0


def _innermost(containers: list[Container], left_out: list[int], prose: float, *, named: bool) -> int | None:
    """The last container with at least `prose`, which is the innermost where that is more than half of all."""
    for index in range(len(containers) - 1, -1, -1):
        container = containers[index]
        if container.prose < prose or left_out[index]:
            continue
        if container.names_content if named else container.tag not in ("p", "li", "ul", "ol", "table", "tr"):
            return index
    return None


def _within(root: int, containers: list[Container], comments: bool) -> list[bool]:
    """For each container whether it is `root` or below it (or, with `comments`, one of readers' comments)."""
    within: list[bool] = []
    for index, container in enumerate(containers):
        start = index == root or (comments and index > 0 and bool(container.kind & COMMENT))
        within.append(start or (container.parent >= 0 and within[container.parent]))
    return within


def _without_links(blocks: list[Block], thresholds: Thresholds) -> list[Block]:
    links = [
        block.link_chars > _LINKS * block.chars and block.chars < _LONG_LINK and block.form != HEADING
        for block in blocks
    ]
    kept: list[Block] = []
    start = 0
    while start < len(blocks):
        if not links[start]:
            kept.append(blocks[start])
            start += 1
            continue
        end = start
        while end < len(blocks) and links[end]:
            end += 1
        run = blocks[start:end]
        if len(run) < thresholds.link_run and all(block.chars >= thresholds.short_link for block in run):
            kept.extend(run)
        start = end
    return kept


def _without_afterwards(blocks: list[Block], containers: list[Container]) -> list[Block]:
    """Without the parts late in a page whose headings say that they do not belong to it."""
    total = _chars(blocks)
    levels = [HEADINGS.get(containers[block.container].tag, 6) if block.form == HEADING else 7 for block in blocks]
    kept: list[Block] = []
    before, start = 0, 0
    while start < len(blocks):
        block = blocks[start]
        if levels[start] < 7 and before > _AFTERWARDS_FROM * total and heads_afterwards(block.text):
            end = start + 1
            while end < len(blocks) and levels[end] > levels[start]:
                end += 1
            part = _chars(blocks[start + 1 : end])
            if part < _AFTERWARDS_SHARE * total:
                before += part
                start = end
                continue
        before += block.chars
        kept.append(block)
        start += 1
    return kept


def _chars(blocks: list[Block]) -> int:
    return sum(block.chars for block in blocks)
