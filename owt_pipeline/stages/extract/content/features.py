"""Numbers for each block, from its text, neighbours and markup: the features of the model.

All features are counts, shares of counts and comparisons. No function is used whose last bit
depends on the processor, so that a page gives the same text everywhere.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from owt_pipeline.stages.extract.content.arrays import (
    Columns,
    last_positions,
    matrix,
    shifts,
    small_numbers,
    table,
    windows,
)
from owt_pipeline.stages.extract.content.containers import (
    ANCESTOR_TAGS,
    FAR,
    Paths,
    Tree,
    containers_with_text,
)
from owt_pipeline.stages.extract.content.page_kind import PageKind
from owt_pipeline.stages.extract.html.blocks import HEADING, ROW, Block
from owt_pipeline.stages.extract.html.names import (
    CHROME,
    COMMENT,
    HEADINGS,
    HIDDEN,
    UNSHOWN,
)

# The forms that are features: all before ROW.
_FORMS = np.arange(ROW)[:, None]
_TAG_BITS = np.arange(len(ANCESTOR_TAGS))[:, None]
_KIND_FLAGS = np.array((HIDDEN, CHROME, COMMENT, UNSHOWN))[:, None]
_ENDS = frozenset(".!?…。！？:;\"”»'’)")
_WORDS = bytes(b if b in (0, 95) or b > 127 or chr(b).isalnum() else 32 for b in range(256))
"""A table for bytes in lower case that leaves only words, and zeros between texts."""


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
      in_comments (n): whether the names around a block mark it as a reader's comment.
      in_chrome (n): whether the names around a block mark it as navigation, a banner, what to read
        next and the like.
      unshown (n): whether a style or an attribute around a block hides it.
      static (n, features): the features that do not depend on the model.
      shared: the static features that all blocks of the page share.
    """

    counts: Counts
    tree: Tree
    paths: Paths
    path_of_block: np.ndarray
    signatures: np.ndarray
    words: list[list[bytes]]
    texts: list[str]
    heading: np.ndarray
    in_comments: np.ndarray
    in_chrome: np.ndarray
    unshown: np.ndarray
    static: np.ndarray
    shared: list[float]


def view(blocks: Sequence[Block], kind: PageKind) -> PageView:
    """Return the page of this kind with these blocks."""
    containers = containers_with_text(blocks)
    tree = Tree(blocks, containers)
    paths = Paths(containers, tree.parent.tolist())
    path_of_block = np.array(paths.of_container)[tree.container_of_block]
    inherited = table(paths.inherited, np.int64)[:, path_of_block]
    depth, tags, kinds, chrome_depth, content_depth, *signatures = inherited
    texts = [block.text for block in blocks]
    lower = "\0".join(texts).lower().encode("utf-8", "replace")
    counts, columns = _measure(blocks, texts, lower)
    heading = np.full(len(blocks), -1)
    heading[1:] = last_positions(counts.form == HEADING, np.arange(len(blocks)))[:-1]
    is_of_kind = (kinds & _KIND_FLAGS) != 0
    heading_columns, num_titles = _heading_features(blocks)
    shared = [num_titles, *_page_features(counts), *_kind_shares(counts, is_of_kind)]
    shared += kind.features
    num_siblings = np.array([container.children for container in containers])
    columns += heading_columns
    columns += _order_features(counts)
    columns += _container_features(counts, tree, num_siblings)
    columns += _signature_features(counts, signatures)
    columns += [(tags >> _TAG_BITS) & 1, is_of_kind]
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
        in_comments=is_of_kind[2],
        in_chrome=is_of_kind[1],
        unshown=is_of_kind[3],
        static=matrix(columns, len(blocks)),
        shared=shared,
    )


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


# A block of prose has more characters than this, and links are a smaller share of them.
_MIN_PROSE_CHARS = 80
_MAX_PROSE_LINKED_SHARE = 0.4
# Characters of a word at least, for scripts without spaces.
_MAX_CHARS_PER_WORD = 12


def _measure(blocks: Sequence[Block], texts: Sequence[str], lower: bytes) -> tuple[Counts, Columns]:
    """Return the sizes of blocks, and the features of their texts.

    `lower` is the texts in lower case with zeros between them.
    """
    chars = np.array([block.chars for block in blocks], dtype=np.float64)
    links = np.array([block.link_chars for block in blocks], dtype=np.float64)
    form = small_numbers([block.form for block in blocks])
    codes = np.frombuffer(lower, dtype=np.uint8)
    starts = np.zeros(len(texts), dtype=np.intp)
    starts[1:] = np.flatnonzero(codes == 0) + 1
    is_space = codes == ord(" ")
    # A sentence ends at a full stop, a question mark or an exclamation mark before a space.
    is_end = (codes == ord(".")) | (codes == ord("?")) | (codes == ord("!"))
    is_end[:-1] &= is_space[1:]
    is_end[-1] = False
    is_comma = codes == ord(",")
    is_digit = (codes >= ord("0")) & (codes <= ord("9"))
    is_line_end = codes == ord("\n")
    masks = (is_space, is_comma, is_end, is_digit, is_line_end)
    spaces, commas, sentences, digits, lines = (
        np.add.reduceat(mask, starts, dtype=np.int32) for mask in masks
    )
    words = np.maximum(spaces + 1.0, np.floor(chars / _MAX_CHARS_PER_WORD))
    ends_sentence = small_numbers([text[-1] in _ENDS for text in texts])
    first_letters = [text[0] for text in texts]
    times = Counter(texts)
    columns = [
        chars,
        words,
        chars / words,
        links / chars,
        commas / words,
        sentences + ends_sentence,
        ends_sentence,
        digits / words,
        lines,
        small_numbers(map(str.isupper, first_letters)),
        small_numbers(map(str.islower, first_letters)),
        np.array([times[text] for text in texts]),
        form == _FORMS,
        np.array([block.images for block in blocks]),
        np.array([block.links for block in blocks]),
    ]
    is_long = chars > _MIN_PROSE_CHARS
    is_prose = is_long & (links < _MAX_PROSE_LINKED_SHARE * chars) & (form != HEADING)
    return Counts(chars, words, links, form, is_prose), columns


def _heading_features(blocks: Sequence[Block]) -> tuple[Columns, int]:
    """Return features of headings, and the number of titles.

    The features are the level of a heading and the distances to the last heading and to the first
    title.
    """
    position = np.arange(len(blocks))
    levels = np.array([HEADINGS.get(block.container.tag, 7) for block in blocks])
    titles = np.flatnonzero(levels == 1)
    last_heading = last_positions(levels < 7, position, -FAR)
    has_title = len(titles) > 0 and titles[0] < FAR
    columns = [
        levels,
        np.minimum(position - last_heading, FAR),
        position - titles[0] if has_title else -FAR,
    ]
    return columns, len(titles)


def _order_features(counts: Counts) -> Columns:
    """Return features of the position of a block on the page, and of its neighbours."""
    chars = counts.chars
    links = counts.links
    prose = counts.prose
    count = len(chars)
    chars_until = chars.cumsum()
    total = chars_until[-1]
    prose_chars = chars * prose
    prose_until = prose_chars.cumsum()
    position = np.arange(count)
    columns = [
        position,
        count - position,
        position / count,
        (chars_until - chars) / total,
        total - chars_until,
    ]
    columns += [prose_until - prose_chars, prose_until[-1] - prose_until]
    sizes = np.array((chars, links / chars, prose_chars, counts.form == HEADING))
    neighbours = shifts(sizes, (1, -1, 2, -2))
    columns += [neighbour[:2] for neighbour in neighbours]
    columns += [neighbours[1][2], neighbours[0][3], neighbours[1][3]]
    for window in windows(np.array((chars, links, prose_chars)), (2, 5, 12)):
        columns += [window[0], window[1:] / window[0]]
    last = last_positions(prose, position, -FAR)
    following = np.minimum.accumulate(np.where(prose, position, count + FAR)[::-1])[::-1]
    columns += [np.minimum(position - last, FAR), np.minimum(following - position, FAR)]
    return columns


def _page_features(counts: Counts) -> list[float]:
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


def _kind_shares(counts: Counts, is_of_kind: np.ndarray) -> list[float]:
    """Return the shares of the page's prose by the kind of the containers around it.

    The kinds are hidden, boilerplate, comments, and none of these.
    """
    prose = counts.chars * counts.prose
    all_prose = max(float(prose.sum()), 1.0)
    shares = [float(prose[kind].sum()) / all_prose for kind in is_of_kind[:3]]
    elsewhere = float(prose[~is_of_kind[:3].any(axis=0)].sum())
    return [*shares, elsewhere]


def _container_features(counts: Counts, tree: Tree, num_siblings: np.ndarray) -> Columns:
    """Return features of the contents of the five containers around a block."""
    chars = tree.below(counts.chars)
    links = tree.below(counts.links)
    prose = tree.below(counts.chars * counts.prose)
    num_blocks = tree.below(np.ones(len(counts.chars)))
    some_chars = np.maximum(chars, 1)
    total = max(chars[0], 1.0)
    all_prose = max(prose[0], 1.0)
    shares = np.array(
        (links / some_chars, prose / some_chars, chars / total, prose / all_prose, num_blocks)
    )
    levels = tree.levels(5)
    columns: Columns = [shares.take(level, axis=1) for level in levels]
    return columns + [num_siblings[level] for level in levels[1:3]]


def _signature_features(counts: Counts, signatures: Sequence[np.ndarray]) -> Columns:
    """Return sums over the blocks with the same markup around them."""
    prose = counts.chars * counts.prose
    all_prose = max(prose.sum(), 1.0)
    total = counts.chars.sum()
    columns: Columns = []
    for signature in signatures:
        chars = np.bincount(signature, counts.chars)
        num_blocks = np.bincount(signature)
        prose_chars = np.bincount(signature, prose)
        links = np.bincount(signature, counts.links)
        some_chars = np.maximum(chars, 1)
        sums = (
            prose_chars / some_chars,
            prose_chars / all_prose,
            chars / total,
            num_blocks,
            chars / np.maximum(num_blocks, 1),
            links / some_chars,
        )
        columns.append(np.array(sums).take(signature, axis=1))
    return columns
