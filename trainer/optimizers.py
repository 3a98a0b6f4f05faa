"""Optimizers by name, and the learning rate as a function of the step."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import nn

from trainer.muon import Muon

OPTIMIZERS = ("adamw", "adafactor", "muon")
SCHEDULES = ("cosine", "linear", "wsd", "constant")


def make_optimizers(
    name: str, model: nn.Module, *, lr: float, weight_decay: float, betas: tuple[float, float]
) -> list[torch.optim.Optimizer]:
    """The optimizer `name` over the model's parameters, with weight decay on matrices only.

    - `adamw`: fused. Loshchilov and Hutter, 2019.
    - `adafactor`: second moments factored; Shazeer and Stern, 2018. Its step is relative to each
      parameter's RMS, 0.02 at the start: a rate of 3e-2 moves weights as far as AdamW's 6e-4.
    - `muon`: orthogonalised momentum for the blocks' matrices, scaled so that AdamW's rate fits, and
      AdamW for embeddings, biases and norms (`trainer.muon`).
    """
    parameters = list(model.named_parameters())
    matrices = [p for _, p in parameters if p.dim() >= 2]
    vectors = [p for _, p in parameters if p.dim() < 2]
    groups = [{"params": matrices, "weight_decay": weight_decay}, {"params": vectors, "weight_decay": 0.0}]
    if name == "adamw":
        # XLA has no fused kernel; capturable keeps the count of steps on the device, and with it out of the program.
        xla = matrices[0].device.type == "xla"
        kind = {"capturable": True, "foreach": False} if xla else {"fused": True}
        return [torch.optim.AdamW(groups, lr=lr, betas=betas, **kind)]
    if name == "adafactor":
        return [torch.optim.Adafactor(groups, lr=lr)]
    if name == "muon":
        hidden = [(key, p) for key, p in parameters if p.dim() == 2 and ".h." in f".{key}"]
        kept = {id(p) for _, p in hidden}
        groups[0]["params"] = [p for p in matrices if id(p) not in kept]
        joined = [p for key, p in hidden if key.endswith("c_attn.weight")]
        single = [p for key, p in hidden if not key.endswith("c_attn.weight")]
        own: list[dict[str, Any]] = [{"params": single}, {"params": joined, "split": 3}]
        return [Muon(own, lr, weight_decay), torch.optim.AdamW(groups, lr=lr, betas=betas, fused=True)]
    raise ValueError(f"no optimizer '{name}'; known: {', '.join(OPTIMIZERS)}")


def learning_rate(
    step: int,
    *,
    peak: float,
    schedule: str,
    warmup_steps: int,
    max_steps: int,
    min_fraction: float = 0.1,
    decay_fraction: float = 0.2,
) -> float:
    """The learning rate of step 0 … max_steps−1.

    Linear warm-up to `peak`; then `cosine` or `linear` down to `min_fraction` of it at the last step,
    `wsd` (warm-up, stable, decay: constant, and linear over the last `decay_fraction` of the steps;
    Hu et al., 2024), or `constant`.
    """
    if step < warmup_steps:
        return peak * (step + 1) / warmup_steps
    if schedule == "constant":
        return peak
    start = warmup_steps
    if schedule == "wsd":
        start = max(warmup_steps, round(max_steps * (1 - decay_fraction)))
        if step < start:
            return peak
    progress = min(1.0, (step - start + 1) / max(1, max_steps - start))
    fall = (1 - math.cos(math.pi * progress)) / 2 if schedule == "cosine" else progress
    return peak * (1 - (1 - min_fraction) * fall)
