from __future__ import annotations

import dataclasses
import math
from pathlib import Path

import pytest
import torch

from schemas import SettingsError
from trainer import preflight
from trainer.config import TrainConfig
from trainer.data import DocumentBlocks
from trainer.model import GPT, ModelConfig
from trainer.optimizers import OPTIMIZERS, make_optimizers
from trainer.preflight import Passes, activation_bytes, micro_batch_that_fits, optimizer_bytes
from trainer.train import train

MODEL = ModelConfig(vocab_size=300, context=64, n_layer=2, n_head=2, width=64)
FLOAT32 = torch.autocast("cpu", enabled=False)


@pytest.fixture
def config(text_tokens: Path, tmp_path: Path) -> TrainConfig:
    return TrainConfig(
        data=(str(text_tokens),),
        out=str(tmp_path / "run"),
        preset="tiny",
        width=32,
        context=32,
        batch_tokens=512,
        max_steps=6,
        dropout=0.1,
        device="cpu",
        tracker="none",
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


def passes(model: GPT, net: torch.nn.Module | None = None) -> Passes:
    return Passes(model, model if net is None else net, FLOAT32, DocumentBlocks(eot=299))


def test_activations_grow_with_the_windows_and_recomputing_them_saves() -> None:
    model = GPT(MODEL).train()
    four = activation_bytes(passes(model), 4)
    logits = 4 * 64 * 384 * 4
    assert four > logits + 4 * 64 * 64 * 4 * 2 * 10  # ten or more tensors of the width a layer
    model.checkpoint_activations = True
    assert logits < activation_bytes(passes(model), 4) < four / 2


def test_the_largest_micro_batch_that_fits_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    model = GPT(MODEL).train()
    gradients = 4 * sum(p.numel() for p in model.parameters())
    for budget, expected in ((3, 2), (9, 8), (100, 16)):
        free = (activation_bytes(passes(model), budget) + gradients + 1000) / 0.9
        monkeypatch.setattr(preflight, "free_host_bytes", lambda free=free: free)
        assert micro_batch_that_fits(passes(model), 20, 1000) == expected
    monkeypatch.setattr(preflight, "free_host_bytes", lambda: 1000)
    with pytest.raises(ValueError, match="not even one window fits in memory; try --checkpoint_activations"):
        micro_batch_that_fits(passes(model), 20, 1000)


@pytest.mark.parametrize(("room", "fits"), [(450, 16), (449, 16), (250, 8), (125, 4), (120, 1), (99, 0)])
def test_on_a_gpu_few_sizes_are_tried_among_them_the_chosen_one(room: int, fits: int) -> None:
    tried = []

    def bytes_of(size: int) -> float:
        tried.append(size)
        return 80 + 20 * size + (25 if size > 16 else 0)  # the largest take more than follows from one and two

    sizes = [1, 2, 4, 8, 16, 32]
    found = preflight._sizes_that_fit(bytes_of, sizes, room)
    assert (found[-1] if found else 0) == max((size for size in sizes if bytes_of(size) <= room), default=0)
    assert len(tried) <= 4 + len(sizes)


def test_what_is_measured_is_what_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    """Compiled code keeps less for the backward pass, and a boolean mask is kept, too."""
    model = GPT(MODEL).train()
    compiled = torch.compile(model, backend="aot_eager_decomp_partition", dynamic=False)
    plain = activation_bytes(passes(model), 4)
    assert activation_bytes(passes(model, compiled), 4) < plain
    masked = Passes(model, model, FLOAT32, DocumentBlocks(eot=299, mask=True))
    assert activation_bytes(masked, 4) >= plain + 4 * 64 * 64
    monkeypatch.setattr(preflight, "free_host_bytes", lambda: 10**9)
    assert micro_batch_that_fits(passes(model, compiled), 4, 1000) == 4


def test_a_micro_batch_found_by_trying_trains_as_the_same_one_given(config: TrainConfig, tmp_path: Path) -> None:
    found = train(dataclasses.replace(config, micro_batch=0))
    assert found == train(dataclasses.replace(config, micro_batch=16, out=str(tmp_path / "given")))


def test_preflight_reports_memory_work_and_time_and_trains_nothing(
    config: TrainConfig, capsys: pytest.CaptureFixture[str]
) -> None:
    assert math.isnan(train(dataclasses.replace(config, preflight=True)))
    lines = capsys.readouterr().out.splitlines()
    assert [line.split()[0] for line in lines if line[:1] in "pmwt"][-4:] == ["parameters", "memory", "work", "time"]
    assert "6 steps of 512 tokens" in lines[-2]
    assert not Path(config.out).exists()


def test_fsdp_needs_a_micro_batch_and_an_optimizer_that_supports_it(config: TrainConfig) -> None:
    with pytest.raises(SettingsError, match="with fsdp, give the micro_batch"):
        dataclasses.replace(config, fsdp=True, micro_batch=0)
    with pytest.raises(SettingsError, match="Adafactor does not work on weights sharded by fsdp"):
        dataclasses.replace(config, fsdp=True, optimizer="adafactor")


def test_a_document_mask_with_dropout_is_refused_at_the_start(config: TrainConfig) -> None:
    with pytest.raises(SettingsError, match="FlexAttention has no dropout: give document_mask or dropout, not both"):
        dataclasses.replace(config, document_mask=True)
