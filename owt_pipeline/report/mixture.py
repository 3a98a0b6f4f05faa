"""What a model is shown of short and of long documents: each sampler's mixture, from the documents' lengths alone."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

import msgspec
import numpy as np

from owt_pipeline.report.sketches import LogHistogram
from owt_pipeline.report.summaries import Summary
from schemas.stats import Mixture, Shown

CONTEXT, LONG_MIN_TOKENS, LONG_FRACTION = 1024, 512, 0.7  # the trainer's defaults

_MOST_DOCUMENTS = 1 << 20  # a few arrays of 8 bytes each: what a larger corpus shows differs in the fourth digit


def sampler(summary: Summary) -> dict[str, Any] | None:
    """The mixture that `packed` and `longbiased` realise, by the documents' lengths; None without documents."""
    lengths = summary.histograms.get("tokens/n_tokens", LogHistogram()).values(_MOST_DOCUMENTS)
    if not len(lengths):
        return None
    rows = realised_mixture(lengths, CONTEXT, long_min_tokens=LONG_MIN_TOKENS, long_fraction=LONG_FRACTION)
    return {
        "context": CONTEXT,
        "long_min_tokens": LONG_MIN_TOKENS,
        "long_fraction": LONG_FRACTION,
        "rows": json.loads(msgspec.json.encode(rows), parse_float=lambda digits: round(float(digits), 6)),
    }


LENGTHS = (0, 64, 128, 256, 512, 1024, 2048, 4096, 16384)
"""Where the rows of the table begin, in tokens."""


def realised_mixture(
    lengths: np.ndarray,
    context: int = 1024,
    *,
    long_min_tokens: int = 512,
    long_fraction: float = 0.7,
    bounds: Sequence[int] = LENGTHS,
) -> list[Mixture]:
    """The table over one epoch of documents of these lengths (n,) in a random order, as the trainer packs them.

    Args:
      lengths: tokens of each document, without end-of-text.
      context: tokens of a sample.
      long_min_tokens, long_fraction: longbiased draws this share of its samples from documents this long.
      bounds: the rows' first lengths, ascending, the first one 0.

    Raises:
      ValueError: there is no document.
    """
    lengths = np.asarray(lengths, np.int64)
    if not len(lengths):
        raise ValueError("no document, so no mixture")
    packed = _packed(lengths, context, bounds)
    long = lengths[lengths >= long_min_tokens]
    biased = long_fraction * _packed(long, context, bounds) + (1 - long_fraction) * packed if len(long) else None
    documents = np.bincount(_rows(lengths, bounds), minlength=len(bounds)) / len(lengths)
    return [
        Mixture(
            at_least=low,
            below=bounds[row + 1] if row + 1 < len(bounds) else None,
            documents=float(documents[row]),
            packed=Shown(*map(float, packed[row])),
            longbiased=Shown(*map(float, biased[row])) if biased is not None else None,
        )
        for row, low in enumerate(bounds)
    ]


def _packed(lengths: np.ndarray, context: int, bounds: Sequence[int]) -> np.ndarray:
    """(share of samples, share of tokens) for each row: (rows, 2)."""
    # RandomState, for its stream never changes: the same documents give the same table with any numpy.
    ends = np.cumsum(lengths[np.random.RandomState(0).permutation(len(lengths))] + 1)
    spans = np.diff(ends, prepend=0)
    first, last = (ends - spans) // context, (ends - 1) // context  # the samples that a document reaches into
    samples = int(last[-1]) + 1
    rows = _rows(spans - 1, bounds)
    shown = np.empty((len(bounds), 2))
    for row in range(len(bounds)):
        own = rows == row
        opened = np.bincount(first[own], minlength=samples + 1) - np.bincount(last[own] + 1, minlength=samples + 1)
        shown[row] = (np.cumsum(opened)[:samples] > 0).mean(), spans[own].sum() / ends[-1]
    return shown


def _rows(lengths: np.ndarray, bounds: Sequence[int]) -> np.ndarray:
    return np.searchsorted(bounds, lengths, side="right") - 1
