"""`owt train-tokenizer` makes the user's own tokenizer, the same one each time."""

from __future__ import annotations

import os
import random
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import Tokenizer

from owt_pipeline.cli import main
from owt_pipeline.commands.train_tokenizer import train_tokenizer
from owt_pipeline.formats.encoding import load
from tests.conftest import REPOSITORY
from tests.owt_pipeline.runs import ask_stage, drop, manifest_of, run_owt
from tests.owt_pipeline.tokenize.corpus import write_corpus

SOURCES = [
    path.read_text(encoding="utf-8") for path in sorted((REPOSITORY / "owt_pipeline").rglob("*.py"))
]


@pytest.fixture(scope="module")
def workdir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run whose corpus has the source files of the pipeline and a text with other characters."""
    return write_corpus(tmp_path_factory.mktemp("run"), [*SOURCES, "naïve 中文 <|endoftext|> 😀"])


@pytest.fixture(scope="module")
def trained(workdir: Path) -> Path:
    """The tokenizer that was trained on the corpus."""
    assert main(["train-tokenizer", str(workdir), "--vocab_size", "1000"]) == 0
    return workdir / "tokenizer.json"


def test_the_corpus_is_tokenized_by_it_and_decodes_to_itself(workdir: Path, trained: Path) -> None:
    ask_stage("tokenize", workdir, "--tokenizer", trained, "--workers", 1, "--quiet")
    manifest = manifest_of(workdir, "tokens")
    assert manifest.properties["tokenizer"]["vocab_size"] == 1000
    assert manifest.properties["tokenizer"]["eot"] == 999
    assert (workdir / manifest.properties["tokenizer"]["file"]).read_bytes() == trained.read_bytes()
    num_tokens = manifest.stats["tokens_train"] + manifest.stats["tokens_val"]
    # A tokenizer that has learned no words has a token for each byte.
    assert manifest.stats["text_bytes"] / num_tokens > 2


@given(text=st.text(max_size=200))
@settings(max_examples=100, deadline=None)
def test_any_text_comes_back(trained: Path, text: str) -> None:
    ids, _ = load(str(trained)).encode_batch([text])
    assert 999 not in ids
    assert Tokenizer.from_file(str(trained)).decode(ids.tolist()) == text


def test_the_order_of_the_texts_does_not_matter(trained: Path) -> None:
    texts = [*SOURCES, "naïve 中文 <|endoftext|> 😀"]
    random.Random(3).shuffle(texts)
    assert train_tokenizer(texts, 1000) == trained.read_bytes()


def test_any_number_of_threads_gives_the_same_bytes(workdir: Path, trained: Path) -> None:
    expected = trained.read_bytes()
    environment = {**os.environ, "RAYON_NUM_THREADS": "3", "TOKENIZERS_PARALLELISM": "true"}
    command = [sys.executable, "-m", "owt_pipeline", "train-tokenizer", str(workdir)]
    subprocess.run([*command, "--vocab_size", "1000"], check=True, timeout=120, env=environment)
    assert trained.read_bytes() == expected


def test_a_small_text_and_a_missing_corpus_are_reported(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    small = write_corpus(tmp_path / "small", ["abc abc"])
    output = run_owt("train-tokenizer", small, "--vocab_size", 1000)
    assert "the tokenizer has 260 entries instead of 1,000" in output
    drop(small, "corpus")
    assert main(["train-tokenizer", str(small)]) == 3
    assert "--until export` first" in capsys.readouterr().err
    assert main(["train-tokenizer"]) == 2
    assert "required: RUN" in capsys.readouterr().err
