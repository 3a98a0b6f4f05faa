"""export: the clean documents without those removed by decisions, each of which has a reject row."""

from __future__ import annotations

import json
import random
from pathlib import Path
from typing import Any

import pytest

from owt_pipeline.engine.runner import run_stage
from owt_pipeline.engine.stage import Runtime
from owt_pipeline.ledger.dataset import DatasetReader
from owt_pipeline.ledger.root import read_manifest
from owt_pipeline.stages.export.stage import STAGE, ExportOptions
from owt_pipeline.storage.folder import Storage
from schemas.manifest import Manifest
from tests.owt_pipeline.dedupe.corpora import corpus_with_copies, dedupe, prose, write_clean
from tests.owt_pipeline.runs import ask_owt


def export(workdir: Path, **options: Any) -> tuple[Manifest, DatasetReader]:
    manifest, _ = run_stage(STAGE, ExportOptions(**options), Runtime(Storage(str(workdir))))
    return manifest, DatasetReader(Storage(str(workdir)), manifest)


@pytest.fixture
def decided(tmp_path: Path) -> tuple[Path, list[dict[str, Any]]]:
    write_clean(tmp_path, corpus_with_copies(seed=8), 3)
    return tmp_path, dedupe(tmp_path)[1]


def test_corpus_is_clean_without_duplicates(decided: tuple[Path, list[dict[str, Any]]]) -> None:
    workdir, decisions = decided
    manifest, corpus = export(workdir)
    clean = DatasetReader.open(Storage(str(workdir)), "clean")
    gone = {row["url_id"] for row in decisions}
    for shard in range(3):
        rows = clean.table(shard).to_pylist()
        assert corpus.table(shard).to_pylist() == [row for row in rows if row["url_id"] not in gone]
    assert manifest.counts.left == manifest.counts.entered - len(gone)


def test_rejects_name_the_kept_document_and_the_similarity(decided: tuple[Path, list[dict[str, Any]]]) -> None:
    workdir, decisions = decided
    _, corpus = export(workdir)
    rejects = {row["url_id"]: row for row in corpus.table(kind="rejects").to_pylist()}
    assert set(rejects) == {row["url_id"] for row in decisions}
    for row in decisions:
        reject = rejects[row["url_id"]]
        assert reject["reason"] == f"{row['rule']}_duplicate"
        assert reject["detail"] == f"kept {row['kept_url_id']} similarity {row['similarity']:.4f}"
        assert reject["url"].startswith("http://host-")


@pytest.mark.parametrize(
    ("options", "applies"),
    [
        ({"rules": ("exact",)}, lambda row: row["rule"] == "exact"),
        ({"rules": ("near",)}, lambda row: row["rule"] == "near"),
        ({"rules": ("none",)}, lambda row: False),
        ({"min_similarity": 0.9}, lambda row: row["similarity"] >= 0.9),
        ({"min_contained": 0.97}, lambda row: row["contained"] >= 0.97),
        ({"min_similarity": 1.0, "rules": ("near",)}, lambda row: row["similarity"] == 1 and row["rule"] == "near"),
    ],
)
def test_another_policy_exports_again_from_the_same_decisions(
    decided: tuple[Path, list[dict[str, Any]]], options: dict, applies: Any
) -> None:
    workdir, decisions = decided
    export(workdir)
    before = read_manifest(Storage(str(workdir)), "duplicates")
    manifest, corpus = export(workdir, **options)
    gone = {row["url_id"] for row in corpus.table(kind="rejects").to_pylist()}
    assert gone == {row["url_id"] for row in decisions if applies(row)}
    assert manifest.counts.left == manifest.counts.entered - len(gone)
    assert read_manifest(Storage(str(workdir)), "duplicates") == before


def test_a_corpus_without_duplicates_is_exported_completely(tmp_path: Path) -> None:
    write_clean(tmp_path, ["one text here", "another text there"], 2)
    assert dedupe(tmp_path)[1] == []
    manifest, _ = export(tmp_path)
    assert (manifest.counts.entered, manifest.counts.left) == (2, 2)


def documents_of(run: Path) -> dict[str, dict[str, Any]]:
    """The documents of a run's corpus by the last part of their URLs."""
    rows = DatasetReader.open(Storage(str(run)), "corpus").table().to_pylist()
    return {row["url"].rpartition("/")[2]: row for row in rows}


def imported(folder: Path, texts: dict[str, str], *flags: object) -> Path:
    """A run up to dedupe of texts by the last part of their URLs."""
    run, file = folder / "run", folder / f"{'-'.join(texts)}.jsonl"
    rows = [{"url": f"https://example.org/{name}", "text": text} for name, text in texts.items()]
    file.write_text("\n".join(map(json.dumps, rows)))
    ask_owt("import", run, file, "--num_shards", 2, *flags)
    ask_owt("clean", run, "--min_tokens", 0, "--languages", "all")
    ask_owt("dedupe", run)
    return run


def test_what_has_more_of_its_own_than_the_least_share_allows_stays(tmp_path: Path) -> None:
    words, own = prose(random.Random(1), 1000), prose(random.Random(2), 60)
    kept, part, other = (" ".join(some) for some in (words, words[:950], words[:920] + own))
    run = imported(tmp_path, {"kept": kept, "part": part, "other": other})
    ask_owt("export", run)
    assert set(documents_of(run)) == {"kept"}
    ask_owt("export", run, "--min_contained", 0.95)
    assert set(documents_of(run)) == {"kept", "other"}
    error = "min_contained: 95.0 is not a number from 0.0 to 1.0"
    assert error in ask_owt("export", run, "--min_contained", 95, code=2)
