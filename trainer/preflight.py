"""What a run will take, before it starts: memory, work, time; and a micro-batch that fits."""

from __future__ import annotations

import math
import os
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

import torch
from torch import nn
from torch.autograd.graph import saved_tensors_hooks
from torch.distributed.tensor import DTensor

from trainer.config import TrainConfig
from trainer.data import DocumentBlocks
from trainer.metrics import duration
from trainer.model import GPT

_SHARE = 0.9  # of the free memory: allocators fragment, and kernels want work space


@dataclass(frozen=True)
class Passes:
    """Forward and backward passes as training makes them: compiled where it is, with its mask and precision.

    Attributes:
      model: the weights.
      net: the model as training calls it.
      autocast: the precision.
      blocks: what the documents of a window mean to the model.
      cast: what the matrices are cast to once a step; None where they are not.
    """

    model: GPT
    net: nn.Module
    autocast: torch.autocast
    blocks: DocumentBlocks
    cast: torch.dtype | None = None

    def loss(self, windows: int) -> torch.Tensor:
        """The loss over `windows` windows of nothing; the random numbers are left as they were."""
        device = self.model.wte.weight.device
        self.model.cast_weights(self.cast)
        ids = torch.zeros(windows, self.model.config.context, dtype=torch.int64, device=device)
        with torch.random.fork_rng([device] if device.type == "cuda" else []), self.autocast:
            return self.net(ids, ids, **self.blocks(ids))

    def run(self, windows: int) -> None:
        """A forward and a backward pass; gradients are left as they were: none."""
        self.loss(windows).backward()
        self.model.cast_weights(None)
        self.model.zero_grad(set_to_none=True)


def report(passes: Passes, micro_batch: int, config: TrainConfig, windows: int, world_size: int) -> str:
    """What a run of these settings will take, in lines for people; every rank calls it.

    Time, and on CUDA memory, are measured by a few passes.
    """
    model = passes.model
    weights = 8 * sum(p.numel() for p in model.parameters())
    state, share = optimizer_bytes(model, config.optimizer), world_size if config.fsdp else 1
    kept = pass_bytes(passes, micro_batch) if model.wte.weight.is_cuda else activation_bytes(passes, micro_batch)
    flops = model.flops_per_token * windows * model.config.context
    seconds = seconds_a_window(passes, micro_batch) * windows / world_size
    tokens = windows * model.config.context
    return "\n".join(
        [
            f"parameters   {model.n_parameters:,}",
            f"memory       {(weights / share + state / share + kept) / 1e9:.2f} GB a rank: weights and gradients "
            f"{weights / share / 1e9:.2f}, optimizer {state / share / 1e9:.2f}, activations {kept / 1e9:.2f} "
            f"for a micro-batch of {micro_batch}",
            f"work         {flops:.3g} FLOPs a step, {flops * config.last_step:.3g} in {config.last_step:,} steps "
            f"of {tokens:,} tokens",
            f"time         {duration(seconds * config.last_step)} at {tokens / seconds:,.0f} tokens/s, "
            f"the rate measured on rank 0, times {world_size}",
        ]
    )


def optimizer_bytes(model: GPT, optimizer: str) -> int:
    """Bytes of the optimizer's state, in float32."""
    everything = sum(p.numel() for p in model.parameters())
    if optimizer == "adamw":
        return 8 * everything
    if optimizer == "muon":
        return 8 * everything - 4 * sum(p.numel() for p in model.h.parameters() if p.dim() == 2)
    return 4 * sum(sum(p.shape) if p.dim() >= 2 else p.numel() for p in model.parameters())


def activation_bytes(passes: Passes, windows: int) -> int:
    """Bytes that a forward pass over `windows` windows keeps for the backward pass, its logits included.

    From passes over one and over two.
    """
    model, measured = passes.model, []
    for count in (1, 2):
        kept: dict[int, int] = {}

        def keep(tensor: torch.Tensor, kept: dict[int, int] = kept) -> torch.Tensor:
            storage = tensor.untyped_storage()
            # Asked each time: with FSDP a block's weights are there while it computes.
            if storage._cdata not in _weights(model):
                kept[storage._cdata] = storage.nbytes()
            return tensor

        with saved_tensors_hooks(keep, lambda tensor: tensor):
            loss = passes.loss(count)
        measured.append(sum(kept.values()))
        loss.backward()  # not for its gradients: FSDP lets a pass that has begun end only so
        model.zero_grad(set_to_none=True)
        del loss
    # The fused loss keeps gradients instead of logits, but a chunk's logits are there before them.
    logits = 4 * min(windows * model.config.context, 3 * model.loss_chunk // 2) * model.config.padded_vocab_size
    return measured[0] + (measured[1] - measured[0]) * (windows - 1) + logits


def _weights(model: GPT) -> set[int]:
    """The storages of the parameters; a DTensor has none of its own, but its part on this rank has."""
    local = (p.to_local() if isinstance(p, DTensor) else p for p in model.parameters())
    return {p.untyped_storage()._cdata for p in local}


def pass_bytes(passes: Passes, windows: int) -> float:
    """Bytes of GPU memory that passes over `windows` windows take on top of the weights; infinite for too many."""
    device = passes.model.wte.weight.device
    try:
        passes.run(windows)  # what compiling needs is gone after it
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats(device)
        before = torch.cuda.memory_allocated(device)
        passes.run(windows)
        return torch.cuda.max_memory_allocated(device) - before
    except torch.cuda.OutOfMemoryError:
        return math.inf
    finally:
        passes.model.zero_grad(set_to_none=True)
        torch.cuda.empty_cache()


def micro_batch_that_fits(passes: Passes, most: int, reserved: int) -> int:
    """The most windows of 1, 2, 4, … up to `most` whose passes fit in memory next to `reserved` bytes.

    On a GPU the memory of one window and of two is measured, and the size that follows is tried, then
    halves of it: each size that is tried may have to be compiled. On a CPU, where running out of memory
    would kill the process, what one window and two keep is measured, and multiplied.

    Args:
      reserved: for what is not there yet: the optimizer's state.

    Raises:
      ValueError: not even one window fits.
    """
    model = passes.model
    device = model.wte.weight.device
    sizes = [1 << k for k in range(max(1, most).bit_length()) if 1 << k <= most]
    if device.type == "cpu":
        gradients = 4 * sum(p.numel() for p in model.parameters())
        room = _SHARE * free_host_bytes() / int(os.environ.get("LOCAL_WORLD_SIZE", "1")) - reserved - gradients
        fits = [size for size in sizes if activation_bytes(passes, size) <= room]
    else:
        fits = _sizes_that_fit(
            partial(pass_bytes, passes), sizes, _SHARE * torch.cuda.mem_get_info(device)[0] - reserved
        )
        torch.compiler.reset()  # the sizes tried and not taken
    if not fits:
        raise ValueError(
            "not even one window fits in memory; try --checkpoint_activations, --optimizer adafactor, --fsdp on "
            "several GPUs, or a smaller preset"
        )
    return fits[-1]


def _sizes_that_fit(bytes_of: Callable[[int], float], sizes: list[int], room: float) -> list[int]:
    """The longest beginning of `sizes` (1, 2, 4, …) whose last was tried, and fits in `room`."""
    one = bytes_of(1)
    another = bytes_of(2) - one if len(sizes) > 1 and one <= room else 0.0
    fits = [size for size in sizes if one + (size - 1) * another <= room]
    while len(fits) > 1 and bytes_of(fits[-1]) > room:
        fits.pop()
    return fits


def seconds_a_window(passes: Passes, windows: int, times: int = 3) -> float:
    """The time of one window's forward and backward pass, the fastest of `times` over `windows` at a time."""
    wait: Callable[[], None] = torch.cuda.synchronize if passes.model.wte.weight.is_cuda else lambda: None
    best = math.inf
    for _ in range(times):
        wait()
        start = time.perf_counter()
        passes.run(windows)
        wait()
        best = min(best, time.perf_counter() - start)
    return best / windows


def free_host_bytes() -> int:
    """Memory that programs can still take."""
    try:
        with open("/proc/meminfo", encoding="ascii") as file:
            return next(int(line.split()[1]) * 1024 for line in file if line.startswith("MemAvailable"))
    except (OSError, StopIteration):
        return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") // 2
