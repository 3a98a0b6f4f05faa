"""Parts hold every document once and in order, for any shards and row groups."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from owt_pipeline.engine.phases import plan_stage
from owt_pipeline.engine.stage import Runtime, StageRun
from owt_pipeline.errors import UserError
from owt_pipeline.ledger import commit
from owt_pipeline.ledger.dataset import DatasetReader
from owt_pipeline.stages.dedupe import collection as module
from owt_pipeline.stages.dedupe.collection import Collection, read_collection, write_collection
from owt_pipeline.stages.dedupe.past import Corpus, Ranges
from owt_pipeline.stages.dedupe.stage import STAGE, Options
from owt_pipeline.storage.folder import Storage
from tests.owt_pipeline.dedupe.corpora import write_clean

ROWS = 25_000


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> StageRun:
    """Three shards with two row groups each."""
    monkeypatch.setattr(commit, "ROW_GROUP_BYTES", 1_000_000)
    write_clean(tmp_path, [f"text {i}" for i in range(ROWS)], 3)
    return planned(tmp_path)


def planned(workdir: Path) -> StageRun:
    run = plan_stage(STAGE, Options(), Runtime(Storage(str(workdir))))
    assert isinstance(run, StageRun)
    return run


def texts_of(collection: Collection, number: int, documents: np.ndarray | None = None) -> list[str]:
    batches = collection.read(number, ["text"], documents)
    return [text for batch in batches for text in batch["text"].to_pylist()]


@pytest.mark.parametrize(
    ("part_bytes", "most_parts", "count"), [(1, 100, 6), (60_000, 100, 3), (1 << 30, 100, 1), (1, 2, 2)]
)
def test_parts_are_the_documents_in_order(
    run: StageRun, monkeypatch: pytest.MonkeyPatch, part_bytes: int, most_parts: int, count: int
) -> None:
    monkeypatch.setattr(module, "_PART_BYTES", part_bytes)
    monkeypatch.setattr(module, "_MOST_PARTS", most_parts)
    collection = write_collection(run, [], 20)
    assert len(collection.parts) == count
    wanted = np.array([0, 7, 4999, 5000, 12_000, 12_001, ROWS - 1], np.uint32)
    expected = [f"text {i}" for shard in range(3) for i in range(shard, ROWS, 3)]
    every, some, first = [], [], 0
    for number, part in enumerate(collection.parts):
        assert part.first == first
        first += part.rows
        every += texts_of(collection, number)
        some += texts_of(collection, number, wanted[(wanted >= part.first) & (wanted < first)])
    assert every == expected
    assert some == [expected[i] for i in wanted]


def test_documents_of_earlier_corpora_are_numbered_after_the_runs_own(tmp_path: Path) -> None:
    write_clean(tmp_path / "own", ["one", "two", "three"], 2)
    write_clean(tmp_path / "earlier", ["four", "five"], 2)
    earlier = DatasetReader.open(Storage(str(tmp_path / "earlier")), "clean")
    corpus = Corpus(str(tmp_path / "earlier"), Ranges.of(2, 20), ("a", "b"))
    collection = write_collection(planned(tmp_path / "own"), [(earlier, corpus)], 20)
    assert collection.first_of_shard == [0, 2, 3, 4, 5]
    assert (collection.own_shards, collection.own_documents, collection.first_of_shard[-1]) == (2, 3, 5)
    assert collection.shard_of(np.arange(5)).tolist() == [0, 0, 1, 2, 3]
    assert [texts_of(collection, number) for number in range(2)] == [["one", "three", "two"], ["four", "five"]]
    assert [(part.corpus, part.first, part.rows) for part in collection.parts] == [(0, 0, 3), (1, 3, 2)]


def test_every_empty_shard_belongs_to_a_part(tmp_path: Path) -> None:
    write_clean(tmp_path, ["one"], 3)
    collection = read_collection(planned(tmp_path))
    assert [(part.first, part.rows, len(part.pieces)) for part in collection.parts] == [(0, 1, 3)]


def test_a_damaged_file_is_named(run: StageRun) -> None:
    collection = read_collection(run)
    path = Path(run.workdir.path(collection.parts[0].pieces[0].path))
    path.write_bytes(path.read_bytes()[:-20])
    with pytest.raises(UserError, match=f"{path} cannot be read"):
        texts_of(collection, 0)


def test_too_many_documents_are_an_error(run: StageRun, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_MOST_DOCUMENTS", ROWS)
    with pytest.raises(UserError, match="25,000 documents, more than 25,000"):
        write_collection(run, [], 20)
