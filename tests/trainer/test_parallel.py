"""Two ranks: when gradients travel, in what precision, and that compiled blocks leave room for it."""

from __future__ import annotations

import dataclasses
import json
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from torch._dynamo.utils import counters

from trainer.config import TrainConfig
from trainer.train import train

PROGRAM = Path(__file__).with_name("two_ranks.py")
REPOSITORY = Path(__file__).resolve().parents[2]
PIECES = ["rope", "qk_norm", "activation", "document_mask", "muon"]
SMALL = ("--preset", "tiny", "--width", 32, "--context", 32, "--batch_tokens", 512, "--micro_batch", 4)
QUIET = ("--tracker", "none", "--device", "cpu", "--val_windows", 4)


@pytest.fixture(scope="module")
def found(trainer: Any) -> dict[str, Any]:
    result = trainer.run(ranks=2, program=PROGRAM)
    assert result.returncode == 0, result.stderr[-3000:]
    return json.loads(result.stdout.splitlines()[-1])


@pytest.mark.slow
def test_two_ranks_have_the_gradient_of_one(found: dict[str, Any]) -> None:
    assert found["ddp"]["norm"] == pytest.approx(found["alone"], rel=1e-4)


@pytest.mark.slow
def test_ddp_sends_gradients_of_compiled_blocks_while_earlier_blocks_compute(found: dict[str, Any]) -> None:
    events = found["ddp"]["events"]
    assert found["ddp"]["reduced"] == [0, 0, events.count("sent")]
    assert events.index("sent") < events.index("block 5")
    assert events.count("sent") >= 4


@pytest.fixture(scope="module")
def pieces(trainer: Any) -> dict[str, Any]:
    result = trainer.run(ranks=2, program=PROGRAM.with_name("two_ranks_pieces.py"))
    assert result.returncode == 0, result.stderr[-3000:]
    return json.loads(result.stdout.splitlines()[-1])


@pytest.mark.slow
@pytest.mark.parametrize("piece", PIECES)
def test_each_piece_of_the_speedrun_settings_trains_on_two_ranks_as_on_one(pieces: dict[str, Any], piece: str) -> None:
    near = 2e-3 if piece == "muon" else 1e-5  # products in bfloat16
    assert pieces[piece]["ddp"] == pytest.approx(pieces[piece]["alone"], rel=near)


@pytest.mark.slow
def test_the_speedrun_preset_trains_over_two_ranks(text_tokens: Path, tmp_path: Path, trainer: Any) -> None:
    preset = REPOSITORY / "presets" / "speedrun.toml"
    arguments: tuple[object, ...] = (preset, "--data", text_tokens, *SMALL, *QUIET, "--n_layer", 5, "--max_steps", 8)
    arguments += ("--no_compile", "--save_every", 4, "--dtype", "bfloat16")
    result = trainer.run(*arguments, "--out", tmp_path / "run", ranks=2)
    assert result.returncode == 0, result.stderr
    losses = [json.loads(line)["loss"] for line in (tmp_path / "run" / "metrics.jsonl").read_text().splitlines()]
    assert len(losses) == 8
    assert losses[-1] < losses[0] - 0.1


@pytest.mark.parametrize("recomputed", [False, True])
def test_a_run_compiles_once_for_training_and_once_for_validation(
    text_tokens: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, recomputed: bool
) -> None:
    """With a batch that does not divide into its micro-batches, nor the validation windows."""
    monkeypatch.setattr(torch, "compile", partial(torch.compile, backend="aot_eager"))
    torch._dynamo.reset()
    counters.clear()
    config = TrainConfig(
        data=(str(text_tokens),), out=str(tmp_path / "run"), preset="tiny", width=32, context=32, batch_tokens=7 * 32,
        micro_batch=3, max_steps=4, val_every=2, val_windows=4, log_every=1, compile=True, device="cpu",
        document_mask=True, reset_positions=True, checkpoint_activations=recomputed, tracker="none",
    )  # fmt: skip
    compiled = train(config)
    assert counters["stats"]["unique_graphs"] == (4 if recomputed else 2)  # blocks and output by themselves, or all
    assert not counters["graph_break"]
    plain = train(dataclasses.replace(config, compile=False, out=str(tmp_path / "plain")))
    assert compiled == pytest.approx(plain, rel=1e-4)


@pytest.mark.slow
def test_muon_trains_on_two_ranks_as_on_one(text_tokens: Path, tmp_path: Path, trainer: Any) -> None:
    arguments = ("--data", text_tokens, *SMALL, *QUIET, "--max_steps", 10, "--optimizer", "muon")
    assert trainer.run(*arguments, "--out", tmp_path / "one").returncode == 0
    result = trainer.run(*arguments, "--out", tmp_path / "two", ranks=2)
    assert result.returncode == 0, result.stderr
    records = [
        [json.loads(line)["loss"] for line in (tmp_path / run / "metrics.jsonl").read_text().splitlines()]
        for run in ("one", "two")
    ]
    assert records[0][-1] < records[0][0] - 0.2
    assert records[1] == pytest.approx(records[0], rel=2e-3)
