"""Rows that parts send: the slices of a key, however many rows are sent."""

from __future__ import annotations

import errno
import re
from collections import Counter
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest

from owt_pipeline.engine.submission import JobOutcome
from owt_pipeline.errors import UserError
from owt_pipeline.ledger import exchange
from owt_pipeline.ledger.dataset import reading
from owt_pipeline.ledger.exchange import Slice, SliceWriter, read_index, read_slices
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


@pytest.mark.parametrize(
    ("error", "told"),
    [
        (OSError(errno.EMFILE, "Failed to open local file"), "raise the limit"),
        (OSError(errno.EDQUOT, "Disk quota exceeded"), "the quota is used up"),
        (OSError(errno.EACCES, "Permission denied"), "no permission to open .*sent"),
        (OSError(errno.EIO, "no answer from the bucket"), "Input/output error: .*sent"),
        (pa.lib.ArrowMemoryError("malloc failed"), "memory is used up"),
    ],
)
def test_an_error_of_the_machine_is_not_told_as_a_damaged_file(
    tmp_path: Path, error: Exception, told: str
) -> None:
    with pytest.raises(type(error)) as caught, reading(Storage(str(tmp_path)), "sent"):
        raise error
    assert re.search(told, JobOutcome.of("dedupe", caught.value).message)


@pytest.mark.parametrize("content", [None, b"", b"short", b"x" * 200])
def test_a_missing_or_damaged_file_of_slices_is_named_with_its_remedy(
    tmp_path: Path, content: bytes | None
) -> None:
    if content is not None:
        (tmp_path / "sent").write_bytes(content)
    work = Storage(str(tmp_path))
    with pytest.raises(UserError, match=r"sent was changed or removed .*--repair"):
        read_index(work, "sent")
    with pytest.raises(UserError, match=r"sent was changed or removed .*--repair"):
        list(read_slices(work, [Slice("", "sent", offset=64, length=128, rows=1)]))
