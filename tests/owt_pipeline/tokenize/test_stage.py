"""The stage tokenize on a corpus as export writes it."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pytest
from tokenizers import AddedToken, Tokenizer, decoders, models

from owt_pipeline.commands.verify import verify
from owt_pipeline.engine.runner import run_stage
from owt_pipeline.engine.stage import Runtime
from owt_pipeline.errors import UserError
from owt_pipeline.formats import encoding as encodings
from owt_pipeline.formats import gpt2_tokenizer
from owt_pipeline.formats.hub_tokenizer import is_hub_name
from owt_pipeline.ledger.dataset import DatasetReader
from owt_pipeline.stages.tokenize.options import Options
from owt_pipeline.stages.tokenize.stage import STAGE
from owt_pipeline.storage.folder import Storage
from schemas import DATASETS
from schemas.manifest import Manifest
from tests.owt_pipeline.runs import drop, files_of, manifest_of, run_to_end, shard_file, stage_alone
from tests.owt_pipeline.tokenize.corpus import FIRST_ID, write_corpus
from tests.servers.hub import Hub, environment_of, hub_server


def text_of(number: int) -> str:
    """Return a text with words of several scripts. One text of a hundred is empty."""
    if number % 100 == 7:
        return ""
    words = [f"word{number * position % 97} ünï 中文" for position in range(number % 50)]
    return f"Document {number}: " + " ".join(words)


TEXTS = [text_of(number) for number in range(1200)]


def tokenized(folder: Path, options: Options, texts: Sequence[str] = TEXTS) -> Manifest:
    """Run tokenize over texts; return its manifest."""
    write_corpus(folder, texts)
    return run_stage(STAGE, options, Runtime(Storage(str(folder))))[0]


@pytest.fixture(scope="module")
def workdir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run whose corpus has TEXTS, and their tokens."""
    folder = tmp_path_factory.mktemp("run")
    tokenized(folder, Options(val_fraction=0.1))
    return folder


def read_mapped(path: Path) -> pa.Table:
    """Return the rows of an Arrow file that is mapped into memory."""
    return pa.ipc.open_file(pa.memory_map(str(path))).read_all()


def test_every_document_is_in_one_split_with_openais_ids(workdir: Path) -> None:
    manifest = manifest_of(workdir, "tokens")
    encoding = gpt2_tokenizer.tiktoken_encoding()
    tokens_by_id: dict[int, list[int]] = {}
    for split in ("train", "val"):
        tables = [
            read_mapped(shard_file(workdir, "tokens", shard, split=split)) for shard in range(2)
        ]
        assert all(
            table.schema == DATASETS["tokens"].schema and table.num_rows > 0 for table in tables
        )
        rows = pa.concat_tables(tables)
        assert pc.all(pc.equal(pc.list_value_length(rows["tokens"]), rows["n_tokens"])).as_py()
        assert manifest.stats[f"documents_{split}"] == rows.num_rows
        assert manifest.stats[f"tokens_{split}"] == pc.sum(rows["n_tokens"]).as_py()
        ids = dict(zip(rows["url_id"].to_pylist(), rows["tokens"].to_pylist(), strict=True))
        assert len(ids) == rows.num_rows
        assert tokens_by_id.keys().isdisjoint(ids)
        tokens_by_id |= ids
    expected = {}
    for number, text in enumerate(TEXTS):
        if text:
            expected[FIRST_ID + number] = encoding.encode_ordinary(text)
    assert tokens_by_id == expected
    assert manifest.counts.entered == len(TEXTS)
    assert manifest.counts.rejected == {"no_tokens": 12}
    assert manifest.stats["text_bytes"] == sum(len(text.encode()) for text in TEXTS)
    rejects = DatasetReader(Storage(str(workdir)), manifest).table(kind="rejects")
    assert set(rejects["reason"].to_pylist()) == {"no_tokens"}
    assert "http://h/7" in rejects["url"].to_pylist()
    for finding in verify(Storage(str(workdir))):
        assert finding.problems == []


def test_tokenizer_is_stored_with_its_manifest(workdir: Path) -> None:
    manifest = manifest_of(workdir, "tokens")
    (asset,) = files_of(workdir, "tokens", "asset")
    content = (workdir / asset.path).read_bytes()
    sha256 = hashlib.sha256(content).hexdigest()
    tokenizer_record = {
        "name": "gpt2",
        "file": asset.path,
        "sha256": sha256,
        "vocab_size": 50_257,
        "eot": 50_256,
    }
    assert manifest.properties["tokenizer"] == tokenizer_record
    assert manifest.properties["ids_checked"] is True
    assert (asset.path, asset.bytes) == (f"ledger/tokens/tokenizer-{sha256[:8]}.json", len(content))
    assert Tokenizer.from_buffer(content).encode("Hello world").ids == [15496, 995]


def test_pyarrow_maps_the_shards_without_a_copy(workdir: Path) -> None:
    bytes_before = pa.total_allocated_bytes()
    table = read_mapped(shard_file(workdir, "tokens", 0, split="train"))
    assert table["tokens"].chunk(0).values.to_numpy(zero_copy_only=True).dtype == np.uint16
    # Arrow's threads may still hold or release memory of earlier tests.
    assert pa.total_allocated_bytes() - bytes_before < table["tokens"].nbytes / 2


@pytest.mark.slow
def test_large_vocabulary_is_written_as_32_bits(tmp_path: Path) -> None:
    tokenizer = Tokenizer.from_buffer(gpt2_tokenizer.gpt2_tokenizer_json())
    tokenizer.add_tokens([AddedToken(f"⟪{i}⟫", normalized=False) for i in range(1 << 14)])
    tokenizer.add_tokens([f"⟦{i}⟧" for i in range(1 << 14)])
    path = tmp_path / "mine.json"
    tokenizer.save(str(path))
    options = Options(tokenizer=str(path), val_fraction=0.1)
    manifest = tokenized(tmp_path / "run", options)
    tokenizer_record = manifest.properties["tokenizer"]
    assert (tokenizer_record["name"], tokenizer_record["vocab_size"]) == (
        "mine.json",
        50_257 + (1 << 15),
    )
    table = read_mapped(shard_file(tmp_path / "run", "tokens", 0, split="train"))
    assert table.schema.field("tokens").type.value_type == pa.uint32()
    assert table.num_rows > 0
    tokenizer.add_tokens(["another"])
    tokenizer.save(str(path))
    _, ran = run_stage(STAGE, options, Runtime(Storage(str(tmp_path / "run"))))
    assert ran, "a changed tokenizer runs again"


@pytest.mark.parametrize(("texts", "warned"), [(TEXTS, True), ([], False)])
def test_a_corpus_too_small_for_its_fraction_is_warned_about(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, texts: list[str], warned: bool
) -> None:
    tokenized(tmp_path, Options(val_fraction=1e-9), texts=texts)
    assert ("val/ is empty" in caplog.text) == warned


def test_a_missing_tokenizer_file_is_one_clear_error(tmp_path: Path) -> None:
    with pytest.raises(
        UserError, match=r"cannot read .*absent\.json.* has a copy: ledger/tokens/tokenizer-"
    ):
        tokenized(tmp_path, Options(tokenizer=str(tmp_path / "absent.json")))


def tokenizer_of(path: Path, dropout: float | None = None) -> str:
    """Write a tokenizer of few letters; return its path.

    With `dropout`, it drops merges by chance, and its file declares truncation and padding.
    """
    vocabulary = {token: i for i, token in enumerate([" ", "a", "b", "c", "d", "ab", "cd"])}
    tokenizer = Tokenizer(models.BPE(vocabulary, [("a", "b"), ("c", "d")], dropout=dropout))
    tokenizer.decoder = decoders.Fuse()  # type: ignore[assignment]
    tokenizer.add_special_tokens([AddedToken("<|endoftext|>", special=True)])
    if dropout:
        tokenizer.enable_truncation(3)
        tokenizer.enable_padding(length=50)
    tokenizer.save(str(path))
    return str(path)


def test_a_tokenizer_that_changes_text_is_refused_when_chosen(tmp_path: Path) -> None:
    options = Options(tokenizer_of(tmp_path / "t.json"))
    with pytest.raises(UserError, match=r"changes text.*use another --tokenizer"):
        STAGE.external_inputs(options)
    assert STAGE.external_inputs(Options()) == []


@pytest.mark.parametrize("texts", [["abcd" * 50] * 20, ["ab cd " * 9], ["a", "abab" * 100]])
def test_dropout_truncation_and_padding_of_a_file_are_off(tmp_path: Path, texts: list[str]) -> None:
    plain = encodings.load(tokenizer_of(tmp_path / "a.json"))
    with_dropout = encodings.load(tokenizer_of(tmp_path / "b.json", 0.5))
    # Dropout is random, so one equal result would prove little.
    for _ in range(5):
        expected = plain.encode_batch(texts)
        for ids, expected_ids in zip(with_dropout.encode_batch(texts), expected, strict=True):
            assert ids.tolist() == expected_ids.tolist()


def tokenize(workdir: Path, hub: Hub, home: Path, name: str, code: int = 0) -> str:
    """Run tokenize with a tokenizer of the hub in a process; return its output."""
    flags = ["--tokenizer", name, "--workers", 2, "--quiet"]
    return run_to_end(stage_alone("tokenize", workdir, *flags), code, environment_of(hub, home))


@pytest.mark.slow
def test_a_hub_tokenizer_is_fetched_once_and_cached(tmp_path: Path) -> None:
    workdir = write_corpus(tmp_path / "run", ["Hello world", "a<|endoftext|>b"] * 30, shards=1)
    with hub_server() as hub:
        hub.files["some/model"] = {"tokenizer.json": gpt2_tokenizer.gpt2_tokenizer_json()}
        tokenize(workdir, hub, tmp_path / "home", "some/model")
        manifest = manifest_of(workdir, "tokens")
        assert manifest.properties["tokenizer"]["name"] == "some/model"
        file = workdir / manifest.properties["tokenizer"]["file"]
        assert file.read_bytes() == gpt2_tokenizer.gpt2_tokenizer_json()
        problem = tokenize(workdir, hub, tmp_path / "home", "some/other", code=1)
        assert "tokenizer some/other: there is no such file" in problem
    drop(workdir, "tokens")
    tokenize(workdir, hub, tmp_path / "home", "some/model")
    assert manifest_of(workdir, "tokens").digest == manifest.digest
    problem = tokenize(workdir, hub, tmp_path / "empty", "some/model", code=1)
    assert "hf download some/model tokenizer.json`" in problem
    assert "Retrying" not in problem, "without a network, the message comes at once"
    problem = tokenize(workdir, hub, tmp_path / "empty", "some/model@v2", code=1)
    assert "hf download some/model tokenizer.json --revision v2`" in problem


AT_HUB = {"EleutherAI/gpt-neox-20b", "bert-base-uncased", "org/name@v1.0"}
FILES = {
    "tokenizer.json",
    "runs/mine/tokenizer.json",
    "/etc/passwd",
    "gs://bucket/tokenizer.json",
    "../name",
}


def test_names_at_the_hub_are_distinguished_from_files() -> None:
    assert set(filter(is_hub_name, AT_HUB | FILES)) == AT_HUB
