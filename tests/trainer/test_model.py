"""The model and its optimizers, next to those of transformers."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F

from tests.trainer.conftest import generate
from trainer.config import OPTIMIZERS, schedule_factor
from trainer.data.loader import DocumentBlocks
from trainer.huggingface import from_huggingface, to_huggingface
from trainer.model import GPT, PRESETS, ModelConfig
from trainer.optim import make_optimizers

SMALL = ModelConfig(vocab_size=203, block_size=24, n_layer=3, n_head=4, n_embd=32)
# The four published shapes, scaled down: their depth-to-width and head ratios.
SCALED = {
    "124M": ModelConfig(vocab_size=257, block_size=32, n_layer=3, n_head=3, n_embd=48),
    "355M": ModelConfig(vocab_size=257, block_size=32, n_layer=6, n_head=4, n_embd=64),
    "774M": ModelConfig(vocab_size=257, block_size=32, n_layer=9, n_head=5, n_embd=80),
    "1.5B": ModelConfig(vocab_size=257, block_size=32, n_layer=12, n_head=5, n_embd=80),
}


PARAMETERS = {
    "124M": 124_439_808,
    "355M": 354_823_168,
    "774M": 774_030_080,
    "1.5B": 1_557_611_200,
    "prettybig": 367_419_392,
    "algpt2": 12_160_704,
}


def test_presets_have_the_documented_number_of_parameters() -> None:
    with torch.device("meta"):
        assert {name: GPT(PRESETS[name]).n_parameters for name in PARAMETERS} == PARAMETERS


@pytest.mark.parametrize("name", SCALED)
def test_logits_gradients_and_greedy_ids_equal_transformers(name: str) -> None:
    transformers = pytest.importorskip(
        "transformers", reason="the peer of the parity test: pip install transformers"
    )
    config = SCALED[name]
    torch.manual_seed(0)
    shape = {
        "n_positions": config.block_size,
        "n_layer": config.n_layer,
        "n_head": config.n_head,
        "n_embd": config.n_embd,
    }
    transformers_model = transformers.GPT2LMHeadModel(
        transformers.GPT2Config(
            vocab_size=config.vocab_size, **shape, bos_token_id=0, eos_token_id=0
        )
    ).eval()
    # Far from the initial values, biases and norms too.
    with torch.no_grad():
        for parameter in transformers_model.parameters():
            parameter.add_(torch.randn_like(parameter) * 0.1)
    ours = GPT(config).eval()
    ours.load_state_dict(from_huggingface(transformers_model.state_dict(), config))
    ids = torch.randint(config.vocab_size, (2, config.block_size))
    labels = ids.clone()
    labels[0, :5] = -100

    result = transformers_model(ids, labels=labels)
    loss = ours(ids[:, :-1], labels[:, 1:])
    torch.testing.assert_close(ours(ids), result.logits, rtol=1e-4, atol=1e-4)
    torch.testing.assert_close(loss, result.loss, rtol=1e-5, atol=1e-5)
    result.loss.backward()
    loss.backward()
    assert ours.wte.weight.grad is not None
    gradients = from_huggingface(
        {k: p.grad for k, p in transformers_model.named_parameters()}, config
    )
    # The padding learns nothing.
    for key, parameter in ours.named_parameters():
        torch.testing.assert_close(parameter.grad, gradients[key], rtol=1e-3, atol=1e-5, msg=key)
    greedy = transformers_model.generate(
        ids[:1, :4], max_new_tokens=20, do_sample=False, eos_token_id=None, pad_token_id=0
    )
    assert list(generate(ours, ids[0, :4].tolist(), 20, temperature=0)) == greedy[0, 4:].tolist()

    back = to_huggingface(ours)
    for key, tensor in transformers_model.state_dict().items():
        if key != "lm_head.weight":
            assert torch.equal(back[key], tensor), key


@pytest.mark.parametrize("n_layer", [2, 12])
def test_residual_projections_start_smaller_with_the_depth(
    n_layer: int,
) -> None:
    torch.manual_seed(0)
    model = GPT(ModelConfig(vocab_size=128, block_size=8, n_layer=n_layer, n_head=4, n_embd=256))
    for block in model.h:
        for projection in (block.attn.c_proj, block.mlp.c_proj):
            assert projection.weight.std().item() == pytest.approx(
                0.02 / math.sqrt(2 * n_layer), rel=0.03
            )
        assert block.attn.c_attn.weight.std().item() == pytest.approx(0.02, rel=0.03)


@pytest.mark.parametrize("masked", [False, True])
def test_recomputed_activations_change_no_gradient(masked: bool) -> None:
    torch.manual_seed(0)
    model = GPT(SMALL)
    ids = torch.randint(20, (2, 24))
    gradients = []
    for model.checkpoint_activations in (False, True):
        model.zero_grad()
        model(ids[:, :-1], ids[:, 1:], **DocumentBlocks(7, masked)(ids[:, :-1])).backward()
        gradients.append([p.grad.clone() for p in model.parameters() if p.grad is not None])
    assert len(gradients[0]) == len(gradients[1])
    assert all(torch.equal(a, b) for a, b in zip(*gradients, strict=True))


@pytest.mark.parametrize(
    "ids", [[[1, 2]], torch.tensor([[1, 2]], dtype=torch.int32), np.array([[1, 2]], np.uint16)]
)
def test_ids_may_be_lists_and_of_any_type_of_integers(ids: Any) -> None:
    model = GPT(ModelConfig(vocab_size=50, block_size=8, n_layer=1, n_head=2, n_embd=16)).eval()
    written = model.generate(ids, 12, temperature=0)
    assert written[:, :2].tolist() == [[1, 2]]
    assert written.tolist() == model.generate(torch.tensor([[1, 2]]), 12, temperature=0).tolist()
    # The most likely token, by each of these.
    for how in ({"top_k": 1}, {"top_p": 0.0}, {"temperature": 1e-40}):
        assert model.generate(ids, 12, **how).tolist() == written.tolist()
    assert model.generate(ids, 12, top_k=1000).shape == (1, 14)
    assert model.half().generate(ids, 3).shape == (1, 5)


@pytest.mark.parametrize(
    ("ids", "how"),
    [
        (5, {}),
        ([[1, 2], [3]], {}),
        ([[]], {}),
        (torch.zeros(2, 0), {}),
        ([[1, 50]], {}),
        ([[-1]], {}),
        ([[1]], {"top_k": -5}),
        ([[1]], {"temperature": -1}),
    ],
)
def test_what_cannot_be_continued_is_a_value_error(ids: Any, how: dict[str, Any]) -> None:
    # The padding of the vocabulary has rows in the embedding, and is refused too.
    model = GPT(ModelConfig(vocab_size=50, block_size=8, n_layer=1, n_head=2, n_embd=16)).eval()
    with pytest.raises(ValueError, match=r"ids|below 0|length"):
        model.generate(ids, 3, **how)


def test_more_tokens_than_the_context_are_refused() -> None:
    with pytest.raises(ValueError, match="25 tokens exceed the context of 24"):
        GPT(SMALL)(torch.zeros(1, 25, dtype=torch.long))
    with pytest.raises(ValueError, match="n_embd 32 does not divide into 5 heads"):
        ModelConfig(n_embd=32, n_head=5)


MODEL = ModelConfig(vocab_size=100, block_size=8, n_layer=2, n_head=2, n_embd=16)


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_each_parameter_has_one_optimizer_only_matrices_decay(name: str) -> None:
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


def test_adafactor_equals_transformers_except_for_keys_biases() -> None:
    transformers = pytest.importorskip("transformers", reason="the peer: pip install transformers")
    torch.manual_seed(0)
    ours = GPT(MODEL)
    their_model = GPT(MODEL)
    their_model.load_state_dict(ours.state_dict())
    (optimizer,) = make_optimizers("adafactor", ours, lr=3e-2, weight_decay=0.1)
    split = [
        [p for p in their_model.parameters() if (p.dim() >= 2) == matrices]
        for matrices in (True, False)
    ]
    groups = [
        {"params": parameters, "weight_decay": decay}
        for parameters, decay in zip(split, (0.1, 0.0), strict=True)
    ]
    their_optimizer = transformers.Adafactor(groups, lr=3e-2, relative_step=False)
    before = {name: p.detach().clone() for name, p in ours.named_parameters()}
    for _ in range(4):
        ids = torch.randint(100, (4, 9))
        optimizer.zero_grad()
        ours(ids[:, :-1], ids[:, 1:]).backward()
        for p, q in zip(ours.parameters(), their_model.parameters(), strict=True):
            q.grad = p.grad.clone()  # type: ignore[union-attr]
        optimizer.step()
        their_optimizer.step()
    for (name, p), q in zip(ours.named_parameters(), their_model.parameters(), strict=True):
        moves = [(after - before[name]).detach() for after in (p, q)]
        if name.endswith(
            "c_attn.bias"
            # The gradient of the keys' biases is only rounding, which no softmax sees.
        ):
            queries, keys, values = zip(*(move.chunk(3) for move in moves), strict=True)
            assert keys[0].abs().max() < 0.01 * keys[1].abs().max()
            for parameters, wanted in (
                queries,
                values,
                # They are equal, except for the scale, which follows from the RMS of all three.
            ):
                assert F.cosine_similarity(parameters, wanted, 0) > 0.99
            continue
        torch.testing.assert_close(*moves, rtol=2e-3, atol=1e-6, msg=name)


@pytest.mark.parametrize("schedule", ["cosine", "linear", "wsd"])
def test_the_learning_rate_warms_up_and_ends_at_its_floor(schedule: str) -> None:
    rates = [schedule_factor(step, schedule, 10, 100) for step in range(100)]
    assert rates[:10] == pytest.approx([(step + 1) / 10 for step in range(10)])
    assert max(rates) == 1.0
    assert rates[10:] == sorted(rates[10:], reverse=True)
    assert rates[-1] == pytest.approx(
        1 / 21 if schedule == "wsd" else 0.1
    )  # zero one step later, or a tenth


@pytest.mark.parametrize(
    ("schedule", "steps", "rates"),
    [
        ("cosine", (24, 49), (0.868, 0.55)),
        ("linear", (24,), (0.775,)),
        ("wsd", (0, 50, 79, 89), (1.0, 1.0, 1.0, 11 / 21)),
        ("constant", (99,), (1.0,)),
    ],
)
def test_each_schedule_has_its_shape(
    schedule: str, steps: tuple[int, ...], rates: tuple[float, ...]
) -> None:
    assert [schedule_factor(step, schedule, 0, 100) for step in steps] == pytest.approx(
        rates, abs=1e-3
    )


@pytest.mark.parametrize("done", [0, 1_000, 1_200, 9_999, 1_000_000])
@pytest.mark.parametrize("rate", [3e-2, 1e-3])
def test_adafactors_rate_is_below_one_over_the_steps_root(done: int, rate: float) -> None:
    torch.manual_seed(0)
    model = torch.nn.Linear(24, 16, bias=False)
    (optimizer,) = make_optimizers("adafactor", model, lr=rate, weight_decay=0.0)
    gradient = torch.randn(16, 24)
    for _ in range(2):
        for state in optimizer.state.values():
            state["step"].fill_(done)
        before = model.weight.detach().clone()
        model.weight.grad = gradient.clone()
        optimizer.param_groups[0]["lr"] = rate
        optimizer.step()
    moved = ((model.weight.detach() - before).norm() / before.norm()).item()
    shown = optimizer.param_groups[0]["lr"]
    assert shown == pytest.approx(min(rate, 1 / math.sqrt(max(done, 0) + 1)))
    assert moved == pytest.approx(shown, rel=0.05)
