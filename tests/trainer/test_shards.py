from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from tests.trainer.conftest import WriteTokens, edit_manifest
from trainer.shards import ShardError, open_dataset

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
    assert pa.total_allocated_bytes() <= allocated  # a thread of Arrow's may free the manifest's only now
    assert not documents[0].flags.owndata


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (None, "is missing, its manifest says"),
        (lambda content: content[:-10], r"has \d+ bytes, its manifest says \d+ bytes; copy it again"),
        (lambda content: content + b"\n", r"has \d+ bytes, its manifest says"),
    ],
)
def test_a_shard_of_another_length_is_named_without_being_read(tokens: Path, change: Any, message: str) -> None:
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
        ({"sha256": "0" * 64}, "manifest.json has no tokenizer of this kind, or not its file: {"),
        ({"file": "ledger/tokens/other.json"}, "or not its file: {"),
        ({"eot": None}, "manifest.json is damaged (TypeError("),
        ({"eot": 400}, "has no tokenizer of this kind, or not its file: {"),
    ],
    ids=str,
)
def test_shards_with_an_unknown_tokenizer_are_refused(tokens: Path, change: dict[str, Any], message: str) -> None:
    edit_manifest(tokens, lambda record: record["properties"]["tokenizer"].update(change))
    with pytest.raises(ShardError, match=re.escape(message)):
        open_dataset(tokens).documents("train")


def test_a_column_of_another_type_is_named(tokens: Path, write_tokens: WriteTokens, tmp_path: Path) -> None:
    folder = write_tokens(tmp_path / "signed", DOCUMENTS, kind=np.int64)
    with pytest.raises(
        ShardError, match=r"part-00000\.arrow has no tokens as tokenize writes them \(list<item: int64>"
    ):
        open_dataset(folder).documents("train")


def test_a_list_of_files_that_is_damaged_or_missing_is_named(tokens: Path) -> None:
    (listed,) = (tokens.parent / "ledger/tokens").glob("files*.parquet")
    listed.write_bytes(listed.read_bytes()[:-1])
    with pytest.raises(ShardError, match=rf"ledger/tokens/{listed.name} was changed or damaged; copy it again"):
        open_dataset(tokens)
    listed.unlink()
    with pytest.raises(ShardError, match=rf"ledger/tokens/{listed.name} is missing; run the tokenize stage"):
        open_dataset(tokens)


def test_a_run_is_its_tokens_and_a_folder_without_a_manifest_is_an_error(tokens: Path, tmp_path: Path) -> None:
    assert open_dataset(tokens.parent) == open_dataset(tokens)
    with pytest.raises(ShardError, match=r"in .*/nowhere: .*/nowhere/ledger/manifest\.json is missing; run the tok"):
        open_dataset(tmp_path / "nowhere")
