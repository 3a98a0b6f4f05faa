"""Validation of models on pages that they were not fitted on: scores by set.

Models are scored by folds of hosts, and on completely left-out sets. Each set has the score of its
authors:

- `trafilatura`: snippets as exact substrings of the text, counts pooled over pages. Junk is the
  share of found snippets that must not be in the text, lost the share of required snippets that are
  missing.
- `wcxb`: F1 of the bags of lower-case words, mean over pages.
- `readability`: 4-grams of words (as in scrapinghub's article-extraction-benchmark):
  precision and recall are means over pages, F1 is of these means.

For the two with texts, junk is 1 − precision and lost 1 − recall of the counts pooled over pages.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from owt_pipeline.stages.extract.block_extractor import with_model
from owt_pipeline.stages.extract.content.model import Model
from owt_pipeline.stages.extract.extractor import Page, Settings

from .examples import Example
from .fitting import RECIPE, Recipe
from .kept_models import fit_or_read
from .labelled_pages import LabelledPage

FETCHED_AT = 1_767_225_600
FOLDS = 3

Split = Callable[[LabelledPage], object]


def by_host(seed: int = 0) -> Split:
    """Return a split in FOLDS parts that holds out the pages of a host together."""
    return lambda page: page.fold(FOLDS, seed + 1000)


def by_set(page: LabelledPage) -> str:
    """Return the part of a page in the split that holds out each set completely."""
    return page.set


def held_out_texts(
    pages: Sequence[LabelledPage],
    examples: Sequence[Example],
    split: Split,
    seed: int = 0,
    recipe: Recipe = RECIPE,
    only: Sequence[object] | None = None,
    folder: Path | None = None,
) -> dict[str, str]:
    """Return the text of each page, by a model fitted on the pages of the other parts of `split`.

    With `only`, return the texts of the pages of these parts. With `folder`, keep the models there,
    and take them from there.
    """
    texts: dict[str, str] = {}
    parts = only or sorted({split(page) for page in pages}, key=str)
    for part, model in held_out_models(examples, split, parts, seed, recipe, folder):
        texts.update(extracted(model, [page for page in pages if split(page) == part]))
    return texts


def held_out_models(
    examples: Sequence[Example],
    split: Split,
    parts: Sequence[object],
    seed: int = 0,
    recipe: Recipe = RECIPE,
    folder: Path | None = None,
) -> Iterator[tuple[object, Model]]:
    """Yield each part with a model that was fitted on the examples of the other parts.

    With `folder`, keep the models there, and take them from there.
    """
    for part in parts:
        others = [example for example in examples if split(example.page) != part]
        yield part, fit_or_read(others, seed, recipe, folder)


def extracted(model: Model, pages: Sequence[LabelledPage]) -> Iterator[tuple[str, str]]:
    """Yield the URL and the text of each page."""
    extract = with_model(model, Settings())
    for page in pages:
        extracted_page = extract(Page(page.url, page.html, FETCHED_AT))
        yield page.url, "" if extracted_page is None else extracted_page.text


_WORD = re.compile(r"\w+")
_NUM_RESAMPLES = 1000


@dataclass(frozen=True)
class Score:
    """Shares between 0 and 1.

    Attributes:
      f1: by the set's own definition.
      deviation: of `f1` over 1,000 bootstrap samples of the pages.
      junk: share of the extracted text that does not belong to the main text.
      lost: share of the main text that was not extracted.
      pages: number of scored pages.
    """

    f1: float
    deviation: float
    junk: float
    lost: float
    pages: int


def score(pages: Iterable[LabelledPage], texts: Mapping[str, str]) -> dict[str, Score]:
    """Return the scores of `texts` by set, and for `wcxb` also by kind, as in `wcxb article`.

    `texts` are by URL. A page without one has an empty text.
    """
    counts: dict[str, list[tuple[int, int, int]]] = {}
    for page in pages:
        count = count_shared(page, texts.get(page.url, ""))
        counts.setdefault(page.set, []).append(count)
        if page.kind != page.set:
            counts.setdefault(f"{page.set} {page.kind}", []).append(count)
    return {name: _score(name.partition(" ")[0], np.array(rows)) for name, rows in counts.items()}


def count_shared(page: LabelledPage, text: str) -> tuple[int, int, int]:
    """Return numbers of words, 4-grams or snippets: in common, in the text, in the truth."""
    if page.set == "trafilatura":
        num_wanted = sum(snippet in text for snippet in page.wanted)
        num_unwanted = sum(snippet in text for snippet in page.unwanted)
        return num_wanted, num_wanted + num_unwanted, len(page.wanted)
    count = _count_words if page.set == "wcxb" else _count_four_grams
    text_counts = count(text)
    true_counts = count(page.truth or "")
    return (text_counts & true_counts).total(), text_counts.total(), true_counts.total()


def _count_words(text: str) -> Counter[Any]:
    return Counter(_WORD.findall(text.lower()))


def _count_four_grams(text: str) -> Counter[Any]:
    """Return the runs of four words; a shorter text is one run."""
    words = _WORD.findall(text)
    if not words:
        return Counter()
    num_runs = max(1, len(words) - 3)
    return Counter(tuple(words[start : start + 4]) for start in range(num_runs))


def _score(name: str, counts: np.ndarray) -> Score:
    generator = np.random.default_rng(0)
    samples = generator.integers(0, len(counts), (_NUM_RESAMPLES, len(counts)))
    num_common, num_in_texts, num_in_truths = counts.sum(axis=0)
    return Score(
        f1=float(_f1(name, counts)),
        deviation=float(np.std([_f1(name, counts[sample]) for sample in samples])),
        junk=float(1 - num_common / num_in_texts) if num_in_texts else 0.0,
        lost=float(1 - num_common / num_in_truths) if num_in_truths else 0.0,
        pages=len(counts),
    )


def _f1(name: str, counts: np.ndarray) -> float:
    """Return the F1 of pages with these counts (pages, 3), as the set `name` defines it."""
    common, in_text, in_truth = counts.T
    sizes = in_text + in_truth
    if name == "trafilatura":
        return 2 * common.sum() / max(sizes.sum(), 1)
    if name == "wcxb":
        page_f1s = np.where(sizes > 0, 2 * common / np.maximum(sizes, 1), 1.0)
        return float(np.mean(page_f1s))
    precision = _mean_share(common, in_text)
    recall = _mean_share(common, in_truth)
    return 2 * precision * recall / max(precision + recall, 1e-9)


def _mean_share(common: np.ndarray, sizes: np.ndarray) -> float:
    """Return the mean of the shares in common over pages that have a size; 0 if none has."""
    if not sizes.any():
        return 0.0
    return float(np.mean((common / np.maximum(sizes, 1))[sizes > 0]))
