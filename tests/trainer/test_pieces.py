"""The speedrun preset's pieces: each against a plain version of itself, and off in GPT-2's presets."""

from __future__ import annotations

import dataclasses
import math
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from safetensors.torch import load_file
from torch._dynamo.utils import counters

from schemas import SettingsError
from trainer import checkpoint
from trainer.config import TrainConfig, parse
from trainer.data import DocumentBlocks, attention_mask, block_mask
from trainer.generation import generate
from trainer.head import check_float8, float8_linear
from trainer.model import GPT, PRESETS, KVCache, ModelConfig
from trainer.train import train

SHAPE = ModelConfig(vocab_size=60, context=12, n_layer=4, n_head=2, width=16)
PIECES: dict[str, dict[str, object]] = {
    "rope": {"rope": True},
    "qk_norm": {"qk_norm": True},
    "relu2": {"activation": "relu2"},
    "separate_head": {"separate_head": True},
    "value_embeddings": {"value_embeddings": 2},
}
PIECES["all"] = {key: value for piece in list(PIECES.values()) for key, value in piece.items()}


def model_with(piece: str) -> GPT:
    torch.manual_seed(0)
    model = GPT(dataclasses.replace(SHAPE, **PIECES[piece]))
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(torch.randn_like(parameter) * 0.1)
    return model


def plain_logits(w: dict[str, torch.Tensor], config: ModelConfig, ids: list[int]) -> torch.Tensor:
    """The logits (T, V), one position, head and channel pair after the other."""
    heads, size = config.n_head, config.width // config.n_head

    def norm(x: torch.Tensor, name: str) -> torch.Tensor:
        centred = x - x.mean()
        return centred / (centred.square().mean() + 1e-5).sqrt() * w[f"{name}.weight"] + w[f"{name}.bias"]

    def head_of(x: torch.Tensor, head: int, position: int) -> torch.Tensor:
        own = x[head * size : (head + 1) * size]
        if config.qk_norm:
            own = own / (own.square().mean() + torch.finfo(torch.float32).eps).sqrt()
        if not config.rope:
            return own
        turned = torch.empty_like(own)
        for i in range(size // 2):
            angle = position * 10_000 ** (-2 * i / size)
            pair = torch.complex(own[i], own[i + size // 2])
            pair = pair * torch.polar(torch.tensor(1.0), torch.tensor(angle, dtype=torch.float32))
            turned[i], turned[i + size // 2] = pair.real, pair.imag
        return turned

    xs = [w["wte.weight"][token] + (0 if config.rope else w["wpe.weight"][p]) for p, token in enumerate(ids)]
    for layer in range(config.n_layer):
        name = f"h.{layer}"
        qkv = [w[f"{name}.attn.c_attn.weight"] @ norm(x, f"{name}.ln_1") + w[f"{name}.attn.c_attn.bias"] for x in xs]
        queries, keys, values = ([x[k * config.width : (k + 1) * config.width] for x in qkv] for k in range(3))
        table = {0: 0, 1: 1, 2: 0, 3: 1}[layer]
        if config.value_embeddings:
            embedding, mix = w[f"value_embeddings.{table}.weight"], w[f"{name}.attn.value_mix"]
            values = [v + mix * embedding[token] for v, token in zip(values, ids, strict=True)]
        for position in range(len(ids)):
            mixed = []
            for head in range(heads):
                q = head_of(queries[position], head, position)
                scores = torch.stack([q @ head_of(keys[p], head, p) for p in range(position + 1)]) / math.sqrt(size)
                own = torch.stack([values[p][head * size : (head + 1) * size] for p in range(position + 1)])
                mixed.append(scores.softmax(0) @ own)
            out = w[f"{name}.attn.c_proj.weight"] @ torch.cat(mixed) + w[f"{name}.attn.c_proj.bias"]
            xs[position] = xs[position] + out
        for position, x in enumerate(xs):
            inner = w[f"{name}.mlp.c_fc.weight"] @ norm(x, f"{name}.ln_2") + w[f"{name}.mlp.c_fc.bias"]
            inner = inner.clamp(min=0) ** 2 if config.activation == "relu2" else F.gelu(inner, approximate="tanh")
            xs[position] = x + w[f"{name}.mlp.c_proj.weight"] @ inner + w[f"{name}.mlp.c_proj.bias"]
    head_weight = w["lm_head.weight" if config.separate_head else "wte.weight"]
    return torch.stack([head_weight @ norm(x, "ln_f") for x in xs])[:, : config.vocab_size]


@pytest.mark.parametrize("piece", PIECES)
def test_logits_and_gradients_are_those_of_the_plain_version(piece: str) -> None:
    model = model_with(piece)
    ids = torch.randint(60, (11,), generator=torch.Generator().manual_seed(1))
    torch.testing.assert_close(
        model(ids[None])[0], plain_logits(dict(model.named_parameters()), model.config, ids.tolist())
    )
    targets = ids.roll(-1)
    loss = model(ids[None], targets[None])
    names, parameters = zip(*model.named_parameters(), strict=True)
    ours = torch.autograd.grad(loss, parameters)
    plain = F.cross_entropy(plain_logits(dict(model.named_parameters()), model.config, ids.tolist()), targets)
    theirs = torch.autograd.grad(plain, parameters)
    for name, own, wanted in zip(names, ours, theirs, strict=True):
        torch.testing.assert_close(own, wanted, rtol=1e-3, atol=1e-5, msg=name)


@pytest.mark.parametrize("piece", PIECES)
def test_several_steps_of_each_piece_are_those_of_the_plain_version(piece: str) -> None:
    ours, theirs = model_with(piece), model_with(piece)
    ids = torch.randint(60, (7,), generator=torch.Generator().manual_seed(2))
    optimizers = [torch.optim.AdamW(model.parameters(), lr=1e-2) for model in (ours, theirs)]
    for _ in range(3):
        losses = [
            ours(ids[None, :-1], ids[None, 1:]),
            F.cross_entropy(plain_logits(dict(theirs.named_parameters()), shape_of(piece), ids[:-1].tolist()), ids[1:]),
        ]
        assert losses[0].item() == pytest.approx(losses[1].item(), abs=1e-4)
        for optimizer, loss in zip(optimizers, losses, strict=True):
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()


def shape_of(piece: str) -> ModelConfig:
    return dataclasses.replace(SHAPE, **PIECES[piece])  # type: ignore[arg-type]


@torch.no_grad()
@pytest.mark.parametrize("piece", PIECES)
def test_text_generated_with_the_cache_equals_text_without(piece: str) -> None:
    model = model_with(piece).eval()
    prompt = [3, 1, 4]
    written = list(generate(model, prompt, 8, temperature=0))
    ids = list(prompt)
    for token in written:
        assert int(model(torch.tensor([ids]))[0, -1].argmax()) == token
        ids.append(token)
    cache = KVCache(model, 1)
    torch.testing.assert_close(model.next_logits(torch.tensor([ids[:5]]), cache), model(torch.tensor([ids[:5]]))[:, -1])


@pytest.mark.parametrize("piece", PIECES)
def test_recomputed_activations_change_no_gradient(piece: str) -> None:
    ids = torch.randint(60, (2, 12), generator=torch.Generator().manual_seed(3))
    gradients = []
    for recomputed in (False, True):
        model = model_with(piece)
        model.checkpoint_activations = recomputed
        model(ids, ids).backward()
        gradients.append([p.grad for p in model.parameters()])
    for one, other in zip(*gradients, strict=True):
        assert torch.equal(one, other)  # type: ignore[arg-type]


def test_rope_depends_only_on_distances() -> None:
    model = model_with("rope")
    ids = torch.randint(60, (1, 6), generator=torch.Generator().manual_seed(4))
    positions = torch.arange(6)[None]
    torch.testing.assert_close(model(ids, positions=positions), model(ids, positions=positions + 5))
    with pytest.raises(AssertionError):
        torch.testing.assert_close(model(ids, positions=positions), model(ids, positions=2 * positions))


def test_gpt2_presets_use_none_of_the_speedrun_pieces() -> None:
    for name, shape in PRESETS.items():
        assert shape.is_gpt2 == (name != "algpt2")
        assert not any((shape.rope, shape.qk_norm, shape.separate_head, shape.value_embeddings))
        assert shape.activation == "gelu"
    default = TrainConfig(data=(), out="")
    assert not default.fp8_head
    assert default.window_of(0) == 0
    assert default.momentum_of(0) == 0.95
    assert all(not dataclasses.replace(SHAPE, **own).is_gpt2 for own in PIECES.values())  # type: ignore[arg-type]
    assert not {"lm_head.weight"} & set(GPT(SHAPE).state_dict())


@pytest.mark.parametrize("loss_chunk", [0, 16])
@pytest.mark.parametrize("piece", ["rope", "all"])
def test_weights_cast_once_a_step_train_as_weights_cast_in_every_pass(piece: str, loss_chunk: int) -> None:
    ids = torch.randint(60, (6, 2, 13), generator=torch.Generator().manual_seed(3))
    results = []
    for cast in (None, torch.bfloat16):
        model = model_with(piece).train()
        model.loss_chunk = loss_chunk
        optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
        for step in ids.split(2):
            model.cast_weights(cast)
            for part in step:  # two micro-batches of one cast
                with torch.autocast("cpu", torch.bfloat16):
                    model(part[:, :-1], part[:, 1:]).backward()
            model.cast_weights(None)
            optimizer.step()
            optimizer.zero_grad()
        results.append(list(model.parameters()))
    for one, other in zip(*results, strict=True):
        assert one.dtype == torch.float32
        assert torch.equal(one, other)


def test_a_separate_head_starts_at_zero_and_learns() -> None:
    model = GPT(shape_of("separate_head"))
    ids = torch.arange(12)[None]
    loss = model(ids, ids)
    assert loss.item() == pytest.approx(math.log(60))
    loss.backward()
    assert model.lm_head.weight.grad.abs().sum() > 0  # type: ignore[union-attr]


@pytest.mark.parametrize("documents", [False, True])
@pytest.mark.parametrize("window", [1, 3, 8, 12, 20])
def test_a_window_sees_only_the_last_positions(window: int, documents: bool) -> None:
    inputs = torch.tensor([[9, 1, 2, 9, 3, 4, 5, 6, 9, 1, 1, 2]])
    found = DocumentBlocks(9, documents)(inputs, window)
    number = (inputs[0] == 9).cumsum(0)
    wanted = [
        [k <= q and q - k < window and (not documents or number[q] == number[k]) for k in range(12)] for q in range(12)
    ]
    if window >= 12 and not documents:
        assert not found
        return
    assert found["mask"][0, 0].tolist() == wanted
    numbers = number[None] if documents else torch.zeros_like(inputs)
    blocks = block_mask(numbers, window if window < 12 else 0)
    zero, index = torch.tensor(0), torch.arange(12)
    seen = [[bool(blocks.mask_mod(zero, zero, q, k)) for k in index] for q in index]
    assert seen == wanted
    assert attention_mask(numbers, 0).shape == (1, 1, 12, 12)


def test_windows_double_until_attention_is_full_and_momentum_rises() -> None:
    config = TrainConfig(data=(), out="", window_start=128, window_fraction=0.5, max_steps=600, momentum_warmup=100)
    assert [config.window_of(step) for step in (0, 99, 100, 199, 200, 299, 300, 599)] == [
        128, 128, 256, 256, 512, 512, 0, 0,
    ]  # fmt: skip
    assert [config.momentum_of(step) for step in (0, 50, 100, 500)] == pytest.approx([0.85, 0.90, 0.95, 0.95])


def test_the_speedrun_preset_trains_and_resumes(tmp_path: Path, text_tokens: Path) -> None:
    path = Path(__file__).resolve().parents[2] / "presets" / "speedrun.toml"
    flags = ["--data", str(text_tokens), "--out", str(tmp_path / "run"), "--preset", "tiny", "--n_layer", "6"]
    flags += ["--width", "32", "--context", "64", "--batch_tokens", "512", "--micro_batch", "4", "--no_compile"]
    flags += ["--window_start", "16", "--momentum_warmup", "4", "--device", "cpu", "--tracker", "none"]
    config = parse([str(path), *flags])
    assert (config.rope, config.optimizer, config.value_embeddings, config.fp8_head) == (True, "muon", 0, False)
    flags += ["--separate_head", "--value_embeddings", "3"]  # the pieces that the preset leaves out, too
    config = parse([str(path), *flags, "--max_steps", "8", "--save_every", "4"])
    loss = train(config)
    assert loss < math.log(400)
    model, record = checkpoint.load_model(checkpoint.resolve(tmp_path / "run"))
    assert (record.step, model.config.qk_norm, model.config.separate_head) == (8, True, True)
    train(parse([str(path), *flags, "--max_steps", "10"]))


class PlainFloat8(torch.autograd.Function):
    """x·weightᵀ and its gradients of numbers rounded to what float8 has, all computed in float32."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
        x, weight = (rounded(tensor, torch.float8_e4m3fn, 448.0) for tensor in (x, weight))
        ctx.save_for_backward(x, weight)
        return x @ weight.T

    @staticmethod
    def backward(ctx: Any, grad: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:  # type: ignore[override]
        x, weight = ctx.saved_tensors
        grad = rounded(grad, torch.float8_e5m2, 57344.0)
        return grad @ weight, grad.flatten(0, -2).T @ x.flatten(0, -2)


def rounded(tensor: torch.Tensor, dtype: torch.dtype, largest: float) -> torch.Tensor:
    scale = tensor.abs().max() / largest if tensor.any() else torch.tensor(1.0)
    return (tensor / scale).to(dtype).float() * scale


@pytest.mark.parametrize("zero", [False, True])
def test_a_float8_product_and_its_gradients_are_close_to_the_plain_version(zero: bool) -> None:
    torch.manual_seed(0)
    x, weight = torch.randn(3, 16, 48, requires_grad=True), torch.randn(64, 48) * (not zero)
    grad, weight = torch.randn(3, 16, 64), weight.requires_grad_()
    (ours, *own), (plain, *wanted) = (
        (y, *torch.autograd.grad(y, (x, weight), grad))
        for y in (float8_linear(x, weight), PlainFloat8.apply(x, weight))
    )
    torch.testing.assert_close(ours, plain)
    torch.testing.assert_close(own, wanted)
    exact = F.linear(x, weight)
    assert ((ours - exact).norm() > 0.01 * exact.norm()) == (not zero)  # rounded it is, and to near values
    assert (ours - exact).norm() <= 0.05 * exact.norm()


@pytest.mark.parametrize("piece", ["rope", "all"])  # a tied head, and a separate one
def test_several_steps_with_a_float8_head_are_close_to_the_plain_version(
    piece: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    ours, theirs = model_with(piece), model_with(piece)
    ours.fp8_head = theirs.fp8_head = True
    ids = torch.randint(60, (4, 12), generator=torch.Generator().manual_seed(2))
    for _ in range(4):
        losses = []
        for model, linear in ((ours, float8_linear), (theirs, PlainFloat8.apply)):
            monkeypatch.setattr("trainer.model.float8_linear", linear)
            optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
            loss = model(ids, ids.roll(-1, 1))
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
            losses.append(loss.item())
        assert losses[0] == pytest.approx(losses[1], abs=1e-4)
    ours.eval()
    logits = ours(ids)
    ours.fp8_head = False
    assert torch.equal(logits, ours(ids))  # in evaluation nothing is rounded


def test_a_float8_head_trains_compiled_and_leaves_checkpoints_as_they_are(
    tmp_path: Path, text_tokens: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch, "compile", partial(torch.compile, backend="aot_eager"))
    torch._dynamo.reset()
    counters.clear()
    config = TrainConfig(
        data=(str(text_tokens),), out=str(tmp_path / "run"), preset="tiny", width=32, context=32, batch_tokens=512,
        max_steps=6, save_every=3, val_windows=4, device="cpu", tracker="none", compile=True, fp8_head=True,
    )  # fmt: skip
    plain = dataclasses.replace(config, fp8_head=False, compile=False, out=str(tmp_path / "plain"))
    assert train(config) == pytest.approx(train(plain), rel=1e-3)
    assert (counters["stats"]["unique_graphs"], len(counters["graph_break"])) == (2, 0)  # training and validation
    runs = (Path(config.out), Path(plain.out))
    ours, theirs = (load_file(run / "checkpoints" / "step-00000006" / "model.safetensors") for run in runs)
    assert {name: (tensor.shape, tensor.dtype) for name, tensor in ours.items()} == {
        name: (tensor.shape, torch.float32) for name, tensor in theirs.items()
    }
    assert not torch.equal(ours["wte.weight"], theirs["wte.weight"])
    further = [train(dataclasses.replace(plain, out=str(run), max_steps=8)) for run in runs]
    assert further[0] == pytest.approx(further[1], rel=1e-3)


def test_a_device_without_float8_is_refused_in_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    check_float8(torch.device("cpu"), 64, 128)
    with pytest.raises(SettingsError, match="give it or loss_chunk, not both"):
        TrainConfig(data=(), out="", fp8_head=True, loss_chunk=512)
    with pytest.raises(SettingsError, match="device xla does not support fp8_head"):
        TrainConfig(data=(), out="", fp8_head=True, device="xla")
    with pytest.raises(SettingsError, match="width and a context that are multiples of 16, not 24 and 128"):
        check_float8(torch.device("cpu"), 24, 128)

    def as_on_an_a100(*arguments: object, **named: object) -> None:
        raise RuntimeError(
            "torch._scaled_mm is only supported on CUDA devices with compute capability >= 9.0 or 8.9\nat"
        )

    monkeypatch.setattr(torch, "_scaled_mm", as_on_an_a100)
    with pytest.raises(
        SettingsError,
        match=r"fp8_head needs a GPU of compute capability 8.9 or higher, or a CPU; cpu refuses it: .* 8.9$",
    ):
        check_float8(torch.device("cpu"), 64, 128)
