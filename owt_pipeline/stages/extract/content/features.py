"""Numbers for each block, from its text, neighbours and markup: the features of the model.

All features are counts, shares of counts and comparisons. No function is used whose last bit
depends on the processor, so that a page gives the same text everywhere.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import chain
from typing import Any

import numpy as np

from owt_pipeline.stages.extract.content.page_kind import PageKind
from owt_pipeline.stages.extract.html.blocks import HEADING, ROW, Block, Container
from owt_pipeline.stages.extract.html.names import (
    CHROME,
    COMMENT,
    CONTENT,
    HEADINGS,
    HIDDEN,
    UNSHOWN,
)

_SOME_FORMS = np.arange(ROW)[:, None]
_AROUND = tuple(
    "footer form ul ol dl blockquote article main section noscript"
    " nav aside header figure table details figcaption button".split()
)
_BITS = {tag: 1 << index for index, tag in enumerate(_AROUND)}
_AROUND_BITS = np.arange(len(_AROUND))[:, None]
_KIND_FLAGS = np.array((HIDDEN, CHROME, COMMENT, UNSHOWN))[:, None]
_DIGITS = re.compile(r"\d+")
_ENDS = tuple(".!?…。！？:;\"”»'’)")
_WORDS = bytes(b if b in (0, 95) or b > 127 or chr(b).isalnum() else 32 for b in range(256))
"""A table for bytes in lower case that leaves only words, and zeros between texts."""
_FAR = 1000

Columns = list[Any]
"""Features: arrays of one number for each block or for the page, or of several such rows."""


@dataclass(frozen=True)
class PageView:
    """A page as arrays: n blocks, and m containers that hold at least one.

    Attributes:
      counts (n): the sizes of the blocks; they are weighted by words.
      tree (m): the containers.
      paths: the distinct paths of names from the body to a container.
      path_of_block (n): the path of each block's container.
      signatures (kinds, n): for each kind of signature, a number that is equal for blocks with the
        same markup around.
      words (n): the lower-case words of each text.
      texts (n): the text of each block.
      heading (n): the index of the heading above each block; -1 for none.
      in_chrome (n): whether the names around a block mark it as navigation, a banner, what to read
        next and the like.
      in_comments (n): whether the names around a block mark it as a reader's comment.
      unshown (n): whether a style or an attribute around a block hides it.
      static (n, features): the features that do not depend on the model.
      shared: those of the static features that all blocks of the page share.
    """

    counts: Counts
    tree: Tree
    paths: Paths
    path_of_block: np.ndarray
    signatures: np.ndarray
    words: list[list[bytes]]
    texts: list[str]
    heading: np.ndarray
    in_chrome: np.ndarray
    in_comments: np.ndarray
    unshown: np.ndarray
    static: np.ndarray
    shared: list[float]


def view(blocks: Sequence[Block], kind: PageKind) -> PageView:
    """Return the page of this kind with these blocks."""
    containers = _filled(blocks)
    tree = Tree(blocks, containers)
    paths = Paths(containers, tree.parent.tolist())
    path_of_block = np.array(paths.of)[tree.container_of_block]
    depth, around_bits, kinds, chrome_depth, content_depth, *signatures = table(
        paths.inherited, np.int64
    )[:, path_of_block]
    texts = [block.text for block in blocks]
    lower = "\0".join(texts).lower().encode("utf-8", "replace")
    counts, columns = _measure(blocks, texts, lower)
    heading = np.full(len(blocks), -1)
    heading[1:] = _last(counts.form == HEADING, np.arange(len(blocks)))[:-1]
    of_kind = (kinds & _KIND_FLAGS) != 0
    of_headings, num_titles = _of_headings(blocks)
    shared = [num_titles, *_of_page(counts), *_of_kinds(counts, of_kind), *kind.features]
    columns += of_headings
    columns += _of_order(counts)
    columns += _of_containers(
        counts, tree, np.array([container.children for container in containers])
    )
    columns += _of_signatures(counts, signatures)
    columns += [(around_bits >> _AROUND_BITS) & 1, of_kind]
    columns += [depth, chrome_depth, content_depth]
    columns.append(np.array(shared)[:, None])
    return PageView(
        counts=counts,
        tree=tree,
        paths=paths,
        path_of_block=path_of_block,
        signatures=np.array(signatures),
        words=[text.split() for text in lower.translate(_WORDS).split(b"\0")],
        texts=texts,
        heading=heading,
        in_chrome=of_kind[1],
        in_comments=of_kind[2],
        unshown=of_kind[3],
        static=matrix(columns, len(blocks)),
        shared=shared,
    )


def _filled(blocks: Sequence[Block]) -> list[Container]:
    """The containers that hold text, in order."""
    found: dict[int, Container] = {}
    for block in blocks:
        around: Container | None = block.container
        while around is not None and around.index not in found:
            found[around.index] = around
            around = around.parent
    return [found[index] for index in sorted(found)]


class Paths:
    """The distinct paths of names from the body to a container; a page has 170 for 420 containers.

    Attributes:
      of: the path of each container.
      parent: for each path the one without its last name; -1 for the body.
      names: the distinct names of containers: tag, classes, id.
      name_of: for each path the index of its last name in `names`.
      inherited: for each path its depth, the tags and the kinds on it (bits), its levels below
        boilerplate and below content, and numbers for its tags, for its names, and for the last two
        names.
    """

    def __init__(self, containers: Sequence[Container], parents: Sequence[int]):
        self.of: list[int] = []
        self.parent: list[int] = []
        self.name_of: list[int] = []
        self.inherited: list[tuple[int, ...]] = []
        plains: list[int] = []
        known: dict[tuple[int, str, str, int], int] = {}
        of_name: dict[tuple[str, str], int] = {}
        of_plain: dict[tuple[str, str], int] = {}
        of_tags: dict[tuple[int, str], int] = {}
        of_named: dict[tuple[int, int], int] = {}
        of_last: dict[tuple[int, int], int] = {}
        for container, above in zip(containers, parents, strict=True):
            around = self.of[above] if above >= 0 else -1
            tag, names, kind = container.tag, container.names, container.kind
            path = known.setdefault((around, tag, names, kind), len(self.parent))
            self.of.append(path)
            if path < len(self.parent):
                continue
            plain = of_plain.setdefault((tag, _without_digits(names)), len(of_plain))
            if around < 0:
                row, tags, named, last = (0, _BITS.get(tag, 0), kind, _FAR, _FAR), -1, -1, -1
            else:
                depth, bits, kinds, chrome, content, tags, named, _ = self.inherited[around]
                chrome = 0 if kind & _LEFT_OUT else chrome + 1
                content = 0 if kind & CONTENT else content + 1
                row, last = (
                    (depth + 1, bits | _BITS.get(tag, 0), kinds | kind, chrome, content),
                    plains[around],
                )
            tags = of_tags.setdefault((tags, tag), len(of_tags))
            named = of_named.setdefault((named, plain), len(of_named))
            self.parent.append(around)
            self.name_of.append(of_name.setdefault((tag, names), len(of_name)))
            self.inherited.append(
                (*row, tags, named, of_last.setdefault((last, plain), len(of_last)))
            )
            plains.append(plain)
        self.names = [f"<{tag}> {given}" for tag, given in of_name]


@dataclass(frozen=True)
class Counts:
    """Sizes of n blocks.

    Attributes:
      chars, words, links (n): characters, words, and characters within links.
      form (n): the block's form.
      prose (n): whether the text is as long as a sentence or two and is not mostly links, as in
        articles.
    """

    chars: np.ndarray
    words: np.ndarray
    links: np.ndarray
    form: np.ndarray
    prose: np.ndarray


def _measure(blocks: Sequence[Block], texts: Sequence[str], lower: bytes) -> tuple[Counts, Columns]:
    """The sizes of blocks, and the features of their texts; `lower` is these in lower case, with
    zeros between them."""
    chars = np.array([block.chars for block in blocks], dtype=np.float64)
    links = np.array([block.link_chars for block in blocks], dtype=np.float64)
    form = _small(block.form for block in blocks)
    codes = np.frombuffer(lower, dtype=np.uint8)
    starts = np.zeros(len(texts), dtype=np.intp)
    starts[1:] = np.flatnonzero(codes == 0) + 1
    is_space = codes == 32
    ends = (codes == 46) | (codes == 63) | (codes == 33)
    ends[:-1] &= is_space[1:]
    ends[-1] = False
    masks = (is_space, codes == 44, ends, (codes >= 48) & (codes <= 57), codes == 10)
    spaces, commas, sentences, digits, lines = (
        np.add.reduceat(mask, starts, dtype=np.int32) for mask in masks
    )
    words = np.maximum(spaces + 1.0, np.floor(chars / 12))  # for scripts without spaces
    at_end = _small(text.endswith(_ENDS) for text in texts)
    firsts = [text[0] for text in texts]
    times = Counter(texts)
    columns = [
        chars,
        words,
        chars / words,
        links / chars,
        commas / words,
        sentences + at_end,
        at_end,
        digits / words,
        lines,
        _small(map(str.isupper, firsts)),
        _small(map(str.islower, firsts)),
        np.array([times[text] for text in texts]),
        form == _SOME_FORMS,
        np.array([block.images for block in blocks]),
        np.array([block.links for block in blocks]),
    ]
    return Counts(
        chars, words, links, form, (chars > 80) & (links < 0.4 * chars) & (form != HEADING)
    ), columns


def _small(values: Iterable[int]) -> np.ndarray:
    """Numbers below 256, or flags, as an array; through bytes, since np.array takes three times
    as long."""
    return np.frombuffer(bytes(values), dtype=np.uint8)


def _of_headings(blocks: Sequence[Block]) -> tuple[Columns, int]:
    """Return the level of a heading and the distances to the last heading and the first title;
    and the number of titles."""
    position = np.arange(len(blocks))
    levels = np.array([HEADINGS.get(block.container.tag, 7) for block in blocks])
    titles = np.flatnonzero(levels == 1)
    return [
        levels,
        np.minimum(position - _last(levels < 7, position, -_FAR), _FAR),
        position - titles[0] if len(titles) and titles[0] < _FAR else -_FAR,
    ], len(titles)


def _last(mask: np.ndarray, position: np.ndarray, otherwise: int = -1) -> np.ndarray:
    """For each block the position of the last block up to it where `mask` is true."""
    found: np.ndarray = np.maximum.accumulate(np.where(mask, position, otherwise))
    return found


def _of_order(counts: Counts) -> Columns:
    """The position of a block on the page, and its neighbours."""
    chars, links, prose = counts.chars, counts.links, counts.prose
    count = len(chars)
    before = chars.cumsum()
    total = before[-1]
    prose_chars = chars * prose
    prose_before = prose_chars.cumsum()
    position = np.arange(count)
    columns = [
        position,
        count - position,
        position / count,
        (before - chars) / total,
        total - before,
    ]
    columns += [prose_before - prose_chars, prose_before[-1] - prose_before]
    neighbours = shifts(
        np.array((chars, links / chars, prose_chars, counts.form == HEADING)), (1, -1, 2, -2)
    )
    columns += [around[:2] for around in neighbours]
    columns += [neighbours[1][2], neighbours[0][3], neighbours[1][3]]
    for around in windows(np.array((chars, links, prose_chars)), (2, 5, 12)):
        columns += [around[0], around[1:] / around[0]]
    last = np.maximum.accumulate(np.where(prose, position, -_FAR))
    following = np.minimum.accumulate(np.where(prose, position, count + _FAR)[::-1])[::-1]
    columns += [np.minimum(position - last, _FAR), np.minimum(following - position, _FAR)]
    return columns


def _of_page(counts: Counts) -> list[float]:
    """Return the numbers of blocks and characters, and the shares of links and prose."""
    chars, prose = counts.chars, counts.prose
    total = float(chars.sum())
    prose_chars = float((chars * prose).sum())
    return [
        len(chars),
        total,
        float(counts.links.sum()) / total,
        prose_chars / total,
        int(prose.sum()),
        float(chars.max()),
        prose_chars,
    ]


def _of_kinds(counts: Counts, of_kind: np.ndarray) -> list[float]:
    """Return the shares of the page's prose in hidden containers, in boilerplate, in comments and
    in none of these."""
    prose = counts.chars * counts.prose
    all_prose = max(float(prose.sum()), 1.0)
    shares = [float(prose[kind].sum()) / all_prose for kind in of_kind[:3]]
    elsewhere = float(prose[~of_kind[:3].any(axis=0)].sum())
    return [*shares, elsewhere]


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
    return [shares.take(level, axis=1) for level in levels] + [
        siblings[level] for level in levels[1:3]
    ]


def _of_signatures(counts: Counts, signatures: Sequence[np.ndarray]) -> Columns:
    """Sums over the blocks with the same markup around them."""
    prose = counts.chars * counts.prose
    all_prose, total = max(prose.sum(), 1.0), counts.chars.sum()
    columns: Columns = []
    for signature in signatures:
        chars, number = np.bincount(signature, counts.chars), np.bincount(signature)
        mine, some = np.bincount(signature, prose), np.maximum(chars, 1)
        links = np.bincount(signature, counts.links)
        sums = (
            mine / some,
            mine / all_prose,
            chars / total,
            number,
            chars / np.maximum(number, 1),
            links / some,
        )
        columns.append(np.array(sums).take(signature, axis=1))
    return columns


_LEFT_OUT = CHROME | COMMENT | HIDDEN


@lru_cache(1 << 15)
def _without_digits(names: str) -> str:
    return _DIGITS.sub("", names)


class Tree:
    """The m containers of a page's n blocks, with sums over them.

    Attributes:
      container_of_block (n): the container of each block.
      parent, end (m): the descendants of container c are c + 1 to end[c] - 1; the parent of the
        first is -1.
    """

    def __init__(self, blocks: Sequence[Block], containers: Sequence[Container]):
        indexes = [container.index for container in containers]
        number = {index: position for position, index in enumerate(indexes)}
        self.container_of_block = np.array([number[block.container.index] for block in blocks])
        self.parent = np.array(
            [number[one.parent.index] if one.parent else -1 for one in containers]
        )
        self.end = np.searchsorted(indexes, [container.end for container in containers])
        self._up = np.maximum(self.parent, 0)

    def below(self, values: np.ndarray) -> np.ndarray:
        """For each container, the sum of `values` over the blocks in it, at any depth."""
        running = np.zeros(len(self.parent) + 1)
        np.cumsum(
            np.bincount(self.container_of_block, values, minlength=len(self.parent)),
            out=running[1:],
        )
        sums: np.ndarray = running[self.end] - running[:-1]
        return sums

    def levels(self, count: int) -> list[np.ndarray]:
        """For each block its container, that container's parent, and so on; the body counts as
        its own parent."""
        found = [self.container_of_block]
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


def table(rows: Sequence[tuple[float, ...]], kind: type[np.generic]) -> np.ndarray:
    """`rows` as an array of that kind (columns, rows); np.array takes twice as long."""
    return np.fromiter(chain.from_iterable(rows), kind).reshape(len(rows), -1).T


def shifts(values: np.ndarray, steps: Sequence[int]) -> list[np.ndarray]:
    """Rows of values shifted by each of `steps` blocks (negative: from following blocks); -1
    beyond the page's ends."""
    most, count = max(map(abs, steps)), values.shape[1]
    padded = np.full((len(values), count + 2 * most), -1.0)
    padded[:, most : most + count] = values
    return [padded[:, most - step : most - step + count] for step in steps]


def windows(values: np.ndarray, reaches: Sequence[int]) -> list[np.ndarray]:
    """Sums of rows of values over windows of blocks: for each of `reaches`, that many before and
    after."""
    most, count = max(reaches), values.shape[1]
    running = np.zeros((len(values), count + 2 * most + 1))
    np.cumsum(values, axis=1, out=running[:, most + 1 : most + 1 + count])
    running[:, most + 1 + count :] = running[:, most + count, None]
    return [
        running[:, most + reach + 1 : most + reach + 1 + count]
        - running[:, most - reach : most - reach + count]
        for reach in reaches
    ]
