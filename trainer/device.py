"""The device that a rank computes on: its precision, its memory, its attention, its peak rate."""

from __future__ import annotations

import re
import resource
import sys
from contextlib import ExitStack

import torch
from torch.nn.attention import SDPBackend, sdpa_kernel

from trainer.config import ModelConfig

# Dense bf16 rates with 32-bit accumulation, in 10**12 operations a second, by NVIDIA's data sheets.
PEAK_TFLOPS: dict[str, float] = {
    "A100": 312.0,
    "H100": 989.4,
    "H200": 989.4,
    "B200": 2250.0,
    "RTX 4090": 165.2,
    "RTX 3090": 71.0,
}

# Of a forward pass, by default. On a GPU of 16 GB, GPT-2 of 124M fits with this many tokens.
_DEFAULT_TOKENS_ON_GPU = 16 * 1024
_DEFAULT_WINDOWS_ON_CPU = 8


def device_of(name: str) -> torch.device:
    """Return the device called `name`: auto, cpu or cuda. Raises ValueError if there is none."""
    if name != "cpu" and torch.cuda.is_available():
        return torch.device("cuda")
    if name == "cuda":
        raise ValueError("device is cuda, but torch finds no CUDA device; use --device cpu")
    return torch.device("cpu")


def compute_dtype(name: str, device: torch.device) -> torch.dtype:
    """Return float32, bfloat16, or for auto bfloat16 on GPUs and TPUs and float32 on CPUs."""
    if name == "bfloat16" or (name == "auto" and device.type != "cpu"):
        return torch.bfloat16
    return torch.float32


def default_device_batch(block_size: int, device: torch.device) -> int:
    """Return the number of windows of a forward pass."""
    if device.type != "cuda":
        return _DEFAULT_WINDOWS_ON_CPU
    return max(1, _DEFAULT_TOKENS_ON_GPU // block_size)


def is_compiler_error(error: BaseException) -> bool:
    """Return whether torch.compile raised the error, as where there is no C++ compiler."""
    return type(error).__module__.startswith(("torch._dynamo", "torch._inductor"))


def use_fastest_attention(
    shape: ModelConfig,
    has_mask: bool,
    dtype: torch.dtype,
    device: torch.device,
    closing: ExitStack,
) -> str:
    """Prefer cuDNN's attention on a Hopper GPU until `closing` ends.

    Return the name of the attention that this device has.
    """
    if has_mask and device.type == "cuda":
        return "FlexAttention"
    if device.type == "xla":
        return "XLA"
    if device.type == "cuda" and torch.cuda.get_device_capability(device)[0] == 9:
        preferred = [
            SDPBackend.CUDNN_ATTENTION,
            SDPBackend.FLASH_ATTENTION,
            SDPBackend.EFFICIENT_ATTENTION,
            SDPBackend.MATH,
        ]
        closing.enter_context(sdpa_kernel(preferred, set_priority=True))
    size = (1, shape.n_head, shape.block_size, shape.n_embd // shape.n_head)
    q = torch.zeros(size, dtype=dtype, device=device, requires_grad=True)
    choice = torch._fused_sdp_choice(q, q, q, dropout_p=shape.dropout, is_causal=True)
    return SDPBackend(choice).name.lower()


def mfu(flops_per_second: float, device: torch.device) -> float | None:
    """Return the share of the device's peak rate; None if the peak is not in the table."""
    if device.type != "cuda":
        return None
    peak = peak_tflops(torch.cuda.get_device_name(device))
    return flops_per_second / (peak * 1e12) if peak else None


def peak_tflops(name: str) -> float | None:
    """Return the peak rate of the GPU that the driver calls `name`; None if it is not known."""
    # Another chip under the same name, or a part of one.
    if re.search(r"\b(PCIe|NVL|Laptop|Ti|D|MIG)\b", name):
        return None
    for gpu, tflops in PEAK_TFLOPS.items():
        if re.search(rf"\b{gpu}\b", name):
            return tflops
    return None


def memory_gb(device: torch.device) -> float:
    """Return the peak memory of this process in 10**9 bytes: of the GPU, or resident on a CPU."""
    if device.type == "cuda":
        return torch.cuda.max_memory_allocated(device) / 1e9
    # macOS counts bytes, Linux kilobytes.
    unit = 1 if sys.platform == "darwin" else 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit / 1e9
