"""What a checkpoint is for: writing text, measuring, and going elsewhere."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from tests.trainer.conftest import Capture, generate, records_of, small_config
from trainer import evaluate, export, sample
from trainer.data.text import Tokenizer
from trainer.evaluate import (
    describe_score,
    detokenize,
    published_words,
    score_texts,
)
from trainer.loop import train
from trainer.model import GPT, ModelConfig
from trainer.pretrained import load_pretrained
from trainer.validation import text_windows

REPOSITORY = Path(__file__).resolve().parents[2]


@pytest.fixture
def run(text_tokens: Path, tmp_path: Path) -> Path:
    """Return a short run of a small model, with its last checkpoint."""
    train(small_config(text_tokens, tmp_path / "run", max_steps=30))
    return tmp_path / "run"


@pytest.fixture(scope="module")
def model() -> GPT:
    torch.manual_seed(0)
    model = GPT(ModelConfig(vocab_size=100, block_size=16, n_layer=2, n_head=2, n_embd=32)).eval()
    with torch.no_grad():
        # Initial weights would give ties.
        for parameter in model.parameters():
            parameter.add_(torch.randn_like(parameter) * 0.2)
    return model


def test_greedy_text_is_as_without_a_cache_past_the_context_too(
    model: GPT,
) -> None:
    ids = [1, 2, 3]
    for _ in range(13):
        ids.append(int(model(torch.tensor([ids]))[0, -1].argmax()))
    complete = [1, 2, 3, *generate(model, [1, 2, 3], 15, temperature=0)]
    assert complete[:16] == ids
    assert len(complete) == 18
    assert complete[17] == int(model(torch.tensor([complete[9:17]]))[0, -1].argmax())
    assert len(list(generate(model, [5] * 40, 50, temperature=0))) == 50


def test_top_k_and_top_p_sample_only_from_the_most_likely_tokens(model: GPT) -> None:
    logits = model(torch.tensor([[7]]))[0, -1]
    order = logits.argsort(descending=True).tolist()
    probabilities = logits.softmax(0)[order].cumsum(0)
    nucleus = set(order[: int((probabilities < 0.5).sum()) + 1])

    def drawn(**options: Any) -> set[int]:
        generator = torch.Generator().manual_seed(1)
        return {generate(model, [7], 1, generator=generator, **options)[0] for _ in range(100)}

    assert drawn(top_k=1) == {order[0]}
    assert drawn(top_k=3, temperature=5.0) == set(order[:3])
    assert drawn(top_p=0.5) <= nucleus
    assert drawn(top_p=0.0) == {order[0]}


def test_samples_follow_the_models_probabilities(model: GPT) -> None:
    probabilities = model(torch.tensor([[7]]))[0, -1].softmax(0)
    generator = torch.Generator().manual_seed(1)
    draws = torch.tensor([generate(model, [7], 1, generator=generator)[0] for _ in range(1000)])
    share = torch.bincount(draws, minlength=100) / 1000
    error = 4 * (probabilities * (1 - probabilities) / 1000).sqrt() + 1e-3
    assert bool(((share - probabilities).abs() < error).all())


def test_a_sample_ends_before_end_of_text_and_a_seed_repeats_it(model: GPT) -> None:
    first = list(generate(model, [7], 10, temperature=0))
    assert (
        list(generate(model, [7], 10, temperature=0, stop=first[3]))
        == first[: first.index(first[3])]
    )
    draws = [
        list(generate(model, [7], 10, generator=torch.Generator().manual_seed(seed)))
        for seed in (1, 1, 2)
    ]
    assert draws[0] == draws[1] != draws[2]


def test_the_sample_command_writes_text_after_each_prompt(run: Path, capsys: Capture) -> None:
    arguments = [str(run), "--prompt", "def ", "import ", "--max_tokens", "8", "--num_samples", "2"]
    capsys.readouterr()
    assert sample.main(arguments) == 0
    written = capsys.readouterr().out
    samples = written.removesuffix("\n").split("\n---\n")
    assert [text[:4] for text in samples] == ["def ", "def ", "impo", "impo"]
    assert all(len(text) > 4 for text in samples), samples
    assert sample.main(arguments) == 0
    assert capsys.readouterr().out == written


@given(n=st.integers(1, 60), block_size=st.integers(1, 20), stride=st.integers(1, 20))
def test_text_windows_predict_each_token_once_with_context(
    n: int, block_size: int, stride: int
) -> None:
    stride = min(stride, block_size)
    predicted = []
    for ids, num_targets in text_windows(range(n + 1), block_size, stride):
        assert len(ids) <= block_size + 1
        targets = ids[-num_targets:].tolist()
        predicted += targets
        assert len(ids) - 1 - num_targets == min(block_size - stride, targets[0] - 1)
    assert predicted == list(range(1, n + 1))


def test_perplexities_are_of_a_texts_tokens_words_and_bytes(
    tokenizer_file: Path,
) -> None:
    text = "def main(): return 1"
    tokenizer = Tokenizer(tokenizer_file)
    torch.manual_seed(0)
    model = GPT(ModelConfig(vocab_size=400, block_size=8, n_layer=1, n_head=1, n_embd=8)).eval()
    ids = tokenizer.encode(text)
    for stride in (0, 1):
        (score,) = score_texts(model, tokenizer, [text], 399, stride=stride)
        nats = score.nats
        report = describe_score(score, text)
        assert report["loss"] == pytest.approx(nats / len(ids))
        assert report["perplexity"] == pytest.approx(math.exp(nats / len(ids)))
        assert report["word_perplexity"] == pytest.approx(math.exp(nats / 4))
        assert report["bits_per_byte"] == pytest.approx(nats / math.log(2) / len(text))


@pytest.mark.slow
def test_evaluate_gives_trainings_validation_loss_on_two_ranks(
    run: Path, text_tokens: Path, trainer: Any, capsys: Capture
) -> None:
    last = records_of(run)[-1]
    flags = [
        "--windows",
        "2048",
        "--text",
        str(REPOSITORY / "schemas" / "reasons.py"),
        "--device",
        "cpu",
    ]
    capsys.readouterr()
    assert evaluate.main([str(run), "--data", str(text_tokens), *flags]) == 0
    ranks = trainer.run(run, "--data", text_tokens, *flags, ranks=2, module="trainer.evaluate")
    for result in map(json.loads, (capsys.readouterr().out, ranks.stdout)):
        assert result["val_loss"] == pytest.approx(last["val_loss"], rel=1e-6)
        assert 1 < result["perplexity"] < 400


def test_transformers_generates_an_exported_models_text(
    run: Path, tmp_path: Path, text_tokens: Path, capsys: Capture
) -> None:
    transformers = pytest.importorskip(
        "transformers", reason="what the export is for: pip install transformers"
    )
    folder = tmp_path / "exported"
    assert export.main([str(run), str(folder)]) == 0
    assert len({path.stat().st_mode for path in folder.iterdir()}) == 1
    transformers_model = transformers.AutoModelForCausalLM.from_pretrained(folder)
    tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
    trained = load_pretrained(str(run))
    ours = trained.model
    eot = trained.eot
    assert tokenizer.eos_token_id == transformers_model.config.eos_token_id == eot

    prompt = tokenizer("def main(", return_tensors="pt").input_ids
    assert prompt[0].tolist() == Tokenizer(folder / "tokenizer.json").encode("def main(")
    torch.testing.assert_close(
        ours(prompt), transformers_model(prompt).logits, rtol=1e-4, atol=1e-4
    )

    capsys.readouterr()
    flags = ["--data", str(text_tokens), "--windows", "9", "--device", "cpu"]
    results = []
    for source in (run, folder):
        assert evaluate.main([str(source), *flags]) == 0
        results.append(json.loads(capsys.readouterr().out))
    assert results[0].keys() - results[1].keys() == {"step"}
    assert results[1]["val_loss"] == pytest.approx(results[0]["val_loss"], rel=1e-5)
    texts = []
    for source in (run, folder):
        assert (
            sample.main([str(source), "--prompt", "def ", "--max_tokens", "20", "--device", "cpu"])
            == 0
        )
        texts.append(capsys.readouterr().out)
    assert texts[0] == texts[1] != ""

    tuned = small_config(text_tokens, tmp_path / "tuned", init_from=str(folder), max_steps=1)
    # A fresh model starts at ln 400 = 5.99.
    assert train(tuned).loss < 5.5


def test_a_hugging_face_folder_with_another_tokenizer_is_refused(
    run: Path, tmp_path: Path, text_tokens: Path, capsys: Capture
) -> None:
    folder = tmp_path / "exported"
    export.main([str(run), str(folder)])
    entries = json.loads((folder / "tokenizer.json").read_text())
    tokens = sorted(entries["model"]["vocab"], key=entries["model"]["vocab"].get)
    written = json.dumps(entries)
    entries["model"]["merges"] = [
        " ".join(merge) for merge in entries["model"]["merges"]
    ]  # as old versions write it
    (folder / "tokenizer.json").write_text(json.dumps(entries))
    flags = ["--data", str(text_tokens), "--windows", "1", "--device", "cpu"]
    assert evaluate.main([str(folder), *flags]) == 0
    entries = json.loads(written)
    entries["model"]["vocab"] |= {tokens[0]: 1, tokens[1]: 0}
    (folder / "tokenizer.json").write_text(json.dumps(entries))
    capsys.readouterr()
    assert evaluate.main([str(folder), *flags]) == 1
    error = capsys.readouterr().err
    assert f"{text_tokens} has the tokenizer test (" in error
    assert f"which is not that of {folder}" in error


def test_wikitext_is_measured_by_its_words_and_line_ends() -> None:
    tokens = (
        " = Boulter = \n \n He 's a poet @-@ actor , won 1 @,@ 000 ( a thousand ) at \" The "
        'Bill " . \n = = Life = = \n'
    )
    assert published_words(tokens) == 3 + 21 + 5 + 4
    assert detokenize(tokens) == (
        ' = Boulter =\n\nHe\'s a poet-actor, won 1,000 (a thousand) at "The Bill".\n== Life ==\n'
    )


@torch.no_grad()
def test_rows_of_a_batch_are_independent_and_end_at_stop(model: GPT) -> None:
    prompts = torch.tensor([[1, 2, 3], [7, 8, 9], [4, 4, 4]])
    together = model.generate(prompts, 10, temperature=0)
    for prompt, row in zip(prompts, together, strict=True):
        assert row.tolist() == model.generate(prompt[None], 10, temperature=0)[0].tolist()
    stop = int(together[0, 4])
    ended = model.generate(prompts, 10, temperature=0, stop=stop)
    for row, whole in zip(ended.tolist(), together.tolist(), strict=True):
        end = whole.index(stop, 3) if stop in whole[3:] else len(whole)
        assert row[:end] == whole[: len(row)][:end]
        assert set(row[end:]) <= {stop}
