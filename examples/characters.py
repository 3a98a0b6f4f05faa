"""A GPT that writes the characters of a text, as in minGPT's demo: examples/characters.py FILE."""

from __future__ import annotations

import sys
from pathlib import Path

import torch

from trainer import GPT, TrainConfig, preset


def main(path: str, steps: int = 500) -> str:
    """Train on the text in `path`; return 200 characters that continue a line's end."""
    torch.manual_seed(1)
    text = Path(path).read_text(encoding="utf-8")
    alphabet = sorted(set(text))
    ids = torch.tensor([alphabet.index(character) for character in text])
    model = GPT(preset("tiny", vocab_size=len(alphabet), block_size=64, n_layer=4, n_embd=128))
    config = TrainConfig(data=(), out="", preset="tiny", learning_rate=1e-3, beta2=0.99)
    (optimizer,) = model.configure_optimizers(config)
    for step in range(steps):
        start = torch.randint(len(ids) - 65, (12, 1))
        windows = ids[start + torch.arange(65)]
        loss = model(windows[:, :-1], windows[:, 1:])
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        if step % 100 == 0:
            print(f"step {step}: loss {loss.item():.4f}", flush=True)
    start = torch.tensor([[alphabet.index("\n")]])
    written = model.eval().generate(start, 200, temperature=0.8, top_k=40)
    return "".join(alphabet[k] for k in written[0])


if __name__ == "__main__":
    print(main(*sys.argv[1:2]))
