"""Sketches: all that is known of a document once its text has been read: its text's hash, and its bands' hashes."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from owt_pipeline.dedupe.lsh import Banding, band_hashes
from owt_pipeline.dedupe.minhash import keep_freed_memory, signatures
from owt_pipeline.dedupe.shingles import Shingles, shingle
from owt_pipeline.dedupe.words import Folded, chunked, fold, hash_texts

COLUMNS = ["url_id", "text", "score", "created_utc"]
"""What is read of each document."""

_KNOWN = [
    ("url_id", pa.uint64()),
    ("precedence", pa.int64()),
    ("text_high", pa.uint64()),
    ("text_low", pa.uint64()),
    ("n_shingles", pa.uint32()),
]


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
    def band_columns(self) -> list[str]:
        return [f"band_{band}" for band in range(self.banding.bands)]

    @property
    def schema(self) -> pa.Schema:
        """A document: its id, its precedence among duplicates, the two halves of its text's hash, how many shingles
        its text has, repeats included, and the hash of each band."""
        return pa.schema([*_KNOWN, *((name, pa.uint64()) for name in self.band_columns)])

    def sketch(self, documents: Iterable[pa.RecordBatch], survivor: str) -> tuple[pa.RecordBatch, np.ndarray]:
        """(rows of `schema`, numbers of those whose text is none of an earlier row) of documents with COLUMNS.

        A text that several of them have is signed once.
        """
        keep_freed_memory()
        ids: list[pa.Array] = []
        precedences: list[pa.Array] = []
        digests: list[bytes] = []
        sizes, bands = [np.empty(0, np.uint32)], [np.empty((self.banding.bands, 0), np.uint64)]
        slots: dict[bytes, int] = {}  # of each text, its number among those that were signed
        slot_of_row: list[int] = []
        first: list[int] = []
        for batch in documents:
            ids.append(batch["url_id"])
            precedences.append(precedence(batch, survivor))
            signed = []
            for chunk in chunked(batch["text"]):
                folded = fold(chunk)
                found = hash_texts(chunk, folded)
                new = []
                for i, digest in enumerate(found):
                    slot_of_row.append(slots.setdefault(digest, len(slots)))
                    if slot_of_row[-1] == len(first):
                        new.append(i)
                        first.append(len(slot_of_row) - 1)
                digests += found
                if len(new) < len(chunk):
                    folded = fold(chunk.take(pa.array(new, pa.int64())))
                if new:
                    shingles = self.shingle(folded)
                    sizes.append(np.diff(shingles.offsets).astype(np.uint32))
                    signed.append(self._sign(shingles))
            if signed:
                bands.append(band_hashes(np.concatenate(signed, axis=1), self.banding))
        halves = np.frombuffer(b"".join(digests), ">u8").astype(np.uint64).reshape(-1, 2)
        slot = np.array(slot_of_row, np.int64)
        columns = [
            pa.chunked_array(ids, pa.uint64()).combine_chunks(),
            pa.chunked_array(precedences, pa.int64()).combine_chunks(),
            *(pa.array(half) for half in halves.T),
            pa.array(np.concatenate(sizes)[slot]),
            *(pa.array(band[slot]) for band in np.concatenate(bands, axis=1)),
        ]
        return pa.RecordBatch.from_arrays(columns, schema=self.schema), np.array(first, np.int64)

    def shingle(self, texts: Folded) -> Shingles:
        return shingle(texts, self.n, self.kind)

    def shingle_sets(self, texts: pa.Array) -> list[np.ndarray]:
        """The shingles of each text, sorted, each once."""
        return [one for chunk in chunked(texts) for one in self.shingle(fold(chunk)).sets()]

    def bands(self, texts: pa.Array) -> np.ndarray:
        """uint64[texts, bands]: the hashes of their bands."""
        signed = [self._sign(self.shingle(fold(chunk))) for chunk in chunked(texts)]
        return band_hashes(np.concatenate(signed, axis=1), self.banding).T

    def _sign(self, shingles: Shingles) -> np.ndarray:
        hashes = (shingles.hashes >> np.uint64(32)).astype(np.uint32)
        used = self.banding.bands * self.banding.rows
        return signatures(hashes, shingles.offsets, used, compiled=self.compiled)


def precedence(documents: pa.RecordBatch, survivor: str) -> pa.Array:
    """int64 a document: of duplicates, the one with the least stays; ties by url_id.

    `longest`: most characters first; `highest_score`: highest Reddit score first, documents without one last;
    `earliest`: earliest submission first, documents without one last.
    """
    last = np.iinfo(np.int64).max
    if survivor == "longest":
        return pc.negate(pc.cast(pc.utf8_length(documents["text"]), pa.int64()))
    if survivor == "highest_score":
        return pc.fill_null(pc.negate(pc.cast(documents["score"], pa.int64())), last)
    return pc.fill_null(pc.cast(documents["created_utc"], pa.int64()), last)
