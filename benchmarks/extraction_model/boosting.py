"""Fits boosted oblivious trees (as in CatBoost, Prokhorenkova et al. 2018) to soft labels.

A tree of depth d asks the same d questions of every row, so its leaf is a number of d bits, and a
forest is evaluated as a few operations on arrays (`owt_pipeline/stages/extract/content/model.py`).
Each tree is fitted to the gradient of cross-entropy on rows drawn by weight, so each draw counts as
one. Gradients are small integers whose sums do not depend on the order of addition, so the same
rows give the same bytes.
"""

from __future__ import annotations

from dataclasses import dataclass

import numba
import numpy as np

from owt_pipeline.stages.extract.content.model import SCALE, Forest

BINS = 64
# Quantiles are taken from about as many rows.
_NUM_BORDER_ROWS = 50_000
# A gradient of one, as an integer.
_GRADIENT = 1 << 12
# Gradient and hessian of a row are the upper and the lower bits of one number.
_HESSIAN_BITS = 32


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
    """Return for each feature (column of `values`) up to BINS − 1 thresholds between values.

    They are at the quantiles of `weights`.
    """
    thresholds = []
    step = 1 + len(values) // _NUM_BORDER_ROWS
    values = values[::step]
    weights = weights[::step]
    for column in values.T:
        order = np.argsort(column, kind="stable")
        ranks = np.cumsum(weights[order]) / weights.sum()
        picks = column[order][np.searchsorted(ranks, np.arange(1, BINS) / BINS)]
        unique = np.unique(column)
        if len(unique) > BINS:
            unique = np.unique(np.concatenate((picks, unique[:1])))
        middles = (unique[:-1].astype(np.float64) + unique[1:]) / 2
        thresholds.append(middles.astype(np.float32))
    return thresholds


def binned(values: np.ndarray, thresholds: list[np.ndarray]) -> np.ndarray:
    """Return the number of thresholds below each value (features, rows), as bytes."""
    rows = []
    for of_feature, column in zip(thresholds, values.T, strict=True):
        rows.append(np.searchsorted(of_feature, column, side="left"))
    return np.stack(rows).astype(np.uint8)


def fit(
    bins: np.ndarray,
    thresholds: list[np.ndarray],
    labels: np.ndarray,
    weights: np.ndarray,
    growth: Growth,
    seed: int,
) -> Forest:
    """Return a forest whose scores are log-odds of `labels`.

    Args:
      bins: the result of `binned` (features, rows).
      thresholds: the thresholds of the bins.
      labels: the share of each row that is positive.
      weights: the sampling weight of each row.
      growth: the parameters of the forest.
      seed: selects the rows and features of each tree.
    """
    generator = np.random.Generator(np.random.PCG64(seed))
    num_features, num_rows = bins.shape
    num_drawn_features = max(1, round(growth.features * num_features))
    cumulative = np.cumsum(weights / weights.sum())
    # Where all rows are of one kind, the odds are nearly, and not completely, certain.
    share = float((weights * labels).sum() / weights.sum())
    share = min(max(share, 1e-6), 1 - 1e-6)
    base = round(np.log(share / (1 - share)) * SCALE)
    scores = np.full(num_rows, base, dtype=np.int64)
    features = []
    cuts = []
    leaves = []
    for _ in range(growth.trees):
        positions = np.searchsorted(cumulative, generator.random(growth.rows))
        # The last of the cumulative weights may be a little less than 1.
        drawn = np.sort(np.minimum(positions, num_rows - 1))
        candidates = np.sort(generator.choice(num_features, num_drawn_features, replace=False))
        probability = 1 / (1 + np.exp(-scores[drawn] / SCALE))
        gradient = np.rint((labels[drawn] - probability) * _GRADIENT).astype(np.int64)
        hessian = np.rint(probability * (1 - probability) * _GRADIENT).astype(np.int64)
        picked, cut_bins, leaf = _grow(
            _gather(bins, candidates, drawn),
            gradient,
            hessian,
            growth.depth,
            growth.ridge * _GRADIENT,
        )
        tree_features = candidates[picked]
        values = np.rint(leaf * growth.rate * SCALE).astype(np.int32)
        _add(bins, tree_features, cut_bins, values, scores)
        tree_cuts = []
        for feature, cut_bin in zip(tree_features, cut_bins, strict=True):
            tree_cuts.append(_threshold(thresholds[feature], cut_bin))
        features.append(tree_features)
        cuts.append(tree_cuts)
        leaves.append(values)
    return Forest(
        np.array(features, dtype=np.int16),
        np.array(cuts, dtype=np.float32),
        np.array(leaves, dtype=np.int32),
        base,
    )


def _threshold(thresholds: np.ndarray, cut_bin: int) -> float:
    """Return the value above which a row is above a bin."""
    if cut_bin >= len(thresholds):
        # No value is above the last bin.
        return float(np.finfo(np.float32).max)
    return float(thresholds[cut_bin])


@numba.njit
def _gather(bins, features, rows):  # type: ignore[no-untyped-def]
    """Return the bins of some features and rows."""
    gathered = np.empty((len(features), len(rows)), dtype=np.uint8)
    for index in range(len(features)):
        for row in range(len(rows)):
            gathered[index, row] = bins[features[index], rows[row]]
    return gathered


@numba.njit
def _grow(bins, gradient, hessian, depth, ridge):  # type: ignore[no-untyped-def]
    """Return the features and the bins of the questions of one tree, and the values of its leaves.

    The answer for a row is yes if its bin is larger than the question's.
    """
    num_features, num_rows = bins.shape
    # Two sums take one addition. A hessian is positive, and so are all its sums.
    packed = (gradient << _HESSIAN_BITS) + hessian
    hessian_mask = (1 << _HESSIAN_BITS) - 1
    leaf = np.zeros(num_rows, dtype=np.int64)
    picked = np.zeros(depth, dtype=np.int64)
    cut_bins = np.zeros(depth, dtype=np.int64)
    for level in range(depth):
        num_parts = 1 << level
        best_gain = -1.0
        for feature in range(num_features):
            sums = np.zeros((num_parts, BINS), dtype=np.int64)
            column = bins[feature]
            for row in range(num_rows):
                sums[leaf[row], column[row]] += packed[row]
            gains = np.zeros(BINS - 1)
            for part in range(num_parts):
                total = sums[part].sum()
                total_gradient = total >> _HESSIAN_BITS
                total_hessian = total & hessian_mask
                below = 0
                for cut in range(BINS - 1):
                    below += sums[part, cut]
                    gradient_below = below >> _HESSIAN_BITS
                    hessian_below = below & hessian_mask
                    gradient_above = float(total_gradient - gradient_below)
                    hessian_above = total_hessian - hessian_below
                    gains[cut] += float(gradient_below) * float(gradient_below) / (
                        hessian_below + ridge
                    ) + gradient_above * gradient_above / (hessian_above + ridge)
            for cut in range(BINS - 1):
                if gains[cut] > best_gain:
                    best_gain = gains[cut]
                    picked[level] = feature
                    cut_bins[level] = cut
        for row in range(num_rows):
            if bins[picked[level], row] > cut_bins[level]:
                leaf[row] |= num_parts
    gradient_sums = np.zeros(1 << depth, dtype=np.int64)
    hessian_sums = np.zeros(1 << depth, dtype=np.int64)
    for row in range(num_rows):
        gradient_sums[leaf[row]] += gradient[row]
        hessian_sums[leaf[row]] += hessian[row]
    return picked, cut_bins, gradient_sums / (hessian_sums + ridge)


@numba.njit
def _add(bins, features, cut_bins, values, scores):  # type: ignore[no-untyped-def]
    """Add the values of a tree to the scores of all rows."""
    for row in range(len(scores)):
        leaf = 0
        for level in range(len(features)):
            if bins[features[level], row] > cut_bins[level]:
                leaf |= 1 << level
        scores[row] += values[leaf]
