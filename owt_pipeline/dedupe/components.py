"""Connected components of candidate documents, by union-find over columns, in one process.

Memory is what bounds it: at most 40 bytes an edge (shown by a test), 34 where no two edges share a node.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

import numpy as np

Edges = Callable[[], Iterable[np.ndarray]]
"""Gives uint64[edges, 2] batches; called more than once, it gives the same ones."""

_CHUNK_EDGES = 1 << 16


def connected_components(edges: Edges) -> tuple[np.ndarray, np.ndarray]:
    """(nodes sorted, root of each): nodes joined by edges have the same root, the least node of their component.

    Roots are numbers into the nodes.
    """
    nodes = _nodes(edges)
    # parent[i] is a node of the same component, as a number into `nodes`; never a greater one. A root is its own.
    parent = np.arange(len(nodes), dtype=np.int32 if len(nodes) < 1 << 31 else np.int64)
    for batch in edges():
        for start in range(0, len(batch), _CHUNK_EDGES):
            chunk = batch[start : start + _CHUNK_EDGES]
            left, right = (np.searchsorted(nodes, chunk[:, side]).astype(parent.dtype) for side in (0, 1))
            _unite(parent, left, right)
    for start in range(0, len(parent), _CHUNK_EDGES):
        _roots(parent, np.arange(start, min(start + _CHUNK_EDGES, len(parent)), dtype=parent.dtype))
    return nodes, parent


def _nodes(edges: Edges) -> np.ndarray:
    """All nodes of the edges, sorted, each once."""
    ends = np.empty(2 * sum(len(batch) for batch in edges()), np.uint64)
    filled = 0
    for batch in edges():
        ends[filled : filled + 2 * len(batch)] = batch.ravel()
        filled += 2 * len(batch)
    ends.sort()
    keep = np.ones(len(ends), bool)
    np.not_equal(ends[1:], ends[:-1], out=keep[1:])
    return ends[keep]


def _unite(parent: np.ndarray, left: np.ndarray, right: np.ndarray) -> None:
    """Join the components at both ends of each edge."""
    while len(left):
        left, right = _roots(parent, left), _roots(parent, right)
        apart = left != right
        left, right = left[apart], right[apart]
        low, high = np.minimum(left, right), np.maximum(left, right)
        np.minimum.at(parent, high, low)  # each root that has a lesser neighbour goes below its least one
        _flatten(parent, high)


def _roots(parent: np.ndarray, nodes: np.ndarray) -> np.ndarray:
    """The root of each node; afterwards the nodes point at them."""
    roots = parent[nodes]
    while not np.array_equal(above := parent[roots], roots):
        roots = above
    parent[nodes] = roots
    return roots


def _flatten(parent: np.ndarray, nodes: np.ndarray) -> None:
    """Make `nodes`, among which all long paths run, point at their roots: each round halves the paths."""
    while True:
        above = parent[parent[nodes]]
        if np.array_equal(above, parent[nodes]):
            return
        parent[nodes] = above
