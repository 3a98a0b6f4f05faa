"""A month compared with earlier corpora by their stored sketches: the same decisions as by comparing all texts."""

from __future__ import annotations

import random
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from owt_pipeline.commands.history import asked_for, history, readers_of
from owt_pipeline.commands.verify import verify
from owt_pipeline.engine.runner import run_stage
from owt_pipeline.engine.stage import Runtime
from owt_pipeline.errors import UserError
from owt_pipeline.ledger.bases import pin
from owt_pipeline.ledger.dataset import read_manifest
from owt_pipeline.stages.dedupe import past, stage
from owt_pipeline.stages.dedupe.past import Corpus, Ranges, write_section
from owt_pipeline.stages.export.stage import STAGE as EXPORT
from owt_pipeline.stages.export.stage import ExportOptions
from owt_pipeline.storage.folder import Storage
from tests.owt_pipeline.dedupe import plain
from tests.owt_pipeline.dedupe.corpora import (
    SEPARATE,
    corpus_with_copies,
    dedupe,
    edited,
    make_month,
    prose,
    url_id,
    write_clean,
)
from tests.owt_pipeline.runs import shard_file


def expected(months: Sequence[Sequence[str]], threshold: float = 0.8) -> list[dict[int, int]]:
    """For each month, removed -> kept text, by comparing each with all kept ones, those of earlier months first."""
    stays: list[tuple[int, str]] = []
    found = []
    for number, texts in enumerate(months):
        gone: dict[int, int] = {}
        named = [(url_id(SEPARATE * number + i), text) for i, text in enumerate(texts)]
        for identifier, text in sorted(named, key=lambda document: (-len(document[1]), document[0])):
            rated = [(plain.jaccard(text, other), -k) for k, (_, other) in enumerate(stays)]
            if rated and max(rated)[0] >= threshold:
                gone[identifier] = stays[-max(rated)[1]][0]
            else:
                stays.append((identifier, text))
        found.append(gone)
    return found


def three_months(seed: int) -> list[list[str]]:
    """Texts of which about half are copies or edited copies of texts of the same or an earlier month."""
    texts = corpus_with_copies(seed, documents=150, words=120)
    random.Random(seed).shuffle(texts)
    return [texts[:60], texts[60:110], texts[110:]]


@pytest.fixture(scope="module")
def chain(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, list[list[str]], list[list[dict[str, Any]]]]:
    """Three months, each built on the one before, with their texts and decisions."""
    folder = tmp_path_factory.mktemp("chain")
    months = three_months(21)
    rows = []
    for number, texts in enumerate(months):
        bases = [folder / str(number - 1)] if number else []
        rows.append(make_month(folder / str(number), number, texts, bases, num_shards=2 + number)[1])
    return folder, months, rows


def essence(rows: list[dict[str, Any]]) -> dict[int, int]:
    return {row["url_id"]: row["kept_url_id"] for row in rows}


def test_three_months_decide_as_if_every_earlier_document_were_compared(
    chain: tuple[Path, list[list[str]], list[list[dict[str, Any]]]],
) -> None:
    folder, months, rows = chain
    assert [essence(found) for found in rows] == expected(months)
    texts = {url_id(SEPARATE * m + i): text for m, month in enumerate(months) for i, text in enumerate(month)}
    for row in rows[2]:
        similarity = plain.jaccard(texts[row["url_id"]], texts[row["kept_url_id"]])
        assert row["similarity"] == pytest.approx(similarity)
    manifest = read_manifest(Storage(str(folder / "2")), "duplicates")
    assert manifest is not None
    assert manifest.properties["bases"] == [{"uri": "../0", "shards": 2}, {"uri": "../1", "shards": 3}]
    # kept_shard: the run's own shards first, then those of its bases, the oldest first.
    place = {
        url_id(SEPARATE * m + i): start + i % shards
        for m, (start, shards) in enumerate([(4, 2), (6, 3), (0, 4)])
        for i in range(len(months[m]))
    }
    assert all(row["kept_shard"] == place[row["kept_url_id"]] for row in rows[2])
    past_rows = [row for row in rows[2] if row["kept_shard"] >= 4]
    assert {row["rule"] for row in past_rows} == {"exact", "near"}
    assert manifest.stats["past_exact"] + manifest.stats["past_near"] == len(past_rows)


def test_decisions_do_not_depend_on_ranges_of_the_base_or_the_month(
    chain: tuple[Path, list[list[str]], list[list[dict[str, Any]]]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A large base has many hash ranges and a small month few, or the reverse; the decisions are the same."""
    _, months, rows = chain
    for name, cut in (("past", 0), ("month", 1)):
        for number in (0, 1):
            with monkeypatch.context() as patch:
                if number == cut:
                    patch.setattr(past, "RANGE_ROWS", 9)
                    patch.setattr(past, "LEAST_RANGE_ROWS", 100)
                bases = [tmp_path / name / "0"] if number else []
                found = make_month(tmp_path / name / str(number), number, months[number], bases)[1]
            assert essence(found) == essence(rows[number])


def test_more_workers_write_the_same_bytes(
    chain: tuple[Path, list[list[str]], list[list[dict[str, Any]]]], tmp_path: Path
) -> None:
    folder, months, _ = chain
    (tmp_path / "0").symlink_to(folder / "0")
    manifest, _ = make_month(tmp_path / "1", 1, months[1], [folder / "0"], num_shards=3, workers=2)
    before = read_manifest(Storage(str(folder / "1")), "duplicates")
    assert before is not None
    assert manifest.digest == before.digest


def hidden(workdir: Path) -> None:
    """Replace all texts of `clean/` without updating its manifest."""
    for path in (workdir / "clean").glob("*.parquet"):
        table = pq.read_table(path)
        texts = pa.array([f"nothing of number {i}" for i in range(len(table))])
        pq.write_table(table.set_column(table.schema.get_field_index("text"), table.schema.field("text"), texts), path)


def test_texts_of_a_base_are_read_only_to_verify_candidates(tmp_path: Path) -> None:
    """With all texts of the base replaced, exact copies are still found, but near-duplicates are not."""
    rng = random.Random(1)
    texts = [" ".join(prose(rng, 150)) for _ in range(30)]
    make_month(tmp_path / "old", 0, texts)
    near = [" ".join(edited(rng, text.split(), 0.01)) for text in texts[20:]]
    new = [*(text.upper() for text in texts[:20]), *near, " ".join(prose(rng, 100))]
    manifest, rows = make_month(tmp_path / "new", 1, new, [tmp_path / "old"])
    assert len(rows) == 30
    assert manifest.stats["sketched"] == len(new)  # those of this run alone
    hidden(tmp_path / "old")
    (tmp_path / "new/ledger/duplicates/manifest.json").unlink()
    _, rows = dedupe(tmp_path / "new")
    assert essence(rows) == {url_id(SEPARATE + i): url_id(i) for i in range(20)}
    assert {row["rule"] for row in rows} == {"exact"}


@settings(deadline=None, max_examples=60)
@given(
    st.integers(0, 2**32),
    st.integers(1, 3000),
    st.sampled_from([1, 2, 7]),
    st.integers(0, 6),
    st.booleans(),
)
def test_section_finds_exactly_its_hashes(seed: int, entries: int, of_band: int, number: int, of_texts: bool) -> None:
    rng = np.random.default_rng(seed)
    ranges = Ranges(1, of_band, 1)
    key = number % of_band + (0 if of_texts else of_band)
    low, high = ranges.span(key)
    hashes = rng.integers(low << 32, (high << 32) - 1, entries, np.uint64, endpoint=True)
    hashes[rng.random(entries) < 0.3] = hashes[0]  # a bucket of a template
    further = rng.integers(0, 2**64 - 1, entries, np.uint64) if of_texts else None
    documents = rng.permutation(entries).astype(np.uint32)
    with tempfile.TemporaryDirectory() as folder:
        with Storage(folder).spool() as file:
            write_section(file, (low, high), hashes, documents, further)
            size = file.bytes
            contents = msgspec.msgpack.encode(past.Contents({key: (0, entries)}, (size, 0)))
            file.write(contents)
            file.write(len(contents).to_bytes(8, "little"))
            file.publish(f"{seed}")
        corpus = Corpus(folder, ranges, (f"{seed}",) * (key + 1))
        chosen = rng.integers(0, entries, 50)
        asked = np.concatenate([hashes[chosen], rng.integers(0, 2**64 - 1, 50, np.uint64)])
        also = None if further is None else np.concatenate([further[chosen], further[chosen]])
        which, found = corpus.find(key, asked, also)
    pairs = set(zip(which.tolist(), found.tolist(), strict=True))
    wanted = {
        (i, int(documents[j]))
        for i, one in enumerate(asked.tolist())
        for j in np.flatnonzero(hashes == one).tolist()
        if further is None or also is None or further[j] == also[i]
    }
    assert wanted <= pairs
    assert len(pairs - wanted) <= (0 if of_texts else 2)  # by chance, one in some thousand million
    assert size <= (14.3 if of_texts else 7.3) * entries + 16


@pytest.fixture
def other(tmp_path: Path) -> tuple[Path, list[str]]:
    """A deduplicated corpus that is not a base, and its texts."""
    texts = corpus_with_copies(seed=12, documents=100)
    write_clean(tmp_path / "other", texts, 2)
    dedupe(tmp_path / "other")
    return tmp_path / "other", texts


def test_duplicates_of_another_corpus_are_removed_but_none_of_its_documents(other: tuple[Path, list[str]]) -> None:
    folder, other_texts = other
    rng = random.Random(0)
    fresh = [" ".join(prose(rng, 300)) for _ in range(5)]
    copies = [" ".join(edited(rng, text.split(), share)) for text in other_texts[:40] for share in (0.0, 0.01)]
    longer = [text + " and a little more" for text in other_texts[40:60]]  # longest stays, but not before another's
    texts = [*fresh, *copies, *longer, *fresh]
    new = folder.parent / "new"
    write_clean(new, texts, 3, url_id=[url_id(SEPARATE + i) for i in range(len(texts))])
    before = {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()}
    manifest, rows = dedupe(new, against=(str(folder),))
    assert before == {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()}
    gone = essence(rows)
    assert gone == expected([other_texts, texts])[1]
    of_other = {url_id(i) for i in range(len(other_texts))}
    assert all((row["kept_shard"] >= 3) == (row["kept_url_id"] in of_other) for row in rows)
    assert (manifest.properties["against"], manifest.properties["against_shards"]) == (["../other"], [2])
    near = next(row for row in rows if row["kept_shard"] >= 3 and row["rule"] == "near")
    shown = history(readers_of(Storage(str(new))), asked_for(str(near["url_id"])))
    assert shown is not None
    decision = next(entry for entry in shown["stages"] if entry["stage"] == "dedupe")
    kept = next(i for i in range(len(other_texts)) if url_id(i) == near["kept_url_id"])
    assert decision["kept_url"].endswith(f"/{kept}")
    assert decision["differences"]


def test_changed_other_corpus_runs_dedupe_again(other: tuple[Path, list[str]]) -> None:
    folder, texts = other
    new = folder.parent / "new"
    write_clean(new, [texts[0]], 1, url_id=[url_id(SEPARATE)])
    assert len(dedupe(new, against=(str(folder),))[1]) == 1
    write_clean(folder, [" ".join(prose(random.Random(5), 50))], 2)
    with pytest.raises(UserError, match=r"was not made from .*clean: run `owt dedupe` there again"):
        dedupe(new, against=(str(folder),))
    dedupe(folder)
    assert dedupe(new, against=(str(folder),))[1] == []


@pytest.mark.parametrize(
    ("how", "message"), [({"ngram": 3}, "made with ngram=3, not 5"), ({"num_perm": 64}, "made with bands=")]
)
def test_incompatible_sketches_are_refused(other: tuple[Path, list[str]], how: dict[str, Any], message: str) -> None:
    folder, _ = other
    dedupe(folder, **how)
    new = folder.parent / "new"
    write_clean(new, ["a text"], 1)
    earlier, _ = dedupe(new)
    with pytest.raises(UserError, match=message):
        dedupe(new, against=(str(folder),))
    still = read_manifest(Storage(str(new)), "duplicates")
    assert still is not None
    assert still.fingerprint == earlier.fingerprint
    run_stage(EXPORT, ExportOptions(), Runtime(Storage(str(folder))))
    with pytest.raises(UserError, match=message):
        pin(Storage(str(new)), [str(folder)], [(stage.STAGE, stage.Options())])


def test_sketches_of_another_version_of_the_code_are_refused(
    other: tuple[Path, list[str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    folder, _ = other
    write_clean(folder.parent / "new", ["a text"], 1)
    monkeypatch.setattr(stage.Dedupe, "version", 99)
    with pytest.raises(UserError, match="made with stage_version=4, not 99"):
        dedupe(folder.parent / "new", against=(str(folder),))


def test_a_run_is_not_compared_with_itself_nor_with_a_base_twice(other: tuple[Path, list[str]]) -> None:
    """Otherwise each of its documents would be a duplicate of itself."""
    folder, _ = other
    new = folder.parent / "new"
    again = str(new / ".." / "other")
    with pytest.raises(UserError, match=r"--against names this run, .*other"):
        dedupe(folder, against=(again,))
    run_stage(EXPORT, ExportOptions(), Runtime(Storage(str(folder))))
    write_clean(new, ["a text"], 1)
    pin(Storage(str(new)), [str(folder)])
    with pytest.raises(UserError, match=r"--against names .*other, a base of this run"):
        dedupe(new, against=(again,))


def test_damaged_sketches_are_repaired(other: tuple[Path, list[str]]) -> None:
    folder, _ = other
    manifest = read_manifest(Storage(str(folder)), "duplicates")
    assert manifest is not None
    assert manifest.total("sketches").files == 2
    path = shard_file(folder, "duplicates", 1, "sketches")
    content = path.read_bytes()
    path.write_bytes(content[:-1])
    assert any(str(path) in problem for finding in verify(Storage(str(folder))) for problem in finding.problems)
    dedupe(folder)
    assert path.read_bytes() == content
