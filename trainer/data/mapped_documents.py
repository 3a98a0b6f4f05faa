"""The documents of a split, which are mapped from their files and read without a copy.

A file is a token shard, or nanoGPT's train.bin: the ids of GPT-2's tokenizer as uint16, with an
end-of-text after each document.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

_BLOCK = 1 << 24  # ids that are searched at a time


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


def is_bin_file(path: str | Path) -> bool:
    """Return whether a name of data is that of a file of ids, not of a folder."""
    return str(path).endswith(".bin") and not Path(path).is_dir()


def map_ids(path: str | Path) -> np.ndarray:
    """Return the ids of a file, mapped; raises ValueError, which explains what is wrong."""
    file = Path(path)
    if not file.is_file():
        raise ValueError(f"{file} is missing: check the path")
    if file.with_name("meta.pkl").exists():
        raise ValueError(
            f"{file} has the ids of another tokenizer than GPT-2's, because meta.pkl lies beside "
            f"it: read the ids and give them to write_shards, with vocab_size and eot"
        )
    num_bytes = file.stat().st_size
    if not num_bytes or num_bytes % 2:
        raise ValueError(f"{file} has {num_bytes} bytes, not ids of two bytes each: copy it again")
    return np.memmap(file, dtype="<u2", mode="r").view(np.ndarray)


def find_documents(ids: np.ndarray, vocab_size: int, eot: int) -> tuple[np.ndarray, np.ndarray]:
    """Return where each document starts, and its length without end-of-text, both int64 (n,).

    Documents without a token are left out. Raises ValueError for an id outside the vocabulary.
    """
    ends = []
    for first in range(0, len(ids), _BLOCK):
        block = ids[first : first + _BLOCK]
        if block.max() >= vocab_size:
            position = first + int(block.argmax())
            raise ValueError(
                f"token {position:,} is the id {block.max()}, outside GPT-2's vocabulary of "
                f"{vocab_size}: give ids of another tokenizer to write_shards, with "
                f"vocab_size and eot"
            )
        ends.append(np.flatnonzero(block == eot) + first)
    # The last document may have no end-of-text.
    boundaries = np.concatenate([[-1], *ends, [len(ids)]])
    starts = boundaries[:-1] + 1
    lengths = boundaries[1:] - starts
    has_tokens = lengths > 0
    return starts[has_tokens], lengths[has_tokens]
