"""nanoGPT's train.bin as --data: its documents, its validation split, and what is refused."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import numpy as np
import pytest

from tests.trainer.conftest import small_config
from trainer import open_corpora, train, write_shards
from trainer.data import export_tokens, mapped_documents
from trainer.data.shards import ShardError

END = 50256
DOCUMENTS = [[5, 6, 7] * 40, [8], list(range(1000, 1300)), [50255]]


def write_bin(path: Path, documents: list[list[int]]) -> Path:
    """Write documents as nanoGPT's prepare.py does."""
    path.parent.mkdir(exist_ok=True)
    np.array([token for document in documents for token in [*document, END]], "<u2").tofile(path)
    return path


def test_a_bin_file_trains_like_shards_of_its_documents(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Documents cross the blocks that are searched.
    monkeypatch.setattr(mapped_documents, "_BLOCK", 7)
    path = write_bin(tmp_path / "bin" / "train.bin", DOCUMENTS)
    write_bin(tmp_path / "bin" / "val.bin", DOCUMENTS[:3])
    shards = write_shards(tmp_path / "mine", DOCUMENTS, val_documents=DOCUMENTS[:3])
    config = small_config(shards, tmp_path / "run", batch_tokens=256, max_steps=2, eval_every=2)
    of_bin = dataclasses.replace(config, data=(str(path),), out=str(tmp_path / "bin-run"))
    assert train(config).loss == train(of_bin).loss
    # A rerun continues: the file is recognised.
    train(dataclasses.replace(of_bin, max_steps=3))
    assert export_tokens.main([str(path), str(tmp_path / "copy")]) == 0
    assert (tmp_path / "copy" / "train.bin").read_bytes() == path.read_bytes()


def test_the_end_of_the_last_document_may_be_missing(tmp_path: Path) -> None:
    path = write_bin(tmp_path / "ids.bin", DOCUMENTS)
    path.write_bytes(path.read_bytes()[:-2])
    documents = open_corpora([str(path)]).datasets[0].documents("train")
    assert [documents[number].tolist() for number in range(len(documents))] == DOCUMENTS


def test_a_file_that_is_not_of_gpt2_ids_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "train.bin"
    with pytest.raises(ShardError, match=r"train\.bin is missing: check the path"):
        open_corpora([str(path)])
    for content in (b"", b"123"):
        path.write_bytes(content)
        with pytest.raises(ShardError, match=f"has {len(content)} bytes, not ids of two bytes"):
            open_corpora([str(path)])
    write_bin(path, [[1, 50257]])
    with pytest.raises(ShardError, match="token 1 is the id 50257, outside GPT-2's vocabulary"):
        open_corpora([str(path)])
    with pytest.raises(ShardError, match=f"name the file: {path}"):
        open_corpora([str(tmp_path)])
    (tmp_path / "meta.pkl").touch()
    with pytest.raises(ShardError, match="ids of another tokenizer than GPT-2's"):
        open_corpora([str(path)])
