"""Corpora compared by the models that they train, and the statistics of it."""

from __future__ import annotations

import json
import math
import random
import shutil
from pathlib import Path

import numpy as np
import pytest
import torch

from benchmarks import compare
from benchmarks.compare import Score, difference, table
from trainer.data.text import Tokenizer
from trainer.evaluate import score_texts
from trainer.loop import train
from trainer.model import GPT, ModelConfig
from trainer.validation import text_windows

from .conftest import REPOSITORY, Capture, WriteTokens, small_config


@pytest.fixture(scope="module")
def texts() -> list[str]:
    """Return parts of this repository's own sources."""
    joined = "\n\n".join(
        path.read_text(encoding="utf-8") for path in sorted((REPOSITORY / "schemas").glob("*.py"))
    )
    return [part for part in joined.split("\n\n") if len(part) > 80]


@pytest.mark.slow
def test_shuffled_characters_score_worse_and_a_copy_the_same(
    tmp_path: Path,
    write_tokens: WriteTokens,
    tokenizer_file: Path,
    texts: list[str],
    capsys: Capture,
) -> None:
    tokenizer = Tokenizer(tokenizer_file)
    draw = random.Random(0)
    runs = []
    for name in ("plain", "mixed", "copy"):
        shuffled = [
            "".join(draw.sample(text, len(text))) if name == "mixed" else text
            for text in texts[40:]
        ]
        data = write_tokens(tmp_path / name / "tokens", list(map(tokenizer.encode, shuffled)))
        for seed in (1, 2, 3):
            runs.append(str(tmp_path / f"{name}-{seed}"))
            train(small_config(data, Path(runs[-1]), max_steps=30, eval_every=0, seed=seed))
    held_out = tmp_path / "held-out.jsonl"
    held_out.write_text("".join(json.dumps({"text": text}) + "\n" for text in texts[:40]))
    flags = ["--eval_text", str(held_out), "--device", "cpu"]
    capsys.readouterr()
    assert compare.main([*runs, *flags]) == 0
    rows = [
        [cell.strip() for cell in line.split("|")[1:-1]]
        for line in capsys.readouterr().out.splitlines()
    ]
    assert {row[1]: row[-1] for row in rows if "−" in str(row[1:2])} == {
        "mixed − plain": "plain is better",
        "copy − plain": "no difference",
        "copy − mixed": "copy is better",
    }
    write_tokens(tmp_path / "plain" / "tokens", [[1] * 40] * 5)
    other_run = str(tmp_path / "other")
    for settings, message in (
        (
            {"seed": 4, "max_steps": 31},
            f"{other_run} cannot be compared with {runs[0]}: max_steps is 31, there 30",
        ),
        (
            {"seed": 4},
            f"{other_run} cannot be compared with {runs[0]}: another corpus is called plain; rename "
            f"the folder",
        ),
    ):
        train(
            small_config(
                tmp_path / "plain/tokens",
                Path(other_run),
                **{"max_steps": 30, "eval_every": 0} | settings,
            )
        )
        assert compare.main([*runs, other_run, *flags]) == 2
        assert message in capsys.readouterr().err
        shutil.rmtree(other_run)
    shutil.copytree(runs[0], other_run)
    assert compare.main([runs[0], other_run, *flags]) == 2
    assert (
        f"cannot be compared with {runs[0]}: both were trained on the same corpus, plain, with"
        in capsys.readouterr().err
    )
    for again in (runs[0], f"{runs[0]}/"):
        assert compare.main([runs[0], again, *flags]) == 2
        assert f"{again} is named twice" in capsys.readouterr().err


def test_each_document_is_scored_independently(tokenizer_file: Path) -> None:
    torch.manual_seed(0)
    model = GPT(ModelConfig(vocab_size=400, block_size=16, n_layer=1, n_head=2, n_embd=16)).eval()
    tokenizer = Tokenizer(tokenizer_file)
    texts = [" é漢"[k % 3] * length for k, length in enumerate((3, 40, 1, 16, 17, 33))]
    for stride in (0, 5):
        scores = score_texts(model, tokenizer, texts, 399, stride=stride, device_batch_size=4)
        for text, score in zip(texts, scores, strict=True):
            expected = 0.0
            for ids, num_targets in text_windows([399, *tokenizer.encode(text)], 16, stride):
                logits = model(ids[None, :-1])[0].log_softmax(-1)
                targets = ids[-num_targets:]
                chosen = logits[-num_targets:].gather(1, targets[:, None])
                expected -= chosen.sum().item()
            assert score.nats == pytest.approx(expected, rel=1e-4)


def _models(
    draw: np.random.Generator, effect: float, of_seeds: float, seeds: int, texts: int
) -> list[list[Score]]:
    """Return scores of both corpora, with chance by seeds and by texts.

    Their true difference is `effect`.
    """
    sizes = draw.integers(200, 4000, texts).astype(float)
    common = draw.normal(2, 0.3, texts)
    gains = draw.normal(effect, 0.05, texts)
    scores: list[list[Score]] = [[], []]
    for _ in range(seeds):
        for of_corpus, rate in zip(scores, (common, common + gains), strict=True):
            bits = sizes * (rate + draw.normal(0, of_seeds) + draw.normal(0, 0.01, texts))
            of_corpus.append(Score(bits.tolist(), sizes.tolist()))
    return scores


@pytest.mark.parametrize("seeds", [2, 3, 8])
def test_equal_corpora_differ_in_one_of_twenty_comparisons(seeds: int) -> None:
    draw = np.random.default_rng(seeds)
    for of_seeds in (0.0005, 0.02):
        named = sum(
            difference(*_models(draw, 0.0, of_seeds, seeds, 60))
            .verdict("a", "b")
            .endswith("better")
            for _ in range(400)
        )
        assert named <= 400 * 0.05 + 3 * math.sqrt(400 * 0.05 * 0.95)


def test_a_difference_larger_than_chance_has_the_right_sign() -> None:
    draw = np.random.default_rng(0)
    assert difference(*_models(draw, 0.05, 0.003, 3, 200)).verdict("a", "b") == "a is better"
    assert difference(*_models(draw, -0.05, 0.003, 3, 200)).verdict("a", "b") == "b is better"


def test_one_seed_gives_no_verdict() -> None:
    scores = _models(np.random.default_rng(0), 0.5, 0.003, 1, 50)
    result = difference(*scores)
    shown = table({"text": {"a": {1: scores[0][0]}, "nan": {1: scores[1][0]}}}).splitlines()
    assert [line.split(" | ")[1] for line in shown[2:]] == ["a", "nan", "nan − a"]
    assert shown[4].endswith(f" | {result.error_by_texts:.4f} | unknown: one seed |")
    assert shown[4].count(" unknown ") == 2
