"""Parts hold every row once, in order, however a shard's row groups lie."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from owt_pipeline.dedupe import parts as module
from owt_pipeline.dedupe.parts import cut, read_part
from owt_pipeline.engine import commit
from owt_pipeline.engine.dataset import DatasetReader
from owt_pipeline.engine.errors import UserError
from owt_pipeline.engine.storage import Storage
from tests.owt_pipeline.dedupe.corpora import write_clean

ROWS = 25_000


@pytest.fixture
def source(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> DatasetReader:
    """One shard of five row groups of 5,000 rows each."""
    monkeypatch.setattr(commit, "ROW_GROUP_BYTES", 1)
    write_clean(tmp_path, [f"text {i}" for i in range(ROWS)], 1)
    return DatasetReader.open(Storage(str(tmp_path)), "clean")


@pytest.mark.parametrize(
    ("part_bytes", "most_parts", "count"), [(1, 100, 5), (400_000, 100, 3), (1 << 30, 100, 1), (1, 2, 2)]
)
def test_parts_are_the_rows_in_order(
    source: DatasetReader, monkeypatch: pytest.MonkeyPatch, part_bytes: int, most_parts: int, count: int
) -> None:
    monkeypatch.setattr(module, "_PART_BYTES", part_bytes)
    monkeypatch.setattr(module, "_MOST_PARTS", most_parts)
    parts = cut(source, [0], before=7)
    assert len(parts) == count
    assert {part.shard for part in parts} == {7}
    wanted = np.array([0, 7, 4999, 5000, 12_000, 12_001, ROWS - 1])
    every, some, row = [], [], 0
    for part in parts:
        assert part.first == row
        row += part.rows
        mine = wanted[(wanted >= part.first) & (wanted < row)]
        for texts, only in ((every, None), (some, mine)):
            for batch in read_part(part, source.workdir, ["text"], only):
                texts += batch["text"].to_pylist()
    assert every == [f"text {i}" for i in range(ROWS)]
    assert some == [f"text {i}" for i in wanted]


def test_a_shard_without_rows_has_a_part(tmp_path: Path) -> None:
    write_clean(tmp_path, ["one"], 2)
    source = DatasetReader.open(Storage(str(tmp_path)), "clean")
    assert [(part.shard, part.rows) for part in cut(source, range(2))] == [(0, 1), (1, 0)]


def test_a_damaged_file_is_named(source: DatasetReader) -> None:
    path = Path(source.workdir.path(source.files("data")[0].path))
    path.write_bytes(path.read_bytes()[:-20])
    with pytest.raises(UserError, match=f"{path} cannot be read"):
        cut(source, [0])
