from __future__ import annotations

import pytest
import torch

from trainer.model import GPT, ModelConfig
from trainer.optimizers import OPTIMIZERS, learning_rate, make_optimizers

MODEL = ModelConfig(vocab_size=100, context=8, n_layer=2, n_head=2, width=16)


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_every_parameter_has_one_optimizer_and_only_matrices_decay(name: str) -> None:
    model = GPT(MODEL)
    groups = [
        group
        for optimizer in make_optimizers(name, model, lr=1e-3, weight_decay=0.1, betas=(0.9, 0.95))
        for group in optimizer.param_groups
    ]
    owned = [id(p) for group in groups for p in group["params"]]
    assert sorted(owned) == sorted(id(p) for p in model.parameters())
    for group in groups:
        assert {p.dim() >= 2 for p in group["params"]} == {group["weight_decay"] == 0.1}


def test_muon_has_the_blocks_matrices_and_not_the_embeddings() -> None:
    model = GPT(MODEL)
    muon, _ = make_optimizers("muon", model, lr=1e-3, weight_decay=0.1, betas=(0.9, 0.95))
    owned = {id(p) for group in muon.param_groups for p in group["params"]}
    assert owned == {id(p) for name, p in model.named_parameters() if name.startswith("h.") and p.dim() == 2}


@pytest.mark.parametrize("name", ["Adafactor", "Muon"])
def test_an_optimizer_that_torch_lacks_is_named(monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    monkeypatch.delattr(torch.optim, name)
    with pytest.raises(ValueError, match=rf"has no optimizer {name}; use adamw, or torch 2\.9"):
        make_optimizers(name.lower(), GPT(MODEL), lr=1e-3, weight_decay=0.1, betas=(0.9, 0.95))


@pytest.mark.parametrize("schedule", ["cosine", "linear", "wsd"])
def test_the_learning_rate_warms_up_to_its_peak_and_ends_at_its_floor(schedule: str) -> None:
    rates = [
        learning_rate(step, peak=1.0, schedule=schedule, warmup_steps=10, max_steps=100, min_fraction=0.1)
        for step in range(100)
    ]
    assert rates[:10] == pytest.approx([(step + 1) / 10 for step in range(10)])
    assert max(rates) == 1.0
    assert rates[10:] == sorted(rates[10:], reverse=True)
    assert rates[-1] == pytest.approx(0.1)


def test_each_schedule_has_its_shape() -> None:
    def rate(step: int, schedule: str) -> float:
        return learning_rate(step, peak=1.0, schedule=schedule, warmup_steps=0, max_steps=100, min_fraction=0.0)

    assert rate(49, "cosine") == pytest.approx(0.5)
    assert rate(24, "cosine") == pytest.approx(0.854, abs=1e-3)
    assert rate(24, "linear") == pytest.approx(0.75)
    assert [rate(step, "wsd") for step in (0, 50, 79)] == [1.0, 1.0, 1.0]
    assert rate(89, "wsd") == pytest.approx(0.5)
    assert rate(99, "constant") == 1.0
