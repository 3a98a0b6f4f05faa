"""Sketches: what is known of each document once its text has been read, and all that travels further."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from owt_pipeline.dedupe.lsh import Banding, band_hashes
from owt_pipeline.dedupe.minhash import signatures
from owt_pipeline.dedupe.shingles import Shingles, shingle

SURVIVORS = ("longest", "highest_score", "earliest")

COLUMNS = ["url_id", "text", "score", "created_utc"]
"""What is read of each document."""

_CHUNK_BYTES = 1 << 19  # of text at once: its words' arrays stay in the second-level cache


@dataclass(frozen=True)
class Sketcher:
    """How documents are sketched.

    Attributes:
      banding: of the signatures.
      n: words or characters in a shingle.
      kind: of shingles, `words` or `characters`.
      survivor: which of several duplicates stays.
    """

    banding: Banding
    n: int = 5
    kind: str = "words"
    survivor: str = "longest"

    @property
    def schema(self) -> pa.Schema:
        """url_id; precedence (the least stays, ties by url_id); text_high and text_low, the two halves of the hash of
        the normalised text; n_shingles, repeats included; band_0 and so on, the hash of each band."""
        return pa.schema(
            [
                ("url_id", pa.uint64()),
                ("precedence", pa.int64()),
                ("text_high", pa.uint64()),
                ("text_low", pa.uint64()),
                ("n_shingles", pa.uint32()),
                *((name, pa.uint64()) for name in self.band_columns),
            ]
        )

    @property
    def band_columns(self) -> list[str]:
        return [f"band_{band}" for band in range(self.banding.bands)]

    def sketch(self, documents: pa.RecordBatch) -> pa.RecordBatch:
        """Sketches of documents with the columns COLUMNS, row for row."""
        chunks = [self._sketch(chunk) for chunk in chunked(documents["text"])]
        digests = b"".join(digest for shingles, _ in chunks for digest in shingles.text_hashes)
        halves = np.frombuffer(digests, ">u8").astype(np.uint64).reshape(-1, 2)
        counts = [np.diff(shingles.offsets) for shingles, _ in chunks]
        empty = np.empty(0, np.int64)
        bands = [hashes for _, hashes in chunks] or [np.empty((self.banding.bands, 0), np.uint64)]
        return pa.RecordBatch.from_arrays(
            [
                documents["url_id"],
                precedence(documents, self.survivor),
                pa.array(halves[:, 0]),
                pa.array(halves[:, 1]),
                pa.array(np.concatenate([*counts, empty]).astype(np.uint32)),
                *(pa.array(band) for band in np.concatenate(bands, axis=1)),
            ],
            schema=self.schema,
        )

    def shingle(self, texts: pa.Array) -> Shingles:
        return shingle(texts, self.n, self.kind)

    def shingle_sets(self, texts: pa.Array) -> list[np.ndarray]:
        """The shingles of each text, sorted, each once."""
        return [one for chunk in chunked(texts) for one in self.shingle(chunk).sets()]

    def _sketch(self, texts: pa.Array) -> tuple[Shingles, np.ndarray]:
        shingles = self.shingle(texts)
        hashes = (shingles.hashes >> np.uint64(32)).astype(np.uint32)
        used = self.banding.bands * self.banding.rows
        return shingles, band_hashes(signatures(hashes, shingles.offsets, used), self.banding)


def precedence(documents: pa.RecordBatch, survivor: str) -> pa.Array:
    """int64 a document: of duplicates, the one with the least stays.

    `longest`: most characters first; `highest_score`: highest Reddit score first, documents without one last;
    `earliest`: earliest submission first, documents without one last.
    """
    last = np.iinfo(np.int64).max
    if survivor == "longest":
        return pc.negate(pc.cast(pc.utf8_length(documents["text"]), pa.int64()))
    if survivor == "highest_score":
        return pc.fill_null(pc.negate(pc.cast(documents["score"], pa.int64())), last)
    return pc.fill_null(pc.cast(documents["created_utc"], pa.int64()), last)


def chunked(texts: pa.Array) -> Iterator[pa.Array]:
    """`texts` in slices of some _CHUNK_BYTES; a longer text is a slice of its own."""
    ends = np.cumsum(pc.fill_null(pc.binary_length(texts), 0).to_numpy(zero_copy_only=False).astype(np.int64))
    cuts = np.flatnonzero(np.diff(ends // _CHUNK_BYTES)) + 1
    for start, end in zip([0, *cuts.tolist()], [*cuts.tolist(), len(texts)], strict=True):
        if end > start:
            yield texts.slice(start, end - start)
