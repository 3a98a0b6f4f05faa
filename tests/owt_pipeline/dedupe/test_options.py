"""The options of dedupe: internal sizes do not change decisions, and large clusters stop the run."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import pytest

from owt_pipeline.errors import UserError
from owt_pipeline.ledger import commit
from owt_pipeline.stages.dedupe import chain, collection, past, shingles, stage, verification
from tests.owt_pipeline.dedupe.corpora import corpus_with_copies, dedupe, prose, write_clean


def essence(rows: list[dict[str, Any]]) -> list[tuple[Any, ...]]:
    return sorted((row["url_id"], row["kept_url_id"], row["rule"], row["similarity"]) for row in rows)


def test_decisions_do_not_depend_on_parts_or_ranges(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Many parts, hash ranges, forests and groups, and small chunks, as on a large corpus."""
    texts = corpus_with_copies(seed=11, documents=250)
    write_clean(tmp_path / "at once", texts)
    at_once = essence(dedupe(tmp_path / "at once")[1])
    monkeypatch.setattr(commit, "ROW_GROUP_BYTES", 1)
    for module, name, value in (
        (collection, "_PART_BYTES", 1),
        (past, "RANGE_ROWS", 80),
        (past, "LEAST_RANGE_ROWS", 700),
        (chain, "_GROUP_SHINGLES", 1000),
        (chain, "_LEAST_SHINGLES", 1000),
        (chain, "COMPILED_FROM", 0),
        (shingles, "_CHUNK_BYTES", 3000),
        (verification, "_SMALL", 1),
        (verification, "_COUNT_SLOTS", 16),
    ):
        monkeypatch.setattr(module, name, value)
    write_clean(tmp_path / "cut", texts)
    manifest, rows = dedupe(tmp_path / "cut")
    assert essence(rows) == at_once
    assert manifest.stats["groups"] > 5


def test_too_large_cluster_stops_the_run_and_is_shown(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stage, "LEAST_DOCUMENTS", 5)
    rng = random.Random(0)
    texts = [" ".join(prose(rng, 50)) for _ in range(60)] + ["please accept our cookies to go on"] * 20
    write_clean(tmp_path, texts)
    with pytest.raises(UserError, match=r"has 19 documents that repeat others, 23\.8% of the corpus") as caught:
        dedupe(tmp_path)
    assert str(caught.value).count("please accept our cookies") == 5
    assert str(caught.value).count("http://host-") == 5
    with pytest.raises(UserError, match=r"more than --max_cluster_share 0\.2 allows"):
        dedupe(tmp_path, max_cluster_share=0.2)
    manifest, rows = dedupe(tmp_path, max_cluster_share=0.25)
    assert len(rows) == 19
    assert manifest.properties["largest_clusters"][0]["documents"] == 20


def test_host_with_too_many_duplicates_stops_the_run_and_is_shown(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(stage, "LEAST_DOCUMENTS", 5)
    rng = random.Random(0)
    texts = [" ".join(prose(rng, 50)) for _ in range(50)] * 2
    urls = [f"http://www.shop.com/{i}" if i % 50 < 30 else f"http://host-{i}.org/" for i in range(100)]
    write_clean(tmp_path, texts, url=urls)
    with pytest.raises(UserError, match=r"the host shop\.com has 30 documents that repeat others, 30\.0%"):
        dedupe(tmp_path)
    assert len(dedupe(tmp_path, max_host_share=0.3)[1]) == 50
