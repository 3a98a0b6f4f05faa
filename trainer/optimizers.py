"""Optimizers by name, Muon among them, and the learning rate as a function of the step."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.tensor import DTensor

OPTIMIZERS = ("adamw", "adafactor", "muon")
SCHEDULES = ("cosine", "linear", "wsd", "constant")


def make_optimizers(
    name: str, model: nn.Module, *, lr: float, weight_decay: float, betas: tuple[float, float]
) -> list[torch.optim.Optimizer]:
    """The optimizer `name` over the model's parameters, with weight decay on matrices only.

    - `adamw`: fused. Loshchilov and Hutter, 2019.
    - `adafactor`: factored second moments; Shazeer and Stern, 2018. Its step and its decay are relative to
      each parameter's RMS, initially 0.02: a rate of 3e-2 moves weights as far as AdamW's 6e-4.
    - `muon`: orthogonalised momentum for the blocks' matrices, scaled so that AdamW's rate fits, and
      AdamW for embeddings, biases and norms (`trainer.optimizers`).
    """
    parameters = list(model.named_parameters())
    matrices = [p for _, p in parameters if p.dim() >= 2]
    vectors = [p for _, p in parameters if p.dim() < 2]
    groups = [{"params": matrices, "weight_decay": weight_decay}, {"params": vectors, "weight_decay": 0.0}]
    if name == "adamw":
        # XLA has no fused kernel; capturable keeps the step count on the device, not in the program.
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
    """torch's Adafactor with weight decay relative to each parameter's RMS, like its step and as in transformers.

    In torch's, a decay of 0.1 at the usual rate of 3e-2 is fifty times AdamW's at 6e-4. Two differences from
    transformers remain. A gradient below 1.2e-7 is damped and not scaled up to a full step: that of the keys' biases is
    zero up to rounding, so they do not move. And the rate is at most 1/√step, as in the paper.
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

    Linear warm-up from `start_fraction` of `peak` to `peak`; then `cosine` or `linear` down to `min_fraction` of it at
    the last step, `wsd` (warm-up, stable, decay: constant, then linear over the last `decay_fraction` of the steps;
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
_BATCH = 1 << 24  # numbers of a bucket per rank: 32 MB in bfloat16, and a few times that in the iteration


class Muon(torch.optim.Optimizer):
    """Orthogonalised momentum for matrices (Jordan et al., 2024), scaled so that AdamW's learning rate fits.

    The scale is that of Liu et al. (2025): 0.2·√max(rows, columns) gives an update the RMS of AdamW's. A matrix that
    stacks several, as that of attention's queries, keys and values, is split, and each is made orthogonal by itself.

    Every rank holds the momentum of its parameters (with FSDP2, of its shard of each). The iterations, most of the
    work, are divided: each rank makes some of the matrices orthogonal, and the others get the results (with FSDP2,
    their shards of them). On one rank the numbers are those of `torch.optim.Muon`.

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
        pending: list[tuple[torch.Tensor, torch.Tensor, int, float]] = []
        for group in self.param_groups:
            params = [p for p in group["params"] if p.grad is not None]
            if not params:
                continue
            buffers = [self._buffer(p) for p in params]
            grads = [p.grad for p in params]
            torch._foreach_lerp_(buffers, grads, 1 - group["momentum"])
            updates = torch._foreach_lerp(grads, buffers, group["momentum"])
            torch._foreach_mul_(params, 1 - group["lr"] * group["weight_decay"])
            scale = -0.2 * group["lr"]
            pending += [
                (p, update.bfloat16(), group["split"], scale) for p, update in zip(params, updates, strict=True)
            ]
        for k, update in orthogonalize_shared([entry[1] for entry in pending], [entry[2] for entry in pending]):
            p, _, split, scale = pending[k]
            own = p.to_local() if isinstance(p, DTensor) else p
            own.add_(update, alpha=scale * math.sqrt(max(p.shape[0] // split, p.shape[1])))

    def _buffer(self, p: torch.Tensor) -> torch.Tensor:
        state = self.state[p]
        if "momentum_buffer" not in state:
            state["momentum_buffer"] = torch.zeros_like(p)
        return state["momentum_buffer"]


def orthogonalize_shared(updates: list[torch.Tensor], splits: list[int]) -> Iterator[tuple[int, torch.Tensor]]:
    """(k, updates[k] made orthogonal) for each k; each rank computes its share of those of one shape.

    They are exchanged in buckets: while one is computed, the next is collected and the one before is distributed.

    Args:
      updates: complete on every rank, or sharded over the ranks by rows; then each gets its rows of the results.
      splits: how many matrices each one stacks.
    """
    alike: dict[tuple[torch.Size, int], list[int]] = {}
    for number, (update, split) in enumerate(zip(updates, splits, strict=True)):
        alike.setdefault((update.shape, split), []).append(number)
    world_size = dist.get_world_size() if dist.is_initialized() else 1
    buckets = [
        (numbers[first : first + length], split)
        for (shape, split), numbers in alike.items()
        for length in (world_size * max(1, _BATCH // shape.numel()),)
        for first in range(0, len(numbers), length)
    ]
    exchanges = [_exchange([updates[number] for number in numbers], split) for numbers, split in buckets]
    for k in range(-1, len(exchanges) + 1):
        if k + 1 < len(exchanges):
            next(exchanges[k + 1])  # collect
        if 0 <= k < len(exchanges):
            next(exchanges[k])  # compute and distribute
        if k > 0:
            yield from zip(buckets[k - 1][0], next(exchanges[k - 1]), strict=True)


def _exchange(updates: list[torch.Tensor], split: int) -> Iterator[list[torch.Tensor]]:
    """Updates of one shape, made orthogonal in three steps: collect this rank's share, compute it, get the results."""
    rank, world_size = (dist.get_rank(), dist.get_world_size()) if dist.is_initialized() else (0, 1)
    (rows, columns), share = updates[0].shape, -(-len(updates) // world_size)
    shares = [max(0, min(share, len(updates) - r * share)) for r in range(world_size)]
    first, sharded, work = rank * share, isinstance(updates[0], DTensor), None
    if sharded:
        height = -(-rows // world_size)  # as FSDP2 shards them
        heights = [max(0, min(height, rows - r * height)) for r in range(world_size)]
        sent = torch.cat([update.to_local().flatten() for update in updates])  # type: ignore[attr-defined]
        to_owners = [count * heights[rank] * columns for count in shares]
        from_holders = [shares[rank] * theirs * columns for theirs in heights]
        received = sent.new_empty(sum(from_holders))
        work = dist.all_to_all_single(received, sent, from_holders, to_owners, async_op=True)
    yield []
    if sharded:
        work.wait()  # type: ignore[union-attr]
        parts = zip(received.split(from_holders), heights, strict=True)
        own = torch.cat([part.view(shares[rank], theirs, columns) for part, theirs in parts], 1)
    else:
        own = torch.stack(updates[first : first + share]) if shares[rank] else updates[0].new_empty(0, rows, columns)
    own = orthogonalize(own.view(-1, rows // split, columns)).reshape(-1, rows, columns)
    results = own
    if sharded:
        back, results = torch.cat([part.flatten() for part in own.split(heights, 1)]), torch.empty_like(sent)
        work = dist.all_to_all_single(results, back, to_owners, from_holders, async_op=True)
    elif world_size > 1:
        padded = torch.cat([own, own.new_zeros(share - len(own), rows, columns)])  # the last ranks may have fewer
        results = own.new_empty(world_size * share, rows, columns)
        work = dist.all_gather_into_tensor(results, padded, async_op=True)
    yield []
    if work:
        work.wait()
    yield list(results.view(len(updates), heights[rank], columns) if sharded else results[: len(updates)])


def orthogonalize(x: torch.Tensor) -> torch.Tensor:
    """Matrices (N, rows, columns) with the singular vectors of `x` and singular values near 1.

    By the Newton-Schulz iteration with Jordan's coefficients.
    """
    tall = x.shape[1] > x.shape[2]
    x = x.mT if tall else x
    x = x / x.norm(dim=(1, 2), keepdim=True).clamp_min(1e-7)
    for _ in range(_STEPS):
        gram = x @ x.mT
        x = torch.baddbmm(x, torch.baddbmm(gram, gram, gram, beta=_B, alpha=_C), x, beta=_A)
    return x.mT if tall else x
