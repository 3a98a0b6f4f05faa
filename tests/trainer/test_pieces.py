"""The speedrun preset's pieces: each against a plain version of itself, and off in GPT-2's
presets."""

from __future__ import annotations

import dataclasses
import math
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F

from tests.trainer.conftest import generate
from trainer.__main__ import parse
from trainer.data.loader import DocumentBlocks
from trainer.loop import train
from trainer.model import GPT, KVCache, ModelConfig
from trainer.pretrained import load_pretrained

SHAPE = ModelConfig(vocab_size=60, block_size=12, n_layer=4, n_head=2, n_embd=16)
PIECES: dict[str, dict[str, object]] = {
    "rope": {"rope": True},
    "qk_norm": {"qk_norm": True},
    "relu2": {"activation": "relu2"},
}
PIECES["all"] = {key: value for piece in list(PIECES.values()) for key, value in piece.items()}


def model_with(piece: str) -> GPT:
    torch.manual_seed(0)
    other_pieces: dict[str, dict[str, object]] = {
        "gpt2": {},
        "albert": {"embedding_width": 8, "shared_layers": True},
    }
    model = GPT(dataclasses.replace(SHAPE, **(PIECES | other_pieces)[piece]))  # type: ignore[arg-type]
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(torch.randn_like(parameter) * 0.1)
    return model


def plain_logits(w: dict[str, torch.Tensor], config: ModelConfig, ids: list[int]) -> torch.Tensor:
    """Compute the logits (T, V), one position, head and channel pair after the other."""
    heads = config.n_head
    size = config.n_embd // config.n_head

    def norm(x: torch.Tensor, name: str) -> torch.Tensor:
        centred = x - x.mean()
        return (
            centred / (centred.square().mean() + 1e-5).sqrt() * w[f"{name}.weight"]
            + w[f"{name}.bias"]
        )

    def head_of(x: torch.Tensor, head: int, position: int) -> torch.Tensor:
        channels = x[head * size : (head + 1) * size]
        if config.qk_norm:
            channels = channels / (channels.square().mean() + torch.finfo(torch.float32).eps).sqrt()
        if not config.rope:
            return channels
        turned = torch.empty_like(channels)
        for i in range(size // 2):
            angle = position * 10_000 ** (-2 * i / size)
            pair = torch.complex(channels[i], channels[i + size // 2])
            pair = pair * torch.polar(torch.tensor(1.0), torch.tensor(angle, dtype=torch.float32))
            turned[i] = pair.real
            turned[i + size // 2] = pair.imag
        return turned

    xs = [
        w["wte.weight"][token] + (0 if config.rope else w["wpe.weight"][p])
        for p, token in enumerate(ids)
    ]
    for layer in range(config.n_layer):
        name = f"h.{layer}"
        qkv = [
            w[f"{name}.attn.c_attn.weight"] @ norm(x, f"{name}.ln_1")
            + w[f"{name}.attn.c_attn.bias"]
            for x in xs
        ]
        queries, keys, values = (
            [x[k * config.n_embd : (k + 1) * config.n_embd] for x in qkv] for k in range(3)
        )
        for position in range(len(ids)):
            mixed = []
            for head in range(heads):
                q = head_of(queries[position], head, position)
                scores = torch.stack(
                    [q @ head_of(keys[p], head, p) for p in range(position + 1)]
                ) / math.sqrt(size)
                own = torch.stack(
                    [values[p][head * size : (head + 1) * size] for p in range(position + 1)]
                )
                mixed.append(scores.softmax(0) @ own)
            out = w[f"{name}.attn.c_proj.weight"] @ torch.cat(mixed) + w[f"{name}.attn.c_proj.bias"]
            xs[position] = xs[position] + out
        for position, x in enumerate(xs):
            inner = (
                w[f"{name}.mlp.c_fc.weight"] @ norm(x, f"{name}.ln_2") + w[f"{name}.mlp.c_fc.bias"]
            )
            inner = (
                inner.clamp(min=0) ** 2
                if config.activation == "relu2"
                else F.gelu(inner, approximate="tanh")
            )
            xs[position] = x + w[f"{name}.mlp.c_proj.weight"] @ inner + w[f"{name}.mlp.c_proj.bias"]
    return torch.stack([w["wte.weight"] @ norm(x, "ln_f") for x in xs])[:, : config.vocab_size]


@pytest.mark.parametrize("piece", PIECES)
def test_logits_and_gradients_are_those_of_the_plain_version(piece: str) -> None:
    model = model_with(piece)
    ids = torch.randint(60, (11,), generator=torch.Generator().manual_seed(1))
    torch.testing.assert_close(
        model(ids[None])[0],
        plain_logits(dict(model.named_parameters()), model.config, ids.tolist()),
    )
    targets = ids.roll(-1)
    loss = model(ids[None], targets[None])
    names, parameters = zip(*model.named_parameters(), strict=True)
    ours = torch.autograd.grad(loss, parameters)
    plain = F.cross_entropy(
        plain_logits(dict(model.named_parameters()), model.config, ids.tolist()), targets
    )
    expected = torch.autograd.grad(plain, parameters)
    for name, gradient, expected_gradient in zip(names, ours, expected, strict=True):
        torch.testing.assert_close(gradient, expected_gradient, rtol=1e-3, atol=1e-5, msg=name)


@pytest.mark.parametrize("has_mask", [False, True])
@pytest.mark.parametrize("piece", [*PIECES, "gpt2"])
def test_bfloat16_losses_and_gradients_are_those_of_autocast(piece: str, has_mask: bool) -> None:
    """Bit by bit. Autocast adds up the gradients of shared layers in bfloat16, so not albert's."""
    model = model_with(piece).train()
    parameters = list(model.parameters())
    ids = torch.randint(60, (4, 11), generator=torch.Generator().manual_seed(1))
    inputs = ids[:, :-1]
    targets = ids[:, 1:]
    mask = DocumentBlocks(7, has_mask)(inputs)
    with torch.autocast("cpu", torch.bfloat16):
        of_mask = model(inputs, targets, **mask)
    of_autocast = torch.autograd.grad(of_mask, parameters)
    in_float32 = model(inputs, targets, **mask)
    model.compute_in(torch.bfloat16)
    ours = model(inputs, targets, **mask)
    assert torch.equal(ours, of_mask)
    assert not torch.equal(ours, in_float32)
    for gradient, expected in zip(torch.autograd.grad(ours, parameters), of_autocast, strict=True):
        assert torch.equal(gradient, expected)


@torch.no_grad()
@pytest.mark.parametrize("piece", [*PIECES, "gpt2", "albert"])
def test_text_generated_with_the_cache_equals_text_without(piece: str) -> None:
    model = model_with(piece).eval()
    prompt = [3, 1, 4]
    written = list(generate(model, prompt, 8, temperature=0))
    ids = list(prompt)
    for token in written:
        assert int(model(torch.tensor([ids]))[0, -1].argmax()) == token
        ids.append(token)
    cache = KVCache(model, 1)
    torch.testing.assert_close(
        model.next_logits(torch.tensor([ids[:5]]), cache), model(torch.tensor([ids[:5]]))[:, -1]
    )


def test_the_speedrun_preset_trains_and_resumes(tmp_path: Path, text_tokens: Path) -> None:
    path = Path(__file__).resolve().parents[2] / "presets" / "speedrun.toml"
    flags = ["--data", str(text_tokens), "--out", str(tmp_path / "run"), "--n_layer", "6"]
    flags += ["--n_head", "2", "--n_embd", "32", "--block_size", "64", "--batch_tokens", "512"]
    flags += ["--device_batch_size", "4", "--no_compile"]
    flags += ["--device", "cpu"]
    config = parse([str(path), *flags])
    assert (config.preset, config.optimizer) == ("speedrun", "muon")
    config = parse([str(path), *flags, "--max_steps", "8", "--save_every", "4"])
    loss = train(config).loss
    assert loss < math.log(400)
    trained = load_pretrained(str(tmp_path / "run"))
    assert trained.record
    assert (trained.record.step, trained.model.config.qk_norm) == (8, True)
    train(parse([str(path), *flags, "--max_steps", "10"]))
