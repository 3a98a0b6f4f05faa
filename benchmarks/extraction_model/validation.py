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
from typing import Any

import numpy as np

from owt_pipeline.stages.extract.block_extractor import with_model
from owt_pipeline.stages.extract.content.model import Model
from owt_pipeline.stages.extract.extractor import Page, Settings

from .examples import Example
from .fitting import RECIPE, Recipe, fit_model
from .labelled_pages import LabelledPage

FETCHED_AT = 1_767_225_600
FOLDS = 3

Split = Callable[[LabelledPage], object]


def by_host(seed: int = 0) -> Split:
    """Pages of a host are held out together, in FOLDS parts."""
    return lambda page: page.fold(FOLDS, seed + 1000)


def by_set(page: LabelledPage) -> str:
    """Each set is held out completely."""
    return page.set


def held_out_texts(
    pages: Sequence[LabelledPage],
    examples: Sequence[Example],
    split: Split,
    seed: int = 0,
    recipe: Recipe = RECIPE,
    only: Sequence[object] | None = None,
) -> dict[str, str]:
    """Return the text of each page, by a model fitted on the pages of the other parts of `split`
    (`only` some parts)."""
    texts: dict[str, str] = {}
    parts = only or sorted({split(page) for page in pages}, key=str)
    for part, model in held_out_models(examples, split, parts, seed, recipe):
        texts.update(extracted(model, [page for page in pages if split(page) == part]))
    return texts


def held_out_models(
    examples: Sequence[Example],
    split: Split,
    parts: Sequence[object],
    seed: int = 0,
    recipe: Recipe = RECIPE,
) -> Iterator[tuple[object, Model]]:
    """Yield each part with a model that was fitted on the examples of the other parts."""
    for part in parts:
        others = [example for example in examples if split(example.page) != part]
        yield part, fit_model(others, seed, recipe)


def extracted(model: Model, pages: Sequence[LabelledPage]) -> Iterator[tuple[str, str]]:
    """URL and text of each page."""
    extract = with_model(model, Settings())
    for page in pages:
        found = extract(Page(page.url, page.html, FETCHED_AT))
        yield page.url, found.text if found else ""


_WORD = re.compile(r"\w+")
_RESAMPLES = 1000


@dataclass(frozen=True)
class Score:
    """Shares between 0 and 1.

    Attributes:
      f1: by the set's own definition; `deviation` of it over 1,000 bootstrap samples of the pages.
      junk: share of the found text that does not belong to the main text.
      lost: share of the main text that was not found.
      pages: number of scored pages.
    """

    f1: float
    deviation: float
    junk: float
    lost: float
    pages: int


def score(pages: Iterable[LabelledPage], texts: Mapping[str, str]) -> dict[str, Score]:
    """Scores of `texts` (by URL; none is an empty text) by set, and for `wcxb` by kind, as in
    `wcxb article`."""
    counts: dict[str, list[tuple[int, int, int]]] = {}
    for page in pages:
        count = count_shared(page, texts.get(page.url, ""))
        counts.setdefault(page.set, []).append(count)
        if page.kind != page.set:
            counts.setdefault(f"{page.set} {page.kind}", []).append(count)
    return {name: _score(name.partition(" ")[0], np.array(rows)) for name, rows in counts.items()}


def count_shared(page: LabelledPage, text: str) -> tuple[int, int, int]:
    """Numbers of words, 4-grams or snippets: shared by text and truth, in the text, in the
    truth."""
    if page.set == "trafilatura":
        common = sum(snippet in text for snippet in page.wanted)
        return common, common + sum(snippet in text for snippet in page.unwanted), len(page.wanted)
    bag = _words if page.set == "wcxb" else _four_grams
    found, wanted = bag(text), bag(page.truth or "")
    return sum((found & wanted).values()), sum(found.values()), sum(wanted.values())


def _words(text: str) -> Counter[Any]:
    return Counter(_WORD.findall(text.lower()))


def _four_grams(text: str) -> Counter[Any]:
    words = _WORD.findall(text)
    if not words:
        return Counter()
    return Counter(tuple(words[start : start + 4]) for start in range(max(1, len(words) - 3)))


def _score(name: str, counts: np.ndarray) -> Score:
    generator = np.random.default_rng(0)
    samples = generator.integers(0, len(counts), (_RESAMPLES, len(counts)))
    common, found, wanted = counts.sum(axis=0)
    return Score(
        f1=float(_f1(name, counts)),
        deviation=float(np.std([_f1(name, counts[sample]) for sample in samples])),
        junk=float(1 - common / found) if found else 0.0,
        lost=float(1 - common / wanted) if wanted else 0.0,
        pages=len(counts),
    )


def _f1(name: str, counts: np.ndarray) -> float:
    common, found, wanted = counts.T
    if name == "trafilatura":
        return 2 * common.sum() / max(found.sum() + wanted.sum(), 1)
    if name == "wcxb":
        return float(
            np.mean(np.where(found + wanted > 0, 2 * common / np.maximum(found + wanted, 1), 1.0))
        )
    precision = float(np.mean((common / np.maximum(found, 1))[found > 0])) if found.any() else 0.0
    recall = float(np.mean((common / np.maximum(wanted, 1))[wanted > 0])) if wanted.any() else 0.0
    return 2 * precision * recall / max(precision + recall, 1e-9)
