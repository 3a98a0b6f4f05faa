"""dedupe's options: other ways to the same decisions, corpora compared with, and the alarm."""

from __future__ import annotations

import random
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from owt_pipeline.commands.history import asked_for, history, readers_of
from owt_pipeline.commands.verify import verify
from owt_pipeline.dedupe import (
    alarm,
    chain,
    collection,
    minhash,
    prefix_index,
    stage,
    verification,
    words,
)
from owt_pipeline.engine import commit
from owt_pipeline.engine.dataset import read_manifest
from owt_pipeline.engine.errors import UserError
from owt_pipeline.engine.storage import Storage
from tests.owt_pipeline.dedupe import plain
from tests.owt_pipeline.dedupe.corpora import corpus_with_copies, dedupe, edited, prose, url_id, write_clean
from tests.owt_pipeline.whole_runs import shard_file


def essence(rows: list[dict[str, Any]]) -> list[tuple[Any, ...]]:
    return sorted((row["url_id"], row["kept_url_id"], row["rule"], row["similarity"]) for row in rows)


def test_decisions_do_not_depend_on_how_the_work_is_cut(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Many parts, ranges of the hashes, forests and groups, small chunks: as on a large corpus."""
    texts = corpus_with_copies(seed=11, documents=250)
    write_clean(tmp_path / "at once", texts)
    at_once = essence(dedupe(tmp_path / "at once")[1])
    monkeypatch.setattr(commit, "ROW_GROUP_BYTES", 1)
    for module, name, value in (
        (collection, "_PART_BYTES", 1),
        (chain, "_RANGE_ROWS", 80),
        (chain, "_LEAST_RANGE_ROWS", 700),
        (chain, "_GROUP_SHINGLES", 1000),
        (chain, "_LEAST_SHINGLES", 1000),
        (minhash, "COMPILED_FROM", 0),
        (words, "_CHUNK_BYTES", 3000),
        (verification, "_SMALL", 1),
        (prefix_index, "_COUNT_SLOTS", 16),
    ):
        monkeypatch.setattr(module, name, value)
    write_clean(tmp_path / "cut", texts)
    manifest, rows = dedupe(tmp_path / "cut")
    assert essence(rows) == at_once
    assert manifest.stats["groups"] > 5


@pytest.fixture
def standing(tmp_path: Path) -> tuple[Path, list[str]]:
    """A corpus of earlier months, deduped, its sketches kept; and its texts."""
    texts = corpus_with_copies(seed=12, documents=100)
    write_clean(tmp_path / "old", texts, 2)
    dedupe(tmp_path / "old", keep_sketches=True)
    return tmp_path / "old", texts


def test_what_repeats_a_standing_corpus_goes_and_nothing_of_it_does(standing: tuple[Path, list[str]]) -> None:
    old, old_texts = standing
    rng = random.Random(0)
    fresh = [" ".join(prose(rng, 300)) for _ in range(5)]
    copies = [" ".join(edited(rng, text.split(), share)) for text in old_texts[:40] for share in (0.0, 0.01)]
    longer = [text + " and a little more" for text in old_texts[40:60]]  # longest is kept, but not before what stands
    texts = [*fresh, *copies, *longer, *fresh]
    new = old.parent / "new"
    write_clean(new, texts, 3, url_id=[url_id(1000 + i) for i in range(len(texts))])
    before = {path: path.read_bytes() for path in old.rglob("*") if path.is_file()}
    manifest, rows = dedupe(new, against=(str(old),))
    assert before == {path: path.read_bytes() for path in old.rglob("*") if path.is_file()}
    text_of = {url_id(i): text for i, text in enumerate(old_texts)}
    text_of |= {url_id(1000 + i): text for i, text in enumerate(texts)}
    gone = {row["url_id"] for row in rows}
    old_gone = {row["url_id"] for row in dedupe(old, keep_sketches=True)[1]}
    for row in rows:
        assert row["kept_url_id"] not in gone | old_gone
        assert row["similarity"] == pytest.approx(plain.jaccard(text_of[row["url_id"]], text_of[row["kept_url_id"]]))
        stands = row["kept_url_id"] in {url_id(i) for i in range(len(old_texts))}
        assert (row["kept_shard"] >= 3) == stands
    stay = [text for i, text in enumerate(texts) if url_id(1000 + i) not in gone]
    stand = [text for i, text in enumerate(old_texts) if url_id(i) not in old_gone]
    assert set(fresh) <= set(stay)
    assert len(stay) < 15
    assert all(plain.jaccard(text, other) < 0.8 for text in stay for other in stand)
    assert manifest.properties["standing_shards"] == [2]
    assert manifest.counts.entered == len(texts)
    near = next(row for row in rows if row["kept_shard"] >= 3 and row["rule"] == "near")
    told = history(readers_of(Storage(str(new))), asked_for(str(near["url_id"])))
    decision = next(entry for entry in told["stages"] if entry["stage"] == "dedupe")
    assert decision["kept_url"].endswith(f"/{[url_id(i) for i in range(len(old_texts))].index(near['kept_url_id'])}")
    assert decision["differences"]


def test_the_signatures_of_a_standing_corpus_are_not_computed_again(standing: tuple[Path, list[str]]) -> None:
    """Its texts are gone: only its sketches can say what repeats it. (A near-copy's proof reads the one text.)"""
    old, old_texts = standing
    gone = {row["url_id"] for row in dedupe(old, keep_sketches=True)[1]}
    stand = [i for i in range(len(old_texts)) if url_id(i) not in gone]
    rng = random.Random(1)
    new = old.parent / "new"
    texts = [*(old_texts[i].upper() for i in stand), " ".join(prose(rng, 100))]
    write_clean(new, texts, 2, url_id=[url_id(1000 + i) for i in range(len(texts))])
    for path in (old / "clean").glob("*.parquet"):
        path.unlink()
    manifest, rows = dedupe(new, against=(str(old),))
    assert {row["url_id"]: row["kept_url_id"] for row in rows} == {
        url_id(1000 + k): url_id(i) for k, i in enumerate(stand)
    }
    assert manifest.stats["sketched"] == len(texts)  # those of this run alone


def test_signatures_of_a_standing_corpus_are_taken_as_they_are(standing: tuple[Path, list[str]]) -> None:
    """With its band hashes replaced, near-copies are not found any more; computed again, they would be."""
    old, old_texts = standing
    rng = random.Random(2)
    copies = [" ".join(edited(rng, text.split(), 0.01)) for text in old_texts]
    new = old.parent / "new"
    write_clean(new, copies, 2, url_id=[url_id(1000 + i) for i in range(len(copies))])

    def repeat_what_stands() -> int:
        return sum(row["kept_shard"] >= 2 for row in dedupe(new, against=(str(old),))[1])

    assert repeat_what_stands() > len(copies) * 0.8
    for path in (old / "ledger/duplicates/sketches").iterdir():
        with pa.ipc.open_file(path) as file:
            table = file.read_all()
        for name in table.column_names:
            if name.startswith("band_"):
                other = pa.array([rng.randrange(2**64) for _ in range(len(table))], pa.uint64())
                table = table.set_column(table.column_names.index(name), name, other)
        with pa.ipc.new_file(path, table.schema) as writer:
            writer.write_table(table)
    (new / "ledger/duplicates/manifest.json").unlink()
    assert repeat_what_stands() == 0


def test_a_changed_standing_corpus_runs_dedupe_again(standing: tuple[Path, list[str]]) -> None:
    old, old_texts = standing
    new = old.parent / "new"
    write_clean(new, [old_texts[0]], 1, url_id=[url_id(1000)])
    assert len(dedupe(new, against=(str(old),))[1]) == 1
    write_clean(old, [" ".join(prose(random.Random(5), 50))], 2)
    with pytest.raises(UserError, match=r"was not made from .*clean: run `owt dedupe` there again"):
        dedupe(new, against=(str(old),))
    dedupe(old, keep_sketches=True)
    assert dedupe(new, against=(str(old),))[1] == []


@pytest.mark.parametrize(
    ("how", "message"),
    [
        ({"keep_sketches": False}, "keeps no sketches: run `owt dedupe --workdir .* --keep_sketches` first"),
        ({"keep_sketches": True, "ngram": 3}, "made with ngram=3, not 5"),
        ({"keep_sketches": True, "num_perm": 64}, "made with bands="),
    ],
)
def test_sketches_that_cannot_be_compared_with_are_refused(
    standing: tuple[Path, list[str]], how: dict[str, Any], message: str
) -> None:
    old, _ = standing
    dedupe(old, **how)
    write_clean(old.parent / "new", ["a text"], 1)
    earlier, _ = dedupe(old.parent / "new")
    with pytest.raises(UserError, match=message):
        dedupe(old.parent / "new", against=(str(old),))
    still = read_manifest(Storage(str(old.parent / "new")), "duplicates")
    assert still is not None
    assert still.fingerprint == earlier.fingerprint


def test_sketches_of_another_version_of_the_code_are_refused(
    standing: tuple[Path, list[str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    old, _ = standing
    write_clean(old.parent / "new", ["a text"], 1)
    monkeypatch.setattr(stage, "STAGE", replace(stage.STAGE, version=99))
    with pytest.raises(UserError, match="made with stage_version=3, not 99"):
        dedupe(old.parent / "new", against=(str(old),))


def test_a_run_that_is_compared_with_itself_is_refused(standing: tuple[Path, list[str]]) -> None:
    """Else each of its documents would repeat itself."""
    old, _ = standing
    again = str(old.parent / "new" / ".." / "old")
    with pytest.raises(UserError, match=r"--against names this very run, .*old"):
        dedupe(old, against=(again,))


def test_kept_sketches_are_files_of_the_dataset(standing: tuple[Path, list[str]]) -> None:
    old, texts = standing
    manifest, rows = dedupe(old, keep_sketches=True)
    assert manifest.total("sketches").rows == manifest.counts.left < len(texts)
    gone = {row["url_id"] for row in rows}
    with pa.ipc.open_file(shard_file(old, "duplicates", 0, "sketches")) as file:
        assert set(file.read_all()["url_id"].to_pylist()) == {url_id(i) for i in range(0, len(texts), 2)} - gone
    path = shard_file(old, "duplicates", 1, "sketches")
    path.write_bytes(path.read_bytes()[:-1])
    assert any(str(path) in problem for finding in verify(Storage(str(old))) for problem in finding.problems)


def test_a_cluster_of_too_large_a_share_stops_the_run_and_shows_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(alarm, "LEAST_DOCUMENTS", 5)
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


def test_a_host_of_too_large_a_share_stops_the_run_and_shows_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(alarm, "LEAST_DOCUMENTS", 5)
    rng = random.Random(0)
    texts = [" ".join(prose(rng, 50)) for _ in range(50)] * 2
    urls = [f"http://www.shop.com/{i}" if i % 50 < 30 else f"http://host-{i}.org/" for i in range(100)]
    write_clean(tmp_path, texts, url=urls)
    with pytest.raises(UserError, match=r"the host shop\.com has 30 documents that repeat others, 30\.0%"):
        dedupe(tmp_path)
    assert len(dedupe(tmp_path, max_host_share=0.3)[1]) == 50
