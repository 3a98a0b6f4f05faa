from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F

from trainer.model import GPT, ModelConfig
from trainer.optimizers import OPTIMIZERS, learning_rate, make_optimizers

MODEL = ModelConfig(vocab_size=100, context=8, n_layer=2, n_head=2, width=16)


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_every_parameter_has_one_optimizer_and_only_matrices_decay(name: str) -> None:
    model = GPT(MODEL)
    groups = [
        group
        for optimizer in make_optimizers(name, model, lr=1e-3, weight_decay=0.1)
        for group in optimizer.param_groups
    ]
    owned = [id(p) for group in groups for p in group["params"]]
    assert sorted(owned) == sorted(id(p) for p in model.parameters())
    for group in groups:
        decay = group["relative_decay" if name == "adafactor" else "weight_decay"]
        assert {p.dim() >= 2 for p in group["params"]} == {decay == 0.1}


def test_adafactor_equals_that_of_transformers_except_for_the_keys_biases() -> None:
    transformers = pytest.importorskip("transformers", reason="the peer: pip install transformers")
    torch.manual_seed(0)
    ours, theirs = GPT(MODEL), GPT(MODEL)
    theirs.load_state_dict(ours.state_dict())
    (mine,) = make_optimizers("adafactor", ours, lr=3e-2, weight_decay=0.1)
    split = [[p for p in theirs.parameters() if (p.dim() >= 2) == matrices] for matrices in (True, False)]
    groups = [{"params": own, "weight_decay": decay} for own, decay in zip(split, (0.1, 0.0), strict=True)]
    other = transformers.Adafactor(groups, lr=3e-2, relative_step=False)
    before = {name: p.detach().clone() for name, p in ours.named_parameters()}
    for _ in range(4):
        ids = torch.randint(100, (4, 9))
        mine.zero_grad()
        ours(ids[:, :-1], ids[:, 1:]).backward()
        for p, q in zip(ours.parameters(), theirs.parameters(), strict=True):
            q.grad = p.grad.clone()  # type: ignore[union-attr]
        mine.step()
        other.step()
    for (name, p), q in zip(ours.named_parameters(), theirs.parameters(), strict=True):
        moves = [(after - before[name]).detach() for after in (p, q)]
        if name.endswith("c_attn.bias"):  # the gradient of the keys' is rounding alone, which no softmax sees
            queries, keys, values = zip(*(move.chunk(3) for move in moves), strict=True)
            assert keys[0].abs().max() < 0.01 * keys[1].abs().max()
            for own, wanted in (queries, values):  # but for the scale, which follows from the RMS of all three
                assert F.cosine_similarity(own, wanted, 0) > 0.99
            continue
        torch.testing.assert_close(*moves, rtol=2e-3, atol=1e-6, msg=name)


def test_muon_has_the_blocks_matrices_and_not_the_embeddings() -> None:
    model = GPT(MODEL)
    hidden, _ = make_optimizers("muon", model, lr=1e-3, weight_decay=0.1)
    owned = {id(p) for group in hidden.param_groups for p in group["params"]}
    assert owned == {id(p) for name, p in model.named_parameters() if name.startswith("h.") and p.dim() == 2}


@pytest.mark.parametrize("schedule", ["cosine", "linear", "wsd"])
def test_the_learning_rate_warms_up_to_its_peak_and_ends_at_its_floor(schedule: str) -> None:
    rates = [learning_rate(step, schedule, 10, 100) for step in range(100)]
    assert rates[:10] == pytest.approx([(step + 1) / 10 for step in range(10)])
    assert max(rates) == 1.0
    assert rates[10:] == sorted(rates[10:], reverse=True)
    assert rates[-1] == pytest.approx(1 / 21 if schedule == "wsd" else 0.1)  # zero one step later, or a tenth


@pytest.mark.parametrize(
    ("schedule", "steps", "rates"),
    [
        ("cosine", (24, 49), (0.868, 0.55)),
        ("linear", (24,), (0.775,)),
        ("wsd", (0, 50, 79, 89), (1.0, 1.0, 1.0, 11 / 21)),
        ("constant", (99,), (1.0,)),
    ],
)
def test_each_schedule_has_its_shape(schedule: str, steps: tuple[int, ...], rates: tuple[float, ...]) -> None:
    assert [learning_rate(step, schedule, 0, 100) for step in steps] == pytest.approx(rates, abs=1e-3)
