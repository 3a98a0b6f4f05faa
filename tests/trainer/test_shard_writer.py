"""Token shards of ids: what write_shards writes, the trainer reads; what it cannot, it names."""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from schemas import SettingsError
from tests.trainer.conftest import small_config
from trainer import Loader, open_corpora, train, write_shards
from trainer.data import shard_writer

DOCUMENTS = [[1, 2, 3] * 9, [], [7], list(range(60))]


@given(
    documents=st.lists(st.lists(st.integers(0, 98), max_size=9), min_size=1, max_size=30),
    num_val=st.integers(0, 3),
)
def test_written_documents_are_read_in_their_order(
    tmp_path_factory: pytest.TempPathFactory, documents: list[list[int]], num_val: int
) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(shard_writer, "_TOKENS_PER_FILE", 7)
        folder = tmp_path_factory.mktemp("shards") / "mine"
        generated = (iter(document) for document in documents)
        tokens = write_shards(
            folder, generated, val_documents=documents[:num_val], vocab_size=100, eot=99
        )
    dataset = open_corpora([str(tokens)]).datasets[0]
    assert open_corpora([str(folder)]).datasets[0].digest == dataset.digest
    for split, written in (("train", documents), ("val", documents[:num_val])):
        read = dataset.documents(split)
        assert [read[number].tolist() for number in range(len(read))] == written
        assert dataset.url_ids(split).tolist() == list(range(len(written)))


def test_a_model_trains_on_written_shards(tmp_path: Path, tokenizer_file: Path) -> None:
    tokens = write_shards(
        tmp_path / "mine",
        [np.array(document, np.int64) for document in DOCUMENTS],
        val_documents=[torch.arange(200)],
        vocab_size=400,
        eot=399,
        tokenizer=tokenizer_file,
    )
    config = small_config(tokens, tmp_path / "run", batch_tokens=256, max_steps=2, eval_every=2)
    train(config)
    copied = tmp_path / "run" / "checkpoints" / "step-00000002" / "tokenizer.json"
    assert copied.read_bytes() == tokenizer_file.read_bytes()
    sampler = open_corpora(config.data).sampler(config)
    loader = Loader(sampler, batch=4)
    for step, (inputs, targets) in enumerate(itertools.islice(loader, 3)):
        expected_inputs, expected_targets = loader.batch(step)
        assert torch.equal(inputs, expected_inputs)
        assert torch.equal(targets, expected_targets)
    # Without a tokenizer, a model of ids trains too.
    bare = write_shards(tmp_path / "bare", DOCUMENTS)
    train(dataclasses.replace(config, data=(str(bare),), out=str(tmp_path / "bare-run")))


@pytest.mark.parametrize(
    ("document", "message"),
    [
        ([50257], "document 1 of train has the token id 50257, outside the vocabulary of 50257"),
        ([3, -1], "document 1 of train has the token id -1, outside the vocabulary"),
        ([50256], "document 1 of train contains the end-of-text 50256, which the trainer inserts"),
        ("text", "document 1 of train is not a sequence of token ids"),
        ([1.0], "document 1 of train is not a sequence of token ids"),
        ([[1], [2, 3]], "document 1 of train is not a sequence of token ids"),
        (5, "document 1 of train is not a sequence of token ids"),
        ([2**70], "document 1 of train is not a sequence of token ids"),
    ],
)
def test_ids_that_no_model_has_are_named(tmp_path: Path, document: Any, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        write_shards(tmp_path / "mine", [[1], document])
    with pytest.raises(ValueError, match="no token shards in"):
        open_corpora([str(tmp_path / "mine")])


def test_invalid_arguments_are_named(tmp_path: Path) -> None:
    def unread() -> Iterator[list[int]]:
        raise AssertionError("documents are read after the arguments are checked")
        yield []

    for eot, vocab_size in ((5, 5), (-1, 5), (0, 0)):
        with pytest.raises(SettingsError, match=f"eot: {eot} is not an id of a vocabulary"):
            write_shards(tmp_path / "mine", unread(), eot=eot, vocab_size=vocab_size)
    with pytest.raises(SettingsError, match=r"tokens is the name of a run's shards"):
        write_shards(tmp_path / "tokens", unread())
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "file").touch()
    for taken in ("full", "full/file"):
        with pytest.raises(SettingsError, match="is not an empty folder: give another one"):
            write_shards(tmp_path / taken, unread())
    with pytest.raises(ValueError, match="documents: there is none"):
        write_shards(tmp_path / "mine", [])
