"""Attempts at a part that overlap in every order: the first record's files count, and nothing of
them is ever lost."""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import random
import signal
from itertools import product
from typing import Any

import pyarrow as pa
import pytest

from owt_pipeline.ledger import commit
from owt_pipeline.ledger.commit import RecordPath, ShardWriter, lost_files, publish_dataset
from owt_pipeline.ledger.dataset import DatasetReader
from owt_pipeline.ledger.root import read_root
from owt_pipeline.ledger.sweep import sweep
from owt_pipeline.storage.folder import Storage
from schemas.manifest import Manifest
from tests.owt_pipeline.conftest import PLACES

SCHEMA = pa.schema([pa.field("url_id", pa.uint64()), pa.field("text", pa.string())])


pytestmark = pytest.mark.parametrize("place", PLACES[:2], indirect=True)


@pytest.fixture
def workdir(place: str, request: pytest.FixtureRequest) -> Storage:
    """Return an empty folder for each test."""
    return Storage(place) / "".join(c for c in request.node.name if c.isalnum())


def place_of(workdir: Storage) -> RecordPath:
    """Return the path of the record of shard 0."""
    return RecordPath(workdir / "ledger/clean/records", 0, "k" * 64)


class Attempt:
    """An attempt at shard 0 that has begun, and ends by `end`."""

    def __init__(self, workdir: Storage, text: str):
        self._stack = contextlib.ExitStack()
        self.text = text
        self.writer = self._stack.enter_context(
            ShardWriter(workdir, place_of(workdir), {"": SCHEMA}, dataset="clean")
        )
        self.writer.enter(1)
        self.writer.write(
            pa.RecordBatch.from_pydict({"url_id": [7], "text": [text]}, schema=SCHEMA)
        )

    def end(self, outcome: str) -> None:
        """End the attempt: it "succeeds" or "fails"."""
        if outcome == "succeeds":
            self._stack.close()
            return
        with contextlib.suppress(OSError), self._stack:
            raise OSError("the network is gone")


def published(workdir: Storage) -> tuple[Manifest, list[dict[str, Any]]]:
    """Publish the shard and sweep the folder; returns the manifest and the rows."""
    record, _ = place_of(workdir).find()
    assert record is not None
    _, version = read_root(workdir)
    fields = {
        "dataset": "clean",
        "stage": "clean",
        "stage_version": 1,
        "num_shards": 1,
        "counts": record.counts,
    }
    manifest, _ = publish_dataset(workdir, [record], version=version, **fields)
    sweep(workdir, "", 1e11, {"clean"})
    reader = DatasetReader(workdir, manifest)
    assert lost_files(workdir, reader.table_of_files.files) == {}
    for file in reader.table_of_files.files:
        assert workdir.sha256(file.path) == file.sha256
    return manifest, reader.table().to_pylist()


ORDERS = [
    (ends, second_begins, is_same_text)
    for ends in product(["succeeds", "fails"], repeat=2)
    for second_begins in ("before the first ends", "after the first ends")
    for is_same_text in (True, False)
]


@pytest.mark.parametrize(("ends", "second_begins", "is_same_text"), ORDERS)
def test_the_first_record_decides_whatever_a_late_attempt_does(
    workdir: Storage, ends: tuple[str, str], second_begins: str, is_same_text: bool
) -> None:
    texts = ("first", "first" if is_same_text else "second")
    first = Attempt(workdir, texts[0])
    second = Attempt(workdir, texts[1]) if second_begins == "before the first ends" else None
    first.end(ends[0])
    second = second or Attempt(workdir, texts[1])
    if ends[0] == "succeeds":
        digest_by_path = {
            file.path: workdir.sha256(file.path) for file in place_of(workdir).find()[0].files
        }
    second.end(ends[1])
    if ends == ("fails", "fails"):
        assert place_of(workdir).records.names() == []
        assert [name for name in workdir.names() if name.startswith("clean/")] == []
        return
    if ends[0] == "succeeds":
        assert {path: workdir.sha256(path) for path in digest_by_path} == digest_by_path
    winner = texts[0] if ends[0] == "succeeds" else texts[1]
    _, rows = published(workdir)
    assert [row["text"] for row in rows] == [winner]
    assert len([name for name in workdir.names() if name.startswith("clean/")]) == 1, (
        "sweeping removes the others"
    )


def test_an_attempt_that_ends_after_publication_harms_nothing(workdir: Storage) -> None:
    # One late attempt writes the same bytes, one writes others, and one fails.
    attempts = [Attempt(workdir, text) for text in ("first", "first", "other", "failing")]
    attempts[0].end("succeeds")
    manifest, rows = published(workdir)
    attempts[1].end("succeeds")
    attempts[2].end("succeeds")
    attempts[3].end("fails")
    reader = DatasetReader(workdir, manifest)
    assert lost_files(workdir, reader.table_of_files.files) == {}
    assert reader.table().to_pylist() == rows
    unpublished = [
        name
        for name in workdir.names()
        if name not in {file.path for file in reader.table_of_files.files}
    ]
    assert any(name.startswith("clean/") for name in unpublished), (
        "the late file is there until the next sweep"
    )
    sweep(workdir, "", 1e11, {"clean"})
    assert sorted(name for name in workdir.names() if name.startswith("clean/")) == [
        reader.files("data")[0].path
    ]


def killed_before_its_record(uri: str, text: str) -> None:
    """Write a shard up to its record; the main function of a process, which is killed there."""
    attempt = Attempt(Storage(uri), text)
    Storage.swap = lambda *_: os.kill(os.getpid(), signal.SIGKILL)  # type: ignore[assignment,method-assign,return-value]
    attempt.end("succeeds")


@pytest.mark.parametrize("is_same_text", [True, False])
def test_an_attempt_killed_before_its_record_counts_for_nothing(
    workdir: Storage, is_same_text: bool
) -> None:
    context = multiprocessing.get_context("spawn")
    process = context.Process(target=killed_before_its_record, args=(workdir.uri, "killed"))
    process.start()
    process.join()
    assert process.exitcode == -signal.SIGKILL
    assert [name for name in workdir.names() if name.startswith("clean/")], (
        "its files were published"
    )
    assert place_of(workdir).records.names() == []
    Attempt(workdir, "killed" if is_same_text else "second").end("succeeds")
    _, rows = published(workdir)
    assert [row["text"] for row in rows] == ["killed" if is_same_text else "second"]
    assert len([name for name in workdir.names() if name.startswith("clean/")]) == 1


def test_a_file_does_not_depend_on_its_rows_batches(
    workdir: Storage, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(commit, "ROW_GROUP_BYTES", 5_000)
    kinds = [
        ("url_id", pa.uint64()),
        ("text", pa.string()),
        ("words", pa.list_(pa.uint16())),
        ("s", pa.list_(pa.string())),
    ]
    schema = pa.schema([pa.field(name, kind) for name, kind in kinds])
    rng = random.Random(7)
    columns: dict[str, list[Any]] = {
        "url_id": list(range(500)),
        "text": [rng.choice([None, "ö" * rng.randrange(400)]) for _ in range(500)],
        "words": [rng.choice([None, [1] * rng.randrange(90)]) for _ in range(500)],
        "s": [rng.choice([None, ["a"] * rng.randrange(9)]) for _ in range(500)],
    }
    # This row is larger than a row group.
    columns["text"][250] = "x" * 20_000
    rows = pa.RecordBatch.from_pydict(columns, schema=schema)

    written = set()
    for attempt, max_rows in enumerate([1, 7, 90, 500]):
        folder = workdir / str(attempt)
        with ShardWriter(folder, place_of(folder), {"": schema}, dataset="clean") as writer:
            writer.enter(500)
            start = 0
            while start < 500:
                count = rng.randint(1, max_rows) if max_rows < 500 else 500
                writer.write(rows.slice(start, count))
                start += count
        written.add(tuple(file.sha256 for file in place_of(folder).find()[0].files))
    assert len(written) == 1
