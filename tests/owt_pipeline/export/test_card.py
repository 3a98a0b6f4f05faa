"""The dataset card."""

from __future__ import annotations

import sys
from pathlib import Path

import duckdb
import pytest
from msgspec.structs import replace

from owt_pipeline.stages.export.card import card
from schemas.manifest import Counts
from tests.owt_pipeline.runs import manifest_of

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib


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
