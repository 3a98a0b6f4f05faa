"""Optimizers by name, Muon among them, and the learning rate as a function of the step."""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.tensor import DTensor, Replicate

OPTIMIZERS = ("adamw", "adafactor", "muon")
SCHEDULES = ("cosine", "linear", "wsd", "constant")


def make_optimizers(
    name: str, model: nn.Module, *, lr: float, weight_decay: float, betas: tuple[float, float]
) -> list[torch.optim.Optimizer]:
    """The optimizer `name` over the model's parameters, with weight decay on matrices only.

    - `adamw`: fused. Loshchilov and Hutter, 2019.
    - `adafactor`: second moments factored; Shazeer and Stern, 2018. Its step and its decay are relative to
      each parameter's RMS, 0.02 at the start: a rate of 3e-2 moves weights as far as AdamW's 6e-4.
    - `muon`: orthogonalised momentum for the blocks' matrices, scaled so that AdamW's rate fits, and
      AdamW for embeddings, biases and norms (`trainer.optimizers`).
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
        return [Adafactor([{**g, "relative_decay": g["weight_decay"], "weight_decay": 0.0} for g in groups], lr=lr)]
    if name == "muon":
        hidden = [(key, p) for key, p in parameters if p.dim() == 2 and ".h." in f".{key}"]
        kept = {id(p) for _, p in hidden}
        groups[0]["params"] = [p for p in matrices if id(p) not in kept]
        joined = [p for key, p in hidden if key.endswith("c_attn.weight")]
        single = [p for key, p in hidden if not key.endswith("c_attn.weight")]
        own: list[dict[str, Any]] = [{"params": single}, {"params": joined, "split": 3}]
        return [Muon(own, lr, weight_decay), torch.optim.AdamW(groups, lr=lr, betas=betas, fused=True)]
    raise ValueError(f"no optimizer '{name}'; known: {', '.join(OPTIMIZERS)}")


class Adafactor(torch.optim.Adafactor):
    """torch's own, whose weight decay is relative to each parameter's RMS, as its step is, and as in transformers.

    In torch's, a decay of 0.1 at its usual rate of 3e-2 takes fifty times what AdamW's takes at 6e-4. Two differences
    from transformers' remain. A gradient below 1.2e-7 is damped, not scaled up to a complete step: that of the keys'
    biases is zero but for rounding, so they stay where they are. And the rate is at most 1/√step, as in the paper.
    """

    @torch.no_grad()
    def step(self, closure: Any = None) -> Any:
        for group in self.param_groups:
            for p in group["params"]:
                if p.grad is not None and group["relative_decay"]:
                    rms = (p.norm() / math.sqrt(p.numel())).clamp_min(group["eps"][1])
                    p.mul_(1 - group["lr"] * group["relative_decay"] * rms)
        return super().step(closure)


def learning_rate(
    step: int,
    *,
    peak: float,
    schedule: str,
    warmup_steps: int,
    max_steps: int,
    min_fraction: float = 0.1,
    decay_fraction: float = 0.2,
    start_fraction: float = 0.0,
) -> float:
    """The learning rate of step 0 … max_steps−1.

    Linear warm-up from `start_fraction` of it to `peak`; then `cosine` or `linear` down to `min_fraction` of it at the
    last step, `wsd` (warm-up, stable, decay: constant, and linear over the last `decay_fraction` of the steps;
    Hu et al., 2024), or `constant`.
    """
    if step < warmup_steps:
        return peak * (start_fraction + (1 - start_fraction) * (step + 1) / warmup_steps)
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


_A, _B, _C = 3.4445, -4.7750, 2.0315  # Jordan's quintic: the steepest at 0 that keeps values near 1
_STEPS = 5
_BATCH = 1 << 26  # numbers of a batch: 128 MB in bfloat16, a few times that with what its iteration needs


class Muon(torch.optim.Optimizer):
    """Orthogonalised momentum for matrices (Jordan et al., 2024), scaled so that AdamW's learning rate fits.

    The scale is that of Liu et al. (2025): 0.2·√max(rows, columns) gives an update the RMS of AdamW's. A
    matrix that is several in one, as attention's queries, keys and values, is taken apart: each is
    orthogonal by itself.

    Every rank holds the momentum of its parameters (with FSDP2, of its shard of each). The iterations, most
    of the work, are shared: each rank makes its part of the matrices orthogonal, and all gather the results,
    which are so the same everywhere. On one rank the numbers are those of `torch.optim.Muon`.

    Args:
      groups: parameter groups; `split` is the number of matrices in each of its parameters, one above the other.
      lr: learning rate.
      weight_decay: decoupled, as in AdamW.
      momentum: of the gradient's moving average; Nesterov's.
    """

    def __init__(self, groups: Iterable[dict[str, Any]], lr: float, weight_decay: float, momentum: float = 0.95):
        super().__init__(groups, {"lr": lr, "weight_decay": weight_decay, "momentum": momentum, "split": 1})

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:  # type: ignore[override]
        """Take a step; every rank calls it."""
        assert closure is None
        pending: list[tuple[dict[str, Any], torch.Tensor, list[torch.Tensor]]] = []
        for group in self.param_groups:
            params = [p for p in group["params"] if p.grad is not None]
            if not params:
                continue
            buffers = [self._buffer(p) for p in params]
            grads = [p.grad for p in params]
            torch._foreach_lerp_(buffers, grads, 1 - group["momentum"])
            updates = torch._foreach_lerp(grads, buffers, group["momentum"])
            torch._foreach_mul_(params, 1 - group["lr"] * group["weight_decay"])
            for p, update in zip(params, updates, strict=True):
                update = update.bfloat16()
                full = update.full_tensor() if isinstance(update, DTensor) else update
                pending.append((group, p, list(full.chunk(group["split"]))))
        orthogonal = iter(orthogonalize_shared([matrix for _, _, matrices in pending for matrix in matrices]))
        for group, p, matrices in pending:
            update = torch.cat([next(orthogonal) for _ in matrices])
            if isinstance(p, DTensor):  # each rank takes its own rows
                update = DTensor.from_local(update, p.device_mesh, [Replicate()]).redistribute(placements=p.placements)
            p.add_(update, alpha=-group["lr"] * 0.2 * math.sqrt(max(matrices[0].shape)))

    def _buffer(self, p: torch.Tensor) -> torch.Tensor:
        state = self.state[p]
        if "momentum_buffer" not in state:
            state["momentum_buffer"] = torch.zeros_like(p)
        return state["momentum_buffer"]


def orthogonalize_shared(matrices: list[torch.Tensor]) -> list[torch.Tensor]:
    """Each of `matrices` made orthogonal, on every rank; each rank computes its share of those of one shape.

    Tall ones are transposed meanwhile, so that (4C, C) and (C, 4C) are of one shape.
    """
    by_shape: dict[torch.Size, list[int]] = {}
    flat = [matrix.mT if matrix.shape[0] > matrix.shape[1] else matrix for matrix in matrices]
    for number, matrix in enumerate(flat):
        by_shape.setdefault(matrix.shape, []).append(number)
    rank, world_size = (dist.get_rank(), dist.get_world_size()) if dist.is_initialized() else (0, 1)
    results: list[torch.Tensor] = [torch.empty(0)] * len(matrices)
    for shape, numbers in by_shape.items():
        share = -(-len(numbers) // world_size)
        own = numbers[rank * share : (rank + 1) * share]
        mine = flat[numbers[0]].new_zeros(share, *shape)  # what a last rank lacks stays 0
        at_once = max(1, _BATCH // shape.numel())
        for first in range(0, len(own), at_once):
            batch = own[first : first + at_once]
            mine[first : first + len(batch)] = orthogonalize(torch.stack([flat[number] for number in batch]))
        everyones = mine
        if world_size > 1:
            everyones = mine.new_empty(world_size * share, *shape)
            dist.all_gather_into_tensor(everyones, mine)
        for number, result in zip(numbers, everyones, strict=False):
            results[number] = result.mT if flat[number] is not matrices[number] else result
    return results


def orthogonalize(x: torch.Tensor) -> torch.Tensor:
    """Matrices (N, rows, columns), rows ≤ columns, each about orthogonal: singular values near 1, the same vectors.

    Newton-Schulz's iteration in bfloat16, with Jordan's coefficients.
    """
    x = x / x.norm(dim=(1, 2), keepdim=True).clamp_min(1e-7)
    for _ in range(_STEPS):
        gram = x @ x.mT
        x = torch.baddbmm(x, torch.baddbmm(gram, gram, gram, beta=_B, alpha=_C), x, beta=_A)
    return x
