"""Components of more edges than one machine holds, by rounds over partitions of the nodes.

The alternating algorithm of Kiveris et al., Connected Components in MapReduce and Beyond (2014): each round ties
every node closer to the least node it knows of, until a component is a star around its least node. It ends after
some log² n rounds, and needs no node's neighbours but its own.
"""

from __future__ import annotations

import numpy as np

from owt_pipeline.dedupe.shingles import mix


def large_star(center: np.ndarray, neighbour: np.ndarray) -> np.ndarray:
    """Tie each center's greater neighbours to the least of center and neighbours.

    Args:
      center, neighbour: uint64, each edge in both directions, all edges of a center together.

    Returns: uint64[edges, 2], each once, the lesser node first.
    """
    center, neighbour, first = _grouped(center, neighbour)
    least = np.minimum(neighbour[first], center)
    greater = neighbour > center
    return _edges(least[greater], neighbour[greater])


def small_star(center: np.ndarray, neighbour: np.ndarray) -> np.ndarray:
    """Tie each center, and its neighbours, to the least of these.

    Args:
      center, neighbour: uint64, each edge once, the greater node as center, all edges of a center together.

    Returns: as `large_star`.
    """
    center, neighbour, first = _grouped(center, neighbour)
    least = neighbour[first]
    others = neighbour != least
    return _edges(np.concatenate([least[others], least]), np.concatenate([neighbour[others], center]))


def checksum(edges: np.ndarray) -> int:
    """A number, from 0 to 2^64 - 1, that sums up edges, to be added up over partitions: equal for equal edges."""
    return int(mix(edges[:, 0] * np.uint64(3) + mix(edges[:, 1]) + np.uint64(1)).sum(dtype=np.uint64))


def _grouped(center: np.ndarray, neighbour: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """(centers sorted, neighbours sorted among them, for each edge the first one of its center)."""
    order = np.lexsort((neighbour, center))
    center, neighbour = center[order], neighbour[order]
    is_first = np.ones(len(center), bool)
    np.not_equal(center[1:], center[:-1], out=is_first[1:])
    return center, neighbour, np.maximum.accumulate(np.where(is_first, np.arange(len(center)), 0))


def _edges(low: np.ndarray, high: np.ndarray) -> np.ndarray:
    order = np.lexsort((high, low))
    edges = np.column_stack([low[order], high[order]])
    keep = np.ones(len(edges), bool)
    keep[1:] = (edges[1:] != edges[:-1]).any(axis=1)
    return edges[keep]
