"""Labelled pages as what the model learns from: the features of their blocks, with labels and weights."""

from __future__ import annotations

import dataclasses
import pickle
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

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


def examples(pages: Sequence[LabelledPage], cache: Path | None = None) -> list[Example]:
    """Those of `pages` that can be learned from; `cache` is a file to keep them in, or to take them from."""
    if cache is not None and cache.exists():
        with open(cache, "rb") as file:
            return list(pickle.load(file))
    found = list(_examples(pages))
    if cache is not None:
        with open(cache, "wb") as file:
            pickle.dump(found, file, pickle.HIGHEST_PROTOCOL)
    return found


def _examples(pages: Sequence[LabelledPage]) -> Iterator[Example]:
    others = _others()
    for page in pages:
        root = parse(page.html)
        blocks, containers = read_blocks(body_of(root)) if root is not None else ([], [])
        if root is None or not blocks:
            continue
        opinions = [extract(page.html) for extract in others] if page.truth is None else []
        found = labels(page, [block.text for block in blocks], opinions)
        if found is None:
            continue
        label, sure = found
        title = root.find(".//title")
        seen = view(blocks, containers, text_of(title) if title is not None else "")
        weight = sure * seen.weight**0.6
        weight /= weight.sum()
        yield Example(
            dataclasses.replace(page, html=""), seen, label, weight, count_words(seen, page.host, label, weight)
        )


def _others() -> list[Callable[[str], str]]:
    """The extractors whose agreement labels the blocks that no snippet does."""
    from resiliparse.extract.html2text import extract_plain_text
    from trafilatura import extract

    return [
        lambda html: extract(html, include_comments=False) or "",
        lambda html: extract(html, include_comments=False, favor_precision=True) or "",
        lambda html: extract_plain_text(html, main_content=True, alt_texts=False),
    ]
