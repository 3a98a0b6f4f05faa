"""Runs of the trainer as a user makes them: processes, signals, ranks."""

from __future__ import annotations

import contextlib
import itertools
import json
import os
import random
import signal
import socket
import time
from pathlib import Path
from typing import Any

import pytest

from schemas import SettingsError
from tests.trainer.conftest import Capture, records_of
from trainer import checkpoint
from trainer.__main__ import main
from trainer.distributed import run_lock

# 2 layers of width 32: a step takes some milliseconds.
SMALL = (
    "--preset",
    "tiny",
    "--n_embd",
    32,
    "--block_size",
    32,
    "--batch_tokens",
    512,
    "--device_batch_size",
    4,
)
QUIET = ("--device", "cpu", "--no_compile")
WATCHED = Path(__file__).with_name("watched.py")


def losses(run: Path, key: str = "loss") -> list[float]:
    """Return the loss of every step; fail if a step is missing or logged twice."""
    records = records_of(run)
    assert [record["step"] for record in records] == list(range(1, len(records) + 1))
    return [record[key] for record in records]


def trained_here(*arguments: object) -> int:
    """Return the exit code of the command in this process."""
    return main([*map(str, arguments)])


def test_the_documented_command_trains_and_the_loss_falls(
    text_tokens: Path, tmp_path: Path, trainer: Any
) -> None:
    run = tmp_path / "run"
    result = trainer.run(
        "--data",
        text_tokens,
        "--out",
        run,
        "--preset",
        "tiny",
        "--max_steps",
        12,
        "--device",
        "cpu",
    )
    assert result.returncode == 0, result.stderr
    lines = [line for line in result.stdout.splitlines() if line.startswith("step ")]
    assert [line.split()[1] for line in lines] == ["1/12", "10/12", "12/12"]
    assert all(line.endswith(" left") for line in lines)
    assert "Warning" not in result.stderr
    shown = losses(run)
    assert len(shown) == 12
    assert shown[-1] < shown[0] - 0.3
    assert list((run / "tensorboard").iterdir())
    record = json.loads((run / "checkpoints" / "step-00000012" / "checkpoint.json").read_text())
    manifest = json.loads((text_tokens.parent / "ledger/manifest.json").read_text())["datasets"][
        "tokens"
    ]
    assert record["data"][0]["files"] == {"train": 2, "val": 2}
    assert record["tokenizer"]["sha256"] == manifest["properties"]["tokenizer"]["sha256"]
    assert {key: record["settings"][key] for key in ("preset", "max_steps")} == {
        "preset": "tiny",
        "max_steps": 12,
    }


@pytest.mark.slow
def test_a_second_run_waits_for_the_folder_and_ctrl_c_saves(
    text_tokens: Path, tmp_path: Path, trainer: Any
) -> None:
    arguments = (
        "--data",
        text_tokens,
        "--out",
        tmp_path,
        *SMALL,
        *QUIET,
        "--max_steps",
        100_000,
        "--save_every",
        0,
    )
    process = trainer.start(*arguments)
    _wait_for_line(process, "step 10/")
    with (
        pytest.raises(
            SettingsError,
            match=rf"by another run \(process {process.pid} on .*\); .*give another --out",
        ),
        run_lock(tmp_path, print, patience=0),
    ):
        pass
    process.send_signal(signal.SIGINT)
    output, _ = process.communicate(timeout=60)
    assert process.returncode == 0
    assert_stopped_by("SIGINT", output, tmp_path)
    with run_lock(tmp_path, print, patience=5):
        pass


def assert_stopped_by(name: str, output: str, run: Path) -> None:
    """Assert that the last step is saved."""
    assert f"stopped by {name} at step" in output
    newest = checkpoint.resolve(run)
    assert checkpoint.read_record(newest).step == len(losses(run))


def assert_gloo_has_ended(run: Path) -> None:
    """Assert that gloo has no thread: one may abort the process as it ends."""
    for rank in range(2):
        names = (run / f"threads-{rank}").read_text().splitlines()
        assert names
        assert not [name for name in names if "gloo" in name]


@pytest.mark.slow
def test_a_node_that_joins_and_one_that_dies_change_no_batch(
    text_tokens: Path, tmp_path: Path, trainer: Any
) -> None:
    arguments = (
        "--data",
        text_tokens,
        *SMALL,
        *QUIET,
        "--batch_tokens",
        15 * 32,
        "--learning_rate",
        1e-3,
    )
    arguments += (
        "--schedule",
        "constant",
        "--warmup_steps",
        5,
        "--eval_every",
        0,
        "--save_every",
        10,
    )
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    elastic = (
        "--nnodes=1:2",
        "--max-restarts=5",
        "--rdzv-backend=c10d",
        f"--rdzv-endpoint=127.0.0.1:{port}",
    )
    elastic += (
        "--rdzv-id=1",
        "--rdzv-conf=last_call_timeout=1,keep_alive_interval=1,keep_alive_max_attempt=6",
    )
    out = tmp_path / "elastic"
    run = (*arguments, "--out", out, "--max_steps", 100_000)
    try:
        first = trainer.start(*run, ranks=1, torchrun=elastic, program=WATCHED)
        _wait_for_checkpoint(out, world_size=1)
        second = trainer.start(*run, ranks=1, torchrun=elastic, program=WATCHED)
        _wait_for_checkpoint(out, world_size=2)
        for pid in [*_ranks_of(second), second.pid]:
            os.kill(pid, signal.SIGKILL)
        _wait_for_checkpoint(out, world_size=1)
        first.send_signal(signal.SIGTERM)
        first.communicate(timeout=60)
    finally:
        for pid in _processes_of(out):
            os.kill(pid, signal.SIGKILL)
    records = records_of(out)
    assert [size for size, _ in itertools.groupby(record["world_size"] for record in records)] == [
        1,
        2,
        1,
    ]
    assert (
        trained_here(*arguments, "--out", tmp_path / "complete", "--max_steps", len(records)) == 0
    )
    assert losses(out) == pytest.approx(losses(tmp_path / "complete"), rel=1e-3)


def test_two_ranks_train_as_one_and_one_rank_continues_from_two(
    text_tokens: Path, tmp_path: Path, trainer: Any, capsys: Capture
) -> None:
    # The same run has one rank, then two, then one again.
    arguments = (
        "--data",
        text_tokens,
        *SMALL,
        *QUIET,
        "--save_every",
        5,
        "--eval_every",
        7,
        "--schedule",
        "constant",
    )
    arguments += ("--warmup_steps", 2)
    assert trained_here(*arguments, "--out", tmp_path / "one", "--max_steps", 15) == 0
    assert trained_here(*arguments, "--out", tmp_path / "more", "--max_steps", 5) == 0
    result = trainer.run(
        *arguments, "--out", tmp_path / "more", "--max_steps", 10, ranks=2, program=WATCHED
    )
    assert result.returncode == 0, result.stdout + result.stderr
    assert_gloo_has_ended(tmp_path / "more")
    capsys.readouterr()
    assert trained_here(*arguments, "--out", tmp_path / "more", "--max_steps", 15) == 0
    assert "step-00000010 at step 10" in capsys.readouterr().out
    for key in ("loss", "grad_norm"):
        assert losses(tmp_path / "more", key) == pytest.approx(
            losses(tmp_path / "one", key), rel=1e-4
        )
    assert losses(tmp_path / "more", "world_size") == [1] * 5 + [2] * 5 + [1] * 5
    records = records_of(tmp_path / "more")
    assert ["val_loss" in record for record in records] == [
        step in (5, 7, 10, 14, 15) for step in range(1, 16)
    ]


# Four trainings, on a machine that may be busy.
@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.parametrize("ranks", [0, pytest.param(2, marks=pytest.mark.slow)])
def test_a_signal_saves_and_neither_it_nor_a_kill_alters_a_loss(
    text_tokens: Path, tmp_path: Path, trainer: Any, ranks: int
) -> None:
    arguments = ("--data", text_tokens, *SMALL, *QUIET, "--max_steps", 60, "--save_every", 7)
    arguments += (
        "--eval_every",
        10,
        "--dropout",
        0.1,
        "--sampler",
        "longbiased",
        "--long_min_tokens",
        200,
    )
    complete = tmp_path / "complete"
    stopped = tmp_path / "stopped"
    if ranks:
        assert trainer.run(*arguments, "--out", complete, ranks=ranks).returncode == 0
    else:
        assert trained_here(*arguments, "--out", complete) == 0
    process = trainer.start(*arguments, "--out", stopped, ranks=ranks)
    _wait_for_line(process, "step 10/")
    process.send_signal(signal.SIGTERM)
    output, _ = process.communicate(timeout=60)
    # Torchrun prints a traceback of its own.
    assert (process.returncode == 0) == (ranks == 0)
    assert_stopped_by("SIGTERM", output, stopped)
    process = trainer.start(*arguments, "--out", stopped, ranks=ranks)
    _wait_for_line(process, "step 40/")
    time.sleep(random.Random(ranks).uniform(0, 0.2))
    for pid in [process.pid, *_ranks_of(process)]:
        os.kill(pid, signal.SIGKILL)
    process.communicate()
    result = trainer.run(*arguments, "--out", stopped, ranks=ranks)
    assert result.returncode == 0, result.stderr
    assert "resumed from" in result.stdout
    for key in ("loss", "grad_norm"):
        assert losses(stopped, key) == losses(complete, key)
    for name in ("model.safetensors", "training.safetensors"):
        one, other = (run / "checkpoints" / "step-00000060" / name for run in (stopped, complete))
        assert one.read_bytes() == other.read_bytes()


def _wait_for_checkpoint(run: Path, *, world_size: int) -> None:
    """Wait until the newest checkpoint is of `world_size` ranks.

    Rank 0, which prints steps, may be on any node.
    """
    deadline = time.monotonic() + 240
    while time.monotonic() < deadline:
        records = sorted(run.glob("checkpoints/step-*/checkpoint.json"))
        # A checkpoint may be pruned meanwhile.
        with contextlib.suppress(OSError):
            if records and json.loads(records[-1].read_text())["world_size"] == world_size:
                return
        time.sleep(0.2)
    raise AssertionError(f"no checkpoint was made by {world_size} ranks")


def _processes_of(run: Path) -> list[int]:
    """Return every process with `run` in its command line."""
    pids = []
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        with contextlib.suppress(OSError):
            if str(run).encode() in path.read_bytes():
                pids.append(int(path.parent.name))
    return pids


def _ranks_of(launcher: Any) -> list[int]:
    """Return the process ids of the trainers that a torchrun has started."""
    pids = []
    for process in Path("/proc").glob("[0-9]*"):
        # A process may end meanwhile.
        with contextlib.suppress(OSError):
            parent = (process / "stat").read_text().rpartition(")")[2].split()[1]
            if int(parent) == launcher.pid and b"trainer" in (process / "cmdline").read_bytes():
                pids.append(int(process.name))
    return pids


def _wait_for_line(process: Any, text: str) -> None:
    deadline = time.monotonic() + 120
    for line in process.stdout:
        if text in line:
            return
        if time.monotonic() > deadline:
            break
    os.killpg(process.pid, signal.SIGKILL)
    raise AssertionError(f"the trainer never printed '{text}'")
