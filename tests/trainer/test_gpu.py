"""What only a GPU can show: run by `make gpu-check`, skipped where there is no CUDA device."""

from __future__ import annotations

import dataclasses
import shutil
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

from tests.trainer.conftest import flags_of, records_of, sampler_of
from trainer import evaluate, sample
from trainer.checkpoint import Record, Saver
from trainer.config import TrainConfig
from trainer.data.corpora import open_corpora
from trainer.data.loader import DocumentBlocks, Loader, block_mask
from trainer.evaluate import EvaluateOptions
from trainer.loop import train
from trainer.model import GPT, ModelConfig
from trainer.optim import load_training, training_state
from trainer.sample import SampleOptions

pytestmark = pytest.mark.gpu

SHAPE = ModelConfig(vocab_size=203, block_size=256, n_layer=2, n_head=2, n_embd=64)
BLOCKS = DocumentBlocks(202, mask=True)
SMALL = flags_of(preset="tiny", n_embd=64, block_size=128, batch_tokens=1024, device_batch_size=3)


@pytest.fixture
def config(text_tokens: Path, tmp_path: Path) -> TrainConfig:
    settings_here = {
        "block_size": 128,
        "batch_tokens": 1024,
        "device_batch_size": 3,
        "max_steps": 12,
        "save_every": 6,
        "eval_every": 6,
    }
    return TrainConfig(
        (str(text_tokens),),
        str(tmp_path / "run"),
        preset="tiny",
        compile=True,
        device="cuda",
        **settings_here,
    )


@pytest.fixture(autouse=True)
def counters() -> Mapping[str, Counter[str]]:
    """Forget what was compiled, and return the compiler's counters."""
    # A machine without a GPU would import the compiler, for two seconds, to skip the tests.
    from torch._dynamo import reset, utils

    reset()
    utils.counters.clear()
    return utils.counters


def test_compiled_bfloat16_trains_as_the_cpu_in_float32(
    config: TrainConfig, tmp_path: Path
) -> None:
    loss = train(config).loss
    slow = dataclasses.replace(config, device="cpu", compile=False, out=str(tmp_path / "cpu"))
    assert loss == pytest.approx(train(slow).loss, rel=2e-2)
    last = records_of(config.out)[-1]
    assert last["memory_gb"] > 0
    assert last["val_loss"] == pytest.approx(records_of(slow.out)[-1]["val_loss"], rel=2e-2)


@pytest.mark.parametrize("recomputed", [False, True])
def test_a_masked_run_compiles_for_training_and_validation_only(
    config: TrainConfig, recomputed: bool, counters: Mapping[str, Counter[str]]
) -> None:
    """Train with micro-batches and windows that do not divide, and a mask for each batch."""
    train(dataclasses.replace(config, document_mask=True, checkpoint_activations=recomputed))
    # The blocks and the output, in training and in evaluation; and what makes the masks.
    assert counters["stats"]["unique_graphs"] <= 6
    assert not counters["graph_break"]


@pytest.mark.parametrize("compiled", ["no", "complete", "parts"])
def test_masked_loss_and_gradients_equal_the_cpus(compiled: str) -> None:
    torch.manual_seed(0)
    inputs = torch.randint(203, (4, 256))
    losses = []
    gradients = []
    for device in ("cpu", "cuda"):
        torch.manual_seed(1)
        model = GPT(SHAPE).to(device)
        model.checkpoint_activations = compiled == "parts"
        net: Any = model
        if device == "cuda" and compiled == "complete":
            net = torch.compile(model, dynamic=False)
        elif device == "cuda" and compiled == "parts":
            model.compile_parts()
        on_device = inputs.to(device)
        loss = net(on_device, on_device.roll(-1, 1), **BLOCKS(on_device))
        loss.backward()
        losses.append(loss.item())
        gradients.append(model.h[0].attn.c_attn.weight.grad.cpu())
    assert losses[0] == pytest.approx(losses[1], rel=1e-3)
    torch.testing.assert_close(gradients[0], gradients[1], rtol=1e-2, atol=1e-4)


def test_compiled_masks_equal_plain_ones_and_compile_once(
    counters: Mapping[str, Counter[str]],
) -> None:
    for seed in range(3):
        ids = torch.randint(203, (4, 256), generator=torch.Generator().manual_seed(seed))
        numbers = (ids == 202).cumsum(1)
        plain = block_mask(numbers)
        compiled = block_mask(numbers.cuda())
        assert torch.equal(plain.to_dense(), compiled.to_dense().cpu())
    assert counters["stats"]["unique_graphs"] == 1


def test_a_background_checkpoint_is_of_its_step(tmp_path: Path, tokenizer_file: Path) -> None:
    saver = Saver(tmp_path, tokenizer_file)
    model = torch.nn.Linear(1000, 1000, bias=False, device="cuda")
    optimizer = torch.optim.AdamW(model.parameters(), fused=True)
    model.weight.grad = torch.ones_like(model.weight)
    optimizer.step()
    average = optimizer.state[model.weight]["exp_avg"]
    for number in (1, 2):
        record = Record(number, dataclasses.asdict(SHAPE), {}, [], {}, "", 1)
        with torch.no_grad():
            model.weight.fill_(number)
        saver.save(record, model.state_dict(), training_state(model, [optimizer]))
        with torch.no_grad():
            # The loop continues.
            model.weight.fill_(9)
        average.add_(1)
    saver.wait()
    for number in (1, 2):
        folder = tmp_path / "checkpoints" / f"step-0000000{number}"
        assert load_file(folder / "model.safetensors")["weight"].mean() == number
    load_training(tmp_path / "checkpoints" / "step-00000001", model, [optimizer])
    assert optimizer.state[model.weight]["exp_avg"].is_cuda
    assert optimizer.state[model.weight]["exp_avg"].mean().item() == pytest.approx(0.1)


@pytest.mark.parametrize("flags", [("--checkpoint_activations", "--document_mask"), ()], ids=str)
def test_torchrun_trains_the_same_model(
    text_tokens: Path, tmp_path: Path, trainer: Any, flags: tuple
) -> None:
    common = (
        "--data",
        text_tokens,
        *SMALL,
        "--max_steps",
        10,
        "--save_every",
        5,
        "--compile",
        "--device",
        "cuda",
    )
    common += ("--eval_every", 5)
    masked = ("--document_mask",) if "--document_mask" in flags else ()
    assert trainer.run(*common, *masked, "--out", tmp_path / "one").returncode == 0
    # The second run starts from the middle of the first.
    for _ in range(2):
        result = trainer.run(*common, *flags, "--out", tmp_path / "ranks", ranks=1)
        assert result.returncode == 0, result.stdout + result.stderr
        for key in ("loss", "grad_norm"):
            losses = [[r[key] for r in records_of(tmp_path / run)] for run in ("ranks", "one")]
            assert losses[0] == pytest.approx(losses[1], rel=3e-2)
        shutil.rmtree(tmp_path / "ranks" / "checkpoints" / "step-00000010")


@pytest.mark.parametrize("name", ["packed", "longbiased"])
def test_batches_come_from_pinned_memory_with_the_ids_of_the_cpu(
    text_tokens: Path, name: str
) -> None:
    sampler = sampler_of(open_corpora([str(text_tokens)]), name, 64, 1, long_min_tokens=100)
    on_cuda, on_cpu = (Loader(sampler, 16, 8, device=device) for device in ("cuda", "cpu"))
    assert on_cuda._read(0).is_pinned()
    batches = on_cuda.batches(3)
    wanted = on_cpu.batches(3)
    for _ in range(2):
        for got, expected in zip(next(batches), next(wanted), strict=True):
            assert (got.device.type, got.dtype) == ("cuda", torch.int64)
            assert torch.equal(got.cpu(), expected)
    batches.close()
    wanted.close()


def test_evaluation_and_sampling_in_bfloat16(config: TrainConfig) -> None:
    train(config)
    options = EvaluateOptions(data=config.data, windows=21, device="cuda")
    exact = evaluate.evaluate(config.out, dataclasses.replace(options, dtype="float32"))["val_loss"]
    result = evaluate.evaluate(config.out, options)
    assert result["val_loss"] == pytest.approx(exact, rel=1e-2)
    text = SampleOptions(prompt=("def ",), max_tokens=20, temperature=0, device="cuda")
    assert len("".join(sample.sample(config.out, text))) > 10
