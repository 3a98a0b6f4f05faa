"""The loss over a large vocabulary, a chunk of the tokens at a time: the logits never exist all at once."""

from __future__ import annotations

import math
from typing import Any

import torch
import torch.nn.functional as F


def chunked_cross_entropy(
    x: torch.Tensor, weight: torch.Tensor, targets: torch.Tensor, vocab_size: int, chunk: int, reduction: str = "mean"
) -> torch.Tensor:
    """Cross-entropy in nats of the logits x·weightᵀ, equal to F.cross_entropy's, in value and gradients.

    Each chunk's logits become their own gradient in the forward pass, as in Liger Kernel's fused linear
    cross-entropy (Hsu et al., 2024): nothing is computed twice, and memory is that of one chunk.

    Args:
      x: (N, C).
      weight: (V, C), of which the rows from `vocab_size` on are padding.
      targets: (N,); −100 counts for nothing.
      chunk: rows of x at a time.
      reduction: `mean` or `sum` over the tokens that count.
    """
    counts = (targets != -100).float()
    share = counts / counts.sum() if reduction == "mean" else counts
    return _ChunkedCrossEntropy.apply(x, weight, targets, share, vocab_size, chunk)


def best_chunk(channels: int, device: str) -> int:
    """Tokens of a chunk where chunks are faster: on a CPU, whose cache then holds the logits; 0 for none.

    Fewer tokens than channels cost more in adding up the weight's gradient than the logits take.
    """
    return max(128, channels) if device == "cpu" else 0


class _ChunkedCrossEntropy(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        x: torch.Tensor,
        weight: torch.Tensor,
        targets: torch.Tensor,
        share: torch.Tensor,
        vocab_size: int,
        chunk: int,
    ) -> torch.Tensor:
        device = x.device.type
        dtype = torch.get_autocast_dtype(device) if torch.is_autocast_enabled(device) else x.dtype
        matrix = weight.to(dtype)
        learns = any(ctx.needs_input_grad)
        total = x.new_zeros((), dtype=torch.float32)
        grad_x = torch.empty_like(x) if learns else None
        grad_weight = torch.zeros_like(weight) if learns else None
        for first in range(0, len(x), chunk):
            own = slice(first, first + chunk)
            inputs, wanted = x[own].to(dtype), targets[own].clamp_min(0)[:, None]
            logits = F.linear(inputs, matrix)  # (chunk, V)
            logits[:, vocab_size:] = -math.inf
            logs = F.log_softmax(logits, 1, dtype=torch.float32)
            total -= (logs.gather(1, wanted)[:, 0] * share[own]).sum()
            if grad_x is not None and grad_weight is not None:
                gradient = logs.exp_()
                gradient.scatter_add_(1, wanted, gradient.new_full(wanted.shape, -1.0))
                gradient *= share[own, None]
                gradient = gradient.to(dtype)
                grad_x[own] = gradient @ matrix
                grad_weight += gradient.t() @ inputs
        if learns:
            ctx.save_for_backward(grad_x, grad_weight)
        return total

    @staticmethod
    def backward(ctx: Any, *grads: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
        grad_x, grad_weight = ctx.saved_tensors
        return grad_x * grads[0], grad_weight * grads[0], None, None, None, None
