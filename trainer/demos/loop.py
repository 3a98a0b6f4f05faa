"""The demos' training loop: a model, a function that draws a batch, and AdamW."""

from __future__ import annotations

import time
from collections.abc import Callable

import torch

from trainer.model import GPT
from trainer.optimizers import learning_rate, make_optimizers

Batch = tuple[torch.Tensor, torch.Tensor]
"""Inputs and targets, both (B, T) of int64; a target of −100 counts for nothing."""


def device_of(name: str) -> torch.device:
    """The device called `name`: auto, cpu or cuda; raises ValueError where there is no such device."""
    if name == "cuda" and not torch.cuda.is_available():
        raise ValueError("device is cuda, but torch finds no CUDA device; use --device cpu")
    return torch.device("cuda" if name != "cpu" and torch.cuda.is_available() else "cpu")


def fit(
    model: GPT, draw: Callable[[], Batch], *, steps: int, peak: float, warmup_steps: int, say: Callable[[str], None]
) -> None:
    """Train `model` for `steps` batches by AdamW with a cosine schedule from `peak`; `say` gets ten progress lines."""
    if model.wte.weight.device.type == "cpu":
        torch.set_num_threads(1)  # matrices this small gain little by more, and lose much on a shared machine
    (optimizer,) = make_optimizers("adamw", model, lr=peak, weight_decay=0.1, betas=(0.9, 0.99))
    model.train()
    start = time.perf_counter()
    for step in range(steps):
        inputs, targets = draw()
        loss = model(inputs, targets)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        rate = learning_rate(step, peak=peak, schedule="cosine", warmup_steps=warmup_steps, max_steps=steps)
        for group in optimizer.param_groups:
            group["lr"] = rate
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        if (step + 1) % max(1, steps // 10) == 0 or step + 1 == steps:
            say(f"step {step + 1}/{steps}  loss {loss.item():.4f}  {time.perf_counter() - start:.0f} s")
    model.eval()
