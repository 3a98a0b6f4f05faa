"""Rows that parts send: the slices of a key, however many rows are sent."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest

from owt_pipeline.ledger import exchange
from owt_pipeline.ledger.exchange import SliceWriter, read_index, read_slices
from owt_pipeline.storage.folder import Storage

ROWS = pa.schema([("key", pa.int64()), ("text", pa.string())])
NUMBERS = pa.schema([("number", pa.int64())])


def batch(keys: np.ndarray, first: int) -> pa.RecordBatch:
    """Return a row for each key, whose texts are numbered from `first`."""
    texts = [f"row {first + k}" for k in range(len(keys))]
    return pa.RecordBatch.from_arrays([pa.array(keys, pa.int64()), pa.array(texts)], schema=ROWS)


@pytest.mark.parametrize("max_waiting_bytes", [1, 1000, 1 << 30])
def test_a_key_has_one_slice_however_often_rows_are_spilled(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, max_waiting_bytes: int
) -> None:
    monkeypatch.setattr(exchange, "_MAX_WAITING_BYTES", max_waiting_bytes)
    work = Storage(str(tmp_path))
    rng = np.random.default_rng(7)
    expected: dict[int, list[str]] = {}
    with work.spool() as file:
        writer = SliceWriter(file)
        for number in range(20):
            rows = batch(rng.integers(0, 50, 30), 30 * number)
            writer.send(rows["key"].to_numpy(), rows)
            for key, text in zip(*rows.to_pydict().values(), strict=True):
                expected.setdefault(key, []).append(text)
        # Rows of two schemas for one key are in two slices.
        writer.send(3, pa.RecordBatch.from_pydict({"number": [1]}, schema=NUMBERS))
        writer.close()
        file.publish("sent")
    sent = read_index(work, "sent")
    assert Counter(key for key, _ in sent) == Counter([*expected, 3])
    assert {path.name for path in tmp_path.iterdir()} <= {"sent", ".tmp"}
    texts_by_key = {key: [] for key in expected}
    for key, slice in sent:
        for table in read_slices(work, [slice]):
            texts_by_key[key] += table["text"].to_pylist() if table.schema == ROWS else []
    assert texts_by_key == expected


def test_a_key_with_many_bytes_has_slices_of_a_bounded_size(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(exchange, "SLICE_BYTES", 10_000)
    work = Storage(str(tmp_path))
    with work.spool() as file:
        writer = SliceWriter(file)
        for number in range(100):
            writer.send(0, batch(np.zeros(100, np.int64), number * 100))
        writer.close()
        file.publish("sent")
    slices = [slice for _, slice in read_index(work, "sent")]
    assert all(8_000 < slice.length < 25_000 for slice in slices)
    texts = [text for table in read_slices(work, slices) for text in table["text"].to_pylist()]
    assert texts == [f"row {k}" for k in range(10_000)]
