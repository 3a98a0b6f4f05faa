"""The memory, work and time that a run will need, before it starts; and a micro-batch that fits in memory."""

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

_SHARE = 0.9  # of the free memory: allocators fragment it, and kernels need work space


@dataclass(frozen=True)
class Passes:
    """Forward and backward passes as in training: compiled if it is, with its mask and precision.

    Attributes:
      model: the weights.
      net: the model as training calls it.
      autocast: the precision.
      blocks: how the model treats the documents of a window.
      cast: what the matrices are cast to once a step, or None.
    """

    model: GPT
    net: nn.Module
    autocast: torch.autocast
    blocks: DocumentBlocks
    cast: torch.dtype | None = None

    def loss(self, windows: int) -> torch.Tensor:
        """The loss over `windows` windows of zeros; the state of the random numbers is unchanged."""
        device = self.model.wte.weight.device
        self.model.cast_weights(self.cast)
        ids = torch.zeros(windows, self.model.config.context, dtype=torch.int64, device=device)
        with torch.random.fork_rng([device] if device.type == "cuda" else []), self.autocast:
            return self.net(ids, ids, **self.blocks(ids))

    def run(self, windows: int) -> None:
        """A forward and a backward pass, which leaves no gradients."""
        self.loss(windows).backward()
        self.model.cast_weights(None)
        self.model.zero_grad(set_to_none=True)


def report(passes: Passes, micro_batch: int, config: TrainConfig, windows: int, world_size: int) -> str:
    """What a run with these settings will need, as lines of text; every rank calls it.

    Time, and on CUDA memory, are measured with a few passes.
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
    """Bytes that a forward pass over `windows` windows keeps for the backward pass, including its logits.

    Extrapolated from passes over one window and two.
    """
    model, measured = passes.model, []
    for count in (1, 2):
        kept: dict[int, int] = {}

        def keep(tensor: torch.Tensor, kept: dict[int, int] = kept) -> torch.Tensor:
            storage = tensor.untyped_storage()
            # Looked up each time: with FSDP a block's weights exist while it computes.
            if storage._cdata not in _weights(model):
                kept[storage._cdata] = storage.nbytes()
            return tensor

        with saved_tensors_hooks(keep, lambda tensor: tensor):
            loss = passes.loss(count)
        measured.append(sum(kept.values()))
        loss.backward()  # not for the gradients: FSDP requires each forward pass to be followed by one
        model.zero_grad(set_to_none=True)
        del loss
    # The fused loss keeps gradients instead of logits, but a chunk's logits exist before them.
    logits = 4 * min(windows * model.config.context, 3 * model.loss_chunk // 2) * model.config.padded_vocab_size
    return measured[0] + (measured[1] - measured[0]) * (windows - 1) + logits


def _weights(model: GPT) -> set[int]:
    """The storages of the parameters; of a DTensor, that of its part on this rank."""
    local = (p.to_local() if isinstance(p, DTensor) else p for p in model.parameters())
    return {p.untyped_storage()._cdata for p in local}


def pass_bytes(passes: Passes, windows: int) -> float:
    """Bytes of GPU memory that passes over `windows` windows add to the weights; infinite if memory runs out."""
    device = passes.model.wte.weight.device
    try:
        passes.run(windows)  # so that the memory that compiling takes is not counted
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
    """The largest of 1, 2, 4, … up to `most` windows whose passes fit in memory with `reserved` bytes left.

    On a GPU the memory of one window and of two is measured, and the size extrapolated from them is tried, then
    halves of it: few sizes are tried, since each may have to be compiled. On a CPU, where running out of memory would
    kill the process, what one window and two keep is measured and extrapolated.

    Args:
      reserved: for the optimizer's state, which does not exist yet.

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
        torch.compiler.reset()  # forget the sizes that were tried but not chosen
    if not fits:
        raise ValueError(
            "not even one window fits in memory; try --checkpoint_activations, --optimizer adafactor, --fsdp on "
            "several GPUs, or a smaller preset"
        )
    return fits[-1]


def _sizes_that_fit(bytes_of: Callable[[int], float], sizes: list[int], room: float) -> list[int]:
    """The sizes (of 1, 2, 4, …) up to the largest one that was tried and fits in `room`."""
    one = bytes_of(1)
    another = bytes_of(2) - one if len(sizes) > 1 and one <= room else 0.0
    fits = [size for size in sizes if one + (size - 1) * another <= room]
    while len(fits) > 1 and bytes_of(fits[-1]) > room:
        fits.pop()
    return fits


def seconds_a_window(passes: Passes, windows: int, times: int = 3) -> float:
    """Seconds per window of a forward and backward pass over `windows` windows; the fastest of `times` passes."""
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
    """Bytes of memory available to programs."""
    try:
        with open("/proc/meminfo", encoding="ascii") as file:
            return next(int(line.split()[1]) * 1024 for line in file if line.startswith("MemAvailable"))
    except (OSError, StopIteration):
        return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") // 2
