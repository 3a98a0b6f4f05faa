"""Several corpora in one run, by weight."""

from __future__ import annotations

import json
from collections.abc import Callable
from functools import partial
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest

from schemas import SettingsError
from tests.trainer.conftest import TOKENIZER, write_token_dataset
from trainer.data import Corpora, Loader, open_corpora
from trainer.divergence import url_ids_by_sample
from trainer.shards import ShardError
from trainer.train import main

CONTEXT = 16
WriteTokens = Callable[..., Path]


@pytest.fixture
def folders(tmp_path: Path, write_tokens: WriteTokens) -> list[str]:
    """Three corpora; every token of corpus k is k, so that a window says where it is from."""
    return [
        str(write_tokens(tmp_path / f"corpus{k}", [[k] * n for n in (50, 3, 80, 21)], [[k] * 40, [k] * 9]))
        for k in range(3)
    ]


def corpus_of(windows: np.ndarray) -> np.ndarray:
    return np.where(windows == 399, -1, windows.astype(int)).max(axis=1)


@pytest.mark.parametrize("sampler", ["packed", "longbiased"])
def test_each_corpus_gives_its_share_of_the_samples(folders: list[str], sampler: str) -> None:
    corpora = open_corpora(folders[0], [f"{folders[1]}=0.3", f"{folders[2]}=0.1"])
    source = corpus_of(corpora.sampler(sampler, CONTEXT, 3, long_min_tokens=40).windows(0, 5000))
    assert [(source == k).mean() for k in range(3)] == pytest.approx([0.6, 0.3, 0.1], abs=0.002)


def test_a_mixture_is_the_same_on_any_ranks_from_any_step(folders: list[str]) -> None:
    def sampler():  # type: ignore[no-untyped-def]
        return open_corpora(folders[0], [f"{folders[1]}=0.25"]).sampler("packed", CONTEXT, 3)

    whole = sampler().windows(0, 2000)
    for world_size in (1, 2, 3, 8):
        for step in (0, 5, 60):
            ranks = [Loader(sampler(), 24, 3, rank=r, world_size=world_size) for r in range(world_size)]
            batch = np.concatenate([rank.windows(step, m) for rank in ranks for m in range(rank.accumulation)])
            assert np.array_equal(batch, whole[step * 24 : step * 24 + 24])


def test_one_corpus_is_read_as_without_a_mixture(folders: list[str]) -> None:
    corpora = open_corpora(folders[0], [])
    assert corpora.digest == corpora.datasets[0].digest
    assert set(corpus_of(corpora.sampler("packed", CONTEXT, 3).windows(0, 50)).tolist()) == {0}


@pytest.mark.parametrize(
    ("mix", "message"),
    [
        (["{1}"], "is not FOLDER=SHARE"),
        (["{1}=2"], "with a share between 0 and 1"),
        (["{1}=0.5", "{2}=0.5"], "leaves nothing of data"),
        (["nowhere=0.5"], "no token shards in .*/nowhere"),
    ],
)
def test_a_wrong_mixture_is_one_clear_error(folders: list[str], mix: list[str], message: str) -> None:
    with pytest.raises((SettingsError, ShardError), match=message):
        open_corpora(folders[0], [entry.format(*folders) for entry in mix])


def test_corpora_of_different_tokenizers_are_refused(
    folders: list[str], tmp_path: Path, write_tokens: WriteTokens, tokenizer_file: Path
) -> None:
    tokenizer_file = tmp_path / "other.json"
    tokenizer_file.write_text(Path(folders[0], "..", TOKENIZER).read_text() + "\n")
    other = write_token_dataset(tmp_path / "other", {"train": [[1]], "val": []}, tokenizer_file, 1, pa.uint16(), 3)
    with pytest.raises(ShardError, match="another SHA-256"):
        open_corpora(folders[0], [f"{other}=0.5"])


def test_a_run_resumes_on_its_mixture_and_on_no_other(
    folders: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    def run(out: str, steps: int, share: str = "0.5") -> int:
        shape = ["--preset", "tiny", "--context", str(CONTEXT), "--batch_tokens", "128", "--device", "cpu"]
        where = ["--data", folders[0], "--mix", f"{folders[1]}={share}", "--out", str(tmp_path / out)]
        return main([*where, *shape, "--max_steps", str(steps), "--warmup_steps", "1", "--schedule", "constant"])

    assert run("whole", 6) == run("broken", 3) == run("broken", 6) == 0
    whole, broken = (
        [json.loads(line)["loss"] for line in (tmp_path / name / "metrics.jsonl").read_text().splitlines()]
        for name in ("whole", "broken")
    )
    assert whole == broken
    assert run("broken", 8, "0.4") == 1
    assert "the token shards were" in capsys.readouterr().err


@pytest.mark.parametrize("sampler", ["packed", "longbiased"])
def test_each_sample_knows_the_documents_it_is_of(tmp_path: Path, write_tokens: WriteTokens, sampler: str) -> None:
    # Each token of document d is d, or 100 + d in the second corpus: a window says which documents it is of.
    first = [[d] * n for d, n in enumerate([50, 3, 80, 21, 0, 1, 40])]
    second = [[100 + d] * n for d, n in enumerate([60, 2, 0, 45, 70])]
    folders = [str(write_tokens(tmp_path / f"corpus{k}", own)) for k, own in enumerate([first, second])]
    corpora = open_corpora(folders[0], [f"{folders[1]}=0.3"])
    sampler_of = partial(Corpora.sampler, name=sampler, context=CONTEXT, seed=3, long_min_tokens=40)
    windows = sampler_of(corpora).windows(990, 60).tolist()
    expected = [list(dict.fromkeys(token % 100 for token in window if token != 399)) for window in windows]
    assert url_ids_by_sample(corpora, sampler_of, 990, 60) == dict(enumerate(expected, 990))
    assert {corpus_of(np.array([window])).item() >= 100 for window in windows} == {True, False}
