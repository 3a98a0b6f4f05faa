from __future__ import annotations

import dataclasses
import math
from pathlib import Path

import pytest
import torch

from schemas import SettingsError
from trainer import preflight
from trainer.config import TrainConfig
from trainer.model import GPT, ModelConfig
from trainer.optimizers import OPTIMIZERS, make_optimizers
from trainer.preflight import activation_bytes, micro_batch_that_fits, optimizer_bytes
from trainer.train import train

MODEL = ModelConfig(vocab_size=300, context=64, n_layer=2, n_head=2, width=64)
FLOAT32 = torch.autocast("cpu", enabled=False)


@pytest.fixture
def config(text_tokens: Path, tmp_path: Path) -> TrainConfig:
    return TrainConfig(
        data=str(text_tokens),
        out=str(tmp_path / "run"),
        preset="tiny",
        width=32,
        context=32,
        batch_tokens=512,
        max_steps=6,
        dropout=0.1,
        device="cpu",
        tensorboard=False,
    )


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_the_optimizers_memory_is_predicted(name: str) -> None:
    model = GPT(MODEL)
    optimizers = make_optimizers(name, model, lr=1e-3, weight_decay=0.1, betas=(0.9, 0.95))
    model(torch.zeros(1, 8, dtype=torch.int64), torch.zeros(1, 8, dtype=torch.int64)).backward()
    for optimizer in optimizers:
        optimizer.step()
    states = [entry for optimizer in optimizers for entry in optimizer.state.values()]
    real = sum(value.nbytes for entry in states for value in entry.values() if value.numel() > 1)
    assert optimizer_bytes(model, name) == pytest.approx(real, rel=0.02)


def test_activations_grow_with_the_windows_and_recomputing_them_saves() -> None:
    model = GPT(MODEL).train()
    four = activation_bytes(model, 4, FLOAT32)
    logits = 4 * 64 * 384 * 4
    assert four > logits + 4 * 64 * 64 * 4 * 2 * 10  # ten or more tensors of the width a layer
    model.checkpoint_activations = True
    assert logits < activation_bytes(model, 4, FLOAT32) < four / 2


def test_the_largest_micro_batch_that_fits_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    model = GPT(MODEL).train()
    gradients = 4 * sum(p.numel() for p in model.parameters())
    for budget, expected in ((3, 2), (9, 8), (100, 16)):
        free = (activation_bytes(model, budget, FLOAT32) + gradients + 1000) / 0.9
        monkeypatch.setattr(preflight, "free_host_bytes", lambda free=free: free)
        assert micro_batch_that_fits(model, 20, 1000, FLOAT32) == expected
    monkeypatch.setattr(preflight, "free_host_bytes", lambda: 1000)
    with pytest.raises(ValueError, match="not even one window fits in memory; try --checkpoint_activations"):
        micro_batch_that_fits(model, 20, 1000, FLOAT32)


def test_a_micro_batch_found_by_trying_trains_as_the_same_one_given(config: TrainConfig, tmp_path: Path) -> None:
    found = train(dataclasses.replace(config, micro_batch=0))
    assert found == train(dataclasses.replace(config, micro_batch=16, out=str(tmp_path / "given")))


def test_preflight_tells_memory_work_and_time_and_trains_nothing(
    config: TrainConfig, capsys: pytest.CaptureFixture[str]
) -> None:
    assert math.isnan(train(dataclasses.replace(config, preflight=True)))
    lines = capsys.readouterr().out.splitlines()
    assert [line.split()[0] for line in lines if line[:1] in "pmwt"][-4:] == ["parameters", "memory", "work", "time"]
    assert "6 steps of 512 tokens" in lines[-2]
    assert not Path(config.out).exists()


def test_fsdp_wants_its_micro_batch_and_an_optimizer_that_knows_it(config: TrainConfig) -> None:
    with pytest.raises(SettingsError, match="with fsdp, give the micro_batch"):
        dataclasses.replace(config, fsdp=True, micro_batch=0)
    with pytest.raises(SettingsError, match="Adafactor does not work on weights spread by fsdp"):
        dataclasses.replace(config, fsdp=True, optimizer="adafactor")
