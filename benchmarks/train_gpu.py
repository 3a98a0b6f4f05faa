"""What each step of training's speed gives on a GPU, next to transformers, and what the larger models take.

Every contender is built, timed and freed alone, so that its peak memory is its own.
"""

from __future__ import annotations

import argparse
import gc
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import torch
from torch import nn

from trainer.metrics import memory_gb, mfu
from trainer.model import GPT, preset
from trainer.optimizers import make_optimizers


@dataclass(frozen=True)
class Contender:
    """One way to train: what is switched on, over bfloat16 autocast and SDPA, which all have."""

    name: str
    preset: str
    windows: int
    fused: bool = True
    compiled: bool = True
    transformers: bool = False
    chunk: int = 0
    optimizer: str = "adamw"
    recompute: bool = False


def contenders(arguments: argparse.Namespace) -> Iterator[Contender]:
    small, medium, large = arguments.presets
    windows = arguments.windows
    chunk = arguments.chunk
    yield Contender("transformers", small, windows, fused=False, compiled=False, transformers=True)
    yield Contender("transformers, fused AdamW, compiled", small, windows, transformers=True)
    yield Contender("plain loop", small, windows, fused=False, compiled=False)
    yield Contender("+ fused AdamW", small, windows, compiled=False)
    yield Contender("+ torch.compile: the trainer", small, windows)
    yield Contender("+ twice the micro-batch", small, 2 * windows)
    yield Contender(f"+ logits of {chunk} tokens at a time", small, windows, chunk=chunk)
    yield Contender("Muon", small, windows, optimizer="muon")
    yield Contender("the trainer", medium, max(1, windows // 2))
    yield Contender(
        "Adafactor, activations recomputed", large, max(1, windows // 4), optimizer="adafactor", recompute=True
    )


def measure(arguments: argparse.Namespace) -> int:
    """Print a row for each contender; a contender that fails (out of memory) says so, and the next has its turn."""
    device = torch.device(arguments.device)
    torch.set_float32_matmul_precision("high")
    name = torch.cuda.get_device_name(device) if device.type == "cuda" else "cpu"
    print(
        f"{name}, torch {torch.__version__}, {arguments.accumulation} micro-batches a step, best of {arguments.steps}\n"
    )
    print("| | model | micro-batch | tokens/s | MFU | peak memory | times plain |")
    print("|---|---|---|---|---|---|---|")
    plain: dict[str, float] = {}
    for contender in contenders(arguments):
        config = preset(contender.preset)
        row = f"| {contender.name} | {contender.preset} | {contender.windows} × {config.context} |"
        try:
            rate, memory = _rate(contender, arguments, device)
        except torch.cuda.OutOfMemoryError:
            print(f"{row} out of memory | | | |", flush=True)
            continue
        if contender.name == "plain loop":
            plain[contender.preset] = rate
        with torch.device("meta"):
            used = mfu(GPT(config).flops_per_token * rate, device)
        times = f"{rate / plain[contender.preset]:.2f}" if contender.preset in plain else ""
        print(f"{row} {rate:,.0f} | {f'{used:.1%}' if used else ''} | {memory:.1f} GB | {times} |", flush=True)
    return 0


def _rate(contender: Contender, arguments: argparse.Namespace, device: torch.device) -> tuple[float, float]:
    """(tokens a second, GB at most) of complete steps: micro-batches, clipping, optimizer."""
    _free(device)
    config = preset(contender.preset)
    ids = torch.randint(config.vocab_size, (contender.windows, config.context + 1), device=device)
    compiled = contender.compiled and device.type == "cuda"
    model: nn.Module
    if contender.transformers:
        model = transformers_model(contender.preset).to(device)
        net = torch.compile(model) if compiled else model
        loss_of: Callable[[], torch.Tensor] = lambda: net(ids[:, :-1], labels=ids[:, :-1]).loss  # noqa: E731
    else:
        ours = model = GPT(config).to(device).train()
        ours.checkpoint_activations = contender.recompute
        ours.loss_chunk = contender.chunk or (2048 if device.type == "cpu" else 0)
        net = torch.compile(model) if compiled else model
        loss_of = lambda: net(ids[:, :-1], ids[:, 1:])  # noqa: E731
    if contender.fused:
        optimizers = make_optimizers(contender.optimizer, model, lr=6e-4, weight_decay=0.1)
    else:
        optimizers = [torch.optim.AdamW(model.parameters(), lr=6e-4, betas=(0.9, 0.95), weight_decay=0.1)]
    best = float("inf")
    for _ in range(arguments.steps + 2):  # two to compile, and for the allocator to settle
        _wait(device)
        start = time.perf_counter()
        for _ in range(arguments.accumulation):
            with torch.autocast(device.type, torch.bfloat16):
                loss = loss_of() / arguments.accumulation
            loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        for optimizer in optimizers:
            optimizer.step()
            optimizer.zero_grad(set_to_none=True)
        _wait(device)
        best = min(best, time.perf_counter() - start)
    return contender.windows * config.context * arguments.accumulation / best, memory_gb(device)


def transformers_model(name: str) -> nn.Module:
    """GPT2LMHeadModel of a preset's shape, with SDPA and no dropout."""
    from transformers import GPT2Config, GPT2LMHeadModel

    config = preset(name)
    return GPT2LMHeadModel(
        GPT2Config(
            vocab_size=config.vocab_size,
            n_positions=config.context,
            n_layer=config.n_layer,
            n_head=config.n_head,
            n_embd=config.width,
            resid_pdrop=0.0,
            embd_pdrop=0.0,
            attn_pdrop=0.0,
            attn_implementation="sdpa",
        )
    ).train()


def _wait(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def _free(device: torch.device) -> None:
    torch.compiler.reset()
    gc.collect()
    if device.type == "cuda":
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats(device)
