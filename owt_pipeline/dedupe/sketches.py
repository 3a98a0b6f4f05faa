"""Sketches: what is known of each document once its text has been read, and all that travels further."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from owt_pipeline.dedupe.chunks import chunked
from owt_pipeline.dedupe.exact import HASHED
from owt_pipeline.dedupe.lsh import Banding, band_hashes
from owt_pipeline.dedupe.minhash import signatures
from owt_pipeline.dedupe.shingles import Shingles, shingle
from owt_pipeline.engine.batches import empty


@dataclass(frozen=True)
class Sketcher:
    """How documents are sketched.

    Attributes:
      banding: of the signatures.
      n: words or characters in a shingle.
      kind: of shingles, `words` or `characters`.
      compiled: whether signatures are worth numba's compiler; they are the same without.
    """

    banding: Banding
    n: int = 5
    kind: str = "words"
    compiled: bool = False

    @property
    def schema(self) -> pa.Schema:
        """n_shingles, repeats included; band_0 and so on, the hash of each band."""
        return pa.schema([("n_shingles", pa.uint32()), *((name, pa.uint64()) for name in self.band_columns)])

    @property
    def stored_schema(self) -> pa.Schema:
        """The sketch of a document, and its row of HASHED."""
        return pa.schema([*HASHED, *self.schema])

    @property
    def band_columns(self) -> list[str]:
        return [f"band_{band}" for band in range(self.banding.bands)]

    def sketch(self, texts: pa.Array) -> pa.RecordBatch:
        """The sketches of texts, in their order."""
        chunks = [self._sign(chunk) for chunk in chunked(texts)]
        if not chunks:
            return empty(self.schema)
        counts = np.concatenate([sizes for sizes, _ in chunks])
        bands = band_hashes(np.concatenate([found for _, found in chunks], axis=1), self.banding)
        return pa.RecordBatch.from_arrays([pa.array(counts), *map(pa.array, bands)], schema=self.schema)

    def shingle(self, texts: pa.Array) -> Shingles:
        return shingle(texts, self.n, self.kind)

    def shingle_sets(self, texts: pa.Array) -> list[np.ndarray]:
        """The shingles of each text, sorted, each once."""
        return [one for chunk in chunked(texts) for one in self.shingle(chunk).sets()]

    def _sign(self, texts: pa.Array) -> tuple[np.ndarray, np.ndarray]:
        """(shingles of each text, their signatures)"""
        shingles = self.shingle(texts)
        hashes = (shingles.hashes >> np.uint64(32)).astype(np.uint32)
        used = self.banding.bands * self.banding.rows
        found = signatures(hashes, shingles.offsets, used, compiled=self.compiled)
        return np.diff(shingles.offsets).astype(np.uint32), found
