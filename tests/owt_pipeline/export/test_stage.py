"""export writes the clean documents without those that decisions remove.

Each removed document has a reject.
"""

from __future__ import annotations

import json
import random
import re
from collections import Counter
from pathlib import Path
from typing import Any

import duckdb
import pytest
import tomllib
from msgspec.structs import replace

from owt_pipeline.commands.card import published_card
from owt_pipeline.commands.publish import dataset_card
from owt_pipeline.engine.runner import run_stage
from owt_pipeline.engine.stage import Runtime
from owt_pipeline.ledger.dataset import DatasetReader
from owt_pipeline.ledger.root import read_manifest
from owt_pipeline.stages.export.options import Options
from owt_pipeline.stages.export.stage import STAGE
from owt_pipeline.storage.folder import Storage
from schemas.manifest import Counts, Generation, Manifest
from tests.owt_pipeline.dedupe.corpora import corpus_with_copies, dedupe, prose, url_id, write_clean
from tests.owt_pipeline.runs import ask_owt, ask_stage, manifest_of

# A run up to dedupe, and its decisions.
Decided = tuple[Path, list[dict[str, Any]]]
DECIDED = ("corpus", "duplicates")


def export(workdir: Path, **options: Any) -> tuple[Manifest, DatasetReader]:
    """Run export; return its manifest and a reader of the corpus."""
    manifest, _ = run_stage(STAGE, Options(**options), Runtime(Storage(str(workdir))))
    return manifest, DatasetReader(Storage(str(workdir)), manifest)


def rejects_of(run: Path) -> list[dict[str, Any]]:
    """Return the rejects of export."""
    return DatasetReader.open(Storage(str(run)), "corpus").table(kind="rejects").to_pylist()


@pytest.fixture
def decided(tmp_path: Path) -> Decided:
    """A run up to dedupe, and its decisions."""
    write_clean(tmp_path, corpus_with_copies(seed=8), 3)
    return tmp_path, dedupe(tmp_path)[1]


def test_corpus_is_clean_without_duplicates(decided: Decided) -> None:
    workdir, decisions = decided
    manifest, corpus = export(workdir)
    clean = DatasetReader.open(Storage(str(workdir)), "clean")
    decision_by_id = {row["url_id"]: row for row in decisions}
    for shard in range(3):
        rows = clean.table(shard).to_pylist()
        kept_rows = [row for row in corpus.table(shard).to_pylist() if row.pop("copies")]
        assert kept_rows == [row for row in rows if row["url_id"] not in decision_by_id]
    assert manifest.counts.left == manifest.counts.entered - len(decisions)
    rejects = {row["url_id"]: (row["reason"], row["detail"]) for row in rejects_of(workdir)}
    assert rejects.keys() == decision_by_id.keys()
    for url_id_of_reject, (reason, detail) in rejects.items():
        row = decision_by_id[url_id_of_reject]
        assert reason == f"{row['rule']}_duplicate"
        assert detail == f"kept {row['kept_url_id']} similarity {row['similarity']:.4f}"
    assert all(row["url"].startswith("http://host-") for row in rejects_of(workdir))


@pytest.mark.parametrize(
    ("options", "applies"),
    [
        pytest.param(
            {"rules": ("exact",)}, lambda row: row["rule"] == "exact", marks=pytest.mark.slow
        ),
        ({"rules": ("near",)}, lambda row: row["rule"] == "near"),
        pytest.param({"rules": ("none",)}, lambda row: False, marks=pytest.mark.slow),
        ({"min_similarity": 0.9}, lambda row: row["similarity"] >= 0.9),
        pytest.param(
            {"min_contained": 0.97},
            lambda row: row["contained"] >= 0.97,
            marks=pytest.mark.slow,
        ),
        (
            {"min_similarity": 1.0, "rules": ("near",)},
            lambda row: row["similarity"] == 1 and row["rule"] == "near",
        ),
    ],
)
def test_another_policy_exports_again_from_the_same_decisions(
    decided: Decided, options: dict, applies: Any
) -> None:
    workdir, decisions = decided
    export(workdir)
    manifest_before = read_manifest(Storage(str(workdir)), "duplicates")
    manifest, corpus = export(workdir, **options)
    applied = [row for row in decisions if applies(row)]
    removed_ids = {row["url_id"] for row in rejects_of(workdir)}
    assert removed_ids == {row["url_id"] for row in applied}
    num_removed = {row["url_id"]: row["copies"] - 1 for row in corpus.table().to_pylist()}
    num_removed = {key: number for key, number in num_removed.items() if number > 0}
    assert num_removed == Counter(row["kept_url_id"] for row in applied)
    assert manifest.counts.left == manifest.counts.entered - len(removed_ids)
    assert read_manifest(Storage(str(workdir)), "duplicates") == manifest_before


def documents_of(run: Path) -> dict[str, dict[str, Any]]:
    """Return the documents of a run's corpus by the last part of their URLs."""
    rows = DatasetReader.open(Storage(str(run)), "corpus").table().to_pylist()
    return {row["url"].rpartition("/")[2]: row for row in rows}


def imported(folder: Path, texts: dict[str, str], *flags: object) -> Path:
    """Run the stages up to dedupe over texts, which are given by the last part of their URLs."""
    run = folder / "run"
    file = folder / f"{'-'.join(texts)}.jsonl"
    rows = [
        {"url": f"https://{name}.example.org/{name}", "text": text} for name, text in texts.items()
    ]
    file.write_text("\n".join(map(json.dumps, rows)))
    ask_owt("import", run, file, "--num_shards", 2, *flags)
    ask_owt("run", run, "--until", "dedupe", "--min_tokens", 0, "--languages", "all")
    return run


def test_a_later_generation_changes_no_byte_of_earlier_ones(tmp_path: Path) -> None:
    """A generation counts the copies in it.

    A document that repeats one of an earlier generation is only in `duplicates/`.
    """
    words = prose(random.Random(3), 300)
    first = {"longest": words, "same": words[:-1], "alone": words[::2]}
    second = {"again": words[:-2], "new": words[::-1], "newer": words[::-1][:-1]}
    runs = []
    for name, batches in (("one", [first]), ("grown", [first, second])):
        (tmp_path / name).mkdir()
        for batch in batches:
            texts = {key: " ".join(words_of_text) for key, words_of_text in batch.items()}
            flags = ["--add"] if batch is second else []
            runs.append(imported(tmp_path / name, texts, *flags))
            ask_owt("run", runs[-1], "--until", "export")
    run = runs[0]
    grown = runs[-1]
    copies = {key: row["copies"] for key, row in documents_of(run).items()}
    assert copies == {"longest": 2, "alone": 1}
    copies = {key: row["copies"] for key, row in documents_of(grown).items()}
    assert copies == {"longest": 2, "alone": 1, "new": 2}
    paths = [path for name in DECIDED for path in (run / name).iterdir()]
    assert len(paths) == 4
    for path in paths:
        assert path.read_bytes() == (grown / path.relative_to(run)).read_bytes()


def test_a_takedown_changes_no_row_of_another_document(tmp_path: Path) -> None:
    """The number of copies stays, and only the shards of the document are rewritten."""
    words = prose(random.Random(4), 300)
    texts = {"kept": words, "copy": words[:-1], "alone": words[::2]}
    run = imported(tmp_path, {key: " ".join(text) for key, text in texts.items()})
    ask_owt("run", run, "--until", "export")
    documents_before = documents_of(run)
    assert documents_before["kept"]["copies"] == 2
    (tmp_path / "list.txt").write_text("copy.example.org")
    ask_owt("forget", run, tmp_path / "list.txt")
    assert documents_of(run) == documents_before
    assert [row["reason"] for row in rejects_of(run)] == ["forgotten"]
    (tmp_path / "list.txt").write_text("https://copy.example.org/copy")
    ask_owt("forget", run, tmp_path / "list.txt")
    assert documents_of(run) == {"alone": documents_before["alone"]}


def test_only_documents_under_the_chosen_licences_are_kept(tmp_path: Path) -> None:
    run = tmp_path / "run"
    licenses = ["CC-BY-4.0", "cc-by-4.0", "CC-BY-NC-4.0", "CC0-1.0", "All of it is ours", None]
    texts = [" ".join(prose(random.Random(seed), 50)) for seed in range(len(licenses))]
    write_clean(run, texts, 2, license=licenses)
    dedupe(run)
    ask_stage("export", run, "--licenses", "CC-BY-4.0", "CC0-1.0")
    assert set(documents_of(run)) == {"0", "1", "3"}
    details = ("CC-BY-NC-4.0", "All of it is ours", "the page declares none")
    assert {(row["reason"], row["detail"]) for row in rejects_of(run)} == {
        ("license", detail) for detail in details
    }
    assert "rejected by export: license" in ask_owt("why", run, url_id(2))
    assert "no problems found" in ask_owt("verify", run)
    url_of_license = "https://creativecommons.org/licenses/by/4.0/"
    error = ask_stage("export", run, "--licenses", url_of_license, code=2)
    assert "is not an SPDX identifier, such as CC-BY-4.0 or CC0-1.0" in error
    ask_stage("export", run)
    assert len(documents_of(run)) == len(licenses)


def card_of(manifests: dict[str, Manifest], kind: str = "dump") -> str:
    """Return the card of a dataset with these manifests, from one source of a kind."""
    generation = Generation("collect", 0, 1, [{"kind": kind, "name": "one"}])
    return published_card(manifests, [generation], "a/b", [], [], [], license="other", contact="")


def test_card_has_the_numbers_that_duckdb_counts(small_run: Path) -> None:
    huggingface_hub = pytest.importorskip("huggingface_hub")
    text = dataset_card(
        Storage(str(small_run)), "someone/corpus", ["corpus"], license="other", contact=""
    )
    read = huggingface_hub.DatasetCard(text)
    assert read.data.license == "other"
    assert read.data.language == ["en"]
    assert read.data.size_categories == ["n<1K"]
    sums = "count(*), sum(n_words), sum(length(text)), sum(strlen(text))"
    query = f"select {sums} from '{small_run}/corpus/part-*.parquet'"
    ((documents, words, characters, size),) = duckdb.sql(query).fetchall()
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
    sources = text.partition("## Sources")[2].partition("## Settings")[0]
    assert re.findall(r"^\| `(\w+)` \| (\S+) \|", sources, re.MULTILINE) == [
        ("collect", "RS_demo.zst"),
        ("fetch", "demo.warc.gz"),
    ]


def test_a_card_names_reddit_and_languages_only_where_true(small_run: Path) -> None:
    urls = manifest_of(small_run, "urls")
    documents = manifest_of(small_run, "documents")
    datasets = {name: manifest_of(small_run, name) for name in ("clean", "corpus", "tokens")}
    imported = replace(documents, stage="import")
    reddit_card = card_of({"urls": urls, **datasets})
    imported_card = card_of({"documents": imported, **datasets}, "file")
    assert "linked on Reddit" in reddit_card
    assert "webtext" in reddit_card
    assert "Reddit" not in imported_card.partition("## Fields")[0]
    assert "webtext" not in imported_card
    assert "texts imported from files" in imported_card
    empty_corpus = replace(datasets["corpus"], counts=Counts(), stats={})
    empty_card = card_of({**datasets, "corpus": empty_corpus})
    assert "| documents | 0 |" in empty_card
    assert "language:" not in empty_card
