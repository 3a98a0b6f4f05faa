"""Write token shards in the layout of another trainer: nanoGPT's train.bin, or Megatron's .bin
and .idx.

Next to them, documents.parquet says which document each token is of: a row for each document in
their order, with its `split` (train, val), the `offset` of its first token in `SPLIT.bin`, in
tokens, and its `url_id`.
"""

from __future__ import annotations

import struct
import sys
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from schemas import option
from trainer.command_line import check_local, run_command
from trainer.shards import Documents, ShardError, open_dataset

_MEGATRON_TYPES = {"uint16": 8, "int32": 4}  # their numbers in an index
_DOCUMENTS = 4096  # per write
_SCHEMA = pa.schema([("split", pa.string()), ("offset", pa.uint64()), ("url_id", pa.uint64())])


@dataclass(frozen=True)
class ExportTokensOptions:
    """Settings of `trainer.tools.export_tokens`."""

    format: str = option(
        "bin", "bin is nanoGPT's, megatron Megatron-LM's", choices=("bin", "megatron")
    )


def export_tokens(folder: str, out: Path, layout: str) -> list[Path]:
    """Write each split of the shards in `folder`, in the shards' order; returns the files written.

    `bin` is nanoGPT's layout (`data/openwebtext/prepare.py`): consecutive ids with an end-of-text
    after each document, as uint16, or uint32 for vocabularies over 65,536, which nanoGPT does not
    read. `megatron` is Megatron-LM's indexed dataset (`megatron/core/datasets/indexed_dataset.py`)
    with one sequence per document, which ends in an end-of-text, as `preprocess_data.py
    --append-eod` writes it: uint16 or int32. Raises ShardError, OSError.
    """
    dataset, written = open_dataset(folder), []
    out.mkdir(parents=True, exist_ok=True)
    with pq.ParquetWriter(out / "documents.parquet", _SCHEMA) as names:
        for split in (split for split in ("train", "val") if len(dataset.documents(split))):
            documents, path = dataset.documents(split), out / f"{split}.bin"
            wide = layout == "megatron" and documents.dtype == np.uint32
            dtype = np.dtype(np.int32) if wide else documents.dtype
            _write_ids(documents, dataset.tokenizer.eot, path, dtype)
            written.append(path)
            if layout == "megatron":
                written.append(path.with_suffix(".idx"))
                _write_megatron_index(documents, dtype, written[-1])
            offsets = np.cumsum(documents.lengths + 1) - documents.lengths - 1
            columns = [[split] * len(offsets), offsets.astype(np.uint64), dataset.url_ids(split)]
            names.write_table(pa.table(columns, schema=_SCHEMA))
    if not written:
        raise ShardError(f"{folder} has no document to export")
    return [*written, out / "documents.parquet"]


def _write_megatron_index(documents: Documents, dtype: np.dtype, path: Path) -> None:
    lengths, n = documents.lengths + 1, len(documents)
    header = struct.pack("<9sQBQQ", b"MMIDIDX\x00\x00", 1, _MEGATRON_TYPES[dtype.name], n, n + 1)
    offsets = (np.cumsum(lengths) - lengths) * dtype.itemsize  # in bytes
    bounds = np.arange(n + 1)  # of documents, in sequences: a document is one
    parts = lengths.astype("<i4"), offsets.astype("<i8"), bounds.astype("<i8")
    path.write_bytes(b"".join([header, *(part.tobytes() for part in parts)]))


def _write_ids(documents: Documents, eot: int, path: Path, dtype: np.dtype) -> None:
    """Write every document's ids, each followed by an end-of-text."""
    with path.open("wb") as file:
        for first in range(0, len(documents), _DOCUMENTS):
            some = np.arange(first, min(first + _DOCUMENTS, len(documents)))
            lengths = documents.lengths[some]
            ends = np.cumsum(lengths + 1)
            ids = np.full(int(ends[-1]), eot, documents.dtype)
            documents.copy_into(ids, some, ends - lengths - 1, np.zeros_like(lengths), lengths)
            file.write(ids.astype(dtype.newbyteorder("<")).tobytes())


def print_files(tokens: str, folder: str, options: ExportTokensOptions) -> None:
    check_local(folder, "where the files go")
    for path in export_tokens(tokens, Path(folder), options.format):
        print(f"{path}: {path.stat().st_size:,} bytes")


_NAMED = {"tokens": "folder of the token shards: WORKDIR/tokens", "folder": "where the files go"}
main = partial(
    run_command, "trainer.tools.export_tokens", __doc__, _NAMED, ExportTokensOptions, print_files
)


if __name__ == "__main__":
    sys.exit(main())
