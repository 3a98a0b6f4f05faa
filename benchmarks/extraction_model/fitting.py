"""Fitting the model on examples.

The second pass learns from the first pass' results on pages that the first was not fitted on, and
both from log-odds of words counted on other pages; otherwise they would trust these features more
than they can on new pages. So the examples are split by host into FOLDS, and each fold's features
come from models fitted on the others.
"""

from __future__ import annotations

import contextlib
import pickle
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from owt_pipeline.stages.extract.content.features import PageView
from owt_pipeline.stages.extract.content.model import (
    Forest,
    Model,
    Odds,
    contextual,
    lexical,
    page_row,
    probabilities,
)

from .boosting import Growth, binned, borders, fit
from .examples import Example, WordCounts, example
from .labelled_pages import LabelledPage

FOLDS = 4
LEAST_HOSTS = 6
"""Sites that a word must be seen on to have log-odds."""
_ARTICLE_KINDS = ("article", "readability")
_UNKNOWN_KINDS = ("trafilatura",)  # of many kinds, without saying which
_PRIOR = 3.0  # hosts with the average share that every word is taken to have been seen on


@dataclass(frozen=True)
class Recipe:
    """The parameters of a model: the first pass is fitted once per fold, the second one
    `num_second` times, and the forest of pages once."""

    first: Growth
    second: Growth
    pages: Growth
    num_second: int = 1


RECIPE = Recipe(
    first=Growth(trees=40, rate=0.2),
    second=Growth(trees=160, rate=0.2, rows=50_000),
    # Pages are few: with a ridge as for blocks, the probabilities of articles are too moderate.
    pages=Growth(trees=60, depth=4, rate=0.2, rows=4000, ridge=5.0),
    num_second=2,
)
_SMALL = Recipe(
    first=Growth(trees=40, rate=0.2), second=Growth(trees=100), pages=Growth(trees=20, depth=4)
)


def fit_model(examples: Sequence[Example], seed: int = 0, recipe: Recipe = RECIPE) -> Model:
    """A model of `examples`; the same arguments give the same model."""
    table = _Table(examples)
    folds = [known.page.fold(FOLDS, seed) for known in examples]
    odds = OddsTable([known.words for known in examples], folds)
    odds_without = [odds.odds(fold) for fold in range(FOLDS)]
    words = [lexical(e.view, odds_without[fold]) for e, fold in zip(examples, folds, strict=True)]
    table.add(np.concatenate([e.view.static for e in examples]))
    table.add(np.concatenate(words))
    surroundings: list[np.ndarray] = [np.empty(0)] * len(examples)
    rows: list[np.ndarray] = [np.empty(0)] * len(examples)
    first = []
    for fold in range(FOLDS):
        forest = table.fit([f != fold for f in folds], recipe.first, 100 * seed + fold)
        first.append(forest)
        for index, known in enumerate(examples):
            if folds[index] == fold:
                values = np.concatenate((known.view.static, words[index]), axis=1)
                p = probabilities(forest, values)
                surroundings[index], shared = contextual(known.view, p)
                rows[index] = page_row(known.view, shared)
    everything = [True] * len(examples)
    table.add(np.concatenate(surroundings))
    second = [
        table.fit(everything, recipe.second, 100 * seed + 20 + number)
        for number in range(recipe.num_second)
    ]
    pages = _fit_pages(examples, np.stack(rows), recipe.pages, 100 * seed + 40)
    return Model(_joined(first), _joined(second), pages, odds.odds())


def _fit_pages(examples: Sequence[Example], rows: np.ndarray, growth: Growth, seed: int) -> Forest:
    """Return a forest that distinguishes articles from other pages, fitted on pages of known
    kind."""
    known = [known.page.kind not in _UNKNOWN_KINDS for known in examples]
    values = rows[known]
    kinds = [
        example.page.kind for example, is_known in zip(examples, known, strict=True) if is_known
    ]
    labels = np.array([float(kind in _ARTICLE_KINDS) for kind in kinds])
    weights = np.ones(len(kinds))
    thresholds = borders(values, weights)
    return fit(binned(values, thresholds), thresholds, labels, weights, growth, seed)


def examples(pages: Sequence[LabelledPage], cache: Path | None = None) -> list[Example]:
    """The usable examples among `pages`; they are stored in the file `cache`, or read from it if
    it exists."""
    if cache is not None and cache.exists():
        with (
            contextlib.suppress(AttributeError, ModuleNotFoundError),
            open(cache, "rb") as file,
        ):  # of moved classes
            return list(pickle.load(file))
    known = [example(page, lambda view: []) for page in pages if page.truth is not None]
    found = [known_page for known_page in known if known_page is not None]
    model = fit_model(found, 0, _SMALL)
    for page in pages:
        if page.truth is None:
            snippets = example(page, lambda view, html=page.html: _opinions(html, model, view))  # type: ignore[misc]
            if snippets is not None:
                found.append(snippets)
    if cache is not None:
        with open(cache, "wb") as file:
            pickle.dump(found, file, pickle.HIGHEST_PROTOCOL)
    return found


def _opinions(html: str, model: Model, view: PageView) -> list[str]:
    from trafilatura import extract

    likely = model.judge(view)[0] >= 0.5
    return [
        extract(html, include_comments=False) or "",
        extract(html, include_comments=False, favor_precision=True) or "",
        "\n".join(text for text, stays in zip(view.texts, likely.tolist(), strict=True) if stays),
    ]


class _Table:
    """The features of all examples' blocks, as bins."""

    def __init__(self, examples: Sequence[Example]):
        self._labels = np.concatenate([known.label for known in examples])
        self._weights = np.concatenate([known.weight for known in examples])
        self._lengths = [len(known.label) for known in examples]
        self._thresholds: list[np.ndarray] = []
        self._bins = np.empty((0, len(self._labels)), dtype=np.uint8)

    def add(self, values: np.ndarray) -> None:
        """Add features (rows, features)."""
        thresholds = borders(values, self._weights)
        self._thresholds += thresholds
        self._bins = np.concatenate((self._bins, binned(values, thresholds)))

    def fit(self, chosen: list[bool], growth: Growth, seed: int) -> Forest:
        """A forest fitted to the chosen examples."""
        rows = np.flatnonzero(np.repeat(chosen, self._lengths) & (self._weights > 0))
        return fit(
            np.ascontiguousarray(self._bins[:, rows]),
            self._thresholds,
            self._labels[rows],
            self._weights[rows],
            growth,
            seed,
        )


class OddsTable:
    """Odds from the words of all pages, or of those outside one fold. All pages of a host are in
    one fold."""

    def __init__(self, pages: Sequence[WordCounts], folds: Sequence[int]):
        fold_of = {page.host: fold for page, fold in zip(pages, folds, strict=True)}
        self._names = _Shares([(page.host, page.names) for page in pages], fold_of)
        self._texts = _Shares([(page.host, page.texts) for page in pages], fold_of)

    def odds(self, without: int = -1) -> Odds:
        """Log-odds of the words, relative to all words, on pages of other folds than `without`."""
        return Odds(self._names.odds(without), self._texts.odds(without))


class _Shares:
    """For each word, the mean over hosts of the share of its blocks; each host counts once."""

    def __init__(
        self,
        pages: Sequence[tuple[str, dict[str, tuple[float, float]]]],
        fold_of: Mapping[str, int],
    ):
        by_word: dict[str, dict[str, list[float]]] = defaultdict(dict)
        for host, words in pages:
            for word, (weight, good) in words.items():
                entry = by_word[word].setdefault(host, [0.0, 0.0])
                entry[0] += weight
                entry[1] += good
        self._words = sorted(word for word, hosts in by_word.items() if len(hosts) >= LEAST_HOSTS)
        rows = [
            (number, fold_of[host], good / weight)
            for number, word in enumerate(self._words)
            for host, (weight, good) in by_word[word].items()
        ]
        table = np.array(rows, dtype=np.float64).reshape(-1, 3)
        self._word, self._fold, self._share = table[:, 0].astype(np.intp), table[:, 1], table[:, 2]

    def odds(self, without: int) -> dict[str, float]:
        chosen = self._fold != without
        hosts = np.bincount(self._word[chosen], minlength=len(self._words))
        sums = np.bincount(self._word[chosen], self._share[chosen], minlength=len(self._words))
        known = hosts >= LEAST_HOSTS
        average = sums[known].sum() / max(hosts[known].sum(), 1)
        shares = (sums + _PRIOR * average) / (hosts + _PRIOR)
        return {
            self._words[number]: round(
                float(np.log(share / (1 - share)) - np.log(average / (1 - average))), 2
            )
            for number, share in zip(np.flatnonzero(known).tolist(), shares[known], strict=True)
        }


def _joined(forests: Sequence[Forest]) -> Forest:
    """One forest with the mean scores of `forests`, which have the same depth."""
    return Forest(
        np.concatenate([forest.features for forest in forests]),
        np.concatenate([forest.cuts for forest in forests]),
        np.rint(np.concatenate([forest.leaves for forest in forests]) / len(forests)).astype(
            np.int32
        ),
        round(sum(forest.base for forest in forests) / len(forests)),
    )


def write(model: Model, path: Path) -> None:
    """Write `model` as arrays; the same model gives the same bytes."""
    arrays: dict[str, np.ndarray] = {}
    for name, forest in (
        ("first", model.first),
        ("second", model.second),
        ("pages", model.pages),
    ):
        arrays[f"{name}_features"] = forest.features
        arrays[f"{name}_cuts"] = forest.cuts
        arrays[f"{name}_leaves"] = forest.leaves
        arrays[f"{name}_base"] = np.array(forest.base)
    for name, odds in (("name", model.odds.names), ("text", model.odds.texts)):
        arrays[f"{name}_words"] = np.frombuffer("\n".join(odds).encode(), dtype=np.uint8)
        arrays[f"{name}_odds"] = np.array(
            [round(100 * value) for value in odds.values()], dtype=np.int16
        )
    with open(path, "wb") as file:
        np.savez_compressed(file, **arrays)  # type: ignore[arg-type]
