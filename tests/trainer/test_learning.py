"""minGPT's two demonstrations: a model learns to add, and learns what follows what in Shakespeare."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from trainer.generation import generate
from trainer.model import GPT, ModelConfig
from trainer.optimizers import learning_rate, make_optimizers


@pytest.mark.slow
def test_a_model_learns_to_add_numbers_it_has_not_seen() -> None:
    """Two numbers below 50, their sum's digits least significant first, as in minGPT."""
    torch.manual_seed(0)
    problems = torch.randperm(50 * 50)
    train, test = problems[:2000], problems[2000:]
    model = GPT(ModelConfig(vocab_size=10, context=6, n_layer=2, n_head=4, width=64))
    (optimizer,) = make_optimizers("adamw", model, lr=3e-3, weight_decay=0.1)
    steps = 900
    for step in range(steps):
        ids = _digits(train[torch.randint(len(train), (128,))])
        targets = ids[:, 1:].clone()
        targets[:, :3] = -100  # the question is random: only the answer can be learned
        model(ids[:, :-1], targets).backward()
        optimizer.param_groups[0]["lr"] = optimizer.param_groups[1]["lr"] = learning_rate(
            step, peak=3e-3, schedule="cosine", warmup_steps=50, max_steps=steps
        )
        optimizer.step()
        optimizer.zero_grad()
    model.eval()
    asked = _digits(test).tolist()
    right = sum(list(generate(model, row[:4], 2, temperature=0)) == row[4:] for row in asked)
    assert right / len(asked) > 0.9


def _digits(problems: torch.Tensor) -> torch.Tensor:
    """(a b c d, then the sum's units and tens): each problem is 50·x + y, asked as x + y."""
    x, y = problems // 50, problems % 50
    total = x + y
    return torch.stack([x // 10, x % 10, y // 10, y % 10, total % 10, total // 10], dim=1)


@pytest.mark.slow
def test_a_character_model_learns_more_than_bigrams(testdata: Path) -> None:
    text = (testdata / "text" / "tinyshakespeare.txt").read_text(encoding="utf-8")
    alphabet = {character: number for number, character in enumerate(sorted(set(text)))}
    ids = torch.tensor([alphabet[character] for character in text])
    train, val = ids[: len(ids) * 9 // 10], ids[len(ids) * 9 // 10 :][: 65 * 400].view(400, 65)
    torch.manual_seed(0)
    model = GPT(ModelConfig(vocab_size=len(alphabet), context=64, n_layer=2, n_head=4, width=96))
    (optimizer,) = make_optimizers("adamw", model, lr=4e-3, weight_decay=0.1)
    steps = 500
    for step in range(steps):
        rate = learning_rate(step, peak=4e-3, schedule="cosine", warmup_steps=25, max_steps=steps)
        for group in optimizer.param_groups:
            group["lr"] = rate
        batch = torch.stack([train[start : start + 65] for start in torch.randint(len(train) - 65, (12,)).tolist()])
        model(batch[:, :-1], batch[:, 1:]).backward()
        optimizer.step()
        optimizer.zero_grad()
    pairs = torch.zeros(len(alphabet), len(alphabet)).index_put_((train[:-1], train[1:]), torch.ones(()), True) + 0.01
    by_pairs = (pairs / pairs.sum(1, keepdim=True)).log()[val[:, :-1], val[:, 1:]].mean()
    with torch.no_grad():
        loss = model.eval()(val[:, :-1], val[:, 1:])
    assert loss < -by_pairs - 0.15
