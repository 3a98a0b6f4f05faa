"""What the model of main text sees of a page: numbers for each block, from its text, its neighbours and its markup.

Everything is counts, shares of counts, and comparisons:
no function whose last bit depends on the processor, so that the same page gives the same text everywhere.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np

from owt_pipeline.extract.blocks import CAPTION, CELL, HEADING, ITEM, PARAGRAPH, PREFORMATTED, ROW, Block, Container
from owt_pipeline.extract.head import KINDS, Head
from owt_pipeline.extract.names import CHROME, COMMENT, HEADER, HEADINGS, HIDDEN, UNSHOWN, heads_afterwards

_FORMS = (HEADING, ITEM, ROW, CELL, PARAGRAPH, PREFORMATTED, CAPTION)
_AROUND = (
    "nav", "footer", "aside", "header", "form", "figure", "table", "ul", "ol", "dl", "blockquote", "article", "main",
    "section", "details", "figcaption", "noscript", "button",
)  # fmt: skip
_BITS = {tag: 1 << index for index, tag in enumerate(_AROUND)}
_DIGITS = re.compile(r"\d+")
_ENDS = tuple(".!?…。！？:;\"”»'’)")
_TEXT_WORD = re.compile(r"\w+")
_SHORT = 160  # characters up to which a text's words are looked up
_FAR = 1000

Columns = list[Any]
"""Features: of each an array with a number a block, or one number for the page."""


@dataclass(frozen=True)
class PageView:
    """A page as arrays; n blocks, m containers.

    Attributes:
      weight (n): how much a block counts: its words.
      container (n): the container each is in.
      parent, end, depth (m): of containers; the descendants of c are c + 1 to end[c] - 1.
      signatures: for each kind of signature, one number a block (n): equal where the markup around is.
      names: what containers are called: tag, classes, id; each name once.
      name_of (m): which of these each container has.
      words (n): the lower-case words of each short text.
      heading (n): the heading that each block is under, by its number; -1 for none.
      in_comments (n): whether the names around a block say that it is a reader's comment.
      unshown (n): whether a block is hidden by a style or an attribute around it.
      static (n, features): what does not depend on the model.
    """

    weight: np.ndarray
    container: np.ndarray
    parent: np.ndarray
    end: np.ndarray
    depth: np.ndarray
    signatures: tuple[np.ndarray, ...]
    names: list[str]
    name_of: list[int]
    words: list[tuple[str, ...]]
    texts: list[str]
    heading: np.ndarray
    in_comments: np.ndarray
    unshown: np.ndarray
    static: np.ndarray


def view(blocks: Sequence[Block], containers: Sequence[Container], head: Head) -> PageView:
    """The page with these blocks; `head` is what it says of itself."""
    parent = [container.parent for container in containers]
    count = len(containers)
    end = list(range(1, count + 1))
    for index in range(count - 1, 0, -1):
        around = parent[index]
        if end[index] > end[around]:
            end[around] = end[index]
    depth, around_bits, kinds, chrome_depth, content_depth = _inherited(containers)
    numbers: dict[tuple[str, str], int] = {}
    name_of = [numbers.setdefault((container.tag, container.names), len(numbers)) for container in containers]
    names = [f"<{tag}> {given}" for tag, given in numbers]
    tag_paths, class_paths, local = _signatures(parent, name_of, names)
    home = np.array([block.container for block in blocks], dtype=np.intp)
    counts = _count_texts(blocks)
    tree = Tree(home, np.array(parent), np.array(end))
    depths = np.array(depth)
    signatures = tuple(np.array(values)[home] for values in (tag_paths, class_paths, local))
    columns: Columns = _of_texts(blocks, containers, counts, head)
    columns += _of_head(blocks, counts, head)
    columns += _of_order(counts)
    columns += _of_containers(counts, tree)
    columns += _of_signatures(counts, signatures)
    bits = np.array(around_bits)[home]
    columns += [(bits >> index) & 1 for index in range(len(_AROUND))]
    kind = np.array(kinds)[home]
    of_kind = [(kind & flag) != 0 for flag in (HIDDEN, CHROME, COMMENT, HEADER, UNSHOWN)]
    columns += of_kind
    columns += _of_kinds(counts, of_kind)
    columns += [depths[home], np.array(chrome_depth)[home], np.array(content_depth)[home]]
    return PageView(
        weight=counts.words,
        container=home,
        parent=tree.parent,
        end=tree.end,
        depth=depths,
        signatures=signatures,
        names=names,
        name_of=name_of,
        words=[_short_words(block.text) for block in blocks],
        texts=[block.text for block in blocks],
        heading=_headings(blocks),
        in_comments=of_kind[2],
        unshown=of_kind[4],
        static=matrix(columns, len(blocks)),
    )


@dataclass(frozen=True)
class _Counts:
    chars: np.ndarray
    words: np.ndarray
    links: np.ndarray
    heading: np.ndarray
    prose: np.ndarray


def _count_texts(blocks: Sequence[Block]) -> _Counts:
    chars = np.array([block.chars for block in blocks], dtype=np.float64)
    words = [block.text.count(" ") + 1 for block in blocks]
    links = np.array([block.link_chars for block in blocks], dtype=np.float64)
    heading = np.array([block.form == HEADING for block in blocks])
    return _Counts(
        chars,
        np.maximum(np.array(words, dtype=np.float64), np.floor(chars / 12)),  # some scripts have no spaces
        links,
        heading,
        (chars > 80) & (links < 0.4 * chars) & ~heading,
    )


def _of_texts(blocks: Sequence[Block], containers: Sequence[Container], counts: _Counts, head: Head) -> Columns:
    texts = [block.text for block in blocks]
    forms = [block.form for block in blocks]
    count = len(texts)
    times = Counter(texts)
    title = "\n".join(head.titles)
    in_title = [10 < len(text) <= len(title) and text.lower() in title for text in texts]
    levels = [HEADINGS.get(containers[block.container].tag, 7) if block.form == HEADING else 7 for block in blocks]
    after = [level < 7 and heads_afterwards(text) for level, text in zip(levels, texts, strict=True)]
    ends = [text.endswith(_ENDS) for text in texts]
    first_title, titles = _FAR, 0
    since_heading, since_after = [], []
    last_heading, last_after = -_FAR, -_FAR
    for index, level in enumerate(levels):
        if level == 1 or (level < 7 and in_title[index]):
            titles += 1
            if first_title == _FAR:
                first_title = index
        if level < 7:
            last_heading = index
            if after[index]:
                last_after = index
            elif level <= 2:
                last_after = -_FAR
        since_heading.append(min(index - last_heading, _FAR))
        since_after.append(min(index - last_after, _FAR))
    position = np.arange(count)
    columns = [counts.chars, counts.words, counts.chars / counts.words, counts.links / counts.chars]
    columns += [
        np.array([text.count(",") for text in texts]) / counts.words,
        np.array([_sentences(text) + end for text, end in zip(texts, ends, strict=True)]),
        np.array(ends),
        np.array([len(_DIGITS.findall(text, 0, _SHORT)) for text in texts]) / counts.words,
        np.array([text[0].isupper() for text in texts]),
        np.array([text[0].islower() for text in texts]),
        np.array([text.count("\n") for text in texts]),
        np.array([times[text] for text in texts]),
        np.array(in_title),
        np.array(after),
        np.array(levels),
        np.array(since_heading),
        np.array(since_after),
        position - first_title if first_title < _FAR else -_FAR,
        titles,
    ]
    columns += [np.array([form == name for form in forms]) for name in _FORMS]
    return columns


def _of_head(blocks: Sequence[Block], counts: _Counts, head: Head) -> Columns:
    """Where the page shows what its head says: the description, and the text that it gives as data."""
    count = len(blocks)
    position = np.arange(count)
    keys = [description[:60] for description in head.descriptions]
    described, in_body = [False] * count, [False] * count
    if keys or head.body:
        all_descriptions = "\n".join(head.descriptions)
        for index, block in enumerate(blocks):
            if block.chars > 30:
                text = block.text.lower()
                if block.form in (ROW, PREFORMATTED) or "\n" in text:
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
        np.array([block.images for block in blocks]),
        np.array([block.links for block in blocks]),
    ]


def _headings(blocks: Sequence[Block]) -> np.ndarray:
    """For each block the number of the last heading before it; -1 for none."""
    own = np.array([index if block.form == HEADING else -1 for index, block in enumerate(blocks)])
    above = np.full(len(own), -1)
    above[1:] = np.maximum.accumulate(own)[:-1]
    return above


def _sentences(text: str) -> int:
    """How many sentences end within a text, about."""
    count = text.count
    return count(". ") + count("? ") + count("! ") + count("。") if len(text) > 20 else 0


def _of_order(counts: _Counts) -> Columns:
    """Where a block is on the page, and what is next to it."""
    chars, links, prose = counts.chars, counts.links, counts.prose
    count = len(chars)
    before = np.cumsum(chars)
    total = before[-1]
    prose_chars = chars * prose
    prose_before = np.cumsum(prose_chars)
    position = np.arange(count)
    density = links / chars
    columns = [position, count - position, position / count, (before - chars) / total, total - before]
    columns += [prose_before - prose_chars, prose_before[-1] - prose_before]
    for distance in (1, 2):
        for step in (distance, -distance):
            columns += [shift(chars, step), shift(density, step)]
    columns += [shift(prose_chars, 1), shift(prose_chars, -1), shift(counts.heading, 1), shift(counts.heading, -1)]
    for reach in (2, 5, 12):
        around = window(chars, reach)
        columns += [around, window(links, reach) / around, window(prose_chars, reach) / around]
    last = np.maximum.accumulate(np.where(prose, position, -_FAR))
    following = np.minimum.accumulate(np.where(prose, position, count + _FAR)[::-1])[::-1]
    columns += [np.minimum(position - last, _FAR), np.minimum(following - position, _FAR)]
    page = [count, total, links.sum() / total, prose_before[-1] / total, prose.sum(), chars.max(), prose_before[-1]]
    return columns + page


def _of_containers(counts: _Counts, tree: Tree) -> Columns:
    """What the containers around a block hold."""
    chars = tree.below(counts.chars)
    links = tree.below(counts.links)
    prose = tree.below(counts.chars * counts.prose)
    blocks = tree.below(np.ones(len(counts.chars)))
    some = np.maximum(chars, 1)
    total, all_prose = max(chars[0], 1.0), max(prose[0], 1.0)
    columns = []
    for level in tree.levels(5):
        columns += [(links / some)[level], (prose / some)[level], (chars / total)[level], (prose / all_prose)[level]]
        columns.append(blocks[level])
    siblings = np.bincount(np.maximum(tree.parent, 0), minlength=len(tree.parent))
    levels = tree.levels(3)
    return columns + [siblings[level] for level in levels[1:]]


def _of_kinds(counts: _Counts, of_kind: Sequence[np.ndarray]) -> Columns:
    """Where the page's prose is, by what the names around it say."""
    prose = counts.chars * counts.prose
    elsewhere = float(prose[~(of_kind[0] | of_kind[1] | of_kind[2])].sum())
    shares = [float(prose[kind].sum()) / max(float(prose.sum()), 1.0) for kind in of_kind[:3]]
    return [elsewhere, *shares]


def _of_signatures(counts: _Counts, signatures: tuple[np.ndarray, ...]) -> Columns:
    """What the blocks with the same markup around them are, taken together."""
    prose = counts.chars * counts.prose
    all_prose, total = max(prose.sum(), 1.0), counts.chars.sum()
    columns = []
    for signature in signatures:
        chars, number = grouped(signature, counts.chars), grouped(signature, np.ones(len(signature)))
        mine, some = grouped(signature, prose), np.maximum(chars, 1)
        columns += [(mine / some)[signature], (mine / all_prose)[signature], (chars / total)[signature]]
        columns += [number[signature], (chars / np.maximum(number, 1))[signature]]
        columns.append((grouped(signature, counts.links) / some)[signature])
    return columns


def _inherited(containers: Sequence[Container]) -> tuple[list[int], list[int], list[int], list[int], list[int]]:
    """For each container: depth, the tags around it, what the names around it say, levels below such names."""
    depth: list[int] = []
    bits: list[int] = []
    kinds: list[int] = []
    chrome: list[int] = []
    content: list[int] = []
    left_out = CHROME | COMMENT | HIDDEN
    bit_of = _BITS.get
    for container in containers:
        around = container.parent
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
    return depth, bits, kinds, chrome, content


def _signatures(parents: Sequence[int], name_of: Sequence[int], names: Sequence[str]) -> tuple[list[int], ...]:
    """For each container three numbers: of the tags from the body to it, of tags and names, of the last two."""
    tags = _numbered(name.partition(">")[0] for name in names)
    plain = _numbered(map(_without_digits, names))
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
        # A pair as one integer, since a tuple would take twice as long.
        paths.append(path_of(above_path * count + tags[name], len(known[0])))
        named.append(named_of(above_named * count + own, len(known[1])))
        local.append(local_of(above * count + own, len(known[2])))
    return paths, named, local


def _numbered(texts: Iterable[str]) -> list[int]:
    """A number for each text, equal where they are."""
    numbers: dict[str, int] = {}
    return [numbers.setdefault(text, len(numbers)) for text in texts]


@lru_cache(maxsize=16384)
def _without_digits(names: str) -> str:
    return _DIGITS.sub("", names)


def _short_words(text: str) -> tuple[str, ...]:
    if len(text) > _SHORT:
        return ()
    words = _TEXT_WORD.findall(text.lower())
    return (*words, " ".join(words[:2])) if len(words) > 1 else tuple(words)


class Tree:
    """Sums over the containers of a page."""

    def __init__(self, home: np.ndarray, parent: np.ndarray, end: np.ndarray):
        self.home, self.parent, self.end = home, parent, end
        self.start = np.arange(len(parent))

    def below(self, values: np.ndarray) -> np.ndarray:
        """For each container the sum of `values` over the blocks in it, at any depth."""
        running = np.zeros(len(self.parent) + 1)
        np.cumsum(np.bincount(self.home, values, minlength=len(self.parent)), out=running[1:])
        sums: np.ndarray = running[self.end] - running[self.start]
        return sums

    def levels(self, count: int) -> list[np.ndarray]:
        """For each block its container, that one's parent, and so on; the body has none and stays."""
        found = [self.home]
        for _ in range(count - 1):
            found.append(np.maximum(self.parent[found[-1]], 0))
        return found


def matrix(columns: Columns, count: int) -> np.ndarray:
    """`columns` of `count` blocks as one array (count, columns)."""
    rows = np.empty((len(columns), count), dtype=np.float32)
    for row, column in zip(rows, columns, strict=True):
        row[:] = column
    return rows.T


def grouped(group: np.ndarray, values: np.ndarray) -> np.ndarray:
    """The sum of `values` for each number in `group`."""
    return np.bincount(group, values)


def shift(values: np.ndarray, steps: int) -> np.ndarray:
    """The value `steps` blocks before (after, where negative); -1 beyond the page's ends."""
    shifted = np.full(len(values), -1.0)
    if abs(steps) < len(values):
        if steps > 0:
            shifted[steps:] = values[:-steps]
        else:
            shifted[:steps] = values[-steps:]
    return shifted


def window(values: np.ndarray, reach: int) -> np.ndarray:
    """Sums over the blocks up to `reach` before and after."""
    running = np.concatenate(([0.0], np.cumsum(values)))
    position = np.arange(len(values))
    sums: np.ndarray = running[np.minimum(position + reach + 1, len(values))] - running[np.maximum(position - reach, 0)]
    return sums
