"""The tokens in other trainers' layouts, read as those trainers read them."""

from __future__ import annotations

import mmap
import struct
from itertools import pairwise
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tests.trainer.conftest import Capture, WriteTokens
from trainer.tools.export_tokens import main

DOCUMENTS = [[1, 2, 3], [], [4], [5, 6, 7, 8], [9, 10], [11] * 7, [12]]
EOT = 399


@pytest.fixture
def tokens(tmp_path: Path, write_tokens: WriteTokens) -> Path:
    return write_tokens(tmp_path / "tokens", DOCUMENTS, [[20, 21]])


def test_nanogpt_reads_train_bin_and_val_bin(tokens: Path, tmp_path: Path, capsys: Capture) -> None:
    assert main([str(tokens), str(tmp_path / "out")]) == 0
    printed = capsys.readouterr().out
    assert f"{tmp_path}/out/val.bin: 6 bytes" in printed
    assert f"{tmp_path}/out/documents.parquet: " in printed
    # As nanoGPT's train.py maps it.
    data = np.memmap(tmp_path / "out" / "train.bin", dtype=np.uint16, mode="r")
    assert data.tolist() == [token for document in DOCUMENTS for token in [*document, EOT]]
    assert np.memmap(tmp_path / "out" / "val.bin", dtype=np.uint16, mode="r").tolist() == [20, 21, EOT]
    assert main([str(tmp_path / "none"), str(tmp_path / "other")]) == 1
    assert "no token shards in" in capsys.readouterr().err


@pytest.mark.parametrize("kind", [np.uint16, np.uint32])
def test_megatron_reads_the_indexed_dataset(tmp_path: Path, write_tokens: WriteTokens, kind: type) -> None:
    tokens = write_tokens(tmp_path / "tokens", DOCUMENTS, kind=kind)
    assert main([str(tokens), str(tmp_path), "--format", "megatron"]) == 0
    dtype, sequences, bounds = read_megatron(tmp_path / "train")
    assert dtype == (np.uint16 if kind == np.uint16 else np.int32)
    assert [s.tolist() for s in sequences] == [[*document, EOT] for document in DOCUMENTS]
    assert bounds == list(range(len(DOCUMENTS) + 1))
    assert not (tmp_path / "val.idx").exists()  # an empty split is no file


@pytest.mark.parametrize("layout", ["bin", "megatron"])
def test_documents_parquet_says_which_document_each_token_is_of(tokens: Path, tmp_path: Path, layout: str) -> None:
    assert main([str(tokens), str(tmp_path / "out"), "--format", layout]) == 0
    for split, given in (("train", DOCUMENTS), ("val", [[20, 21]])):
        ids = np.fromfile(tmp_path / "out" / f"{split}.bin", np.uint16)
        table = pq.read_table(tmp_path / "out" / "documents.parquet", filters=[("split", "=", split)])
        assert table.schema.field("offset").type == table.schema.field("url_id").type == pa.uint64()
        offsets = [*table["offset"].to_pylist(), len(ids)]
        parts = [ids[begin : end - 1].tolist() for begin, end in pairwise(offsets)]
        # A document's url_id is its place in its split.
        assert parts == [given[url_id] for url_id in table["url_id"].to_pylist()]
        assert sorted(table["url_id"].to_pylist()) == list(range(len(given)))


def read_megatron(stem: Path) -> tuple[type, list[np.ndarray], list[int]]:
    """A reader by the layout that Megatron-LM's `_IndexReader` and `DType` give, sharing no code with the writer."""
    with open(f"{stem}.idx", "rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as index:
        assert index[:9] == b"MMIDIDX\x00\x00"
        version, code, sequence_count, document_count = struct.unpack_from("<QBQQ", index, 9)
        assert version == 1
        dtypes = [None, np.uint8, np.int8, np.int16, np.int32, np.int64, np.float64, np.float32, np.uint16]
        dtype, at = dtypes[code], 9 + 8 + 1 + 8 + 8
        lengths = np.frombuffer(index[at:], np.int32, sequence_count)
        pointers = np.frombuffer(index[at + 4 * sequence_count :], np.int64, sequence_count)
        bounds = np.frombuffer(index[at + 12 * sequence_count :], np.int64, document_count).tolist()
        assert len(index) == at + 12 * sequence_count + 8 * document_count
    content = Path(f"{stem}.bin").read_bytes()
    return dtype, [np.frombuffer(content, dtype, n, p) for n, p in zip(lengths, pointers, strict=True)], bounds
