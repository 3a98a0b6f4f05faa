"""What mistakes known from other trainers cost: each switched on alone, in a small model on characters.

They are nowhere in the trainer's own options.
"""

from __future__ import annotations

import argparse
import math
from collections.abc import Callable

import numpy as np
import torch
from torch import nn

from trainer.model import GPT, ModelConfig
from trainer.optimizers import learning_rate, make_optimizers

CONTEXT, BATCH = 64, 12


def measure(arguments: argparse.Namespace) -> int:
    """Print the validation loss of each; the same batches and, but for what differs, the same weights."""
    text = arguments.text.read_text(encoding="utf-8")
    alphabet = {character: number for number, character in enumerate(sorted(set(text)))}
    ids = torch.from_numpy(np.array([alphabet[character] for character in text]))
    split = int(0.9 * len(ids))
    shape = ModelConfig(vocab_size=len(alphabet), context=CONTEXT, n_layer=arguments.layers, n_head=4, width=128)
    print(f"{arguments.layers} layers of width 128, {arguments.steps} steps of {BATCH} × {CONTEXT} characters\n")
    print("| | validation loss | worse by |")
    print("|---|---|---|")
    rows: list[tuple[str, str, Callable[[GPT], list[torch.optim.Optimizer]], float, bool]] = [
        ("AdamW, as the trainer has it", "", _trainers("adamw", 2e-3), 2e-3, False),
        ("decay on everything, norms and biases too", "AdamW", _decay_on_everything, 2e-3, False),
        ("residual projections not scaled", "AdamW", _trainers("adamw", 2e-3), 2e-3, True),
        ("Adafactor at 3e-2, as the trainer has it", "", _trainers("adafactor", 3e-2), 3e-2, False),
        (
            "Adafactor at 2.5e-4, its relative step overlooked",
            "Adafactor",
            _trainers("adafactor", 2.5e-4),
            2.5e-4,
            False,
        ),
    ]
    right: dict[str, float] = {}
    for name, peer, make, peak, unscaled in rows:
        losses = [
            _train(shape, ids[:split], ids[split:], make, peak, unscaled, arguments.steps, seed)
            for seed in range(arguments.seeds)
        ]
        loss = sum(losses) / len(losses)
        if not peer:
            right[name.split()[0].rstrip(",")] = loss
        print(f"| {name} | {loss:.3f} | {f'{loss - right[peer]:+.3f}' if peer else ''} |", flush=True)
    return 0


def _trainers(optimizer: str, rate: float) -> Callable[[GPT], list[torch.optim.Optimizer]]:
    return lambda model: make_optimizers(optimizer, model, lr=rate, weight_decay=0.1)


def _decay_on_everything(model: GPT) -> list[torch.optim.Optimizer]:
    return [torch.optim.AdamW(model.parameters(), lr=2e-3, weight_decay=0.1, betas=(0.9, 0.95))]


def _train(
    shape: ModelConfig,
    train: torch.Tensor,
    val: torch.Tensor,
    make: Callable[[GPT], list[torch.optim.Optimizer]],
    peak: float,
    unscaled: bool,
    steps: int,
    seed: int,
) -> float:
    torch.manual_seed(seed)
    model = GPT(shape)
    if unscaled:
        with torch.no_grad():
            for name, parameter in model.named_parameters():
                if name.endswith("c_proj.weight"):
                    parameter.mul_(math.sqrt(2 * shape.n_layer))
    optimizers = make(model)
    draw = torch.Generator().manual_seed(seed)
    for step in range(steps):
        rate = peak * learning_rate(step, "cosine", steps // 20, steps)
        starts = torch.randint(len(train) - CONTEXT, (BATCH,), generator=draw)
        batch = torch.stack([train[start : start + CONTEXT + 1] for start in starts.tolist()])
        model(batch[:, :-1], batch[:, 1:]).backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        for optimizer in optimizers:
            for group in optimizer.param_groups:
                group["lr"] = rate
            optimizer.step()
            optimizer.zero_grad()
    windows = val[: len(val) // (CONTEXT + 1) * (CONTEXT + 1)].view(-1, CONTEXT + 1)
    with torch.no_grad():
        parts = [model(part[:, :-1], part[:, 1:], reduction="sum").item() for part in windows.split(256)]
    return sum(parts) / (len(windows) * CONTEXT)
