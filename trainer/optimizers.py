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
    """Return the optimizer `name` over the model's parameters, with weight decay on matrices only.

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
