"""What a run will take, before it starts: memory, work, time; and a micro-batch that fits."""

from __future__ import annotations

import math
import os
import time
from collections.abc import Callable

import torch
from torch import nn
from torch.autograd.graph import saved_tensors_hooks

from trainer.config import TrainConfig
from trainer.metrics import duration
from trainer.model import GPT

_SHARE = 0.9  # of the free memory: allocators fragment, and kernels want work space


def report(
    model: GPT,
    net: nn.Module,
    micro_batch: int,
    config: TrainConfig,
    windows: int,
    world_size: int,
    autocast: torch.autocast,
) -> str:
    """What a run of these settings will take, in lines for people; the time by a few passes of `net`."""
    weights = 8 * sum(p.numel() for p in model.parameters())
    state, kept = optimizer_bytes(model, config.optimizer), activation_bytes(model, micro_batch, autocast)
    share = world_size if config.fsdp else 1
    flops = model.flops_per_token * windows * model.config.context
    seconds = seconds_a_window(net, model, micro_batch, autocast) * windows / world_size
    tokens = windows * model.config.context
    return "\n".join(
        [
            f"parameters   {model.n_parameters:,}",
            f"memory       {(weights / share + state / share + kept) / 1e9:.2f} GB a rank: weights and gradients "
            f"{weights / share / 1e9:.2f}, optimizer {state / share / 1e9:.2f}, activations {kept / 1e9:.2f} "
            f"for a micro-batch of {micro_batch}",
            f"work         {flops:.3g} FLOPs a step, {flops * config.max_steps:.3g} in {config.max_steps:,} steps "
            f"of {tokens:,} tokens",
            f"time         {duration(seconds * config.max_steps)} at {tokens / seconds:,.0f} tokens/s, "
            f"the rate measured on rank 0 alone, times {world_size}",
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


def activation_bytes(model: GPT, windows: int, autocast: torch.autocast) -> int:
    """Bytes that a forward pass over `windows` windows takes for the backward pass, its logits included.

    From passes over one and over two.
    """
    own = {p.untyped_storage().data_ptr() for p in model.parameters()}
    measured = []
    for count in (1, 2):
        kept: dict[int, int] = {}

        def keep(tensor: torch.Tensor, kept: dict[int, int] = kept) -> torch.Tensor:
            storage = tensor.untyped_storage()
            if storage.data_ptr() not in own:
                kept[storage.data_ptr()] = storage.nbytes()
            return tensor

        with saved_tensors_hooks(keep, lambda tensor: tensor):
            loss = _loss(model, model, count, autocast)
        measured.append(sum(kept.values()))
        del loss
    # The fused loss keeps gradients instead of logits, but a chunk's logits are there before them.
    logits = 4 * min(windows * model.config.context, 3 * model.loss_chunk // 2) * model.config.padded_vocab_size
    return measured[0] + (measured[1] - measured[0]) * (windows - 1) + logits


def micro_batch_that_fits(model: GPT, most: int, reserved: int, autocast: torch.autocast) -> int:
    """The most windows of 1, 2, 4, … up to `most` whose forward and backward pass fits beside `reserved` bytes.

    On a GPU each is tried, up to the first that is out of memory; on a CPU, where that would kill the
    process, the memory of a pass over one window is measured, and multiplied. The model's gradients and the
    random numbers are left as they were.

    Args:
      reserved: for what is not there yet: the optimizer's state.

    Raises:
      ValueError: not even one window fits.
    """
    device = model.wte.weight.device
    sizes = [1 << k for k in range(max(1, most).bit_length()) if 1 << k <= most]
    if device.type == "cpu":
        gradients = 4 * sum(p.numel() for p in model.parameters())
        room = _SHARE * free_host_bytes() / int(os.environ.get("LOCAL_WORLD_SIZE", "1")) - reserved - gradients
        fits = [size for size in sizes if activation_bytes(model, size, autocast) <= room]
    else:
        fits = []
        for size in sizes:
            if not _try(model, size, reserved, autocast):
                break
            fits.append(size)
    if not fits:
        raise ValueError(
            "not even one window fits in memory; try --checkpoint_activations, --optimizer adafactor, --fsdp on "
            "several GPUs, or a smaller preset"
        )
    return fits[-1]


def seconds_a_window(net: nn.Module, model: GPT, windows: int, autocast: torch.autocast, passes: int = 3) -> float:
    """The time of one window's forward and backward pass, the fastest of `passes` over `windows` at a time."""
    wait: Callable[[], None] = torch.cuda.synchronize if model.wte.weight.is_cuda else lambda: None
    best = math.inf
    for _ in range(passes):
        wait()
        start = time.perf_counter()
        _pass(net, model, windows, autocast)
        wait()
        best = min(best, time.perf_counter() - start)
    return best / windows


def _try(model: GPT, windows: int, reserved: int, autocast: torch.autocast) -> bool:
    device = model.wte.weight.device
    try:
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats(device)
        before = torch.cuda.memory_allocated(device)
        free = torch.cuda.mem_get_info(device)[0]
        _pass(model, model, windows, autocast)
        return torch.cuda.max_memory_allocated(device) - before + reserved <= _SHARE * free
    except torch.cuda.OutOfMemoryError:
        return False
    finally:
        model.zero_grad(set_to_none=True)
        torch.cuda.empty_cache()


def _pass(net: nn.Module, model: GPT, windows: int, autocast: torch.autocast) -> None:
    _loss(net, model, windows, autocast).backward()
    model.zero_grad(set_to_none=True)


def _loss(net: nn.Module, model: GPT, windows: int, autocast: torch.autocast) -> torch.Tensor:
    device = model.wte.weight.device
    ids = torch.zeros(windows, model.config.context, dtype=torch.int64, device=device)
    with torch.random.fork_rng([device] if device.type == "cuda" else []), autocast:
        return net(ids, ids)


def free_host_bytes() -> int:
    """Memory that programs can still take."""
    try:
        with open("/proc/meminfo", encoding="ascii") as file:
            return next(int(line.split()[1]) * 1024 for line in file if line.startswith("MemAvailable"))
    except (OSError, StopIteration):
        return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") // 2
