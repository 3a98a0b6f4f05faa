"""Text and ids: tokenizers of every kind, their state, and the bytes that they lose."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from tokenizers import Tokenizer as Loaded
from tokenizers import decoders, models, normalizers, pre_tokenizers

from benchmarks import compare
from tests.trainer.conftest import Capture
from trainer.data.loader import DocumentBlocks
from trainer.data.text import Tokenizer
from trainer.evaluate import describe_score, score_texts
from trainer.model import GPT, ModelConfig
from trainer.pretrained import Pretrained


def test_text_that_looks_like_a_special_token_stays_text(tokenizer_file: Path) -> None:
    tokenizer = Tokenizer(tokenizer_file)
    ids = tokenizer.encode("a<|endoftext|>b")
    assert len(ids) > 3
    assert tokenizer.decode(ids) == "a<|endoftext|>b"


def test_a_lone_surrogate_becomes_the_replacement_character(tokenizer_file: Path) -> None:
    tokenizer = Tokenizer(tokenizer_file)
    assert tokenizer.encode("a\ud800b\ud83d\ude00") == tokenizer.encode("a\ufffdb\U0001f600")


def test_parts_of_characters_count_by_their_own_bytes(tokenizer_file: Path) -> None:
    # Windows cut characters. A decoder writes each part as U+FFFD, which is three bytes.
    tokenizer = Tokenizer(tokenizer_file)
    text = "漢字 and été \U0001f600"
    ids = tokenizer.encode(text)
    assert len(ids) > len(text)
    assert sum(tokenizer.count_bytes([token]) for token in ids) == len(text.encode())
    end_of_text = tokenizer.loaded.token_to_id("<|endoftext|>")
    assert tokenizer.count_bytes([*ids, end_of_text]) == len(text.encode())


PADDING = {
    "strategy": {"Fixed": 8},
    "direction": "Right",
    "pad_to_multiple_of": None,
    "pad_id": 0,
    "pad_type_id": 0,
    "pad_token": "!",
}
TRUNCATION = {"direction": "Right", "max_length": 4, "strategy": "LongestFirst", "stride": 0}


@pytest.mark.parametrize(
    ("state", "model"),
    [
        ({"truncation": TRUNCATION}, {}),
        (
            {
                "padding": PADDING
                | {"strategy": "BatchLongest", "pad_to_multiple_of": 7, "direction": "Left"}
            },
            {},
        ),
        ({}, {"dropout": 1.0}),
        ({"truncation": TRUNCATION, "padding": PADDING}, {"dropout": 0.3}),
    ],
    ids=str,
)
def test_a_tokenizer_with_state_gives_the_ids_of_the_text_alone(
    tokenizer_file: Path, tmp_path: Path, state: dict[str, Any], model: dict[str, Any]
) -> None:
    entries = json.loads(tokenizer_file.read_text())
    entries["model"] |= model
    (tmp_path / "tokenizer.json").write_text(json.dumps(entries | state))
    plain = Tokenizer(tokenizer_file)
    tokenizer = Tokenizer(tmp_path / "tokenizer.json")
    for text in ("def main(): return 1", "a", "import the tokenizer of this test " * 20):
        for _ in range(3):
            assert tokenizer.encode(text) == plain.encode(text)


WORDS = ["the", "quiet", "harbour", "slept", "until", "noon"]


def unigram() -> Loaded:
    tokenizer = Loaded(models.Unigram([("<unk>", 0.0), *((f"▁{word}", -1.0) for word in WORDS)], 0))
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace()
    tokenizer.decoder = decoders.Metaspace()
    return tokenizer


def letters(unknown: str | None) -> Loaded:
    """Return a BPE of single letters; without `unknown`, other letters are dropped."""
    tokens = [*"abcdefghijklmnopqrstuvwxyz .", *([unknown] if unknown else [])]
    tokenizer = Loaded(
        models.BPE({token: k for k, token in enumerate(tokens)}, [], unk_token=unknown)
    )
    tokenizer.decoder = decoders.Fuse()
    return tokenizer


def stripped() -> Loaded:
    tokenizer = letters(None)
    tokenizer.normalizer = normalizers.Strip()
    return tokenizer


@pytest.mark.parametrize(
    ("make", "text", "written"),
    [
        (lambda: letters(None), "the harbour slept.", 18),
        (lambda: letters(None), "the HARBOUR slept.", 11),
        (lambda: letters(None), "the порт slept…", 10),
        (stripped, "  the harbour \n", 11),
        (unigram, "the quiet harbour slept", 23),
    ],
)
def test_bits_per_byte_count_the_bytes_that_the_tokenizer_writes(
    make: Callable[[], Loaded], text: str, written: int, tmp_path: Path, capsys: Capture
) -> None:
    make().save(str(tmp_path / "tokenizer.json"))
    (tmp_path / "text").write_text(text)
    torch.manual_seed(0)
    tokenizer = Tokenizer(tmp_path / "tokenizer.json")
    model = GPT(ModelConfig(vocab_size=40, block_size=32, n_layer=1, n_head=2, n_embd=32)).eval()
    (score_of_text,) = score_texts(model, tokenizer, [text], 39)
    report = describe_score(score_of_text, text)
    lost = len(text.encode()) - written
    assert report["bytes"] == written
    assert (
        f"loses {lost} of the text's {len(text.encode())} bytes" in capsys.readouterr().err
    ) == (lost > 0)
    trained = Pretrained(tmp_path, model, tmp_path / "tokenizer.json", 39, None, DocumentBlocks(39))
    score = compare.score(trained, compare.read_documents(str(tmp_path / "text")))
    assert score.bytes == [written]
    assert score.bits_per_byte == pytest.approx(report["bits_per_byte"])


@pytest.mark.parametrize("make", [lambda: letters(None)])
def test_a_text_that_cannot_be_tokenized_has_no_perplexity(
    make: Callable[[], Loaded], tmp_path: Path
) -> None:
    make().save(str(tmp_path / "tokenizer.json"))
    model = GPT(ModelConfig(vocab_size=40, block_size=32, n_layer=1, n_head=2, n_embd=32)).eval()
    with pytest.raises(ValueError, match="the tokenizer cannot write any of it"):
        score_texts(model, Tokenizer(tmp_path / "tokenizer.json"), ["порт"], 39)
