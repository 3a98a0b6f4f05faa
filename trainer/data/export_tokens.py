"""Write token shards in the layout of another trainer: nanoGPT's train.bin, or Megatron's .bin
and .idx.

Next to them, documents.parquet has the document of each token: a row for each document in their
order, with its `split` (train, val), the `offset` of its first token in `SPLIT.bin`, in tokens, and
its `url_id`.
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
from trainer.data.shards import Documents, ShardError, open_dataset

# The numbers of element types in Megatron's index.
_MEGATRON_TYPES = {"uint16": 8, "int32": 4}
_MEGATRON_MAGIC = b"MMIDIDX\x00\x00"
_MEGATRON_VERSION = 1
_DOCUMENTS_PER_WRITE = 4096
_SCHEMA = pa.schema([("split", pa.string()), ("offset", pa.uint64()), ("url_id", pa.uint64())])


@dataclass(frozen=True)
class ExportTokensOptions:
    """Settings of `trainer.data.export_tokens`."""

    format: str = option(
        "bin", "bin is nanoGPT's, megatron Megatron-LM's", choices=("bin", "megatron")
    )


def export_tokens(folder: str, out: Path, layout: str) -> list[Path]:
    """Write each split of the shards in `folder`, in the shards' order; return the files written.

    `bin` is nanoGPT's layout (`data/openwebtext/prepare.py`): consecutive ids with an end-of-text
    after each document, as uint16, or uint32 for vocabularies over 65,536, which nanoGPT does not
    read. `megatron` is Megatron-LM's indexed dataset (`megatron/core/datasets/indexed_dataset.py`)
    with one sequence per document, which ends in an end-of-text, as `preprocess_data.py
    --append-eod` writes it: uint16 or int32. Raises ShardError, OSError.
    """
    dataset = open_dataset(folder)
    written = []
    if out.exists() and not out.is_dir():
        raise ShardError(f"{out} is a file, where a folder is needed: name another path")
    out.mkdir(parents=True, exist_ok=True)
    list_path = out / "documents.parquet"
    with pq.ParquetWriter(list_path, _SCHEMA) as document_list:
        for split in ("train", "val"):
            documents = dataset.documents(split)
            if not len(documents):
                continue
            dtype = documents.dtype
            # Megatron's unsigned type has 16 bits.
            if layout == "megatron" and dtype == np.uint32:
                dtype = np.dtype(np.int32)
            path = out / f"{split}.bin"
            _write_ids(documents, dataset.tokenizer.eot, path, dtype)
            written.append(path)
            if layout == "megatron":
                index_path = path.with_suffix(".idx")
                _write_megatron_index(documents, dtype, index_path)
                written.append(index_path)
            sizes = documents.lengths + 1
            offsets = (np.cumsum(sizes) - sizes).astype(np.uint64)
            columns = [[split] * len(documents), offsets, dataset.url_ids(split)]
            document_list.write_table(pa.table(columns, schema=_SCHEMA))
    if not written:
        raise ShardError(f"{folder} has no document to export")
    return [*written, list_path]


def _write_megatron_index(documents: Documents, dtype: np.dtype, path: Path) -> None:
    sizes = documents.lengths + 1
    num_documents = len(documents)
    header = struct.pack(
        "<9sQBQQ",
        _MEGATRON_MAGIC,
        _MEGATRON_VERSION,
        _MEGATRON_TYPES[dtype.name],
        num_documents,
        num_documents + 1,
    )
    offsets = (np.cumsum(sizes) - sizes) * dtype.itemsize  # in bytes
    # Where each document begins, in sequences. A document is one.
    first_sequences = np.arange(num_documents + 1)
    with path.open("wb") as file:
        file.write(header)
        file.write(sizes.astype("<i4").tobytes())
        file.write(offsets.astype("<i8").tobytes())
        file.write(first_sequences.astype("<i8").tobytes())


def _write_ids(documents: Documents, eot: int, path: Path, dtype: np.dtype) -> None:
    """Write every document's ids, each followed by an end-of-text."""
    with path.open("wb") as file:
        for first in range(0, len(documents), _DOCUMENTS_PER_WRITE):
            numbers = np.arange(first, min(first + _DOCUMENTS_PER_WRITE, len(documents)))
            lengths = documents.lengths[numbers]
            ends = np.cumsum(lengths + 1)
            ids = np.full(int(ends[-1]), eot, documents.dtype)
            documents.copy_into(
                ids, numbers, at=ends - lengths - 1, begin=np.zeros_like(lengths), count=lengths
            )
            file.write(ids.astype(dtype.newbyteorder("<")).tobytes())


def print_files(tokens: str, folder: str, options: ExportTokensOptions) -> None:
    """Export the tokens and print the files that were written, with their sizes."""
    check_local(folder, "where the files go")
    for path in export_tokens(tokens, Path(folder), options.format):
        print(f"{path}: {path.stat().st_size:,} bytes")


_ARGUMENTS = {
    "tokens": "folder of the token shards: WORKDIR/tokens",
    "folder": "where the files go",
}
main = partial(
    run_command,
    "trainer.data.export_tokens",
    __doc__,
    _ARGUMENTS,
    ExportTokensOptions,
    print_files,
)


if __name__ == "__main__":
    sys.exit(main())
