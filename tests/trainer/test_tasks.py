"""The published tasks, against the model asked token by token."""

from __future__ import annotations

import copy
import json
from pathlib import Path

import pytest
import torch

from trainer.distributed import Ranks
from trainer.model import GPT, ModelConfig
from trainer.pretrained import Tokenizer
from trainer.tools.evaluate import detokenize, hellaswag, lambada, published_words, score_continuations

ALONE = Ranks(0, 1, torch.device("cpu"))


@pytest.fixture(scope="module")
def model() -> GPT:
    torch.manual_seed(0)
    model = GPT(ModelConfig(vocab_size=400, context=32, n_layer=2, n_head=2, width=32)).eval()
    with torch.no_grad():
        for parameter in model.parameters():  # sharper than the initial weights: no ties
            parameter.add_(torch.randn_like(parameter) * 0.1)
    return model


def test_lambada_needs_every_token_of_the_last_word(model: GPT, tokenizer_file: Path, tmp_path: Path) -> None:
    tokenizer = Tokenizer(tokenizer_file)
    (favourite,) = tokenizer.encode(" tokenizer")
    model = copy.deepcopy(model)
    with torch.no_grad():
        model.ln_f.bias += 20 * model.wte.weight[favourite]
    texts = ["def one two", "import many words path", "a b", "def one tokenizer", "a tokenizer", "import tokenizers"]
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
    assert result["lambada_acc"].sum() == right > 0
    assert result["lambada_nats"].mean().item() == pytest.approx(nats / len(texts), rel=1e-4)


def test_of_a_continuation_longer_than_the_context_the_end_is_scored(model: GPT, tokenizer_file: Path) -> None:
    tokenizer = Tokenizer(tokenizer_file)
    pairs = [("def", " one two many words path tokenizer" * 6), ("import words many", " path of one")]
    scores, _ = score_continuations(model, tokenizer, pairs, ALONE, 2)
    for nats, (context, continuation) in zip(scores, pairs, strict=True):
        ids = tokenizer.encode(context + continuation)
        count = min(32, len(ids) - len(tokenizer.encode(context)))
        window = ids[-33:]
        logs = model(torch.tensor([window[:-1]]))[0].log_softmax(1)
        wanted = -sum(logs[k - 1, window[k]] for k in range(len(window) - count, len(window)))
        torch.testing.assert_close(nats.float(), wanted)
    assert len(tokenizer.encode("".join(pairs[0]))) > 33


def test_hellaswag_is_scored_as_lm_evaluation_harness_defines_it(
    model: GPT, tokenizer_file: Path, tmp_path: Path
) -> None:
    tokenizer = Tokenizer(tokenizer_file)
    entry = {
        "ind": 24,
        "activity_label": "Roof shingle removal",
        "ctx_a": "A man is sitting on a roof. [header] How [title] Pull [substeps] up.",
        "ctx_b": "he Starts",
        "ctx": "A man is sitting on a roof. he",
        "split": "val",
        "split_type": "indomain",
        "endings": ["the end", " [step] returns a number  of things", "x [title] y", "of all"],
        "source_id": "activitynet~v_-JhWjGDPHMY",
    }
    context = "Roof shingle removal: A man is sitting on a roof.  How. Pull  up. He starts".replace("  ", " ")
    endings = [" the end", "  returns a number of things", " x. y", " of all"]
    sums, means = [], []
    for ending in endings:
        before, nats = tokenizer.encode(context), 0.0
        ids = tokenizer.encode(context + ending)
        assert ids[: len(before)] == before
        for position in range(len(before), len(ids)):
            nats -= _next(model, ids[max(0, len(ids) - 33) : position]).log_softmax(0)[ids[position]].item()
        sums.append(nats)
        means.append(nats / (len(ending) - 1))
    path = tmp_path / "hellaswag_val.jsonl"
    for label in range(4):
        path.write_text(json.dumps(entry | {"label": label}) + "\n")
        result = hellaswag(model, tokenizer, path, ALONE, micro_batch=2)
        assert {name: own.item() for name, own in result.items()} == {
            "hellaswag_acc": sums.index(min(sums)) == label,
            "hellaswag_acc_norm": means.index(min(means)) == label,
        }
    assert sums.index(min(sums)) != means.index(min(means))


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("{", "line 1 is no JSON object"),
        ("7", "line 1 has no text; expected an object with text"),
        ('["text"]', "line 1 has no text"),
        ('{"texts": ""}', "line 1 has no text"),
        ('{"text": "two words"}\n{"text": 5}', "line 2 has no text"),
        ('{"text": "one\u2028word"}\n', "line 1: the text is a single word"),
        ('{"text": "word"}', "line 1: the text is a single word"),
        ("", "is empty"),
    ],
)
def test_a_file_in_another_format_is_refused(
    model: GPT, tokenizer_file: Path, tmp_path: Path, line: str, message: str
) -> None:
    path = tmp_path / "lambada_test.jsonl"
    path.write_text(line)
    with pytest.raises(ValueError, match=message):
        lambada(model, Tokenizer(tokenizer_file), path, ALONE, micro_batch=2)


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"label": "x"}, "line 1: label 'x' is not the number of one of 2 endings, from 0 on"),
        ({"label": ""}, "take hellaswag_val.jsonl"),
        ({"label": 2}, "label 2 is not the number of one of 2 endings"),
        ({"label": True}, "label True is not"),
        ({"label": 1.0}, "line 1 has no label; expected an object with"),
        ({"endings": [1, 2]}, r"endings are \[1, 2\], expected a list of texts"),
    ],
)
def test_a_wrong_label_or_ending_of_hellaswag_is_named(
    model: GPT, tokenizer_file: Path, tmp_path: Path, changed: dict[str, object], message: str
) -> None:
    entry = {"activity_label": "a", "ctx_a": "b", "ctx_b": "c", "endings": ["d", "e"], "label": "1"} | changed
    path = tmp_path / "hellaswag_val.jsonl"
    path.write_text(json.dumps(entry) + "\n")
    with pytest.raises(ValueError, match=message):
        hellaswag(model, Tokenizer(tokenizer_file), path, ALONE, micro_batch=2)


def test_published_perplexities_divide_by_words_and_line_ends() -> None:
    lines = [" ", " = Robert Boulter = ", " ", " He is <unk> @-@ tall , he said . ", " Next line . "]
    text = "".join(line + "\n" for line in lines)
    assert len(text.split()) == 4 + 9 + 3
    assert published_words(text, "some.raw") == (4 + 9 + 3 + 5, "")
    assert published_words(text * 1000, "some.raw") == (21_000, "")


def test_the_published_number_of_words_is_used_only_for_the_published_file() -> None:
    words = ["w "] * 241_211
    published = "".join(words[:2891]).replace(" ", " \n") + " ".join(words[2891:]) + " \n" * (4_358 - 2_891)
    assert published_words(published, "wiki.test.raw") == (245_569, "test")
    with pytest.raises(
        ValueError, match=r"^other\.raw has the 241,211 words of .* test set, but 2,892 lines in place of"
    ):
        published_words("".join(words[:2891]).replace(" ", " \n") + " ".join(words[2891:]) + " \n", "other.raw")


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
