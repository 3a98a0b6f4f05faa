"""A document's place: its shard and its row there, as one number. It finds a text without a join."""

from __future__ import annotations

import numpy as np

_ROW_BITS = np.uint64(32)


def places(shard: int, rows: np.ndarray) -> np.ndarray:
    """uint64 of rows of a shard; places sort by shard, then row."""
    return (np.uint64(shard) << _ROW_BITS) | rows.astype(np.uint64)


def shard_of(place: np.ndarray) -> np.ndarray:
    return (place >> _ROW_BITS).astype(np.int64)


def row_of(place: np.ndarray) -> np.ndarray:
    return (place & np.uint64(0xFFFFFFFF)).astype(np.int64)
