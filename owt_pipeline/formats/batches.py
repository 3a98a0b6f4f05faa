"""Batches that are bounded in bytes: a thousand texts may be a megabyte or two gigabytes."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

MAX_BATCH_ROWS = 1024
MAX_BATCH_BYTES = 4 << 20
"""A longer text is a batch of its own."""


def strings_of(texts: Iterable[str | None]) -> Iterator[pa.Array]:
    """Yield the texts in arrays of strings; half of a surrogate pair becomes a question mark."""
    batch: list[str | None] = []
    num_chars = 0
    for text in texts:
        batch.append(text)
        num_chars += len(text or "")
        if len(batch) == MAX_BATCH_ROWS or num_chars >= MAX_BATCH_BYTES:
            yield _as_strings(batch)
            batch = []
            num_chars = 0
    if batch:
        yield _as_strings(batch)


def slices_of(texts: pa.Array) -> Iterator[pa.Array]:
    """Yield slices of an array of strings, of any type of strings, or of nulls."""
    for start in range(0, len(texts), MAX_BATCH_ROWS):
        rows = texts.slice(start, MAX_BATCH_ROWS)
        for cut, end in bounded_ranges(byte_lengths(rows), MAX_BATCH_BYTES):
            yield rows.slice(cut, end - cut)


def byte_lengths(texts: pa.Array) -> np.ndarray:
    """Return the bytes of each string, int64; 0 of a null."""
    if pa.types.is_null(texts.type):
        return np.zeros(len(texts), np.int64)
    if pa.types.is_string_view(texts.type):
        # Arrow does not measure views.
        texts = texts.cast(pa.large_string())
    lengths = pc.fill_null(pc.binary_length(texts), 0)
    return lengths.to_numpy(zero_copy_only=False).astype(np.int64)


def bounded_ranges(sizes: np.ndarray, max_bytes: int) -> Iterator[tuple[int, int]]:
    """Yield (start, end) of consecutive rows of at most about `max_bytes`, none of them empty.

    A row begins a range where the running total passes a multiple of `max_bytes`, so a range has
    less than `max_bytes` and its last row.
    """
    totals = np.cumsum(sizes) // max_bytes
    cuts = (np.flatnonzero(np.diff(totals)) + 1).tolist()
    for start, end in zip([0, *cuts], [*cuts, len(sizes)], strict=True):
        if end > start:
            yield start, end


def _as_strings(texts: Sequence[str | None]) -> pa.Array:
    try:
        return pa.array(texts, pa.string())
    except (UnicodeEncodeError, pa.ArrowInvalid):
        return pa.array(
            [text and text.encode("utf-8", "replace").decode() for text in texts], pa.string()
        )
