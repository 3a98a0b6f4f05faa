"""The published tasks, against the model asked token by token."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch

from trainer.distributed import Ranks
from trainer.model import GPT, ModelConfig
from trainer.tasks import hellaswag, lambada
from trainer.tokenizer import Tokenizer
from trainer.wikitext import detokenize

ALONE = Ranks(0, 1, torch.device("cpu"))


@pytest.fixture(scope="module")
def model() -> GPT:
    torch.manual_seed(0)
    model = GPT(ModelConfig(vocab_size=400, context=32, n_layer=2, n_head=2, width=32)).eval()
    with torch.no_grad():
        for parameter in model.parameters():  # sharper than the initial weights: no ties
            parameter.add_(torch.randn_like(parameter) * 0.1)
    return model


def test_lambada_asks_for_every_token_of_the_last_word(model: GPT, tokenizer_file: Path, tmp_path: Path) -> None:
    tokenizer = Tokenizer(tokenizer_file)
    guessed = tokenizer.decode([int(model(torch.tensor([tokenizer.encode("def one")]))[0, -1].argmax())])
    texts = ["def one two", "import many words path", "a b", f"def one{guessed}"]
    path = tmp_path / "lambada_test.jsonl"
    path.write_text("".join(json.dumps({"text": text}) + "\n" for text in texts))
    right, nats = 0, 0.0
    for text in texts:
        context, word = text.rsplit(" ", 1)
        ids, wanted = tokenizer.encode(context), tokenizer.encode(" " + word)
        greedy = True
        for token in wanted:
            logits = _next(model, ids)
            nats -= logits.log_softmax(0)[token].item()
            greedy &= int(logits.argmax()) == token
            ids = [*ids, token]
        right += greedy
    result = lambada(model, tokenizer, path, ALONE, micro_batch=3)
    assert result["lambada_accuracy"] == right / len(texts)
    assert result["lambada_perplexity"] == pytest.approx(torch.tensor(nats / len(texts)).exp().item(), rel=1e-3)


def test_hellaswag_takes_the_likeliest_ending(model: GPT, tokenizer_file: Path, tmp_path: Path) -> None:
    tokenizer = Tokenizer(tokenizer_file)
    entry = {"ctx": "def main", "endings": ["the end", "returns a number of things", "x", "of all"]}
    sums, means = [], []
    for ending in entry["endings"]:
        ids, wanted, nats = tokenizer.encode("def main"), tokenizer.encode(" " + ending), 0.0
        for token in wanted:
            nats -= _next(model, ids).log_softmax(0)[token].item()
            ids = [*ids, token]
        sums.append(nats)
        means.append(nats / len(wanted))
    path = tmp_path / "hellaswag_val.jsonl"
    for label in range(4):
        path.write_text(json.dumps(entry | {"label": label, "ind": 24, "split_type": "indomain"}) + "\n")
        result = hellaswag(model, tokenizer, path, ALONE, micro_batch=2)
        assert result["hellaswag_accuracy"] == (sums.index(min(sums)) == label)
        assert result["hellaswag_accuracy_norm"] == (means.index(min(means)) == label)


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("{", "line 1 is no JSON object"),
        ("7", "line 1 is no JSON object"),
        ('{"texts": ""}', "line 1 has no text; expected text"),
        ('{"text": "word"}', "line 1: the text is a single word"),
        ("", "is empty"),
    ],
)
def test_a_file_of_another_format_is_refused(
    model: GPT, tokenizer_file: Path, tmp_path: Path, line: str, message: str
) -> None:
    path = tmp_path / "lambada_test.jsonl"
    path.write_text(line)
    with pytest.raises(ValueError, match=message):
        lambada(model, Tokenizer(tokenizer_file), path, ALONE, micro_batch=2)


def test_wikitexts_tokens_become_running_text() -> None:
    tokens = (
        ' = Boulter = \n \n He \'s a poet @-@ actor , won 1 @,@ 000 ( a thousand ) at " The Bill " . \n = = Life = = \n'
    )
    assert detokenize(tokens) == (
        ' = Boulter =\n\nHe\'s a poet-actor, won 1,000 (a thousand) at "The Bill".\n== Life ==\n'
    )


def _next(model: GPT, ids: list[int]) -> torch.Tensor:
    with torch.no_grad():
        return model(torch.tensor([ids]))[0, -1]
