"""Connected components of candidate documents, by union-find over columns."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np

_CHUNK_EDGES = 1 << 22


def connected_components(batches: Iterable[np.ndarray]) -> tuple[np.ndarray, np.ndarray]:
    """(nodes sorted, label of each): nodes joined by edges have the same label, the least node of their component.

    Args:
      batches: uint64[edges, 2] each. They are joined one after the other, so what is held in memory grows with
        the nodes and not with the edges.
    """
    nodes, labels = np.empty(0, np.uint64), np.empty(0, np.uint64)
    for edges in batches:
        for start in range(0, len(edges), _CHUNK_EDGES):
            # What is known so far is a star from each label, joined with the new edges.
            known = np.column_stack([nodes, labels])
            nodes, labels = _join(np.concatenate([known, edges[start : start + _CHUNK_EDGES]]))
    return nodes, labels


def _join(edges: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    from scipy.sparse import coo_array
    from scipy.sparse.csgraph import connected_components

    nodes, index = np.unique(edges, return_inverse=True)
    index = index.reshape(-1, 2).astype(np.int32)
    graph = coo_array((np.ones(len(edges), np.int8), (index[:, 0], index[:, 1])), shape=(len(nodes), len(nodes)))
    _, component = connected_components(graph, directed=False)
    # Nodes are sorted, so the first of each component is its least.
    _, first = np.unique(component, return_index=True)
    return nodes, nodes[first[component]]
