"""The features of the model of main text: numbers for each block, from its text, its neighbours and its markup.

All features are counts, shares of counts and comparisons. No function is used whose last bit depends on the processor,
so that a page gives the same text everywhere.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from owt_pipeline.stages.extract.blocks import CAPTION, CELL, HEADING, ITEM, OTHER, PARAGRAPH, PREFORMATTED, ROW, Block
from owt_pipeline.stages.extract.containers import Container
from owt_pipeline.stages.extract.head import KINDS, Head
from owt_pipeline.stages.extract.names import (
    CHROME,
    COMMENT,
    HEADER,
    HEADINGS,
    HIDDEN,
    UNSHOWN,
    Remembered,
    heads_afterwards,
)

_FORMS = {form: index for index, form in enumerate((HEADING, ITEM, ROW, CELL, PARAGRAPH, PREFORMATTED, CAPTION, OTHER))}
_FORM_NUMBERS = np.arange(len(_FORMS) - 1)[:, None]
_AROUND = (
    "nav", "footer", "aside", "header", "form", "figure", "table", "ul", "ol", "dl", "blockquote", "article", "main",
    "section", "details", "figcaption", "noscript", "button",
)  # fmt: skip
_BITS = {tag: 1 << index for index, tag in enumerate(_AROUND)}
_AROUND_BITS = np.arange(len(_AROUND))[:, None]
_KIND_FLAGS = np.array((HIDDEN, CHROME, COMMENT, HEADER, UNSHOWN))[:, None]
_DIGITS = re.compile(r"\d+")
_ENDS = tuple(".!?…。！？:;\"”»'’)")
_SENTENCE_ENDS = (". ", "? ", "! ", "。")
_TEXT_WORD = re.compile(r"\w+")
_ASCII_TEXT_WORD = re.compile("[a-z0-9_]+")  # the same for ASCII text in lower case
_SHORT = 160  # characters up to which a text's words are looked up
_FAR = 1000

Columns = list[Any]
"""Features: for each an array of one number per block, or one number for the page; or an array of several, in rows."""


@dataclass(frozen=True)
class PageView:
    """A page as arrays: n blocks, and m containers that hold at least one.

    Attributes:
      counts (n): the sizes of the blocks; they are weighted by words.
      tree (m): the containers.
      signatures (kinds, n): for each kind of signature, a number that is equal for blocks with the same markup around.
      names: the distinct names of containers: tag, classes, id.
      name_of (m): the index in `names` of each container's name.
      words (n): the lower-case words of each short text.
      texts, lowered (n): the text of each block, unchanged and in lower case.
      heading (n): the index of the heading above each block; -1 for none.
      in_comments (n): whether the names around a block mark it as a reader's comment.
      unshown (n): whether a style or an attribute around a block hides it.
      static (n, features): the features that do not depend on the model.
    """

    counts: Counts
    tree: Tree
    signatures: np.ndarray
    names: list[str]
    name_of: list[int]
    words: list[tuple[str, ...]]
    texts: list[str]
    lowered: list[str]
    heading: np.ndarray
    in_comments: np.ndarray
    unshown: np.ndarray
    static: np.ndarray


def view(blocks: Sequence[Block], containers: Sequence[Container], head: Head) -> PageView:
    """The page with these blocks and this metadata."""
    tree, filled, siblings = _tree(blocks, containers)
    home = tree.home
    depth, around_bits, kinds, chrome_depth, content_depth = _inherited(filled, tree.parent.tolist())
    numbers: dict[tuple[str, str], int] = {}
    name_of = [numbers.setdefault((container.tag, container.names), len(numbers)) for container in filled]
    names = [f"<{tag}> {given}" for tag, given in numbers]
    signatures = _signatures(tree.parent.tolist(), name_of, [tag for tag, _ in numbers], names)[:, home]
    texts = [block.text for block in blocks]
    lowered = list(map(str.lower, texts))
    counts = _count_texts(blocks)
    heading = np.full(len(blocks), -1)
    heading[1:] = _last(counts.heading, np.arange(len(blocks)))[:-1]
    kind = kinds[home]
    of_kind = (kind & _KIND_FLAGS) != 0
    columns: Columns = _of_texts(blocks, lowered, containers, counts, head)
    columns += _of_head(blocks, lowered, counts, head)
    columns += _of_order(counts)
    columns += _of_containers(counts, tree, siblings)
    columns += _of_signatures(counts, signatures)
    columns += [(around_bits[home] >> _AROUND_BITS) & 1, of_kind, *_of_kinds(counts, of_kind)]
    columns += [depth[home], chrome_depth[home], content_depth[home]]
    return PageView(
        counts=counts,
        tree=tree,
        signatures=signatures,
        names=names,
        name_of=name_of,
        words=[_short_words(low) if len(text) <= _SHORT else () for text, low in zip(texts, lowered, strict=True)],
        texts=texts,
        lowered=lowered,
        heading=heading,
        in_comments=of_kind[2],
        unshown=of_kind[4],
        static=matrix(columns, len(blocks)),
    )


def _tree(blocks: Sequence[Block], containers: Sequence[Container]) -> tuple[Tree, list[Container], np.ndarray]:
    """The containers that hold text, renumbered, and for each the number of containers in its parent."""
    home = np.array([block.container for block in blocks], dtype=np.intp)
    parent = np.array([container.parent for container in containers], dtype=np.intp)
    end = np.array([container.end for container in containers], dtype=np.intp)
    siblings = np.bincount(np.maximum(parent, 0), minlength=len(parent))
    blocks_before = np.zeros(len(parent) + 1, dtype=np.intp)
    np.cumsum(np.bincount(home, minlength=len(parent)), out=blocks_before[1:])
    filled = blocks_before[end] > blocks_before[:-1]
    kept = np.flatnonzero(filled)
    number = np.zeros(len(parent) + 1, dtype=np.intp)
    np.cumsum(filled, out=number[1:])
    above = number[parent[kept]]
    above[0] = -1
    tree = Tree(number[home], above, number[end[kept]])
    return tree, [containers[index] for index in kept.tolist()], siblings[kept]


@dataclass(frozen=True)
class Counts:
    """Sizes of n blocks.

    Attributes:
      chars, words, links (n): characters, words, and characters within links.
      form, heading (n): the number of the block's form; whether that is a heading.
      prose (n): whether the text is as long as a sentence or two and is not mostly links, as in articles.
    """

    chars: np.ndarray
    words: np.ndarray
    links: np.ndarray
    form: np.ndarray
    heading: np.ndarray
    prose: np.ndarray


def _count_texts(blocks: Sequence[Block]) -> Counts:
    chars = np.array([block.chars for block in blocks], dtype=np.float64)
    words = np.array([block.text.count(" ") for block in blocks], dtype=np.float64) + 1
    links = np.array([block.link_chars for block in blocks], dtype=np.float64)
    form = _small([_FORMS[block.form] for block in blocks])
    heading = form == _FORMS[HEADING]
    return Counts(
        chars,
        np.maximum(words, np.floor(chars / 12)),  # for scripts without spaces
        links,
        form,
        heading,
        (chars > 80) & (links < 0.4 * chars) & ~heading,
    )


def _small(values: Iterable[int]) -> np.ndarray:
    """Numbers below 256, or flags, as an array; through bytes, since np.array takes three times as long."""
    return np.frombuffer(bytes(values), dtype=np.uint8)


def _of_texts(
    blocks: Sequence[Block], lowered: Sequence[str], containers: Sequence[Container], counts: Counts, head: Head
) -> Columns:
    texts = [block.text for block in blocks]
    count = len(texts)
    position = np.arange(count)
    times = Counter(texts)
    title = "\n".join(head.titles)
    longest = len(title)
    in_title = _small(
        [10 < len(text) <= longest and lower in title for text, lower in zip(texts, lowered, strict=True)]
    )
    levels, after = np.full(count, 7), np.zeros(count, dtype=bool)
    for index in np.flatnonzero(counts.heading).tolist():
        levels[index] = level = HEADINGS.get(containers[blocks[index].container].tag, 7)
        after[index] = level < 7 and heads_afterwards(texts[index])
    in_heading = levels < 7
    titles = np.flatnonzero((levels == 1) | (in_heading & (in_title != 0)))
    turns = _last(after | (levels <= 2), position)  # headings at which text after the article may begin or end
    since_after = np.where((turns >= 0) & after[turns], position - turns, _FAR)
    ends = _small([text.endswith(_ENDS) for text in texts])
    firsts = [text[0] for text in texts]
    return [
        counts.chars,
        counts.words,
        counts.chars / counts.words,
        counts.links / counts.chars,
        np.array([text.count(",") for text in texts]) / counts.words,
        np.array([sum(map(text.count, _SENTENCE_ENDS)) if len(text) > 20 else 0 for text in texts]) + ends,
        ends,
        np.array([len(_DIGITS.findall(text, 0, _SHORT)) for text in texts]) / counts.words,
        _small(map(str.isupper, firsts)),
        _small(map(str.islower, firsts)),
        np.array([text.count("\n") for text in texts]),
        np.array([times[text] for text in texts]),
        in_title,
        after,
        levels,
        np.minimum(position - _last(in_heading, position, -_FAR), _FAR),
        np.minimum(since_after, _FAR),
        position - titles[0] if len(titles) and titles[0] < _FAR else -_FAR,
        len(titles),
        counts.form == _FORM_NUMBERS,
    ]


def _last(mask: np.ndarray, position: np.ndarray, otherwise: int = -1) -> np.ndarray:
    """For each block the position of the last block up to it where `mask` is true."""
    found: np.ndarray = np.maximum.accumulate(np.where(mask, position, otherwise))
    return found


def _of_head(blocks: Sequence[Block], texts: Sequence[str], counts: Counts, head: Head) -> Columns:
    """Where the page shows its own description, and the text that it also has as data."""
    count = len(blocks)
    position = np.arange(count)
    keys = [description[:60] for description in head.descriptions]
    described, in_body = [False] * count, [False] * count
    if keys or head.body:
        all_descriptions = "\n".join(head.descriptions)
        for index in np.flatnonzero(counts.chars > 30).tolist():
            text = texts[index]
            if blocks[index].form in (ROW, PREFORMATTED) or "\n" in text:
                text = " ".join(text.split())
            described[index] = text in all_descriptions or any(key in text for key in keys)
            in_body[index] = text[:80] in head.body
    first = described.index(True) if any(described) else -_FAR
    last = count - 1 - described[::-1].index(True) if any(described) else -_FAR
    shares = np.array(in_body) * counts.chars
    return [
        np.array(described),
        position - first if first >= 0 else -_FAR,
        position - last if last >= 0 else -_FAR,
        sum(described),
        np.array(in_body),
        shares.sum() / counts.chars.sum(),
        shares.sum() / max(len(head.body), 1),
        *((head.kinds >> bit) & 1 for bit in range(len(KINDS))),
        int(head.is_dated),
        int(head.is_signed),
        np.array([block.images for block in blocks]),
        np.array([block.links for block in blocks]),
    ]


def _of_order(counts: Counts) -> Columns:
    """The position of a block on the page, and its neighbours."""
    chars, links, prose = counts.chars, counts.links, counts.prose
    count = len(chars)
    before = np.cumsum(chars)
    total = before[-1]
    prose_chars = chars * prose
    prose_before = np.cumsum(prose_chars)
    position = np.arange(count)
    columns = [position, count - position, position / count, (before - chars) / total, total - before]
    columns += [prose_before - prose_chars, prose_before[-1] - prose_before]
    neighbours = shifts(np.array((chars, links / chars, prose_chars, counts.heading)), (1, -1, 2, -2))
    columns += [around[:2] for around in neighbours]
    columns += [neighbours[0][2], neighbours[1][2], neighbours[0][3], neighbours[1][3]]
    for around in windows(np.array((chars, links, prose_chars)), (2, 5, 12)):
        columns += [around[0], around[1:] / around[0]]
    last = np.maximum.accumulate(np.where(prose, position, -_FAR))
    following = np.minimum.accumulate(np.where(prose, position, count + _FAR)[::-1])[::-1]
    columns += [np.minimum(position - last, _FAR), np.minimum(following - position, _FAR)]
    page = [count, total, links.sum() / total, prose_before[-1] / total, prose.sum(), chars.max(), prose_before[-1]]
    return columns + page


def _of_containers(counts: Counts, tree: Tree, siblings: np.ndarray) -> Columns:
    """The contents of the containers around a block."""
    chars = tree.below(counts.chars)
    links = tree.below(counts.links)
    prose = tree.below(counts.chars * counts.prose)
    blocks = tree.below(np.ones(len(counts.chars)))
    some = np.maximum(chars, 1)
    total, all_prose = max(chars[0], 1.0), max(prose[0], 1.0)
    shares = np.array((links / some, prose / some, chars / total, prose / all_prose, blocks))
    levels = tree.levels(5)
    return [shares.take(level, axis=1) for level in levels] + [siblings[level] for level in levels[1:3]]


def _of_kinds(counts: Counts, of_kind: np.ndarray) -> Columns:
    """How much of the page's prose is in containers of each kind, and in none."""
    prose = counts.chars * counts.prose
    elsewhere = float(prose[~of_kind[:3].any(axis=0)].sum())
    shares = [float(prose[kind].sum()) / max(float(prose.sum()), 1.0) for kind in of_kind[:3]]
    return [elsewhere, *shares]


def _of_signatures(counts: Counts, signatures: np.ndarray) -> Columns:
    """Sums over the blocks with the same markup around them."""
    prose = counts.chars * counts.prose
    all_prose, total = max(prose.sum(), 1.0), counts.chars.sum()
    columns: Columns = []
    for signature in signatures:
        chars, number = np.bincount(signature, counts.chars), np.bincount(signature)
        mine, some = np.bincount(signature, prose), np.maximum(chars, 1)
        links = np.bincount(signature, counts.links)
        sums = (mine / some, mine / all_prose, chars / total, number, chars / np.maximum(number, 1), links / some)
        columns.append(np.array(sums).take(signature, axis=1))
    return columns


def _inherited(containers: Sequence[Container], parents: Sequence[int]) -> np.ndarray:
    """For each container (5, m): its depth, the tags and the kinds around it (bits), and its levels below boilerplate
    and below content."""
    depth: list[int] = []
    bits: list[int] = []
    kinds: list[int] = []
    chrome: list[int] = []
    content: list[int] = []
    left_out = CHROME | COMMENT | HIDDEN
    bit_of = _BITS.get
    for container, around in zip(containers, parents, strict=True):
        bit, kind = bit_of(container.tag, 0), container.kind
        if around < 0:
            depth.append(0)
            bits.append(bit)
            kinds.append(kind)
            chrome.append(_FAR)
            content.append(_FAR)
        else:
            depth.append(depth[around] + 1)
            bits.append(bits[around] | bit)
            kinds.append(kinds[around] | kind)
            chrome.append(0 if kind & left_out else chrome[around] + 1)
            content.append(0 if container.names_content else content[around] + 1)
    return np.array((depth, bits, kinds, chrome, content))


def _signatures(
    parents: Sequence[int], name_of: Sequence[int], tags: Sequence[str], names: Sequence[str]
) -> np.ndarray:
    """For each container (3, m), numbers for the tags from the body to it, tags with names, and the last two names."""
    tag_of = _numbered(tags)
    plain = _numbered(map(_WITHOUT_DIGITS.__getitem__, names))
    count = len(names)
    paths: list[int] = []
    named: list[int] = []
    local: list[int] = []
    known: tuple[dict[int, int], ...] = ({}, {}, {})
    path_of, named_of, local_of = (numbers.setdefault for numbers in known)
    for around, name in zip(parents, name_of, strict=True):
        own = plain[name]
        if around < 0:
            above_path = above_named = above = -1
        else:
            above_path, above_named, above = paths[around], named[around], plain[name_of[around]]
        # A pair as one integer, since a tuple takes twice as long.
        paths.append(path_of(above_path * count + tag_of[name], len(known[0])))
        named.append(named_of(above_named * count + own, len(known[1])))
        local.append(local_of(above * count + own, len(known[2])))
    return np.array((paths, named, local))


def _numbered(texts: Iterable[str]) -> list[int]:
    """A number for each text, the same for equal texts."""
    numbers: dict[str, int] = {}
    return [numbers.setdefault(text, len(numbers)) for text in texts]


_WITHOUT_DIGITS = Remembered(lambda name: _DIGITS.sub("", name), 1 << 15)


def _short_words(text: str) -> tuple[str, ...]:
    words = (_ASCII_TEXT_WORD if text.isascii() else _TEXT_WORD).findall(text)
    return (*words, " ".join(words[:2])) if len(words) > 1 else tuple(words)


class Tree:
    """The m containers of a page's n blocks, with sums over them.

    Attributes:
      home (n): the container of each block.
      parent, end (m): the descendants of container c are c + 1 to end[c] - 1; the parent of the first is -1.
    """

    def __init__(self, home: np.ndarray, parent: np.ndarray, end: np.ndarray):
        self.home, self.parent, self.end = home, parent, end
        self._up = np.maximum(parent, 0)

    def below(self, values: np.ndarray) -> np.ndarray:
        """For each container, the sum of `values` over the blocks in it, at any depth."""
        running = np.zeros(len(self.parent) + 1)
        np.cumsum(np.bincount(self.home, values, minlength=len(self.parent)), out=running[1:])
        sums: np.ndarray = running[self.end] - running[:-1]
        return sums

    def levels(self, count: int) -> list[np.ndarray]:
        """For each block its container, that container's parent, and so on; the body counts as its own parent."""
        found = [self.home]
        for _ in range(count - 1):
            found.append(self._up[found[-1]])
        return found


def matrix(columns: Columns, count: int) -> np.ndarray:
    """`columns` of `count` blocks as one array (count, columns)."""
    heights = [len(column) if np.ndim(column) == 2 else 1 for column in columns]
    rows = np.empty((sum(heights), count), dtype=np.float32)
    start = 0
    for height, column in zip(heights, columns, strict=True):
        rows[start : start + height] = column
        start += height
    return rows.T


def shifts(values: np.ndarray, steps: Sequence[int]) -> list[np.ndarray]:
    """Rows of values shifted by each of `steps` blocks (negative: from following blocks); -1 beyond the page's ends."""
    most, count = max(map(abs, steps)), values.shape[1]
    padded = np.full((len(values), count + 2 * most), -1.0)
    padded[:, most : most + count] = values
    return [padded[:, most - step : most - step + count] for step in steps]


def windows(values: np.ndarray, reaches: Sequence[int]) -> list[np.ndarray]:
    """Sums of rows of values over windows of blocks: for each of `reaches`, that many before and after."""
    most, count = max(reaches), values.shape[1]
    running = np.zeros((len(values), count + 2 * most + 1))
    np.cumsum(values, axis=1, out=running[:, most + 1 : most + 1 + count])
    running[:, most + 1 + count :] = running[:, most + count, None]
    return [
        running[:, most + reach + 1 : most + reach + 1 + count] - running[:, most - reach : most - reach + count]
        for reach in reaches
    ]
