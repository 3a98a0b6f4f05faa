"""The cross-entropy of a linear layer, by chunks of tokens: on a CPU faster than torch's own,
and in less memory."""

from __future__ import annotations

import math
from typing import Any

import torch
import torch.nn.functional as F

_ROWS = 8  # tokens per softmax: with GPT-2's vocabulary 1.6 MB in float32, which fits in a cache


def fused_cross_entropy(
    x: torch.Tensor,
    weight: torch.Tensor,
    targets: torch.Tensor,
    vocab_size: int,
    chunk: int,
    reduction: str = "mean",
) -> torch.Tensor:
    """Cross-entropy in nats of the logits x·weightᵀ, equal to F.cross_entropy's, in value and
    gradients.

    A chunk's logits are overwritten by their gradient in the forward pass, as in Liger Kernel's
    fused linear cross-entropy (Hsu et al., 2024): nothing is computed twice, and there is no other
    tensor of their size. The backward pass can run only once. On a CPU it is faster than torch's
    own in chunks of 2,048; each chunk adds to the gradient of the complete weight, so at width 768
    chunks of half the size take a tenth longer. x is (N, C), `weight` (V, C), of which the rows
    from `vocab_size` on are padding, `targets` (N,), of which −100 are ignored. `chunk` is about
    how many rows of x it takes at a time; the `reduction` is `mean` or `sum`.
    """
    chunk = -(-len(x) // max(1, round(len(x) / chunk)))
    counts = (targets != -100).float()
    share = counts / counts.sum() if reduction == "mean" else counts
    learns = torch.is_grad_enabled() and (x.requires_grad or weight.requires_grad)
    return _FusedCrossEntropy.apply(
        x, weight, targets.clamp_min(0)[:, None], share, vocab_size, chunk, learns
    )


class _FusedCrossEntropy(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        x: torch.Tensor,
        weight: torch.Tensor,
        targets: torch.Tensor,
        share: torch.Tensor,
        vocab_size: int,
        chunk: int,
        learns: bool,
    ) -> torch.Tensor:
        device = x.device.type
        dtype = torch.get_autocast_dtype(device) if torch.is_autocast_enabled(device) else x.dtype
        matrix = weight.to(dtype)
        total = x.new_zeros((), dtype=torch.float32)
        grad_x = torch.empty_like(x) if learns else None
        grad_weight = None
        parts = (part.split(chunk) for part in (x.to(dtype), targets, share))
        for number, (inputs, wanted, weights) in enumerate(zip(*parts, strict=True)):
            logits = F.linear(inputs, matrix)  # (chunk, V)
            logits[:, vocab_size:] = -math.inf
            total += _to_gradient(logits, wanted, weights, learns)
            if grad_x is None:
                continue
            grad_x[number * chunk :][: len(inputs)] = logits @ matrix
            part = logits.t() @ inputs
            grad_weight = part.to(weight.dtype) if grad_weight is None else grad_weight.add_(part)
        ctx.save_for_backward(grad_x, grad_weight)
        return total

    @staticmethod
    def backward(ctx: Any, *grads: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
        grad_x, grad_weight = ctx.saved_tensors
        return grad_x.mul_(grads[0]), grad_weight.mul_(grads[0]), None, None, None, None, None


def _to_gradient(
    logits: torch.Tensor, targets: torch.Tensor, share: torch.Tensor, learns: bool
) -> torch.Tensor:
    """The loss of `logits` (N, V), weighted by `share` (N,); with `learns`, its gradient
    overwrites them."""
    total = share.new_zeros(())
    # torch.compile makes its own loops, and would unroll this one.
    rows = len(logits) if logits.is_cuda or torch.compiler.is_compiling() else _ROWS
    for part, wanted, weights in zip(
        logits.split(rows), targets.split(rows), share.split(rows), strict=True
    ):
        logs = F.log_softmax(part, 1, dtype=torch.float32)
        total -= logs.gather(1, wanted)[:, 0].dot(weights)
        if learns:
            gradient = logs.exp_().scatter_add_(1, wanted, logs.new_full(wanted.shape, -1.0))
            part.copy_(gradient.mul_(weights[:, None]))
    return total
