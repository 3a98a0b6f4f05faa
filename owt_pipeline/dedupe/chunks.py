"""Texts in chunks whose words' arrays stay in the processor's second-level cache."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

_CHUNK_BYTES = 1 << 19


def chunked(texts: pa.Array) -> Iterator[pa.Array]:
    """`texts` in slices of some _CHUNK_BYTES; a longer text is a slice of its own."""
    ends = np.cumsum(pc.fill_null(pc.binary_length(texts), 0).to_numpy(zero_copy_only=False).astype(np.int64))
    cuts = np.flatnonzero(np.diff(ends // _CHUNK_BYTES)) + 1
    for start, end in zip([0, *cuts.tolist()], [*cuts.tolist(), len(texts)], strict=True):
        if end > start:
            yield texts.slice(start, end - start)
