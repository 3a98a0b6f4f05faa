"""Sums over parts of a page: over containers, over blocks near each other, over blocks of a group.

Containers are numbered in document order, so the descendants of one are the numbers up to its `end`, and a sum over
them is the difference of two running sums.
"""

from __future__ import annotations

import numpy as np


class Tree:
    """Sums over the containers of a page."""

    def __init__(self, home: np.ndarray, parent: np.ndarray, end: np.ndarray):
        self.home, self.parent, self.end = home, parent, end
        self.start = np.arange(len(parent))

    def below(self, values: np.ndarray) -> np.ndarray:
        """For each container the sum of `values` over the blocks in it, at any depth."""
        running = np.zeros(len(self.parent) + 1)
        np.cumsum(np.bincount(self.home, values, minlength=len(self.parent)), out=running[1:])
        sums: np.ndarray = running[self.end] - running[self.start]
        return sums

    def levels(self, count: int) -> list[np.ndarray]:
        """For each block its container, that one's parent, and so on; the body has none and stays."""
        found = [self.home]
        for _ in range(count - 1):
            found.append(np.maximum(self.parent[found[-1]], 0))
        return found


def grouped(group: np.ndarray, values: np.ndarray) -> np.ndarray:
    """The sum of `values` for each number in `group`."""
    return np.bincount(group, values)


def shift(values: np.ndarray, steps: int) -> np.ndarray:
    """The value `steps` blocks before (after, where negative); -1 beyond the page's ends."""
    shifted = np.full(len(values), -1.0)
    if abs(steps) < len(values):
        if steps > 0:
            shifted[steps:] = values[:-steps]
        else:
            shifted[:steps] = values[-steps:]
    return shifted


def window(values: np.ndarray, reach: int) -> np.ndarray:
    """Sums over the blocks up to `reach` before and after."""
    running = np.concatenate(([0.0], np.cumsum(values)))
    position = np.arange(len(values))
    sums: np.ndarray = running[np.minimum(position + reach + 1, len(values))] - running[np.maximum(position - reach, 0)]
    return sums
