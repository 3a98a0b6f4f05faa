"""Write token shards as nanoGPT's train.bin and val.bin.

Next to them, documents.parquet has the document of each token: a row for each document in their
order, with its `split` (train, val), the `offset` of its first token in `SPLIT.bin`, in tokens, and
its `url_id`.
"""

from __future__ import annotations

import sys
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from trainer.command_line import check_local, run_command
from trainer.data.mapped_documents import Documents
from trainer.data.shards import ShardError, open_dataset

_DOCUMENTS_PER_WRITE = 4096
_SCHEMA = pa.schema([("split", pa.string()), ("offset", pa.uint64()), ("url_id", pa.uint64())])


@dataclass(frozen=True)
class ExportTokensOptions:
    """Settings of `trainer.data.export_tokens`: none."""


def export_tokens(folder: str, out: Path) -> list[Path]:
    """Write each split of the shards in `folder`, in the shards' order; return the files written.

    The layout is that of nanoGPT's `data/openwebtext/prepare.py`: consecutive ids with an
    end-of-text after each document, as uint16, or uint32 for vocabularies over 65,536, which
    nanoGPT does not read. Raises ShardError, OSError.
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
            path = out / f"{split}.bin"
            _write_ids(documents, dataset.tokenizer.eot, path)
            written.append(path)
            sizes = documents.lengths + 1
            offsets = (np.cumsum(sizes) - sizes).astype(np.uint64)
            columns = [[split] * len(documents), offsets, dataset.url_ids(split)]
            document_list.write_table(pa.table(columns, schema=_SCHEMA))
    if not written:
        raise ShardError(f"{folder} has no document to export")
    return [*written, list_path]


def _write_ids(documents: Documents, eot: int, path: Path) -> None:
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
            file.write(ids.astype(ids.dtype.newbyteorder("<")).tobytes())


def print_files(tokens: str, folder: str, _: ExportTokensOptions) -> None:
    """Export the tokens and print the files that were written, with their sizes."""
    check_local(folder, "where the files go")
    for path in export_tokens(tokens, Path(folder)):
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
