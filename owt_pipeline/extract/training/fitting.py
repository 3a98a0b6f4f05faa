"""Fitting the model on examples.

The second pass learns from what the first finds on pages that it was not fitted on, and both learn from log-odds of
words that were counted on other pages: otherwise they would trust them more than they can on a new page. So the
examples are split by host into FOLDS, and each fold's features are made by what was fitted on the others.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from owt_pipeline.extract.forest import Forest, mean_of
from owt_pipeline.extract.lexicon import Odds, lexical
from owt_pipeline.extract.model import Model
from owt_pipeline.extract.surroundings import contextual
from owt_pipeline.extract.training.boosting import Growth, binned, borders, fit
from owt_pipeline.extract.training.examples import Example
from owt_pipeline.extract.training.odds import name_odds, text_odds

FOLDS = 4


@dataclass(frozen=True)
class Recipe:
    """How large a model is and how it grows; `forests` of each pass are averaged."""

    first: Growth = field(default_factory=lambda: Growth(trees=250))
    second: Growth = field(default_factory=lambda: Growth(trees=400, rate=0.06))
    forests: int = 2


def fit_model(examples: Sequence[Example], seed: int = 0, recipe: Recipe | None = None) -> Model:
    """A model of `examples`; the same arguments give the same model."""
    recipe = recipe or Recipe()
    table = _Table(examples)
    folds = [example.page.fold(FOLDS, seed) for example in examples]
    odds = [_odds([e for e, f in zip(examples, folds, strict=True) if f != fold]) for fold in range(FOLDS)]
    words = [lexical(e.view, odds[fold]) for e, fold in zip(examples, folds, strict=True)]
    table.add(np.concatenate([e.view.static for e in examples]))
    table.add(np.concatenate(words))
    surroundings: list[np.ndarray] = [np.empty(0)] * len(examples)
    for fold in range(FOLDS):
        forest = table.fit([f != fold for f in folds], recipe.first, 100 * seed + fold)
        for index, example in enumerate(examples):
            if folds[index] == fold:
                values = np.concatenate((example.view.static, words[index]), axis=1)
                surroundings[index] = contextual(example.view, forest.probabilities(values))
    everything = [True] * len(examples)
    first = [table.fit(everything, recipe.first, 100 * seed + 10 + i) for i in range(recipe.forests)]
    table.add(np.concatenate(surroundings))
    second = [table.fit(everything, recipe.second, 100 * seed + 20 + i) for i in range(recipe.forests)]
    return Model(mean_of(first), mean_of(second), _odds(examples))


def _odds(examples: Sequence[Example]) -> Odds:
    counts = [example.words for example in examples]
    return Odds(name_odds(counts), text_odds(counts))


class _Table:
    """The features of all examples' blocks, as bins."""

    def __init__(self, examples: Sequence[Example]):
        self._labels = np.concatenate([example.label for example in examples])
        self._weights = np.concatenate([example.weight for example in examples])
        self._lengths = [len(example.label) for example in examples]
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
