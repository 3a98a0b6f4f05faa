"""Token shards: opened, and written in other trainers' layouts, read as those trainers read
them."""

from __future__ import annotations

import json
import re
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tests.trainer.conftest import Capture, WriteTokens, edit_manifest
from trainer.data.export_tokens import main
from trainer.data.shards import ShardError, open_dataset

DOCUMENTS = [[1, 2, 3], [], [4], [5, 6, 7, 8], [9, 10], [11] * 7, [12]]


@pytest.fixture
def tokens(tmp_path: Path, write_tokens: WriteTokens) -> Path:
    return write_tokens(tmp_path / "tokens", DOCUMENTS, [[20, 21]])


@pytest.mark.parametrize("kind", [np.uint16, np.uint32])
@pytest.mark.parametrize("shards", [1, 2, 5])
def test_documents_are_read_as_they_were_written(
    tmp_path: Path, write_tokens: WriteTokens, kind: type, shards: int
) -> None:
    dataset = open_dataset(write_tokens(tmp_path, DOCUMENTS, [[20, 21]], shards=shards, kind=kind))
    documents = dataset.documents("train")
    assert documents.dtype == kind
    assert [documents[k].tolist() for k in range(len(documents))] == DOCUMENTS
    assert documents.lengths.tolist() == [len(row) for row in DOCUMENTS]
    assert dataset.documents("val")[0].tolist() == [20, 21]


def test_tokens_are_mapped_not_read(tokens: Path) -> None:
    dataset = open_dataset(tokens)
    allocated = pa.total_allocated_bytes()
    documents = dataset.documents("train")
    assert (
        pa.total_allocated_bytes() <= allocated
    )  # a thread of Arrow's may free the manifest's only now
    assert not documents[0].flags.owndata


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (None, "is missing, its manifest specifies"),
        (
            lambda content: content[:-10],
            r"has \d+ bytes, its manifest specifies \d+ bytes; copy it again",
        ),
        (lambda content: content + b"\n", r"has \d+ bytes, its manifest specifies"),
    ],
)
def test_a_shard_of_another_length_is_named_without_being_read(
    tokens: Path, change: Any, message: str
) -> None:
    path = tokens / "val" / "part-00001.arrow"
    if change:
        path.write_bytes(change(path.read_bytes()))
    else:
        path.unlink()
    with pytest.raises(ShardError, match=rf"{path} {message}"):
        open_dataset(tokens)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"sha256": "0" * 64}, "manifest.json is damaged (ValueError("),
        ({"file": "ledger/tokens/other.json"}, "manifest.json is damaged (ValueError("),
        ({"eot": None}, "manifest.json is damaged (TypeError("),
        ({"eot": 400}, "manifest.json is damaged (ValueError('end-of-text 400"),
    ],
    ids=str,
)
def test_shards_with_an_unknown_tokenizer_are_refused(
    tokens: Path, change: dict[str, Any], message: str
) -> None:
    edit_manifest(tokens, lambda record: record["properties"]["tokenizer"].update(change))
    with pytest.raises(ShardError, match=re.escape(message)):
        open_dataset(tokens).documents("train")


def test_a_column_of_another_type_is_named(
    tokens: Path, write_tokens: WriteTokens, tmp_path: Path
) -> None:
    folder = write_tokens(tmp_path / "signed", DOCUMENTS, kind=np.int64)
    with pytest.raises(
        ShardError,
        match=r"part-00000\.arrow has no tokens as tokenize writes them \(list<item: int64>",
    ):
        open_dataset(folder).documents("train")


def test_a_list_of_files_that_is_damaged_or_missing_is_named(tokens: Path) -> None:
    (listed,) = (tokens.parent / "ledger/tokens").glob("files*.parquet")
    listed.write_bytes(listed.read_bytes()[:-1])
    with pytest.raises(
        ShardError, match=rf"ledger/tokens/{listed.name} was changed or damaged; copy it again"
    ):
        open_dataset(tokens)
    listed.unlink()
    with pytest.raises(
        ShardError,
        match=rf"ledger/tokens/{listed.name} is missing; run `owt run .* --until tokenize`",
    ):
        open_dataset(tokens)


def test_a_run_is_its_tokens_and_needs_a_manifest(tokens: Path, tmp_path: Path) -> None:
    assert open_dataset(tokens.parent) == open_dataset(tokens)
    manifest = tokens.parent / "ledger/manifest.json"
    manifest.write_text(json.dumps({**json.loads(manifest.read_text()), "schema_version": 99}))
    with pytest.raises(
        ShardError, match=r"manifest\.json has schema version 99, this program reads"
    ):
        open_dataset(tokens)
    with pytest.raises(
        ShardError,
        match=r"in .*/nowhere: .*/nowhere/ledger/manifest\.json is missing; run `owt run .*/nowhere ",
    ):
        open_dataset(tmp_path / "elsewhere" / "nowhere")


EOT = 399


def test_nanogpt_reads_train_bin_and_val_bin(tokens: Path, tmp_path: Path, capsys: Capture) -> None:
    assert main([str(tokens), str(tmp_path / "out")]) == 0
    printed = capsys.readouterr().out
    assert f"{tmp_path}/out/val.bin: 6 bytes" in printed
    assert f"{tmp_path}/out/documents.parquet: " in printed
    # As nanoGPT's train.py maps it.
    data = np.memmap(tmp_path / "out" / "train.bin", dtype=np.uint16, mode="r")
    assert data.tolist() == [token for document in DOCUMENTS for token in [*document, EOT]]
    assert np.memmap(tmp_path / "out" / "val.bin", dtype=np.uint16, mode="r").tolist() == [
        20,
        21,
        EOT,
    ]
    assert main([str(tmp_path / "none"), str(tmp_path / "other")]) == 1
    assert "no token shards in" in capsys.readouterr().err


def test_documents_parquet_has_the_document_of_each_token(tokens: Path, tmp_path: Path) -> None:
    assert main([str(tokens), str(tmp_path / "out")]) == 0
    for split, documents in (("train", DOCUMENTS), ("val", [[20, 21]])):
        ids = np.fromfile(tmp_path / "out" / f"{split}.bin", np.uint16)
        table = pq.read_table(
            tmp_path / "out" / "documents.parquet", filters=[("split", "=", split)]
        )
        assert table.schema.field("offset").type == table.schema.field("url_id").type == pa.uint64()
        offsets = [*table["offset"].to_pylist(), len(ids)]
        parts = [ids[begin : end - 1].tolist() for begin, end in pairwise(offsets)]
        # A document's url_id is its place in its split.
        assert parts == [documents[url_id] for url_id in table["url_id"].to_pylist()]
        assert sorted(table["url_id"].to_pylist()) == list(range(len(documents)))
