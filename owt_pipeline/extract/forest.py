"""Forests of oblivious trees, evaluated with numpy: what `training/boosting.py` fits."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np

SCALE = 1 << 12
"""Scores are integers, log-odds times this: their sums do not depend on the order of addition."""

_ROWS = 2048  # evaluated at once: a page of 100,000 blocks must not take a gigabyte
_STEP = SCALE >> 6
_ODDS = np.arange(-16 * SCALE, 16 * SCALE + 1, _STEP) / SCALE
_PROBABILITIES = np.rint(4096 / (1 + np.exp(-_ODDS))) / 4096
"""Of scores in steps of 1/64: looked up, and rounded, so that every processor has the same."""


@dataclass(frozen=True)
class Forest:
    """Trees that each ask `depth` questions of a row; leaf number = sum of 2^i over the questions i answered yes.

    Attributes:
      features, cuts (trees, depth): question i of a tree is whether that feature is above that value.
      leaves (trees, 2^depth): what a tree adds to the score.
      base: the score without trees.
    """

    features: np.ndarray
    cuts: np.ndarray
    leaves: np.ndarray
    base: int

    def probabilities(self, values: np.ndarray) -> np.ndarray:
        """For each row of `values` (rows, features), how probable a positive label is."""
        return np.concatenate(
            [self._probabilities(values[start : start + _ROWS]) for start in range(0, len(values), _ROWS)]
        )

    def _probabilities(self, values: np.ndarray) -> np.ndarray:
        features, cuts, numbers = self._questions
        asked = np.ascontiguousarray(values.T).take(features, axis=0)
        answers = np.greater(asked, cuts).view(np.uint8)
        leaf = answers.take(numbers[0], axis=0)
        answer = np.empty_like(leaf)
        for level in range(1, len(numbers)):
            answers.take(numbers[level], axis=0, out=answer, mode="clip")  # "clip": "raise" would copy
            np.left_shift(answer, level, out=answer)
            np.bitwise_or(leaf, answer, out=leaf)
        index = leaf.astype(np.intp)
        index += np.arange(0, self.leaves.size, self.leaves.shape[1])[:, None]
        scores = self.base + self.leaves.ravel().take(index).sum(axis=0, dtype=np.int64)
        steps = np.clip((scores + 16 * SCALE) // _STEP, 0, len(_PROBABILITIES) - 1)
        found: np.ndarray = _PROBABILITIES[steps]
        return found

    @cached_property
    def _questions(self) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Feature and cut of each question, once, and the number of each tree's questions (depth, trees)."""
        asked = np.stack((self.features.ravel().astype(np.float64), self.cuts.ravel()))
        unique, numbers = np.unique(asked, axis=1, return_inverse=True)
        numbers = np.ascontiguousarray(numbers.reshape(self.features.shape).T)
        return unique[0].astype(np.intp), unique[1].astype(np.float32)[:, None], numbers


def mean_of(forests: Sequence[Forest]) -> Forest:
    """The forest whose scores are the means of those of `forests`."""
    return Forest(
        np.concatenate([forest.features for forest in forests]),
        np.concatenate([forest.cuts for forest in forests]),
        np.rint(np.concatenate([forest.leaves for forest in forests]) / len(forests)).astype(np.int32),
        round(sum(forest.base for forest in forests) / len(forests)),
    )
