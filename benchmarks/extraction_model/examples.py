"""Labelled pages as training examples: the features of their blocks, with labels and weights.

A block's label is the share of it that belongs to the main text. In a page with snippets, most
blocks have no label. They get one with a small weight if three opinions agree: trafilatura's,
trafilatura's with precision, and that of a small model fitted on the pages with a known text.
"""

from __future__ import annotations

import dataclasses
import re
import zlib
from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
from rapidfuzz.distance import LCSseq

from owt_pipeline.stages.extract.content.features import PageView, view
from owt_pipeline.stages.extract.content.metadata import read_head
from owt_pipeline.stages.extract.content.model import short_words
from owt_pipeline.stages.extract.content.page_kind import read_page_kind
from owt_pipeline.stages.extract.html.blocks import CODE, DISPLAY, FORMULA, PREFORMATTED, Block
from owt_pipeline.stages.extract.html.names import read_name
from owt_pipeline.stages.extract.html.reader import read_page

from .labelled_pages import LabelledPage

RUN = 5
"""Tokens in a row that both have in common from which on that is no accident."""
LEAST_COVERED = 0.6
"""Pages whose blocks have less of their truth are left out: a script or an error shows something
else."""
UNSURE = 0.15
"""The weight of a block that no snippet labels, but that other extractors agree on."""

_WITHOUT_URL = 6
"""One in so many pages is learned without its URL, since `owt.extract(html)` has none."""

_FORMULA = re.compile(f"([{FORMULA}{DISPLAY}])[^{FORMULA}{DISPLAY}]*\\1")
_TOKEN = re.compile(r"[\u3040-\u30ff\u3400-\u9fff\uac00-\ud7af]|\w+")


@dataclass(frozen=True)
class Example:
    """A page with n blocks.

    Attributes:
      page: the labelled page.
      view: its features.
      label (n): the share of each block that belongs to the main text, 0 to 1.
      weight (n): the weight of each block; the sum is 1.
      words: its words, for their log-odds.
    """

    page: LabelledPage
    view: PageView
    label: np.ndarray
    weight: np.ndarray
    words: WordCounts


def example(page: LabelledPage, opinions: Callable[[PageView], Sequence[str]]) -> Example | None:
    """`page` as an example; None if nothing can be learned from it.

    Args:
      page: with its truth or its snippets.
      opinions: returns the main text by other extractors; called for pages with snippets only.
    """
    read = read_page(page.html)
    blocks = read.blocks
    if not blocks:
        return None
    kind = read_page_kind(url_for_fitting(page.url), read.metas, read_head(read))
    seen = view(blocks, kind)
    texts = [without_formulas(block) for block in blocks]
    found = labels(page, texts, opinions(seen) if page.truth is None else [])
    if found is None:
        return None
    label, sure = found
    weight = sure * seen.counts.words**0.6
    weight /= weight.sum()
    page = dataclasses.replace(page, html="")
    words = count_words(seen, page.host, label, weight)
    return Example(page, seen, label, weight, words)


def url_for_fitting(url: str) -> str:
    """Return the URL with which a page is learned: its own, or none for some pages."""
    return "" if zlib.crc32(url.encode()) % _WITHOUT_URL == 0 else url


def without_formulas(block: Block) -> str:
    """The text of a block without its formulas, which pages write differently."""
    if block.marked is None or block.form == PREFORMATTED:
        return block.text
    return _FORMULA.sub(" ", block.marked).replace(CODE, "")


def labels(
    page: LabelledPage, texts: Sequence[str], opinions: Sequence[str]
) -> tuple[np.ndarray, np.ndarray] | None:
    """Label and certainty (both 0 to 1) of each block; None for an unusable page.

    Args:
      page: with its truth or its snippets.
      texts: of the page's blocks, without formulas, which pages and truths write differently.
      opinions: the main text by other extractors; used for pages with snippets only.
    """
    if page.truth is not None:
        found = _from_text(page.truth, texts)
        return (
            None
            if found is None
            else (found, np.array([float(bool(_TOKEN.search(text))) for text in texts]))
        )
    return _from_snippets(page, texts, opinions)


def _from_text(truth: str, texts: Sequence[str]) -> np.ndarray | None:
    """The share of each block's tokens in runs shared with `truth`."""
    tokens = [_TOKEN.findall(text.lower()) for text in texts]
    flat = [token for block in tokens for token in block]
    wanted = _TOKEN.findall(truth.lower())
    if not flat or not wanted:
        return None
    run = np.zeros(
        len(flat), dtype=np.int64
    )  # of tokens in common: the length of the one that each is in
    place = np.full(len(flat), -1)  # and where it is in `wanted`
    for code in LCSseq.opcodes(flat, wanted):
        if code.tag == "equal":
            run[code.src_start : code.src_end] = code.src_end - code.src_start
            place[code.src_start : code.src_end] = np.arange(code.dest_start, code.dest_end)
    if (run > 0).sum() < LEAST_COVERED * len(wanted):
        return None
    least = min(RUN, len(wanted))
    ends = np.cumsum([len(block) for block in tokens])
    shares, first, last = [], [], []
    for block, end in zip(tokens, ends.tolist(), strict=True):
        part = slice(end - len(block), end)
        shares.append(float((run[part] >= least).mean()) if block else 0.0)
        first.append(int(place[part.start]) if block else -1)
        last.append(int(place[end - 1]) if block else -1)
    complete = [
        bool(block) and bool((place[e - len(block) : e] >= 0).all())
        for block, e in zip(tokens, ends, strict=True)
    ]
    # A block too short for a run belongs if all of it is in common and the one next to it belongs.
    # So does a title that is matched elsewhere, in a menu, while it precedes its text in the truth
    # as on the page.
    for index in range(len(tokens) - 2, -1, -1):
        size, at = len(tokens[index]), first[index + 1]
        if size and shares[index] < 0.5 <= shares[index + 1]:
            if at >= size and tokens[index] == wanted[at - size : at]:
                shares[index], first[index] = 1.0, at - size
            elif complete[index]:
                shares[index] = 1.0
    for index in range(1, len(tokens)):
        size, at = len(tokens[index]), last[index - 1] + 1
        if size and shares[index] < 0.5 <= shares[index - 1]:
            if at > 0 and tokens[index] == wanted[at : at + size]:
                shares[index], last[index] = 1.0, at + size - 1
            elif complete[index]:
                shares[index] = 1.0
    return np.array(shares)


def _from_snippets(
    page: LabelledPage, texts: Sequence[str], opinions: Sequence[str]
) -> tuple[np.ndarray, np.ndarray] | None:
    wanted, unwanted = (
        [" ".join(snippet.split()) for snippet in some] for some in (page.wanted, page.unwanted)
    )
    others = [" ".join(opinion.split()) for opinion in opinions]
    label, sure = np.zeros(len(texts)), np.zeros(len(texts))
    for index, text in enumerate(texts):
        flat = " ".join(text.split())
        good = any(snippet in flat or (len(flat) > 20 and flat in snippet) for snippet in wanted)
        bad = any(snippet in flat or (len(flat) > 20 and flat in snippet) for snippet in unwanted)
        if good != bad:
            label[index], sure[index] = float(good), 1.0
        elif not good:
            votes = [flat in other for other in others]
            if not any(votes) or (all(votes) and len(flat) > 20):  # a few letters are in any text
                label[index], sure[index] = float(any(votes)), UNSURE
    return (label, sure) if (label * sure).any() else None


@dataclass(frozen=True)
class WordCounts:
    """One page's words, with the weight of their blocks, and the part of it that belongs to the
    main text."""

    host: str
    names: dict[str, tuple[float, float]]
    texts: dict[str, tuple[float, float]]


def name_words(name: str) -> list[str]:
    """The distinct words and complete classes in a container's name, in order."""
    tag, _, names = name.partition(" ")
    return list(
        dict.fromkeys([tag, *(word for one in names.split() for word in read_name(one)[1])])
    )


def count_words(page: PageView, host: str, label: np.ndarray, weight: np.ndarray) -> WordCounts:
    """The words of `page`, whose blocks have these labels and weights."""
    names: dict[str, list[float]] = defaultdict(lambda: [0.0, 0.0])
    own, good = page.tree.below(weight), page.tree.below(weight * label)
    words_of = [name_words(name) for name in page.paths.names]
    for path, all_weight, good_weight in zip(
        page.paths.of_container, own.tolist(), good.tolist(), strict=True
    ):
        if all_weight > 0:
            for word in words_of[page.paths.name_of[path]]:
                entry = names[word]
                entry[0] += all_weight
                entry[1] += good_weight
    texts: dict[str, list[float]] = defaultdict(lambda: [0.0, 0.0])
    of_blocks = map(short_words, page.words, page.counts.chars.tolist())
    for short, share, some in zip(of_blocks, label.tolist(), (weight > 0).tolist(), strict=True):
        if some:
            for text in set(short):
                entry = texts[text.decode("utf-8", "replace")]
                entry[0] += 1
                entry[1] += share
    return WordCounts(
        host,
        {k: (v[0], v[1]) for k, v in names.items()},
        {k: (v[0], v[1]) for k, v in texts.items()},
    )
