"""Several corpora in one run, by weight."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from schemas import SettingsError
from tests.trainer.conftest import TOKENIZER, edit_manifest, write_token_dataset
from trainer.config import TrainConfig
from trainer.data import Loader, Phase, open_corpora
from trainer.manifest import ShardError
from trainer.optimizers import SCHEDULES
from trainer.tools import evaluate
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
    corpora = open_corpora([f"{folders[0]}=6", f"{folders[1]}=3", f"{folders[2]}=1"])
    source = corpus_of(corpora.sampler(sampler, CONTEXT, 3, long_min_tokens=40).windows(0, 5000))
    assert [(source == k).mean() for k in range(3)] == pytest.approx([0.6, 0.3, 0.1], abs=0.002)


def test_without_weights_corpora_are_sampled_in_proportion_to_their_tokens(
    tmp_path: Path, write_tokens: WriteTokens
) -> None:
    folders = [str(write_tokens(tmp_path / f"{n}", [[n] * 9] * n)) for n in (30, 60, 10)]
    corpora = open_corpora(folders)
    assert corpora.shares == pytest.approx((0.3, 0.6, 0.1))
    samples = 1000 // CONTEXT  # an epoch of all is 1,000 tokens
    source = corpus_of(corpora.sampler("packed", CONTEXT, 3).windows(0, 50 * samples))
    assert [(source == n).mean() for n in (30, 60, 10)] == pytest.approx([0.3, 0.6, 0.1], abs=0.003)


def test_a_mixture_is_the_same_on_any_number_of_ranks_from_any_step(folders: list[str]) -> None:
    def sampler():  # type: ignore[no-untyped-def]
        return open_corpora([f"{folders[0]}=3", f"{folders[1]}=1"]).sampler("packed", CONTEXT, 3)

    complete = sampler().windows(0, 2000)
    for world_size in (1, 2, 3, 8):
        for step in (0, 5, 60):
            ranks = [Loader(sampler(), 24, 3, rank=r, world_size=world_size) for r in range(world_size)]
            batch = np.concatenate([rank.windows(step, m) for rank in ranks for m in range(rank.accumulation)])
            assert np.array_equal(batch, complete[step * 24 : step * 24 + 24])


def test_a_mixture_of_one_corpus_is_that_corpus(folders: list[str]) -> None:
    corpora = open_corpora(folders[:1])
    assert corpora.digest == corpora.datasets[0].digest
    assert set(corpus_of(corpora.sampler("packed", CONTEXT, 3).windows(0, 50)).tolist()) == {0}


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
        (["{0}", "{1}", "{0}"], "are the same tokens; name them once"),
    ],
)
def test_an_invalid_mixture_gives_a_clear_error(folders: list[str], data: list[str], message: str) -> None:
    with pytest.raises((SettingsError, ShardError), match=message):
        open_corpora([entry.format(*folders) for entry in data])


def test_corpora_with_different_tokenizers_are_refused(
    folders: list[str], tmp_path: Path, write_tokens: WriteTokens, tokenizer_file: Path
) -> None:
    tokenizer_file = tmp_path / "other.json"
    tokenizer_file.write_text(Path(folders[0], "..", TOKENIZER).read_text() + "\n")
    other = write_token_dataset(tmp_path / "other", {"train": [[1]], "val": []}, tokenizer_file, 1, pa.uint16(), 3)
    with pytest.raises(ShardError, match=r"other/tokens has the tokenizer .*; tokenize both with one"):
        open_corpora([folders[0], str(other)])


Run = Callable[..., int]


@pytest.fixture
def run(tmp_path: Path) -> Run:
    """`run(out, steps, data…)`: the training command, its context 16 and its batch 8 samples."""

    def run(out: str, steps: int, *data: str, more: Sequence[str] = ()) -> int:
        shape = ["--preset", "tiny", "--context", str(CONTEXT), "--batch_tokens", "128", "--device", "cpu"]
        where = ["--data", *data, "--out", str(tmp_path / out), "--tracker", "none"]
        schedule = ["--max_steps", str(steps), "--warmup_steps", "1", "--schedule", "constant"]
        return main([*where, *shape, *schedule, *more])

    return run


def losses(out: Path) -> list[float]:
    return [json.loads(line)["loss"] for line in (out / "metrics.jsonl").read_text().splitlines()]


def test_a_run_resumes_on_its_mixture_to_the_same_bytes(folders: list[str], tmp_path: Path, run: Run) -> None:
    data = (f"{folders[0]}=0.5", f"{folders[1]}=0.5")
    assert run("complete", 6, *data) == run("cut", 3, *data) == run("cut", 6, *data) == 0
    assert losses(tmp_path / "complete") == losses(tmp_path / "cut")
    weights = "checkpoints/step-00000006/model.safetensors"
    assert (tmp_path / "complete" / weights).read_bytes() == (tmp_path / "cut" / weights).read_bytes()


def test_a_dataset_continues_where_it_stopped_when_others_are_added_or_removed(folders: list[str]) -> None:
    """Whatever a dataset was mixed with, the run reads its samples in order, and none twice before all were read."""
    alone = [open_corpora([folder]).sampler("packed", CONTEXT, 3).windows(0, 800) for folder in folders]
    data = [[folders[0]], [f"{folders[0]}=1", f"{folders[1]}=3"], folders, [folders[1]], [folders[2], folders[0]]]
    history: tuple[Phase, ...] = ()
    read: list[np.ndarray] = []
    for number, entries in enumerate(data):
        corpora = open_corpora(entries).continuing(history, 20 * number, batch=8)
        assert [phase.step for phase in corpora.history] == [20 * k for k in range(number + 1)]
        again = json.loads(json.dumps([dataclasses.asdict(phase) for phase in corpora.history]))
        assert tuple(map(Phase.from_json, again)) == corpora.history
        sampler = corpora.sampler("packed", CONTEXT, 3)
        read += [sampler.windows(8 * step, 8) for step in range(20 * number, 20 * number + 20)]
        later = open_corpora(entries).continuing(corpora.history, 20 * number + 7, batch=8)  # resumed, nothing changed
        assert later.history == corpora.history
        assert np.array_equal(later.sampler("packed", CONTEXT, 3).windows(160 * number + 56, 8), read[-13])
        history = corpora.history
    windows = np.concatenate(read)
    source = corpus_of(windows)
    for k, expected in enumerate(alone):
        own = windows[source == k]
        assert len(own) > 100
        # Windows of end-of-text alone are of no corpus that one could see.
        assert np.array_equal(own, expected[corpus_of(expected) == k][: len(own)])


def test_data_changed_at_a_resume_is_logged_and_gives_the_same_bytes_after_any_number_of_resumes(
    folders: list[str], tmp_path: Path, run: Run, capsys: pytest.CaptureFixture[str]
) -> None:
    before, after = (folders[0],), (folders[0], folders[1])
    assert run("complete", 4, *before) == run("complete", 12, *after) == 0
    said = capsys.readouterr().out
    assert (
        f"the data changes at step 4: was {folders[0]} (100.0%), is {folders[0]} (50.0%), {folders[1]} (50.0%)" in said
    )
    assert run("cut", 2, *before) == run("cut", 4, *before) == 0
    for steps in (5, 9, 12):
        assert run("cut", steps, *after) == 0
    assert capsys.readouterr().out.count("the data changes") == 1
    assert losses(tmp_path / "complete") == losses(tmp_path / "cut")
    last = [tmp_path / name / "checkpoints" / "step-00000012" for name in ("complete", "cut")]
    assert (last[0] / "model.safetensors").read_bytes() == (last[1] / "model.safetensors").read_bytes()
    history = json.loads((last[0] / "checkpoint.json").read_text())["history"]
    assert [(phase["step"], len(phase["sources"])) for phase in history] == [(0, 1), (4, 2)]


@pytest.mark.slow
def test_data_changed_at_a_resume_on_two_ranks_gives_the_losses_of_one_process(
    folders: list[str], tmp_path: Path, run: Run, trainer: Any
) -> None:
    assert run("one", 3, folders[0]) == run("one", 6, *folders[:2]) == 0
    common = ("--out", tmp_path / "two", "--preset", "tiny", "--context", CONTEXT, "--batch_tokens", 128)
    common += ("--device", "cpu", "--tracker", "none", "--warmup_steps", 1, "--schedule", "constant")
    for steps, data in ((3, folders[:1]), (6, folders[:2])):
        result = trainer.run("--data", *data, *common, "--max_steps", steps, ranks=2)
        assert result.returncode == 0, result.stderr
    assert result.stdout.count("the data changes at step 3") == 1
    assert losses(tmp_path / "two") == pytest.approx(losses(tmp_path / "one"), rel=1e-4)
    history = [
        json.loads((tmp_path / name / "checkpoints/step-00000006/checkpoint.json").read_text())["history"]
        for name in ("one", "two")
    ]
    assert history[0] == history[1]


def test_data_with_another_tokenizer_is_refused_when_a_run_resumes(
    folders: list[str], tmp_path: Path, run: Run, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run("run", 2, folders[0]) == 0
    tokenizer = tmp_path / "other.json"
    tokenizer.write_text(Path(folders[0], "..", TOKENIZER).read_text() + "\n")
    documents = {"train": [[1] * 99], "val": [[1] * 99]}
    other = write_token_dataset(tmp_path / "other", documents, tokenizer, 1, pa.uint16(), 3)
    assert run("run", 4, str(other)) == 2
    assert "the tokenizer was test (" in capsys.readouterr().err


def test_data_with_another_end_of_text_is_refused_when_a_run_resumes_or_is_evaluated(
    folders: list[str], tmp_path: Path, run: Run, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run("run", 2, folders[0]) == 0
    edit_manifest(Path(folders[1]), lambda record: record["properties"]["tokenizer"].update(eot=7))
    assert run("run", 4, folders[1]) == 2
    error = capsys.readouterr().err
    assert "end-of-text 399), is test (" in error
    assert "end-of-text 7). Use another --out" in error
    assert evaluate.main([str(tmp_path / "run"), "--data", folders[1]]) == 1
    assert f"{folders[1]} has end-of-text 7, " in capsys.readouterr().err


def test_an_extended_run_keeps_its_steps_and_warms_up_again(
    folders: list[str], tmp_path: Path, run: Run, capsys: pytest.CaptureFixture[str]
) -> None:
    wsd = ["--schedule", "wsd", "--learning_rate", "0.01", "--min_fraction", "0.1"]
    assert run("run", 10, folders[0], more=wsd) == 0
    extended = [*wsd, "--extend_steps", "20", "--extend_steps", "5"]
    assert run("run", 10, folders[0], folders[1], more=extended) == 0
    assert "extend_steps was (), is (20, 5)" in capsys.readouterr().out
    records = [json.loads(line) for line in (tmp_path / "run" / "metrics.jsonl").read_text().splitlines()]
    rates = [record["lr"] for record in records]
    assert rates[:10] == pytest.approx([0.01] * 8 + [0.0055, 0.001])
    assert rates[10:30] == pytest.approx([0.01] * 16 + [0.00775, 0.0055, 0.00325, 0.001])
    assert rates[30:] == pytest.approx([0.01] * 4 + [0.001])
    assert run("run", 10, folders[0], folders[1], more=extended) == 0  # the same command: nothing is left to do
    assert losses(tmp_path / "run") == [record["loss"] for record in records]


@pytest.mark.parametrize("schedule", SCHEDULES)
def test_extending_a_run_does_not_change_earlier_learning_rates(schedule: str) -> None:
    config = TrainConfig(data=(), out="", max_steps=100, schedule=schedule, warmup_steps=10)
    longer = dataclasses.replace(config, extend_steps=(50, 30))
    assert longer.last_step == 180
    rates = [longer.learning_rate_of(step) for step in range(180)]
    assert rates[:100] == [config.learning_rate_of(step) for step in range(100)]
    if schedule == "constant":
        assert set(rates[100:]) == {config.peak_learning_rate}
    else:  # from the least rate, by equal steps, to the peak, and down again
        peak, least = config.peak_learning_rate, config.peak_learning_rate * config.min_fraction
        assert np.diff([least, *rates[100:110]]) == pytest.approx((peak - least) / 10)
        assert rates[109:140] == pytest.approx([peak] * 31)
        assert (rates[149], rates[179]) == pytest.approx((least, least))
