"""Training on XLA, on the CPU as PJRT's device: `make test-xla` has the environment."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from .conftest import TINY, flags_of

pytest.importorskip("torch_xla", reason="needs an environment of its own: make test-xla")

REPOSITORY = Path(__file__).resolve().parents[2]
Train = Callable[..., list[dict[str, float]]]

# Counts the programs that XLA has compiled after each step.
COUNTING = """
import sys
import torch_xla.debug.metrics as met
from trainer.__main__ import main
from trainer.distributed import XlaRanks
counts, sync = [], XlaRanks.sync
def counted(self):
    sync(self)
    counts.append(met.metric_data("CompileTime")[0])
XlaRanks.sync = counted
code = main(sys.argv[1:])
print("compiled", counts)
raise SystemExit(code)
"""


@pytest.fixture
def train(tmp_path: Path, text_tokens: Path) -> Train:
    """Return `train(run, device, steps, more flags)`, which gives the records of its steps.

    It trains in a process of its own.
    """

    def train(run: str, device: str, steps: int, *flags: object, module: str = "trainer"):  # type: ignore[no-untyped-def]
        arguments = flags_of(
            data=text_tokens,
            out=tmp_path / run,
            device=device,
            max_steps=steps,
            **TINY,
            device_batch_size=2,
            warmup_steps=4,
            save_every=10,
        )
        arguments += map(str, flags)
        start = ["-c", COUNTING] if module == "counting" else ["-m", module]
        done = subprocess.run(
            [sys.executable, *start, *arguments],
            capture_output=True,
            text=True,
            timeout=500,
            check=False,
            env={**os.environ, "PYTHONPATH": str(REPOSITORY), "PJRT_DEVICE": "CPU"},
        )
        assert done.returncode == 0, done.stderr[-3000:]
        (tmp_path / f"{run}.out").write_text(done.stdout)
        return [
            json.loads(line) for line in (tmp_path / run / "metrics.jsonl").read_text().splitlines()
        ]

    return train


def test_twenty_steps_equal_those_of_the_cpu_and_compile_once(train: Train, tmp_path: Path) -> None:
    # A step has four micro-batches, in float32.
    ours = train("xla", "xla", 20, "--dtype", "float32", "--eval_every", 0, module="counting")
    on_cpu = train("cpu", "cpu", 20, "--dtype", "float32", "--eval_every", 0)
    assert [record["loss"] for record in ours] == pytest.approx(
        [record["loss"] for record in on_cpu], abs=1e-3
    )
    assert [record["grad_norm"] for record in ours] == pytest.approx(
        [r["grad_norm"] for r in on_cpu], rel=1e-2
    )
    line = next(
        line
        for line in (tmp_path / "xla.out").read_text().splitlines()
        if line.startswith("compiled")
    )
    counts = json.loads(line.removeprefix("compiled "))
    assert len(counts) == 20
    assert counts[1:] == [counts[1]] * 19, counts


def test_either_device_continues_from_the_others_checkpoint(train: Train) -> None:
    flags = ("--dtype", "float32", "--schedule", "constant", "--eval_every", 10)
    complete = train("cpu", "cpu", 20, *flags)
    for first, then in (("xla", "cpu"), ("cpu", "xla")):
        run = f"{first}-{then}"
        train(run, first, 10, *flags)
        records = train(run, then, 20, *flags)
        assert [record["step"] for record in records] == list(range(1, 21))
        assert [record["loss"] for record in records] == pytest.approx(
            [r["loss"] for r in complete], abs=1e-3
        )
        assert records[-1]["val_loss"] == pytest.approx(complete[-1]["val_loss"], abs=1e-3)


def test_bfloat16_learns_as_float32_does(train: Train) -> None:
    ours = train("bf16", "xla", 20, "--eval_every", 0)
    on_cpu = train("cpu", "cpu", 20, "--dtype", "float32", "--eval_every", 0)
    assert [record["loss"] for record in ours] == pytest.approx(
        [record["loss"] for record in on_cpu], abs=0.05
    )
    assert ours[-1]["loss"] != on_cpu[-1]["loss"]


def test_a_run_launched_by_torch_xla_is_the_same(train: Train) -> None:
    """One device: torch_xla 2.9 cannot add up over two of PJRT's CPU devices; test_xla_ranks.py
    has two processes."""
    flags = ("--dtype", "float32", "--eval_every", 5)
    ours = train("launched", "xla_host", 10, *flags)
    on_cpu = train("one", "cpu", 10, *flags)
    assert [record["loss"] for record in ours] == pytest.approx(
        [record["loss"] for record in on_cpu], abs=1e-3
    )
    assert ours[-1]["val_loss"] == pytest.approx(on_cpu[-1]["val_loss"], abs=1e-3)
