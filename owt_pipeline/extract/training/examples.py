"""A labelled page as what the model learns from: the features of its blocks, with labels and weights."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from owt_pipeline.extract.blocks import read_blocks
from owt_pipeline.extract.features import PageView, view
from owt_pipeline.extract.training.labelled_pages import LabelledPage
from owt_pipeline.extract.training.labels import labels
from owt_pipeline.extract.training.odds import WordCounts, count_words
from owt_pipeline.extract.tree import body_of, parse, text_of


@dataclass(frozen=True)
class Example:
    """A page with n blocks.

    Attributes:
      page: where it is from.
      view: its features.
      label (n): how much of each block belongs to the main text, 0 to 1.
      weight (n): how much each block counts; the sum is 1.
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
      opinions: what other extractors take for its main text, from its features; asked where there are only snippets.
    """
    root = parse(page.html)
    blocks, containers = read_blocks(body_of(root)) if root is not None else ([], [])
    if root is None or not blocks:
        return None
    title = root.find(".//title")
    seen = view(blocks, containers, text_of(title) if title is not None else "")
    found = labels(page, seen.texts, opinions(seen) if page.truth is None else [])
    if found is None:
        return None
    label, sure = found
    weight = sure * seen.weight**0.6
    weight /= weight.sum()
    page = dataclasses.replace(page, html="")
    return Example(page, seen, label, weight, count_words(seen, page.host, label, weight))
