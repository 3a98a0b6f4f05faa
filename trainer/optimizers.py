"""Optimizers by name, and the learning rate as a function of the step."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import nn

OPTIMIZERS = ("adamw", "adafactor", "muon")
SCHEDULES = ("cosine", "linear", "wsd", "constant")


def make_optimizers(
    name: str, model: nn.Module, *, lr: float, weight_decay: float, beta2: float = 0.95
) -> list[torch.optim.Optimizer]:
    """The optimizer `name` over the model's parameters, with weight decay on matrices only.

    - `adamw`: fused, with β₁ = 0.9 and `beta2`. Loshchilov and Hutter, 2019.
    - `adafactor`: factored second moments; Shazeer and Stern, 2018. Its step and its decay are
      relative to each parameter's RMS, initially 0.02: a rate of 3e-2 moves weights as far as
      AdamW's 6e-4.
    - `muon`: torch's, orthogonalised momentum (Jordan et al., 2024) for the blocks' matrices,
      scaled so that AdamW's rate fits (Liu et al., 2025), and AdamW for embeddings, biases and
      norms. Every rank computes all of it.
    """
    betas = 0.9, beta2
    parameters = list(model.named_parameters())
    vectors = {"params": [p for _, p in parameters if p.dim() < 2], "weight_decay": 0.0}

    def with_matrices(matrices: list[nn.Parameter]) -> list[dict[str, Any]]:
        return [{"params": matrices, "weight_decay": weight_decay}, vectors]

    matrices = [p for _, p in parameters if p.dim() >= 2]
    if name == "adamw":
        # XLA has no fused kernel; capturable keeps the step count on the device, not in the
        # program.
        xla = matrices[0].device.type == "xla"
        kind = {"capturable": True, "foreach": False} if xla else {"fused": True}
        return [torch.optim.AdamW(with_matrices(matrices), lr=lr, betas=betas, **kind)]
    if name == "adafactor":
        groups = with_matrices(matrices)
        return [
            Adafactor(
                [{**g, "relative_decay": g["weight_decay"], "weight_decay": 0.0} for g in groups],
                lr=lr,
            )
        ]
    hidden = [p for key, p in parameters if p.dim() == 2 and key.startswith("h.")]
    others = [p for key, p in parameters if p.dim() == 2 and not key.startswith("h.")]
    muon = torch.optim.Muon(
        hidden, lr=lr, weight_decay=weight_decay, adjust_lr_fn="match_rms_adamw"
    )
    return [muon, torch.optim.AdamW(with_matrices(others), lr=lr, betas=betas, fused=True)]


class Adafactor(torch.optim.Adafactor):
    """torch's Adafactor with weight decay relative to each parameter's RMS, like its step and as
    in transformers.

    In torch's, a decay of 0.1 at the usual rate of 3e-2 is fifty times AdamW's at 6e-4. Unlike
    transformers', it damps a gradient below 1.2e-7 (that of the keys' biases is only rounding).
    The rate is at most 1/√step, as published: `step` lowers the groups' `lr` to it, so that the
    weights, their decay and whoever reads `lr` have one rate.
    """

    @torch.no_grad()
    def step(self, closure: Any = None) -> Any:
        for group in self.param_groups:
            steps = [self.state[p]["step"].item() for p in group["params"] if self.state[p]]
            group["lr"] = min(group["lr"], 1 / math.sqrt(max(steps, default=0) + 1))
            for p in group["params"]:
                if p.grad is not None and group["relative_decay"]:
                    rms = (p.norm() / math.sqrt(p.numel())).clamp_min(group["eps"][1])
                    p.mul_(1 - group["lr"] * group["relative_decay"] * rms)
        return super().step(closure)


def learning_rate(
    step: int, schedule: str, warmup_steps: int, max_steps: int, decay_fraction: float = 0.2
) -> float:
    """The learning rate of step 0 … max_steps−1, as a fraction of its peak.

    Linear warm-up; then `cosine` or `linear` down to a tenth at the last step, `wsd` (warm-up,
    stable, decay: constant, then linear to zero over the last `decay_fraction` of the steps; Hu et
    al., 2024), or `constant`.
    """
    if step < warmup_steps:
        return (step + 1) / warmup_steps
    start, last = warmup_steps, 0.1
    if schedule == "wsd":
        start, last = max(warmup_steps, round(max_steps * (1 - decay_fraction))), 0.0
    if schedule == "constant" or step < start:
        return 1.0
    progress = min(1.0, (step - start + 1) / max(1, max_steps - start + (schedule == "wsd")))
    fall = (1 - math.cos(math.pi * progress)) / 2 if schedule == "cosine" else progress
    return 1 - (1 - last) * fall
