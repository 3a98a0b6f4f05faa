"""A GPT that adds: sums of two numbers below 100, as in minGPT's demo. A minute on a CPU.

The digits of a sum are written backwards, as one carries: 85 + 50 = 135 is 8 5 5 0 5 3 1.
"""

from __future__ import annotations

import sys

import torch

from trainer import GPT, TrainConfig, preset


def digits(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    """Return the digits (N, 7) of sums: two of `a`, two of `b`, three of a + b backwards."""
    total = a + b
    columns = [a // 10, a % 10, b // 10, b % 10, total % 10, total // 10 % 10, total // 100]
    return torch.stack(columns, dim=1)


def main(steps: int = 1500) -> int:
    """Train on all other sums; return how many of 200 held-out ones are right."""
    torch.manual_seed(1)
    pairs = torch.randperm(10_000)
    held_out = pairs[:200]
    training = pairs[200:]
    model = GPT(preset("tiny", vocab_size=10, block_size=6, n_layer=2, n_head=4, n_embd=64))
    config = TrainConfig(
        data=(),
        out="",
        preset="tiny",
        learning_rate=2e-3,
        max_steps=steps,
        warmup_steps=min(50, steps),
    )
    config = config.resolved(steps)
    (optimizer,) = model.configure_optimizers(config)
    for step in range(steps):
        batch = training[torch.randint(len(training), (256,))]
        ids = digits(batch // 100, batch % 100)
        targets = ids[:, 1:].clone()
        # The digits of the two numbers are given.
        targets[:, :3] = -100
        model(ids[:, :-1], targets).backward()
        optimizer.param_groups[0]["lr"] = config.learning_rate_at(step)
        optimizer.param_groups[1]["lr"] = config.learning_rate_at(step)
        optimizer.step()
        optimizer.zero_grad()
    model.eval()
    sums = digits(held_out // 100, held_out % 100)
    written = model.generate(sums[:, :4], 3, temperature=0)
    return int((written == sums).all(1).sum())


if __name__ == "__main__":
    print(f"{main(*map(int, sys.argv[1:]))} of 200 sums are right")
