"""The dataset card, and a corpus that is loaded by it."""

from __future__ import annotations

import shutil
import sys
from pathlib import Path

import duckdb
import pyarrow.parquet as pq
import pytest
from msgspec.structs import replace

from owt_pipeline.stages.export.card import card
from schemas import DATASETS
from schemas.manifest import Counts
from tests.owt_pipeline.runs import manifest_of

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

datasets = pytest.importorskip("datasets", reason="the package datasets is not installed")


@pytest.fixture(autouse=True)
def offline(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(datasets.config, "HF_HUB_OFFLINE", True)


def test_datasets_loads_a_published_corpus_by_its_card(small_run: Path, tmp_path: Path) -> None:
    shutil.copytree(small_run / "corpus", tmp_path / "published")
    shutil.copy(small_run / "ledger/corpus/README.md", tmp_path / "published")
    corpus = datasets.load_dataset(str(tmp_path / "published"), split="train", cache_dir=str(tmp_path / "cache"))
    files = sorted((small_run / "corpus").glob("part-*"))
    assert list(corpus["text"]) == [text for file in files for text in pq.read_table(file)["text"].to_pylist()]
    assert corpus.column_names == DATASETS["corpus"].schema.names


def test_card_has_the_numbers_that_duckdb_counts(small_run: Path) -> None:
    huggingface_hub = pytest.importorskip("huggingface_hub")
    text = (small_run / "ledger/corpus/README.md").read_text()
    read = huggingface_hub.DatasetCard(text)
    assert read.data.license == "other"
    assert read.data.language == ["en"]
    assert read.data.size_categories == ["n<1K"]
    ((documents, words, characters, size),) = duckdb.sql(
        f"select count(*), sum(n_words), sum(length(text)), sum(strlen(text)) from '{small_run}/corpus/part-*.parquet'"
    ).fetchall()
    for name, count in (("documents", documents), ("words", words), ("characters", characters)):
        assert f"| {name} | {count:,} |" in text
    assert f"| bytes of text (UTF-8) | {size:,} |" in text
    for stage, dataset in (("collect", "urls"), ("clean", "clean"), ("export", "corpus")):
        counts = manifest_of(small_run, dataset).counts
        assert f"| `{stage}` | {counts.entered:,} | {counts.left:,} |" in text
    assert "RS_demo.zst" in text
    assert str(small_run.parent) not in text
    settings = tomllib.loads(text.split("```toml\n")[1].split("```")[0])
    assert settings["clean"]["min_tokens"] == 64
    assert "| `fetch` | demo.warc.gz |" in text


def test_a_card_says_reddit_and_languages_only_where_they_are_true(small_run: Path) -> None:
    web, own = (
        card({"documents": replace(manifest_of(small_run, "documents"), stage=stage)}, Counts(), {}, {}, 0, 1)
        for stage in ("extract", "import")
    )
    assert "Reddit" in web
    assert "webtext" in web
    assert "Reddit" not in own.partition("## Fields")[0]
    assert "webtext" not in own
    assert "Texts imported from the files below" in own
    empty = card({}, Counts(), {}, {}, 0, 1)
    assert "| documents | 0 |" in empty
    assert "language:" not in empty
