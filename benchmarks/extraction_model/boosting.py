"""Boosted oblivious trees (as in CatBoost, Prokhorenkova et al. 2018) for soft labels;
deterministic to the byte.

A tree of depth d asks the same d questions of every row, so its leaf is a number of d bits, and a
forest is evaluated as a few operations on arrays (`owt_pipeline/stages/extract/content/model.py`).
Each tree is fitted to the gradient of cross-entropy on rows drawn by weight, so each draw counts as
one, and gradients are small integers whose sums do not depend on the order of addition.
"""

from __future__ import annotations

from dataclasses import dataclass

import numba
import numpy as np

from owt_pipeline.stages.extract.content.model import SCALE, Forest

BINS = 64
_BORDER_ROWS = 50_000  # as many as quantiles need
_GRADIENT = 1 << 12  # a gradient of one, as an integer


@dataclass(frozen=True)
class Growth:
    """The parameters of a forest.

    Attributes:
      trees, depth: its size.
      rate: the learning rate, the share of its optimum by which a tree changes the scores.
      rows: number of rows drawn for a tree.
      features: share of the features available to a tree.
      ridge: added to the weight of each leaf, in draws.
    """

    trees: int = 300
    depth: int = 6
    rate: float = 0.08
    rows: int = 25_000
    features: float = 0.3
    ridge: float = 20.0


def borders(values: np.ndarray, weights: np.ndarray) -> list[np.ndarray]:
    """For each feature (column of `values`), up to BINS − 1 thresholds between values, by
    quantiles of `weights`."""
    found = []
    step = 1 + len(values) // _BORDER_ROWS
    values, weights = values[::step], weights[::step]
    for column in values.T:
        order = np.argsort(column, kind="stable")
        ranks = np.cumsum(weights[order]) / weights.sum()
        picks = column[order][np.searchsorted(ranks, np.arange(1, BINS) / BINS)]
        unique = np.unique(column)
        if len(unique) > BINS:
            unique = np.unique(np.concatenate((picks, unique[:1])))
        found.append(((unique[:-1].astype(np.float64) + unique[1:]) / 2).astype(np.float32))
    return found


def binned(values: np.ndarray, thresholds: list[np.ndarray]) -> np.ndarray:
    """The number of thresholds below each value (features, rows), as bytes."""
    return np.stack(
        [
            np.searchsorted(at, column, side="left")
            for at, column in zip(thresholds, values.T, strict=True)
        ]
    ).astype(np.uint8)


def fit(
    bins: np.ndarray,
    thresholds: list[np.ndarray],
    labels: np.ndarray,
    weights: np.ndarray,
    growth: Growth,
    seed: int,
) -> Forest:
    """A forest whose scores are log-odds of `labels`.

    Args:
      bins: the result of `binned` (features, rows).
      thresholds: the thresholds of the bins.
      labels: the share of each row that is positive.
      weights: the sampling weight of each row.
      growth: the parameters of the forest.
      seed: selects the rows and features of each tree.
    """
    generator = np.random.Generator(np.random.PCG64(seed))
    count, rows = bins.shape
    cumulative = np.cumsum(weights / weights.sum())
    # Where all rows are of one kind, the odds are nearly, and not completely, certain.
    start = min(max(float((weights * labels).sum() / weights.sum()), 1e-6), 1 - 1e-6)
    base = round(np.log(start / (1 - start)) * SCALE)
    scores = np.full(rows, base, dtype=np.int64)
    features, cuts, leaves = [], [], []
    for _ in range(growth.trees):
        drawn = np.sort(
            np.minimum(np.searchsorted(cumulative, generator.random(growth.rows)), rows - 1)
        )
        asked = np.sort(
            generator.choice(count, max(1, round(growth.features * count)), replace=False)
        )
        probability = 1 / (1 + np.exp(-scores[drawn] / SCALE))
        gradient = np.rint((labels[drawn] - probability) * _GRADIENT).astype(np.int64)
        hessian = np.rint(probability * (1 - probability) * _GRADIENT).astype(np.int64)
        picked, at, leaf = _grow(
            _gather(bins, asked, drawn), gradient, hessian, growth.depth, growth.ridge * _GRADIENT
        )
        values = np.rint(leaf * growth.rate * SCALE).astype(np.int32)
        _add(bins, asked[picked], at, values, scores)
        features.append(asked[picked])
        cuts.append(
            [
                _threshold(thresholds[feature], cut)
                for feature, cut in zip(asked[picked], at, strict=True)
            ]
        )
        leaves.append(values)
    return Forest(
        np.array(features, dtype=np.int16),
        np.array(cuts, dtype=np.float32),
        np.array(leaves, dtype=np.int32),
        base,
    )


def _threshold(thresholds: np.ndarray, cut: int) -> float:
    return float(thresholds[cut]) if cut < len(thresholds) else float(np.finfo(np.float32).max)


@numba.njit
def _gather(bins, features, rows):  # type: ignore[no-untyped-def]
    found = np.empty((len(features), len(rows)), dtype=np.uint8)
    for index in range(len(features)):
        for row in range(len(rows)):
            found[index, row] = bins[features[index], rows[row]]
    return found


@numba.njit
def _grow(bins, gradient, hessian, depth, ridge):  # type: ignore[no-untyped-def]
    """Features and bins (a row goes right if its bin is larger) of one tree, and the values of
    its leaves."""
    count, rows = bins.shape
    both = (
        gradient << 32
    ) + hessian  # one addition for two sums; a hessian is positive, and so are all its sums
    low = (1 << 32) - 1
    leaf = np.zeros(rows, dtype=np.int64)
    picked = np.zeros(depth, dtype=np.int64)
    at = np.zeros(depth, dtype=np.int64)
    for level in range(depth):
        size = 1 << level
        best = -1.0
        for feature in range(count):
            sums = np.zeros((size, BINS), dtype=np.int64)
            column = bins[feature]
            for row in range(rows):
                sums[leaf[row], column[row]] += both[row]
            gains = np.zeros(BINS - 1)
            for part in range(size):
                total = sums[part].sum()
                all_g, all_h = total >> 32, total & low
                running = 0
                for value in range(BINS - 1):
                    running += sums[part, value]
                    g, h = running >> 32, running & low
                    gains[value] += float(g) * float(g) / (h + ridge) + float(all_g - g) * float(
                        all_g - g
                    ) / (all_h - h + ridge)
            for value in range(BINS - 1):
                if gains[value] > best:
                    best, picked[level], at[level] = gains[value], feature, value
        for row in range(rows):
            if bins[picked[level], row] > at[level]:
                leaf[row] |= size
    g_sums = np.zeros(1 << depth, dtype=np.int64)
    h_sums = np.zeros(1 << depth, dtype=np.int64)
    for row in range(rows):
        g_sums[leaf[row]] += gradient[row]
        h_sums[leaf[row]] += hessian[row]
    return picked, at, g_sums / (h_sums + ridge)


@numba.njit
def _add(bins, features, at, values, scores):  # type: ignore[no-untyped-def]
    for row in range(len(scores)):
        leaf = 0
        for level in range(len(features)):
            if bins[features[level], row] > at[level]:
                leaf |= 1 << level
        scores[row] += values[leaf]
