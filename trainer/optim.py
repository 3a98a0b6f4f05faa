"""Optimizers by name, and their state in a checkpoint."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file
from torch import nn

from trainer.checkpoint import TRAINING, Tensors


def make_optimizers(
    name: str, model: nn.Module, *, lr: float, weight_decay: float, beta2: float = 0.95
) -> list[torch.optim.Optimizer]:
    """Return the optimizer `name` over the model's parameters, with weight decay on matrices only.

    - `adamw`: fused, with β₁ = 0.9 and `beta2`. Loshchilov and Hutter, 2019.
    - `adafactor`: factored second moments; Shazeer and Stern, 2018. Its step and its decay are
      relative to each parameter's RMS, initially 0.02: a rate of 3e-2 moves weights as far as
      AdamW's 6e-4.
    - `muon`: torch's, orthogonalised momentum (Jordan et al., 2024) for the blocks' matrices,
      scaled so that AdamW's rate fits (Liu et al., 2025), and AdamW for embeddings, biases and
      norms. Every rank computes all of it.
    """
    betas = (0.9, beta2)
    parameters = list(model.named_parameters())
    vectors = [p for _, p in parameters if p.dim() < 2]
    matrices = [p for _, p in parameters if p.dim() >= 2]

    if name == "adamw":
        groups = _groups(matrices, vectors, weight_decay=weight_decay)
        if matrices[0].device.type == "xla":
            # XLA has no fused kernel. Capturable keeps the step count on the device, not in the
            # program.
            return [torch.optim.AdamW(groups, lr=lr, betas=betas, capturable=True, foreach=False)]
        return [torch.optim.AdamW(groups, lr=lr, betas=betas, fused=True)]

    if name == "adafactor":
        groups = _groups(matrices, vectors, relative_decay=weight_decay)
        return [Adafactor([{**group, "weight_decay": 0.0} for group in groups], lr=lr)]

    in_blocks = [p for key, p in parameters if p.dim() == 2 and key.startswith("h.")]
    embeddings = [p for key, p in parameters if p.dim() == 2 and not key.startswith("h.")]
    muon = torch.optim.Muon(
        in_blocks, lr=lr, weight_decay=weight_decay, adjust_lr_fn="match_rms_adamw"
    )
    groups = _groups(embeddings, vectors, weight_decay=weight_decay)
    return [muon, torch.optim.AdamW(groups, lr=lr, betas=betas, fused=True)]


def _groups(
    matrices: list[nn.Parameter], vectors: list[nn.Parameter], **decay: float
) -> list[dict[str, Any]]:
    """Return the groups of an optimizer; `decay` is of the matrices, that of vectors is 0."""
    return [{"params": matrices, **decay}, {"params": vectors, **dict.fromkeys(decay, 0.0)}]


class Adafactor(torch.optim.Adafactor):
    """torch's Adafactor with weight decay relative to each parameter's RMS, as in transformers.

    In torch's, a decay of 0.1 at the usual rate of 3e-2 is fifty times AdamW's at 6e-4. Unlike
    transformers', it damps a gradient below 1.2e-7: the keys' biases have one that is only
    rounding. The rate is at most 1/√step, as published. `step` lowers the groups' `lr` to it, so
    that the weights, their decay and whoever reads `lr` have one rate.
    """

    @torch.no_grad()
    def step(self, closure: Any = None) -> Any:
        for group in self.param_groups:
            steps = [self.state[p]["step"].item() for p in group["params"] if self.state[p]]
            next_step = max(steps, default=0) + 1
            group["lr"] = min(group["lr"], 1 / math.sqrt(next_step))
            if not group["relative_decay"]:
                continue
            min_rms = group["eps"][1]
            for parameter in group["params"]:
                if parameter.grad is None:
                    continue
                rms = (parameter.norm() / math.sqrt(parameter.numel())).clamp_min(min_rms)
                parameter.mul_(1 - group["lr"] * group["relative_decay"] * rms)
        return super().step(closure)


def training_state(model: nn.Module, optimizers: list[torch.optim.Optimizer]) -> Tensors:
    """Return the optimizers' state, each tensor as PARAMETER/KEY."""
    names: dict[torch.Tensor, str] = {p: name for name, p in model.named_parameters()}
    tensors = {}
    for optimizer in optimizers:
        for parameter, state in optimizer.state.items():
            for key, tensor in state.items():
                tensors[f"{names[parameter]}/{key}"] = tensor
    return tensors


def load_training(folder: Path, model: nn.Module, optimizers: list[torch.optim.Optimizer]) -> None:
    """Set the optimizers to the state in a checkpoint of a model of this shape.

    They keep their settings.
    """
    state_by_name: dict[str, Tensors] = {}
    for name, tensor in load_file(folder / TRAINING).items():
        parameter_name, _, key = name.rpartition("/")
        state_by_name.setdefault(parameter_name, {})[key] = tensor
    names = {p: name for name, p in model.named_parameters()}
    for optimizer in optimizers:
        parameters = [p for group in optimizer.param_groups for p in group["params"]]
        # torch numbers the parameters of an optimizer over all its groups.
        state = {}
        for number, parameter in enumerate(parameters):
            if names[parameter] in state_by_name:
                state[number] = state_by_name[names[parameter]]
        groups = optimizer.state_dict()["param_groups"]
        optimizer.load_state_dict({"state": state, "param_groups": groups})
