"""Which documents are for validation."""

from __future__ import annotations

import numpy as np


def is_validation(url_ids: np.ndarray, fraction: float) -> np.ndarray:
    """Whether each document is in the validation split; url_ids uint64 (n,), the result bool (n,).

    A pure function of the id, so a document never moves between the splits, whatever else the corpus holds,
    and a larger fraction only adds documents. The ids are mixed first (the finalizer of SplitMix64, Steele,
    Lea and Flood 2014): an id's bits also decide its shard, and text may be imported with ids of any kind.
    """
    mixed = url_ids.astype(np.uint64)
    with np.errstate(over="ignore"):
        mixed = mixed + np.uint64(0x9E3779B97F4A7C15)
        mixed = (mixed ^ (mixed >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
        mixed = (mixed ^ (mixed >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
        mixed = mixed ^ (mixed >> np.uint64(31))
    return (mixed >> np.uint64(11)).astype(np.float64) * 2.0**-53 < fraction
