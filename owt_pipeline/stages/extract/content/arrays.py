"""Arrays of numbers for each block: sums over neighbours, and columns of features."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import chain
from typing import Any

import numpy as np

Columns = list[Any]
"""Features: arrays of one number for each block or for the page, or of several such rows."""


def small_numbers(values: Iterable[int]) -> np.ndarray:
    """Return numbers below 256, or flags, as an array."""
    # Through bytes, since np.array takes three times as long.
    return np.frombuffer(bytes(values), dtype=np.uint8)


def last_positions(mask: np.ndarray, position: np.ndarray, otherwise: int = -1) -> np.ndarray:
    """Return for each block the position of the last block up to it where `mask` is true.

    It is `otherwise` for blocks before the first one.
    """
    positions: np.ndarray = np.maximum.accumulate(np.where(mask, position, otherwise))
    return positions


def matrix(columns: Columns, count: int) -> np.ndarray:
    """Return columns of `count` blocks as one array (count, columns)."""
    heights = [len(column) if getattr(column, "ndim", 0) == 2 else 1 for column in columns]
    rows = np.empty((sum(heights), count), dtype=np.float32)
    start = 0
    for height, column in zip(heights, columns, strict=True):
        rows[start : start + height] = column
        start += height
    return rows.T


def table(rows: Sequence[tuple[float, ...]], kind: type[np.generic]) -> np.ndarray:
    """Return rows as an array of that kind (columns, rows)."""
    # np.array takes twice as long.
    return np.fromiter(chain.from_iterable(rows), kind).reshape(len(rows), -1).T


def shifts(values: np.ndarray, steps: Sequence[int]) -> list[np.ndarray]:
    """Return rows of values shifted by each of `steps` blocks; -1 beyond the page's ends.

    A negative step takes the values of following blocks.
    """
    width = max(map(abs, steps))
    count = values.shape[1]
    padded = np.full((len(values), count + 2 * width), -1.0)
    padded[:, width : width + count] = values
    return [padded[:, width - step : width - step + count] for step in steps]


def windows(values: np.ndarray, reaches: Sequence[int]) -> list[np.ndarray]:
    """Return sums of rows of values over windows of blocks.

    For each of `reaches`, a window has that many blocks before and after its block.
    """
    width = max(reaches)
    count = values.shape[1]
    running = np.zeros((len(values), count + 2 * width + 1))
    np.cumsum(values, axis=1, out=running[:, width + 1 : width + 1 + count])
    running[:, width + 1 + count :] = running[:, width + count, None]
    sums = []
    for reach in reaches:
        ends = running[:, width + reach + 1 : width + reach + 1 + count]
        starts = running[:, width - reach : width - reach + count]
        sums.append(ends - starts)
    return sums
