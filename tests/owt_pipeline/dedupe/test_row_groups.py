"""Tasks name every row once, in order, however many workers share them."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from owt_pipeline.dedupe.steps.row_groups import first_row, read_task, row_groups, tasks
from owt_pipeline.runtime import shards
from owt_pipeline.runtime.shards import DatasetReader
from owt_pipeline.runtime.stage import require_manifest
from owt_pipeline.runtime.storage import Storage
from tests.owt_pipeline.dedupe.corpora import write_clean


@pytest.mark.parametrize("workers", [1, 2, 3, 5, 16])
def test_tasks_are_the_rows_in_order(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, workers: int) -> None:
    monkeypatch.setattr(shards, "ROW_GROUP_BYTES", 1)
    texts = [f"text {i}" for i in range(25_000)]  # batches of 5,000 are row groups of their own
    write_clean(tmp_path, texts, 1)
    source = DatasetReader(Storage(str(tmp_path / "clean")), require_manifest(Storage(str(tmp_path)), "clean"))
    assert len(row_groups(source, 0)) == 5
    for rows in (None, np.array([0, 7, 4999, 5000, 12_000, 12_001, 24_999])):
        found = []
        for told in tasks(source, 0, workers, rows):
            read = [text for batch in read_task(told, source.folder, ["text"]) for text in batch["text"].to_pylist()]
            assert read[0] == texts[first_row(told)]
            found += read
        assert found == (texts if rows is None else [texts[i] for i in rows])
    assert len(list(tasks(source, 0, workers))) >= min(workers, 5)
