"""nanoGPT's training step, written anew: python benchmarks/peers/nanogpt.py --data TOKENS

The peer of `benchmarks/gpu_check.py`. As `train.py` and `model.py` of karpathy/nanoGPT with
`config/train_gpt2.py`: no biases, exact GELU, a vocabulary of 50,304, torch's attention, fused
AdamW, bfloat16 by autocast, torch.compile, windows at random places of a mapped file. Prints JSON:
tokens_per_s of each step after the first third, and the loss.
"""

from __future__ import annotations

import argparse
import json
import math
import tempfile
import time
from pathlib import Path

import numpy as np
import torch
import torch.nn.functional as F
from torch import nn

from trainer.device import memory_gb
from trainer.tools.export_tokens import export_tokens


class Block(nn.Module):
    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.norm_1, self.norm_2 = nn.LayerNorm(width, bias=False), nn.LayerNorm(width, bias=False)
        self.qkv, self.out = (
            nn.Linear(width, 3 * width, bias=False),
            nn.Linear(width, width, bias=False),
        )
        self.up, self.down = (
            nn.Linear(width, 4 * width, bias=False),
            nn.Linear(4 * width, width, bias=False),
        )

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        q, k, v = (
            part.unflatten(2, (self.heads, -1)).transpose(1, 2)
            for part in self.qkv(self.norm_1(x)).chunk(3, 2)
        )
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.out(y.transpose(1, 2).flatten(2))
        return x + self.down(F.gelu(self.up(self.norm_2(x))))


class NanoGPT(nn.Module):
    def __init__(self, layers: int, heads: int, width: int, context: int) -> None:
        super().__init__()
        self.tokens, self.positions = nn.Embedding(50304, width), nn.Embedding(context, width)
        self.blocks = nn.ModuleList(Block(width, heads) for _ in range(layers))
        self.norm = nn.LayerNorm(width, bias=False)
        self.head = nn.Linear(width, 50304, bias=False)
        for name, p in self.named_parameters():
            if p.dim() == 2:
                residual = name.endswith(("out.weight", "down.weight"))
                nn.init.normal_(p, std=0.02 / math.sqrt(2 * layers) if residual else 0.02)
        self.head.weight = self.tokens.weight

    def forward(self, ids: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        x = self.tokens(ids) + self.positions(torch.arange(ids.shape[1], device=ids.device))
        for block in self.blocks:
            x = block(x)
        return F.cross_entropy(self.head(self.norm(x)).flatten(0, 1), targets.flatten())


def main() -> None:
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
    arguments = parser.parse_args()
    layers, heads, width, context = arguments.shape
    device, cuda = torch.device(arguments.device), arguments.device == "cuda"
    torch.manual_seed(1337)
    torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = True
    model: nn.Module = NanoGPT(layers, heads, width, context).to(device)
    net = torch.compile(model) if cuda else model
    matrices = [p for p in model.parameters() if p.dim() >= 2]
    vectors = [p for p in model.parameters() if p.dim() < 2]
    groups = [{"params": matrices, "weight_decay": 0.1}, {"params": vectors, "weight_decay": 0.0}]
    optimizer = torch.optim.AdamW(groups, lr=6e-4, betas=(0.9, 0.95), fused=True)
    accumulation = arguments.batch_tokens // (arguments.windows * context)
    seconds, loss = [], torch.zeros(())
    with tempfile.TemporaryDirectory() as folder:
        data = np.memmap(export_tokens(arguments.data, Path(folder), "bin")[0], np.uint16, "r")
        for _ in range(arguments.steps):
            start = time.perf_counter()
            for _ in range(accumulation):
                at = torch.randint(len(data) - context, (arguments.windows,)).tolist()
                ids = torch.from_numpy(
                    np.stack([data[k : k + context + 1].astype(np.int64) for k in at])
                )
                ids = ids.pin_memory().to(device, non_blocking=True) if cuda else ids
                with torch.autocast(device.type, torch.bfloat16):
                    loss = net(ids[:, :-1], ids[:, 1:]) / accumulation
                loss.backward()
            nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            optimizer.zero_grad(set_to_none=True)
            if cuda:
                torch.cuda.synchronize()
            seconds.append(time.perf_counter() - start)
    rates = [
        accumulation * arguments.windows * context / own for own in seconds[arguments.steps // 3 :]
    ]
    print(
        json.dumps(
            {"rates": rates, "loss": loss.item() * accumulation, "memory_gb": memory_gb(device)}
        )
    )


if __name__ == "__main__":
    main()
