"""Labelled pages as training examples: the features of their blocks, with labels and weights.

A block's label is the share of it that belongs to the main text. In a page with snippets, most
blocks have no label. They get one with a small weight if three opinions agree: trafilatura's,
trafilatura's with precision, and a small model's that was fitted on the pages with a known text.
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

# As many tokens in a row are not in common by accident.
_MIN_RUN = 5
# Pages whose blocks have less of their truth are left out: a script or an error shows something
# else.
_MIN_COVERED_SHARE = 0.6
# The weight of a block that no snippet labels, but that other extractors agree on.
_UNSURE_WEIGHT = 0.15
# A shorter text is part of many snippets and texts by accident.
_MIN_CHARS_OF_PART = 20
# The weight of a block rises with its words, but more slowly: a long block is decided as a whole.
_WEIGHT_EXPONENT = 0.6
# One page in as many is learned without its URL, since `owt.extract(html)` has none.
_PAGES_PER_PAGE_WITHOUT_URL = 6

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
    """Return a page as an example; None if nothing can be learned from it.

    Args:
      page: with its truth or its snippets.
      opinions: returns the main text by other extractors; called for pages with snippets only.
    """
    parsed = read_page(page.html)
    blocks = parsed.blocks
    if not blocks:
        return None
    kind = read_page_kind(url_for_fitting(page.url), parsed.metas, read_head(parsed))
    page_view = view(blocks, kind)
    texts = [without_formulas(block) for block in blocks]
    other_texts = opinions(page_view) if page.truth is None else []
    labels_and_certainty = labels(page, texts, other_texts)
    if labels_and_certainty is None:
        return None
    label, certainty = labels_and_certainty
    weight = certainty * page_view.counts.words**_WEIGHT_EXPONENT
    weight /= weight.sum()
    # The markup would be most of the memory.
    page = dataclasses.replace(page, html="")
    words = count_words(page_view, page.host, label, weight)
    return Example(page, page_view, label, weight, words)


def url_for_fitting(url: str) -> str:
    """Return the URL with which a page is learned: its own, or none for some pages."""
    return "" if zlib.crc32(url.encode()) % _PAGES_PER_PAGE_WITHOUT_URL == 0 else url


def without_formulas(block: Block) -> str:
    """Return the text of a block without its formulas, which pages write differently."""
    if block.marked is None or block.form == PREFORMATTED:
        return block.text
    return _FORMULA.sub(" ", block.marked).replace(CODE, "")


def labels(
    page: LabelledPage, texts: Sequence[str], opinions: Sequence[str]
) -> tuple[np.ndarray, np.ndarray] | None:
    """Return the label and the certainty (both 0 to 1) of each block; None for an unusable page.

    Args:
      page: with its truth or its snippets.
      texts: of the page's blocks, without formulas, which pages and truths write differently.
      opinions: the main text by other extractors; used for pages with snippets only.
    """
    if page.truth is None:
        return _from_snippets(page, texts, opinions)
    shares = _from_text(page.truth, texts)
    if shares is None:
        return None
    has_token = [float(bool(_TOKEN.search(text))) for text in texts]
    return shares, np.array(has_token)


def _from_text(truth: str, texts: Sequence[str]) -> np.ndarray | None:
    """Return the share of each block's tokens in runs shared with `truth`.

    Return None if the blocks have too little of it.
    """
    tokens = [_TOKEN.findall(text.lower()) for text in texts]
    all_tokens = [token for block_tokens in tokens for token in block_tokens]
    true_tokens = _TOKEN.findall(truth.lower())
    if not all_tokens or not true_tokens:
        return None
    # For each token in common the length of the run that it is in, and its place in the truth.
    run = np.zeros(len(all_tokens), dtype=np.int64)
    place = np.full(len(all_tokens), -1)
    for code in LCSseq.opcodes(all_tokens, true_tokens):
        if code.tag == "equal":
            run[code.src_start : code.src_end] = code.src_end - code.src_start
            place[code.src_start : code.src_end] = np.arange(code.dest_start, code.dest_end)
    if (run > 0).sum() < _MIN_COVERED_SHARE * len(true_tokens):
        return None
    min_run = min(_MIN_RUN, len(true_tokens))
    shares: list[float] = []
    first_places: list[int] = []
    last_places: list[int] = []
    is_complete: list[bool] = []
    end = 0
    for block_tokens in tokens:
        start = end
        end += len(block_tokens)
        if not block_tokens:
            shares.append(0.0)
            first_places.append(-1)
            last_places.append(-1)
            is_complete.append(False)
            continue
        shares.append(float((run[start:end] >= min_run).mean()))
        first_places.append(int(place[start]))
        last_places.append(int(place[end - 1]))
        is_complete.append(bool((place[start:end] >= 0).all()))
    places = _Places(first_places, last_places, is_complete)
    _add_neighbours(tokens, true_tokens, shares, places)
    return np.array(shares)


@dataclass(frozen=True)
class _Places:
    """Where the tokens of each block are in the truth; -1 for a token that is not in common.

    Attributes:
      first, last: the place of the block's first and of its last token.
      is_complete: whether all of the block's tokens are in common.
    """

    first: list[int]
    last: list[int]
    is_complete: list[bool]


def _add_neighbours(
    tokens: Sequence[Sequence[str]],
    true_tokens: Sequence[str],
    shares: list[float],
    places: _Places,
) -> None:
    """Set the shares of short blocks next to blocks of the main text to 1.

    A block too short for a run belongs if all of it is in common and the one next to it belongs.
    So does a title that is matched elsewhere, in a menu, while it precedes its text in the truth
    as on the page.
    """
    for index in range(len(tokens) - 2, -1, -1):
        size = len(tokens[index])
        next_place = places.first[index + 1]
        if not size or not shares[index] < 0.5 <= shares[index + 1]:
            continue
        if next_place >= size and tokens[index] == true_tokens[next_place - size : next_place]:
            shares[index] = 1.0
            places.first[index] = next_place - size
        elif places.is_complete[index]:
            shares[index] = 1.0
    for index in range(1, len(tokens)):
        size = len(tokens[index])
        next_place = places.last[index - 1] + 1
        if not size or not shares[index] < 0.5 <= shares[index - 1]:
            continue
        if next_place > 0 and tokens[index] == true_tokens[next_place : next_place + size]:
            shares[index] = 1.0
            places.last[index] = next_place + size - 1
        elif places.is_complete[index]:
            shares[index] = 1.0


def _from_snippets(
    page: LabelledPage, texts: Sequence[str], opinions: Sequence[str]
) -> tuple[np.ndarray, np.ndarray] | None:
    """Return labels and certainty from the page's snippets; None if they label no block."""
    wanted = [" ".join(snippet.split()) for snippet in page.wanted]
    unwanted = [" ".join(snippet.split()) for snippet in page.unwanted]
    opinions = [" ".join(opinion.split()) for opinion in opinions]
    label = np.zeros(len(texts))
    certainty = np.zeros(len(texts))
    for index, text in enumerate(texts):
        line = " ".join(text.split())
        is_wanted = _shares_snippet(line, wanted)
        if is_wanted != _shares_snippet(line, unwanted):
            label[index] = float(is_wanted)
            certainty[index] = 1.0
        elif not is_wanted:
            votes = [line in opinion for opinion in opinions]
            # A few letters are in any text.
            is_agreed_on = all(votes) and len(line) > _MIN_CHARS_OF_PART
            if is_agreed_on or not any(votes):
                label[index] = float(any(votes))
                certainty[index] = _UNSURE_WEIGHT
    if not (label * certainty).any():
        return None
    return label, certainty


def _shares_snippet(line: str, snippets: Sequence[str]) -> bool:
    """Return whether a block contains a snippet or is a part of one."""
    is_long = len(line) > _MIN_CHARS_OF_PART
    return any(snippet in line or (is_long and line in snippet) for snippet in snippets)


@dataclass(frozen=True)
class WordCounts:
    """The words of one page.

    Attributes:
      host: its host.
      names: for each word in the names of elements the weight of the blocks in them, and the part
        of this weight that belongs to the main text.
      texts: the same for each short text, with 1 for each of its blocks as weight.
    """

    host: str
    names: dict[str, tuple[float, float]]
    texts: dict[str, tuple[float, float]]


def name_words(name: str) -> list[str]:
    """Return the distinct words and complete classes in a container's name, in order."""
    tag, _, names = name.partition(" ")
    words = [tag]
    for class_or_id in names.split():
        words += read_name(class_or_id)[1]
    return list(dict.fromkeys(words))


def count_words(page: PageView, host: str, label: np.ndarray, weight: np.ndarray) -> WordCounts:
    """Return the words of a page whose blocks have these labels and weights."""
    return WordCounts(host, _count_names(page, label, weight), _count_texts(page, label, weight))


def _count_names(
    page: PageView, label: np.ndarray, weight: np.ndarray
) -> dict[str, tuple[float, float]]:
    counts: dict[str, list[float]] = defaultdict(lambda: [0.0, 0.0])
    weights = page.tree.below(weight).tolist()
    main_weights = page.tree.below(weight * label).tolist()
    words_by_name = [name_words(name) for name in page.paths.names]
    for path, all_weight, main_weight in zip(
        page.paths.of_container, weights, main_weights, strict=True
    ):
        if all_weight <= 0:
            continue
        for word in words_by_name[page.paths.name_of[path]]:
            entry = counts[word]
            entry[0] += all_weight
            entry[1] += main_weight
    return {word: (entry[0], entry[1]) for word, entry in counts.items()}


def _count_texts(
    page: PageView, label: np.ndarray, weight: np.ndarray
) -> dict[str, tuple[float, float]]:
    counts: dict[str, list[float]] = defaultdict(lambda: [0.0, 0.0])
    texts_of_blocks = map(short_words, page.words, page.counts.chars.tolist())
    is_weighted = (weight > 0).tolist()
    for texts, share, has_weight in zip(texts_of_blocks, label.tolist(), is_weighted, strict=True):
        if not has_weight:
            continue
        for text in set(texts):
            entry = counts[text.decode("utf-8", "replace")]
            entry[0] += 1
            entry[1] += share
    return {text: (entry[0], entry[1]) for text, entry in counts.items()}
