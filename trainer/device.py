"""The device that a rank computes on: its precision, its memory, its attention, its peak rate."""

from __future__ import annotations

import re
import resource
import sys
from contextlib import ExitStack

import torch
from torch.nn.attention import SDPBackend, sdpa_kernel

from trainer.model import GPT, ModelConfig

_FASTEST_TOKENS = 32 * 1024  # of a forward pass
PEAK_TFLOPS: dict[str, float] = {
    "A100": 312.0, "H100 "
    "PCIe": 756.0, "H100 NVL": 835.5, "H100": 989.4, "H200 NVL": 835.5, "H200": 989.4,
    "GH200": 989.4, "B200": 2250.0, "GB200": 2500.0, "L4": 121.0, "L40S": 362.0, "RTX "
    "4090": 165.2, "RTX 3090": 71.0,
}  # fmt: skip
"""Dense bf16 rates with 32-bit accumulation, in 10**12 operations a second, by NVIDIA's data
sheets."""


def device_of(name: str) -> torch.device:
    """The device called `name`: auto, cpu or cuda; raises ValueError if there is no such device."""
    if name == "cuda" and not torch.cuda.is_available():
        raise ValueError("device is cuda, but torch finds no CUDA device; use --device cpu")
    return torch.device("cuda" if name != "cpu" and torch.cuda.is_available() else "cpu")


def autocast_of(dtype: str, device: torch.device) -> torch.autocast:
    """Autocast for `dtype`: float32, bfloat16, or auto, which is bfloat16 on GPUs and TPUs."""
    return torch.autocast(device.type, torch.bfloat16, enabled=in_bfloat16(dtype, device))


def in_bfloat16(dtype: str, device: torch.device) -> bool:
    return dtype == "bfloat16" or (dtype == "auto" and device.type != "cpu")


def default_micro_batch(model: GPT, device: torch.device) -> int:
    """Return the windows of a forward pass: a power of two that is likely to fit in the GPU's
    memory, of 32,768 tokens at most; 8 elsewhere.

    On an H200, 64 windows of 1,024 were no faster than 32. A token keeps about 34 bytes a
    channel in each block, and 10 for each entry of the vocabulary: logits in bfloat16, in float32,
    and their gradient. A parameter takes 18: weight, gradient, AdamW's state, and a copy in
    bfloat16.
    """
    if device.type != "cuda":
        return 8
    config = model.config
    blocks = config.n_layer * config.width * (2 if model.checkpoint_activations else 34)
    window = config.context * (blocks + 10 * config.padded_vocab_size)
    room = 0.85 * torch.cuda.get_device_properties(device).total_memory - 18 * model.n_parameters
    most = min(room // window, _FASTEST_TOKENS // config.context)
    return 1 << max(0, int(most).bit_length() - 1) if most >= 1 else 1


def is_compiler_error(error: BaseException) -> bool:
    """Return whether torch.compile raised the error, as where there is no C++ compiler."""
    return type(error).__module__.startswith(("torch._dynamo", "torch._inductor"))


def use_fastest_attention(
    shape: ModelConfig, masked: bool, half: bool, device: torch.device, ending: ExitStack
) -> str:
    """Prefer cuDNN's attention on a Hopper GPU, until `ending` closes; returns what computes
    attention here."""
    if masked and device.type == "cuda":
        return "FlexAttention"
    if device.type == "xla":
        return "XLA"
    if device.type == "cuda" and torch.cuda.get_device_capability(device)[0] == 9:
        order = ["CUDNN_ATTENTION", "FLASH_ATTENTION", "EFFICIENT_ATTENTION", "MATH"]
        ending.enter_context(
            sdpa_kernel([getattr(SDPBackend, name) for name in order], set_priority=True)
        )
    size = 1, shape.n_head, shape.context, shape.width // shape.n_head
    q = torch.zeros(
        size, dtype=torch.bfloat16 if half else torch.float32, device=device, requires_grad=True
    )
    return SDPBackend(
        torch._fused_sdp_choice(q, q, q, dropout_p=shape.dropout, is_causal=True)
    ).name.lower()


def mfu(flops_per_second: float, device: torch.device) -> float | None:
    """The share of the device's peak rate, or None for a device whose peak is not in the table."""
    peak = peak_tflops(torch.cuda.get_device_name(device)) if device.type == "cuda" else None
    return flops_per_second / (peak * 1e12) if peak else None


def peak_tflops(name: str) -> float | None:
    """The peak rate of the GPU that the driver calls `name`; None for one that is not in the
    table."""
    if re.search(r"\b(Laptop|Ti|D|MIG)\b", name):  # another chip, or a part of one
        return None
    known = [key for key in PEAK_TFLOPS if re.search(rf"\b{key}\b", name)]
    return PEAK_TFLOPS[max(known, key=len)] if known else None


def memory_gb(device: torch.device) -> float:
    """Peak memory of this process in 10**9 bytes: of the GPU, or resident on a CPU."""
    if device.type == "cuda":
        return torch.cuda.max_memory_allocated(device) / 1e9
    unit = 1 if sys.platform == "darwin" else 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit / 1e9
