"""Time nanoGPT's training step: python benchmarks/peers/nanogpt.py --data TOKENS

This is the peer of `benchmarks/gpu_check.py`, written after `train.py` and `model.py` of
karpathy/nanoGPT with `config/train_gpt2.py`: no biases, exact GELU, a vocabulary of 50,304, torch's
attention, fused AdamW, bfloat16 by autocast, torch.compile, and windows at random places of a
mapped file. It prints JSON: the tokens per second of each step after the first third, and the loss.
"""

from __future__ import annotations

import argparse
import json
import math
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import torch
import torch.nn.functional as F
from torch import nn

from trainer.data.export_tokens import export_tokens
from trainer.device import memory_gb

# GPT-2's 50,257, padded to a multiple of 64.
VOCAB_SIZE = 50304
INITIAL_STD = 0.02


class Block(nn.Module):
    """Attention and MLP, each after a norm and added to the residual stream."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.norm_1 = nn.LayerNorm(width, bias=False)
        self.norm_2 = nn.LayerNorm(width, bias=False)
        self.qkv = nn.Linear(width, 3 * width, bias=False)
        self.out = nn.Linear(width, width, bias=False)
        self.up = nn.Linear(width, 4 * width, bias=False)
        self.down = nn.Linear(4 * width, width, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        q, k, v = (
            part.unflatten(2, (self.heads, -1)).transpose(1, 2)
            for part in self.qkv(self.norm_1(x)).chunk(3, 2)
        )
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.out(y.transpose(1, 2).flatten(2))
        hidden = F.gelu(self.up(self.norm_2(x)))
        return x + self.down(hidden)


class NanoGPT(nn.Module):
    """nanoGPT's model, which returns the loss of the targets."""

    def __init__(self, layers: int, heads: int, width: int, context: int) -> None:
        super().__init__()
        self.tokens = nn.Embedding(VOCAB_SIZE, width)
        self.positions = nn.Embedding(context, width)
        self.blocks = nn.ModuleList(Block(width, heads) for _ in range(layers))
        self.norm = nn.LayerNorm(width, bias=False)
        self.head = nn.Linear(width, VOCAB_SIZE, bias=False)
        for name, parameter in self.named_parameters():
            if parameter.dim() < 2:
                continue
            std = INITIAL_STD
            # The residual stream is a sum of two projections a layer.
            if name.endswith(("out.weight", "down.weight")):
                std = INITIAL_STD / math.sqrt(2 * layers)
            nn.init.normal_(parameter, std=std)
        self.head.weight = self.tokens.weight

    def forward(self, ids: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        positions = torch.arange(ids.shape[1], device=ids.device)
        x = self.tokens(ids) + self.positions(positions)
        for block in self.blocks:
            x = block(x)
        logits = self.head(self.norm(x)).flatten(0, 1)
        return F.cross_entropy(logits, targets.flatten())


def main() -> None:
    """Train for some steps, and print the figures."""
    arguments = parse_arguments()
    layers, heads, width, context = arguments.shape
    is_cuda = arguments.device == "cuda"
    torch.manual_seed(1337)
    # As train.py sets them.
    torch.backends.cuda.matmul.allow_tf32 = True
    torch.backends.cudnn.allow_tf32 = True
    model: nn.Module = NanoGPT(layers, heads, width, context).to(arguments.device)
    net = torch.compile(model) if is_cuda else model
    optimizer = make_optimizer(model)
    accumulation = arguments.batch_tokens // (arguments.windows * context)
    seconds = []
    loss = torch.zeros(())
    with tempfile.TemporaryDirectory() as folder:
        ids = np.memmap(export_tokens(arguments.data, Path(folder))[0], np.uint16, "r")
        for _ in range(arguments.steps):
            start = time.perf_counter()
            for _ in range(accumulation):
                windows = random_windows(ids, arguments.windows, context, arguments.device)
                loss = scaled_loss(net, windows, accumulation)
                loss.backward()
            nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            optimizer.zero_grad(set_to_none=True)
            if is_cuda:
                torch.cuda.synchronize()
            seconds.append(time.perf_counter() - start)
    step_tokens = accumulation * arguments.windows * context
    # The first third contains the compilation.
    timed = seconds[arguments.steps // 3 :]
    figures = {
        "rates": [step_tokens / duration for duration in timed],
        "loss": loss.item() * accumulation,
        "memory_gb": memory_gb(torch.device(arguments.device)),
    }
    print(json.dumps(figures))


def parse_arguments() -> argparse.Namespace:
    """Return the command line's arguments."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--data", required=True)
    parser.add_argument(
        "--shape",
        type=int,
        nargs=4,
        default=[12, 12, 768, 1024],
        help="layers, heads, width, context",
    )
    parser.add_argument("--batch_tokens", type=int, default=524288)
    parser.add_argument("--windows", type=int, default=32, help="of a micro-batch")
    parser.add_argument("--steps", type=int, default=20)
    parser.add_argument("--device", default="cuda")
    return parser.parse_args()


def make_optimizer(model: nn.Module) -> torch.optim.Optimizer:
    """Return fused AdamW, which decays matrices only."""
    matrices = [p for p in model.parameters() if p.dim() >= 2]
    vectors = [p for p in model.parameters() if p.dim() < 2]
    groups = [{"params": matrices, "weight_decay": 0.1}, {"params": vectors, "weight_decay": 0.0}]
    return torch.optim.AdamW(groups, lr=6e-4, betas=(0.9, 0.95), fused=True)


def random_windows(ids: np.ndarray, count: int, context: int, device: str) -> torch.Tensor:
    """Return windows (count, context + 1) that begin anywhere in the file."""
    starts = torch.randint(len(ids) - context, (count,)).tolist()
    rows = [ids[start : start + context + 1].astype(np.int64) for start in starts]
    windows = torch.from_numpy(np.stack(rows))
    if device != "cuda":
        return windows
    return windows.pin_memory().to(device, non_blocking=True)


def scaled_loss(
    net: Callable[..., torch.Tensor], windows: torch.Tensor, accumulation: int
) -> torch.Tensor:
    """Return the loss of a micro-batch in bfloat16, divided by their number."""
    with torch.autocast(windows.device.type, torch.bfloat16):
        return net(windows[:, :-1], windows[:, 1:]) / accumulation


if __name__ == "__main__":
    main()
