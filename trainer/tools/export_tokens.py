"""Write token shards in the layout of another trainer: nanoGPT's train.bin, or Megatron's .bin and .idx.

Next to them, documents.parquet says which document each token is of.

python -m trainer.tools.export_tokens WORKDIR/tokens FOLDER --format bin
"""

from __future__ import annotations

import struct
import sys
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from trainer.command_line import CommandParser, check_local, run_reporting
from trainer.remote import ShardError
from trainer.shards import Documents, TokenDataset, open_dataset

_MEGATRON_MAGIC = b"MMIDIDX\x00\x00"
_MEGATRON_VERSION = 1
_MEGATRON_DTYPES = {"uint16": 8, "int32": 4}
_DOCUMENTS = 4096  # per write
_SCHEMA = pa.schema([("split", pa.string()), ("offset", pa.uint64()), ("url_id", pa.uint64())])


def export_tokens(folder: str, out: Path, layout: str) -> list[Path]:
    """Write each split of the shards in `folder`, in the shards' order; returns the files written.

    `bin` is nanoGPT's layout (`data/openwebtext/prepare.py`): consecutive ids with an end-of-text after each document,
    as uint16, or uint32 for vocabularies over 65,536, which nanoGPT does not read. `megatron` is Megatron-LM's indexed
    dataset (`megatron/core/datasets/indexed_dataset.py`) with one sequence per document, which ends in an end-of-text,
    as `preprocess_data.py --append-eod` writes it: uint16 or int32.

    `documents.parquet` has a row for each document, in the same order: its `split` (train, val), the `offset` of its
    first token in `SPLIT.bin`, in tokens, and its `url_id`.

    Raises:
      ShardError: shards that cannot be read.
      OSError: the files cannot be written.
    """
    dataset = open_dataset(folder)
    out.mkdir(parents=True, exist_ok=True)
    splits = [split for split in ("train", "val") if len(dataset.documents(split))]
    if not splits:
        raise ShardError(f"{folder} has no document to export")
    written = []
    for split in splits:
        documents, path = dataset.documents(split), out / f"{split}.bin"
        megatron = layout == "megatron"
        dtype = np.dtype(np.int32) if megatron and documents.dtype == np.uint32 else documents.dtype
        written.append(_write_ids(documents, dataset.tokenizer.eot, path, dtype))
        if megatron:
            written.append(_write_megatron_index(documents, dtype, path.with_suffix(".idx")))
    return [*written, _write_documents(dataset, splits, out / "documents.parquet")]


def _write_megatron_index(documents: Documents, dtype: np.dtype, path: Path) -> Path:
    lengths = documents.lengths + 1
    with path.open("wb") as file:
        file.write(_MEGATRON_MAGIC)
        file.write(struct.pack("<QB", _MEGATRON_VERSION, _MEGATRON_DTYPES[dtype.name]))
        file.write(struct.pack("<QQ", len(lengths), len(lengths) + 1))  # sequences, bounds of documents
        file.write(lengths.astype("<i4").tobytes())
        file.write(((np.cumsum(lengths) - lengths) * dtype.itemsize).astype("<i8").tobytes())  # offsets in bytes
        file.write(np.arange(len(lengths) + 1).astype("<i8").tobytes())  # a document is one sequence
    return path


def _write_documents(dataset: TokenDataset, splits: list[str], path: Path) -> Path:
    """Write which document each token is of, and return the path."""
    with pq.ParquetWriter(path, _SCHEMA) as file:
        for split in splits:
            ends = np.cumsum(dataset.documents(split).lengths + 1)
            offsets = np.concatenate([[0], ends[:-1]]).astype(np.uint64)
            names = pa.array([split] * len(ends))
            file.write_table(pa.table([names, offsets, dataset.url_ids(split)], schema=_SCHEMA))
    return path


def _write_ids(documents: Documents, eot: int, path: Path, dtype: np.dtype) -> Path:
    """Write every document's ids, each followed by an end-of-text."""
    with path.open("wb") as file:
        for first in range(0, len(documents), _DOCUMENTS):
            some = np.arange(first, min(first + _DOCUMENTS, len(documents)))
            lengths = documents.lengths[some]
            ends = np.cumsum(lengths + 1)
            ids = np.full(int(ends[-1]), eot, documents.dtype)
            documents.copy_into(ids, some, ends - lengths - 1, np.zeros_like(lengths), lengths)
            file.write(ids.astype(dtype.newbyteorder("<")).tobytes())
    return path


def main(arguments: Sequence[str] | None = None) -> int:
    parser = CommandParser(
        prog="python -m trainer.tools.export_tokens", description="Write token shards in another trainer's layout."
    )
    parser.add_argument("tokens", metavar="TOKENS", help="folder of the token shards: WORKDIR/tokens")
    parser.add_argument("folder", metavar="FOLDER", help="where the files go")
    parser.add_argument(
        "--format",
        choices=("bin", "megatron"),
        default="bin",
        help="bin: nanoGPT's; megatron: Megatron-LM's (default: bin)",
    )

    def work() -> None:
        given = parser.parse_args(arguments)
        check_local(given.folder, "where the files go")
        for path in export_tokens(given.tokens, Path(given.folder), given.format):
            print(f"{path}: {path.stat().st_size:,} bytes")

    return run_reporting("trainer.tools.export_tokens", work)


if __name__ == "__main__":
    sys.exit(main())
