"""The documents of a split, which are mapped from their files and read without a copy."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np


@dataclass(frozen=True)
class Chunk:
    """The ids of a record batch or a .bin file, mapped from the file.

    Its documents have `lengths`, and start at `starts`.
    """

    ids: np.ndarray
    lengths: np.ndarray
    starts: np.ndarray


class Documents:
    """The documents of one split, addressed 0 … n−1 in the order of the shards' paths and rows.

    `lengths` are the tokens of each document, int64 (n,). `dtype` is the type of the ids.
    """

    def __init__(self, chunks: Sequence[Chunk]) -> None:
        empty = np.zeros(0, np.int64)
        num_documents = np.array([len(chunk.lengths) for chunk in chunks], dtype=np.int64)
        self._chunks = [chunk.ids for chunk in chunks]
        self._first = np.cumsum(num_documents) - num_documents  # the first document of each chunk
        # Where in its chunk each document starts.
        self._starts = np.concatenate([empty, *(chunk.starts for chunk in chunks)])
        self.lengths = np.concatenate([empty, *(chunk.lengths for chunk in chunks)])
        self.lengths = self.lengths.astype(np.int64)
        self.dtype = max((ids.dtype for ids in self._chunks), default=np.dtype(np.uint16))

    def __len__(self) -> int:
        return len(self.lengths)

    def __getitem__(self, document: int) -> np.ndarray:
        """Return the token ids of one document, a view of the mapped file."""
        chunk = int(np.searchsorted(self._first, document, side="right")) - 1
        start = int(self._starts[document])
        return self._chunks[chunk][start : start + int(self.lengths[document])]

    def copy_into(
        self,
        out: np.ndarray,
        documents: np.ndarray,
        at: np.ndarray,
        begin: np.ndarray,
        count: np.ndarray,
    ) -> None:
        """For each k, copy document[k][begin[k]:begin[k]+count[k]] to out[at[k]:at[k]+count[k]]."""
        chunk = np.searchsorted(self._first, documents, side="right") - 1
        source = self._starts[documents] + begin
        columns = (chunk, source, source + count, at, at + count)
        # One slice assignment for each document: about a microsecond, with Python integers as
        # indices.
        rows = zip(*(column.tolist() for column in columns), strict=True)
        chunks = self._chunks
        for number, source_begin, source_end, out_begin, out_end in rows:
            out[out_begin:out_end] = chunks[number][source_begin:source_end]
