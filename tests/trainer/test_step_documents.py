"""The documents of a step, by name: what is in each window, and where."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from trainer.config import TrainConfig
from trainer.data import documents
from trainer.data.corpora import open_corpora
from trainer.data.mapped_documents import Documents
from trainer.loop import train

from .conftest import Capture, WriteTokens

CONTEXT = 16
EOT = 399
# Tokens of each document, whose url_id is its number.
FIRST = [50, 3, 80, 21, 0, 1, 40]
SECOND = [60, 2, 0, 45, 70]


def trained(out: Path, data: list[str], **settings: object) -> TrainConfig:
    config = TrainConfig(
        data=tuple(data),
        out=str(out),
        preset="tiny",
        n_embd=16,
        block_size=CONTEXT,
        batch_tokens=8 * CONTEXT,
        max_steps=3,
        eval_every=0,
        device="cpu",
        seed=3,
        long_min_tokens=40,
        **settings,
    )
    train(config)
    return config


@pytest.mark.parametrize("sampler", ["packed", "longbiased"])
@pytest.mark.parametrize("weights", [("", ""), ("=0.7", "=0.3"), ("=1", None)])
def test_each_part_of_a_window_is_of_the_document_named(
    tmp_path: Path, write_tokens: WriteTokens, sampler: str, weights: tuple[str, str | None]
) -> None:
    # Each token of document d is d, or 100 + d in the second corpus: a window says which documents
    # it is of.
    lengths = {0: FIRST, 100: SECOND}
    folders = [
        f"{write_tokens(tmp_path / str(base), [[base + d] * n for d, n in enumerate(documents_of_corpus)])}{weight}"
        for (base, documents_of_corpus), weight in zip(lengths.items(), weights, strict=True)
        if weight is not None
    ]
    config = trained(tmp_path / "run", folders, sampler=sampler)
    for step in (1, 2, 3):
        first = 8 * (step - 1)
        covered = 0
        windows = open_corpora(config.data).sampler(config).windows(first, 8)
        for part in documents.documents_of(config.out, step):
            tokens = windows[part["sample"] - first][part["begin"] : part["end"]].tolist()
            assert {token % 100 for token in tokens} == {part["url_id"]}
            assert EOT not in tokens
            assert part["sample"] >= first
            covered += len(tokens)
        assert covered == (windows != EOT).sum()


def test_the_command_prints_a_line_of_json_for_each(
    tmp_path: Path, text_tokens: Path, capsys: Capture
) -> None:
    config = trained(tmp_path / "run", [str(text_tokens)])
    capsys.readouterr()
    assert documents.main([config.out, "--step", "1"]) == 0
    lines = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert lines == list(documents.documents_of(config.out, 1))
    assert {line["sample"] for line in lines} == set(range(8))
    assert documents.main([config.out, "--step", "4"]) == 2
    error = capsys.readouterr().err
    assert "has 3 steps, so there is no step 4: give a number from 1 to 3" in error
    assert documents.main([config.out, "--step", "0"]) == 2
    assert "--step: 0 is not a whole number of at least 1" in capsys.readouterr().err


def test_the_urls_are_from_the_corpus(
    tmp_path: Path, write_tokens: WriteTokens, capsys: Capture
) -> None:
    tokens = write_tokens(tmp_path / "tokens", [[d] * n for d, n in enumerate(FIRST)])
    config = trained(tmp_path / "run", [str(tokens)])
    corpus = tmp_path / "corpus"
    url_by_id = {url_id: f"http://a.example/{url_id}" for url_id in range(1, len(FIRST) - 1)}
    corpus.mkdir()
    for part in (
        range(3),
        range(3, len(FIRST) - 1),
        # The last document is in no file, and the first has no URL.
    ):
        rows = {
            "url_id": pa.array(part, pa.uint64()),
            "url": pa.array([url_by_id.get(i) for i in part], pa.string()),
        }
        pq.write_table(pa.table(rows), corpus / f"part-{part.start}.parquet")
    capsys.readouterr()
    assert documents.main([config.out, "--step", "1", "--corpus", str(corpus)]) == 0
    lines = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert [line.pop("url") for line in lines] == [url_by_id.get(line["url_id"]) for line in lines]
    assert lines == list(documents.documents_of(config.out, 1))
    (corpus / "part-0.parquet").write_bytes(b"PAR1 cut short")
    for folder in (corpus, tmp_path / "absent"):
        assert documents.main([config.out, "--step", "1", "--corpus", str(folder)]) == 1
        error = capsys.readouterr().err
        assert str(folder) in error.splitlines()[-1]
        assert "Traceback" not in error


def test_shards_that_have_changed_since_are_refused(
    tmp_path: Path, write_tokens: WriteTokens, capsys: Capture
) -> None:
    data = write_tokens(tmp_path / "data", [[1] * n for n in FIRST])
    config = trained(tmp_path / "run", [str(data)])
    write_tokens(tmp_path / "data", [[2] * n for n in FIRST])
    assert documents.main([config.out, "--step", "1"]) == 1
    assert f"was trained on other shards than {data} has now" in capsys.readouterr().err
    assert documents.main([str(tmp_path), "--step", "1"]) == 1
    assert "neither a checkpoint nor the folder of a run" in capsys.readouterr().err


class LongOnes:
    """A sampler of one's own, which reads whole documents: a window is the end of a long one."""

    def __init__(self, documents: Documents, block_size: int, eot: int, seed: int) -> None:
        self.documents = documents
        self.block_size = block_size
        self.long = np.flatnonzero(documents.lengths > block_size)

    def windows(self, first: int, count: int) -> np.ndarray:
        numbers = self.long[np.arange(first, first + count) % len(self.long)]
        return np.stack([self.documents[int(k)][-self.block_size - 1 :] for k in numbers])


def test_documents_of_a_sampler_that_reads_them_whole_are_named(
    tmp_path: Path, write_tokens: WriteTokens, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("trainer.data.corpora.Packed", LongOnes)
    tokens = write_tokens(tmp_path / "data", [[d] * n for d, n in enumerate(FIRST)])
    config = trained(tmp_path / "run", [str(tokens)])
    entries = list(documents.documents_of(config.out, 2))
    long = [k for k, n in enumerate(FIRST) if n > CONTEXT]
    assert [part["url_id"] for part in entries] == [long[k % len(long)] for k in range(8, 16)]
    assert {(part["begin"], part["end"]) for part in entries} == {(0, CONTEXT + 1)}
