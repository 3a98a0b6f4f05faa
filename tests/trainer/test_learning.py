"""minGPT's two demonstrations by the names in docs/training.md: a model learns to add, and to write characters."""

from __future__ import annotations

import json
import math
from pathlib import Path

import pytest
import torch

from tests.trainer.conftest import EOT, WriteTokens, write_token_dataset
from trainer.config import TrainConfig
from trainer.corpora import open_corpora
from trainer.data import Loader
from trainer.model import GPT, preset
from trainer.tools.sample import generate
from trainer.train import train


@pytest.mark.slow
def test_a_model_learns_to_add_numbers_it_has_not_seen(tmp_path: Path, write_tokens: WriteTokens) -> None:
    """Two numbers below 50, their sum's digits least significant first, as in minGPT."""
    problems = [[x // 10, x % 10, y // 10, y % 10, (x + y) % 10, (x + y) // 10] for x in range(50) for y in range(50)]
    order = torch.randperm(len(problems), generator=torch.Generator().manual_seed(0)).tolist()
    seen, unseen = ([problems[k] for k in part] for part in (order[:2000], order[2000:]))
    sampler = open_corpora([str(write_tokens(tmp_path / "tokens", seen))]).sampler("packed", 7, seed=0)
    torch.manual_seed(0)
    model = GPT(preset("tiny", vocab_size=400, context=7, n_head=4))
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, 3e-3, total_steps=900)
    batches = Loader(sampler, batch=128, micro_batch=128).batches(0)
    for _ in range(900):
        inputs, targets = next(batches)  # a window is an end-of-text and the six digits of a problem
        answers = torch.cat([torch.full_like(targets[:, :4], -100), targets[:, 4:]], 1)  # the question is random
        model(inputs, answers).backward()
        optimizer.step()
        schedule.step()
        optimizer.zero_grad()
    batches.close()
    model.eval()
    right = sum(list(generate(model, [399, *row[:4]], 2, temperature=0)) == row[4:] for row in unseen)
    assert right / len(unseen) > 0.9


@pytest.mark.slow
def test_a_character_model_learns_more_than_bigrams(testdata: Path, tmp_path: Path) -> None:
    from tokenizers import Tokenizer, models

    text = (testdata / "text" / "tinyshakespeare.txt").read_text(encoding="utf-8")[:400_000]
    alphabet = {character: number for number, character in enumerate(sorted(set(text)))}
    tokenizer = Tokenizer(models.BPE(alphabet, []))
    tokenizer.add_special_tokens([EOT])
    tokenizer.save(str(tmp_path / "characters.json"))
    ids = [alphabet[character] for character in text]
    splits = {"train": [ids[:360_000]], "val": [ids[360_000:]]}
    data = write_token_dataset(tmp_path / "tokens", splits, tmp_path / "characters.json", 1)
    config = TrainConfig(
        data=(str(data),), out=str(tmp_path / "run"), preset="tiny", n_head=4, width=96, context=64, device="cpu",
        batch_tokens=12 * 64, max_steps=500, warmup_steps=25, learning_rate=4e-3,
    )  # fmt: skip
    train(config)
    records = (tmp_path / "run" / "metrics.jsonl").read_text().splitlines()
    first, second = torch.tensor(ids[:359_999]), torch.tensor(ids[1:360_000])
    pairs = torch.zeros(len(alphabet), len(alphabet)).index_put_((first, second), torch.ones(()), True) + 0.01
    held_out = torch.tensor(ids[360_000:])
    by_pairs = -(pairs / pairs.sum(1, keepdim=True)).log()[held_out[:-1], held_out[1:]].mean().item()
    assert math.isfinite(by_pairs)
    assert json.loads(records[-1])["val_loss"] < by_pairs - 0.15
