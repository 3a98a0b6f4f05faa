"""A signal at any moment of a run: the run ends soon, and nothing that was done is lost."""

from __future__ import annotations

import dataclasses
import os
import shutil
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

import trainer.loop as training
import trainer.validation
from schemas import SettingsError
from tests.trainer.conftest import Capture, TrainerProcess, flags_of, records_of
from trainer import checkpoint
from trainer.checkpoint import Saver
from trainer.config import TrainConfig
from trainer.data.samplers import Packed
from trainer.loop import train
from trainer.model import GPT
from trainer.pretrained import load_pretrained

# A step has four micro-batches of one window.
MICRO_BATCHES = 4


@pytest.fixture
def config(config: TrainConfig) -> TrainConfig:
    return dataclasses.replace(
        config,
        batch_tokens=MICRO_BATCHES * config.block_size,
        device_batch_size=1,
        save_every=0,
        eval_every=3,
        max_steps=6,
    )


class Signalling:
    """A function that sends this process signals when it is called for the n-th time."""

    def __init__(self, function: Callable[..., Any], call: int, num_signals: int = 1) -> None:
        self.function = function
        self.call = call
        self.num_signals = num_signals
        self.num_calls = 0

    def __get__(self, instance: object, owner: type) -> Callable[..., Any]:
        return lambda *arguments, **named: self(instance, *arguments, **named)

    def __call__(self, *arguments: Any, **named: Any) -> Any:
        self.num_calls += 1
        if self.num_calls == self.call:
            for _ in range(self.num_signals):
                os.kill(os.getpid(), signal.SIGTERM)
        return self.function(*arguments, **named)


class Killed(BaseException):
    """What stands for a kill of the process."""


def saved_steps(config: TrainConfig) -> list[int]:
    return [
        int(path.name.removeprefix("step-")) for path in checkpoint.checkpoints(Path(config.out))
    ]


def assert_continues(config: TrainConfig, complete_losses: list[float]) -> None:
    """Run to the end, and assert that a run without a signal has the same losses."""
    train(config)
    assert [record["loss"] for record in records_of(config.out)] == complete_losses
    assert "val_loss" in records_of(config.out)[-1]


def validations(config: TrainConfig) -> dict[int, tuple[float, float]]:
    """Return a run's validation losses by step, with their bits per byte."""
    return {
        record["step"]: (record["val_loss"], record["val_bits_per_byte"])
        for record in records_of(config.out)
        if "val_loss" in record
    }


def complete(config: TrainConfig) -> TrainConfig:
    """Make the same run elsewhere, without a signal."""
    config = dataclasses.replace(config, out=f"{config.out}-undisturbed")
    train(config)
    return config


_losses: list[float] = []


@pytest.fixture
def complete_losses(config: TrainConfig) -> list[float]:
    """Return the losses of a run without a signal, of which the module makes one.

    They depend neither on the folder nor on when it validates and saves.
    """
    if not _losses:
        complete = dataclasses.replace(config, out=f"{config.out}-complete")
        train(complete)
        _losses.extend(record["loss"] for record in records_of(complete.out))
    return _losses


@pytest.mark.parametrize("num_signals", [1, 2])
@pytest.mark.parametrize(
    ("call", "step"), [(1, 0), (3, 0), (MICRO_BATCHES + 1, 1), (4 * MICRO_BATCHES + 3, 4)]
)
def test_a_signal_within_a_step_saves_the_step_before(
    config: TrainConfig,
    monkeypatch: pytest.MonkeyPatch,
    capsys: Capture,
    call: int,
    step: int,
    num_signals: int,
    complete_losses: list[float],
) -> None:
    config = dataclasses.replace(config, eval_every=0)
    forward = Signalling(GPT.forward, call, num_signals)
    monkeypatch.setattr(GPT, "forward", forward)
    train(config)
    assert forward.num_calls == call
    assert saved_steps(config) == [step] * bool(step)
    assert ("the same command continues here" in capsys.readouterr().out) == bool(step)
    monkeypatch.undo()
    assert_continues(dataclasses.replace(config, eval_every=3), complete_losses)


def test_a_run_that_a_signal_stops_is_saved_and_not_validated(
    config: TrainConfig, monkeypatch: pytest.MonkeyPatch, complete_losses: list[float]
) -> None:
    config = dataclasses.replace(config, eval_every=1)
    grad_clip = Signalling(torch.nn.utils.clip_grad_norm_, 2)
    monkeypatch.setattr("torch.nn.utils.clip_grad_norm_", grad_clip)
    train(config)
    assert saved_steps(config) == [2]
    assert ["val_loss" in record for record in records_of(config.out)] == [True, False]
    monkeypatch.undo()
    assert_continues(config, complete_losses)
    validated = ["val_loss" in record for record in records_of(config.out)]
    assert validated == [True] * 6


def test_a_signal_during_the_validation_ends_it_and_saves(
    config: TrainConfig, monkeypatch: pytest.MonkeyPatch, complete_losses: list[float]
) -> None:
    score = Signalling(trainer.validation._stack, 2)
    monkeypatch.setattr("trainer.validation._stack", score)
    train(config)
    assert score.num_calls == 2
    assert saved_steps(config) == [3]
    assert "val_loss" not in records_of(config.out)[-1]
    monkeypatch.undo()
    assert_continues(config, complete_losses)
    assert validations(config) == validations(complete(config))


def test_a_signal_during_the_last_validation_leaves_a_finished_run(
    config: TrainConfig, monkeypatch: pytest.MonkeyPatch, capsys: Capture
) -> None:
    score = Signalling(trainer.validation._stack, 2)
    monkeypatch.setattr("trainer.validation._stack", score)
    config = dataclasses.replace(config, max_steps=2)
    train(config)
    assert saved_steps(config) == [2]
    assert validations(config) == {}
    assert checkpoint.best_checkpoint(Path(config.out)) is None
    monkeypatch.undo()
    train(config)
    assert "nothing to do but a validation" in capsys.readouterr().out
    assert validations(config) == validations(complete(config))
    assert checkpoint.resolve(config.out, is_best=True).name == "step-00000002"
    train(config)
    assert "nothing to do:" in capsys.readouterr().out


_SIGNAL_IN_VALIDATION = """
import os, signal, sys
import trainer.validation
from trainer.__main__ import main

real = trainer.validation._stack

def score(*arguments):
    if os.environ["RANK"] == "0":
        os.kill(os.getpid(), signal.SIGTERM)
    return real(*arguments)

trainer.validation._stack = score
sys.exit(main())
"""


@pytest.mark.slow
def test_ranks_that_stop_in_a_validation_make_no_further_step(
    config: TrainConfig, trainer: TrainerProcess, tmp_path: Path
) -> None:
    # Rank 1 ends with InterruptedError, as it had no signal of its own.
    program = tmp_path / "signalled.py"
    program.write_text(_SIGNAL_IN_VALIDATION)
    settings = {"data": config.data[0], "out": config.out, "preset": "tiny", "device": "cpu"}
    for name in (
        "n_embd",
        "block_size",
        "batch_tokens",
        "device_batch_size",
        "eval_every",
        "max_steps",
    ):
        settings[name] = getattr(config, name)
    result = trainer.run(*flags_of(**settings), ranks=2, program=program)
    assert "at step 3, saved" in result.stdout, result.stdout + result.stderr
    assert saved_steps(config) == [3]
    assert [record["step"] for record in records_of(config.out)] == [1, 2, 3]
    train(config)
    assert list(validations(config)) == [3, 6]


@pytest.mark.parametrize("name", ["loop.score_windows", "validation.ValidationSet.figures"])
def test_a_kill_around_a_validation_loses_no_point_of_the_curve(
    config: TrainConfig, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    config = dataclasses.replace(config, eval_every=2, save_every=2)

    def kill(*arguments: Any) -> None:
        raise Killed

    monkeypatch.setattr(f"trainer.{name}", kill)
    with pytest.raises(Killed):
        train(config)
    monkeypatch.undo()
    train(config)
    whole = complete(config)
    assert validations(config) == validations(whole)
    best = checkpoint.best_checkpoint(Path(config.out))
    assert best
    assert best.name == checkpoint.resolve(whole.out, is_best=True).name


def test_the_best_checkpoint_is_kept_beside_the_newest(
    config: TrainConfig, monkeypatch: pytest.MonkeyPatch
) -> None:
    losses = iter([3.0, 1.0, 2.0, 4.0, 4.0, 4.0, 4.0])
    monkeypatch.setattr(
        "trainer.validation.ValidationSet.figures", lambda *arguments: {"val_loss": next(losses)}
    )
    config = dataclasses.replace(config, eval_every=1, save_every=1, max_steps=7)
    train(config)
    assert saved_steps(config) == [2, 5, 6, 7]
    best = checkpoint.resolve(config.out, is_best=True)
    assert best.name == "step-00000002"
    assert load_pretrained(config.out, is_best=True).folder == best
    # In a run that continues from an earlier checkpoint, a later one is no candidate.
    for step in (5, 6, 7):
        shutil.rmtree(best.with_name(f"step-{step:08d}"))
    losses = iter([0.5])
    train(dataclasses.replace(config, max_steps=3))
    assert checkpoint.resolve(config.out, is_best=True).name == "step-00000003"


def test_no_best_checkpoint_is_an_error(config: TrainConfig) -> None:
    train(dataclasses.replace(config, max_steps=1, eval_every=0))
    with pytest.raises(checkpoint.CheckpointError, match="leave out --checkpoint best"):
        load_pretrained(config.out, is_best=True)
    with pytest.raises(SettingsError, match="give one of them"):
        load_pretrained(config.out, step=1, is_best=True)


@pytest.mark.parametrize(
    ("owner", "name", "call"),
    [
        (training, "open_corpora", 1),
        (training, "validation_set", 1),
        (Packed, "windows", 2),
        (Saver, "_write_files", 1),
        (Saver, "save", 1),
    ],
)
def test_a_signal_elsewhere_loses_nothing(
    config: TrainConfig,
    monkeypatch: pytest.MonkeyPatch,
    owner: Any,
    name: str,
    call: int,
    complete_losses: list[float],
) -> None:
    # In the set-up, while data is read, and while a checkpoint is written.
    config = dataclasses.replace(config, save_every=2)
    monkeypatch.setattr(owner, name, Signalling(getattr(owner, name), call))
    train(config)
    records = Path(config.out, "metrics.jsonl")
    assert saved_steps(config)[-1:] == [len(records_of(config.out))][: bool(records.stat().st_size)]
    monkeypatch.undo()
    assert_continues(config, complete_losses)


@pytest.mark.parametrize("file", ["model.safetensors", "training.safetensors", "checkpoint.json"])
def test_a_checkpoint_that_cannot_be_written_is_reported_soon(
    config: TrainConfig, monkeypatch: pytest.MonkeyPatch, file: str
) -> None:
    # A run of ten steps reports it, and does not wait for the next checkpoint.
    config = dataclasses.replace(config, save_every=15, eval_every=0, max_steps=45)
    folders = []

    def write_files(saver: Saver, folder: Path, *arguments: Any) -> None:
        folders.append(folder)
        (folder / file).mkdir()
        real(saver, folder, *arguments)

    real = Saver._write_files
    monkeypatch.setattr(Saver, "_write_files", write_files)
    with pytest.raises(OSError, match=file):
        train(config)
    assert not any(folder.exists() for folder in folders)
    assert len(records_of(config.out)) <= 30
    monkeypatch.undo()
    train(config)
    assert saved_steps(config) == [15, 30, 45]


@pytest.mark.parametrize(
    "place",
    [
        "trainer.checkpoint._sync",
        "pathlib.Path.rename",
        "pathlib.Path.write_text",
        "trainer.checkpoint._prune",
    ],
)
@pytest.mark.parametrize("step", [2, 4])
def test_a_kill_while_a_checkpoint_gets_its_name_loses_no_other(
    config: TrainConfig,
    monkeypatch: pytest.MonkeyPatch,
    place: str,
    step: int,
    complete_losses: list[float],
) -> None:
    owners = {"trainer.checkpoint": checkpoint, "pathlib.Path": Path}
    module, _, name = place.rpartition(".")
    owner = owners[module]
    real = getattr(owner, name)

    def kill(path: Path, *arguments: Any, **named: Any) -> Any:
        is_of_step = f"step-{step:08d}" in f"{path} {arguments}"
        if is_of_step:
            raise Killed
        return real(path, *arguments, **named)

    config = dataclasses.replace(config, save_every=2)
    monkeypatch.setattr(owner, name, kill)
    with pytest.raises(Killed):
        train(config)
    monkeypatch.undo()
    assert_continues(config, complete_losses)
