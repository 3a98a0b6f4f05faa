"""Boosted trees: they learn, the same bytes each time, and numpy evaluates them as a plain loop would."""

from __future__ import annotations

import numpy as np
import pytest

from benchmarks.extraction_model.boosting import Growth, binned, borders, fit
from owt_pipeline.stages.extract.model import SCALE, Forest, probabilities

GROWTH = Growth(trees=30, depth=4, rate=0.3, rows=4000, features=1.0)


def learned(seed: int = 0) -> tuple[Forest, np.ndarray, np.ndarray]:
    """A forest for labels that need two features together, a third that says nothing, and a constant one."""
    generator = np.random.default_rng(1)
    values = np.column_stack([generator.normal(size=(5000, 3)), np.ones(5000)]).astype(np.float32)
    labels = ((values[:, 0] > 0) ^ (values[:, 1] > 0.5)).astype(np.float64)
    weights = generator.random(5000) + 0.1
    thresholds = borders(values, weights)
    return fit(binned(values, thresholds), thresholds, labels, weights, GROWTH, seed), values, labels


def test_forest_learns_an_interaction_of_two_features() -> None:
    forest, values, labels = learned()
    assert np.mean((probabilities(forest, values) > 0.5) == labels) > 0.97


def test_forest_evaluation_equals_a_plain_loop() -> None:
    forest, values, _ = learned()
    found = probabilities(forest, values[:50])
    for row, probability in zip(values[:50], found, strict=True):
        score = forest.base
        for features, cuts, leaves in zip(forest.features, forest.cuts, forest.leaves, strict=True):
            score += leaves[sum(1 << level for level in range(len(cuts)) if row[features[level]] > cuts[level])]
        assert probability == pytest.approx(1 / (1 + np.exp(-score / SCALE)), abs=0.01)


def test_evaluation_of_a_row_does_not_depend_on_other_rows() -> None:
    forest, values, _ = learned()
    alone = np.concatenate([probabilities(forest, values[start : start + 7]) for start in range(0, 4999, 7)])
    assert (alone == probabilities(forest, values)[: len(alone)]).all()
