"""Optimizers by name. Importing the names needs no torch."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import torch
    from torch import nn

OPTIMIZERS = ("adamw", "adafactor", "muon")


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
    import torch

    from trainer.adafactor import Adafactor

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
