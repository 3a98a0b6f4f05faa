"""A tokenizer named at the Hugging Face hub: from a hub on loopback, from the cache, and without either."""

from __future__ import annotations

from pathlib import Path

import pytest

from owt_pipeline.formats import encoding as encodings
from owt_pipeline.formats.encoding import is_hub_name
from tests.owt_pipeline.runs import drop, manifest_of, run_to_end, stage_alone
from tests.owt_pipeline.tokenize.corpus import write_corpus
from tests.servers.hub import Hub, environment_of, hub_server


def tokenize(workdir: Path, hub: Hub, home: Path, name: str, code: int = 0) -> str:
    flags = ["--tokenizer", name, "--workers", 2, "--quiet"]
    return run_to_end(stage_alone("tokenize", workdir, *flags), code, environment_of(hub, home))


@pytest.mark.slow
def test_hub_tokenizer_is_fetched_once_and_cached_and_unknown_names_are_errors(tmp_path: Path) -> None:
    workdir = write_corpus(tmp_path / "run", ["Hello world", "a<|endoftext|>b"] * 30, shards=1)
    with hub_server() as hub:
        hub.files["some/model"] = {"tokenizer.json": encodings.gpt2_tokenizer_json()}
        tokenize(workdir, hub, tmp_path / "home", "some/model")
        manifest = manifest_of(workdir, "tokens")
        assert manifest.properties["tokenizer"]["name"] == "some/model"
        assert (workdir / manifest.properties["tokenizer"]["file"]).read_bytes() == encodings.gpt2_tokenizer_json()
        said = tokenize(workdir, hub, tmp_path / "home", "some/other", code=1)
        assert "tokenizer some/other: no file of this name" in said
    drop(workdir, "tokens")
    tokenize(workdir, hub, tmp_path / "home", "some/model")
    assert manifest_of(workdir, "tokens").digest == manifest.digest
    said = tokenize(workdir, hub, tmp_path / "empty", "some/model", code=1)
    assert "hf download some/model tokenizer.json" in said


AT_HUB = {"EleutherAI/gpt-neox-20b", "bert-base-uncased", "org/name@v1.0"}
FILES = {"tokenizer.json", "runs/mine/tokenizer.json", "/etc/passwd", "gs://bucket/tokenizer.json", "../name"}


def test_names_at_the_hub_are_distinguished_from_files() -> None:
    assert set(filter(is_hub_name, AT_HUB | FILES)) == AT_HUB
