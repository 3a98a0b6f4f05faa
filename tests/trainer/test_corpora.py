"""Several corpora in one run, by weight."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
import pytest

from schemas import SettingsError
from tests.trainer.conftest import (
    Capture,
    WriteTokens,
    records_of,
    sampler_of,
)
from trainer import checkpoint
from trainer.__main__ import main
from trainer.data.corpora import open_corpora
from trainer.data.shards import ShardError

CONTEXT = 16


@pytest.fixture
def folders(tmp_path: Path, write_tokens: WriteTokens) -> list[str]:
    """Return three corpora. Every token of corpus k is k, so that a window shows its origin."""
    return [
        str(
            write_tokens(
                tmp_path / f"corpus{k}",
                [[k] * n for n in (50, 3, 80, 21)] * (k + 1),
                [[k] * 40, [k] * 9],
            )
        )
        for k in range(3)
    ]


def corpus_of(windows: np.ndarray) -> np.ndarray:
    return np.where(windows == 399, -1, windows.astype(int)).max(axis=1)


@pytest.mark.parametrize("sampler", ["packed", "longbiased"])
@pytest.mark.parametrize(
    ("weights", "shares"),
    [
        (("=6", "=3", "=1"), (0.6, 0.3, 0.1)),
        (("", "", ""), (1 / 6, 1 / 3, 1 / 2)),
        (("", "", None), (1 / 3, 2 / 3)),
    ],
)
def test_each_corpus_gives_its_share_of_the_samples(
    folders: list[str], sampler: str, weights: tuple[str | None, ...], shares: tuple[float, ...]
) -> None:
    corpora = open_corpora([f + w for f, w in zip(folders, weights, strict=True) if w is not None])
    source = corpus_of(
        sampler_of(corpora, sampler, CONTEXT, 3, long_min_tokens=40).windows(0, 5000)
    )
    assert [(source == k).mean() for k in range(len(shares))] == pytest.approx(shares, abs=0.002)


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (["{0}", "{1}=0.5"], "/corpus0/tokens has no weight, others have"),
        (["{0}=1", "{1}=0"], "with a weight above 0"),
        (["{0}=1", "{1}=-2"], "with a weight above 0"),
        (["{0}=nan"], "with a weight above 0"),
        (["{0}=inf"], "with a weight above 0"),
        (["=1"], "is not FOLDER=WEIGHT"),
        (["{0}=1", "nowhere=0.5"], "no token shards in .*/nowhere"),
        (["{0}", "{1}=x"], "no token shards in .*=x"),
    ],
)
def test_an_invalid_mixture_gives_a_clear_error(
    folders: list[str], data: list[str], message: str
) -> None:
    with pytest.raises((SettingsError, ShardError), match=message):
        open_corpora([entry.format(*folders) for entry in data])


Run = Callable[..., int]


@pytest.fixture
def run(tmp_path: Path) -> Run:
    """Return `run(out, steps, data…)`: the training command.

    Its context is 16 and its batch 8 samples.
    """

    def run(out: str, steps: int, *data: str, extra_flags: Sequence[str] = ()) -> int:
        shape = [
            "--preset",
            "tiny",
            "--block_size",
            str(CONTEXT),
            "--batch_tokens",
            "128",
            "--device",
            "cpu",
        ]
        places = ["--data", *data, "--out", str(tmp_path / out)]
        schedule = ["--max_steps", str(steps), "--warmup_steps", "1", "--schedule", "constant"]
        return main([*places, *shape, *schedule, *extra_flags])

    return run


def losses(out: Path) -> list[float]:
    return [record["loss"] for record in records_of(out)]


def test_a_run_resumes_on_its_mixture_to_the_same_bytes(
    folders: list[str], tmp_path: Path, run: Run
) -> None:
    data = (f"{folders[0]}=0.5", f"{folders[1]}=0.5")
    assert run("complete", 6, *data) == run("cut", 3, *data) == run("cut", 6, *data) == 0
    assert losses(tmp_path / "complete") == losses(tmp_path / "cut")
    weights = "checkpoints/step-00000006/model.safetensors"
    assert (tmp_path / "complete" / weights).read_bytes() == (
        tmp_path / "cut" / weights
    ).read_bytes()


def test_other_data_is_refused_when_a_run_resumes(
    folders: list[str], tmp_path: Path, run: Run, capsys: Capture
) -> None:
    data = (f"{folders[0]}=0.5", f"{folders[1]}=0.5")
    assert run("run", 2, *data) == 0
    for other_corpora in (
        data[:1],
        (f"{folders[0]}=0.6", f"{folders[1]}=0.4"),
        data[::-1],
        (*data, f"{folders[2]}=1"),
    ):
        assert run("run", 4, *other_corpora) == 2
        error = capsys.readouterr().err
        assert f"the data was {folders[0]} (50.0%, " in error
        assert f"other data is a new run with --init_from {tmp_path / 'run'}" in error
    moved = Path(folders[0]).parent.rename(tmp_path / "moved") / "tokens"
    assert run("run", 4, f"{moved}=0.5", data[1]) == 0


def test_a_run_goes_on_with_its_tokens_after_they_have_grown(
    tmp_path: Path, write_tokens: WriteTokens, run: Run, capsys: Capture
) -> None:
    first = [[k + 1] * 60 for k in range(8)]
    second = [[k + 101] * 60 for k in range(8)]
    tokens = str(write_tokens(tmp_path / "data", first, first[:2], shards=2))
    assert run("complete", 6, tokens) == run("cut", 3, tokens) == 0
    write_tokens(tmp_path / "data", first + second, first[:2] + second[:2], shards=4)
    assert len(open_corpora([tokens]).datasets[0].documents("train")) == 16
    capsys.readouterr()
    assert run("cut", 6, tokens) == 0
    output = capsys.readouterr().out
    assert (
        f"{tokens} has grown: this run goes on with its first files; --init_from starts with all"
        in output
    )
    assert losses(tmp_path / "complete") == losses(tmp_path / "cut")
    assert run("all", 6, tokens, extra_flags=["--init_from", str(tmp_path / "cut")]) == 0
    (data,) = checkpoint.read_record(tmp_path / "all/checkpoints/step-00000006").data
    assert data["files"] == {"train": 4, "val": 4}


def test_a_dataset_that_will_not_be_read_is_named(
    folders: list[str], run: Run, capsys: Capture
) -> None:
    assert run("run", 2, f"{folders[0]}=3000000", f"{folders[1]}=1") == 0
    assert (
        f"{folders[1]} has a share of 3e-07: none of this run's 16 samples is from it"
        in capsys.readouterr().out
    )
    sampler = sampler_of(open_corpora([f"{folders[0]}=3000", f"{folders[1]}=1"]), "packed", 16, 3)
    source = corpus_of(sampler.windows(0, 7000))
    # A share of less than one in a block of samples.
    assert (source == 1).sum() in (2, 3)
