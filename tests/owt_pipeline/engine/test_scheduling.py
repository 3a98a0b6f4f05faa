"""Parts in the local pool's processes: who makes which, and what happens to the others when one
fails."""

from __future__ import annotations

import os
import re
import shutil
import signal
import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from owt_pipeline import progress
from owt_pipeline.engine.runner import run_stage
from owt_pipeline.engine.stage import Runtime, Stage, StageRun, Step
from owt_pipeline.engine.workers import map_batches
from owt_pipeline.errors import UserError, WorkerError
from owt_pipeline.ledger.commit import ShardWriter
from owt_pipeline.ledger.exchange import Slice
from owt_pipeline.storage.folder import Storage
from schemas import DATASETS, option
from tests.owt_pipeline.making import add_rows
from tests.owt_pipeline.runs import snapshot

pytestmark = pytest.mark.beam

DOCUMENTS = DATASETS["documents"].schema
ROWS = (40, 700, 60, 50, 0, 70)


@dataclass(frozen=True)
class Options:
    rows: tuple[int, ...] = option(ROWS, "rows of each shard")
    fault: str = option("", "what happens at shard 1", shapes_bytes=False)
    folder: str = option("", "for the notes", shapes_bytes=False)


def rows_of(run: StageRun) -> Sequence[int]:
    return run.options.rows


def pid_of(batch: pa.RecordBatch) -> int:
    """Return the process that works at a batch, which takes a time by its rows."""
    time.sleep(0.0005 * batch.num_rows)
    return os.getpid()


def note_pids(run: StageRun, shard: int, _: Sequence[Slice], writer: ShardWriter) -> None:
    """Write a file for each shard: the processes of its batches, and the one that wrote it."""
    rows = run.options.rows[shard]
    batches = (
        pa.RecordBatch.from_pydict({"i": range(min(10, rows - at))}) for at in range(0, rows, 10)
    )
    pids = []
    for batch, pid in map_batches(pid_of, batches, run.runtime.workers):
        pids.append(pid)
        progress.advance(batch.num_rows)
    with open(f"{run.options.folder}/{shard}", "x") as file:
        file.write(" ".join(map(str, [*pids, os.getpid()])))


class Making(Stage):
    name = "extract"
    output = "documents"
    options = Options
    version = 1

    def shards_for(self, options: Options, sources: Any) -> int:
        return len(options.rows)


class Noting(Making):
    def __init__(self, together: int):
        self.steps = (Step(note_pids, rows=rows_of, max_concurrent=together),)


class Seen(progress.Step):
    """A step that remembers how far the last one came."""

    last = (0, 0)

    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        Seen.last = (0, 0)

    def advance(self, rows: int, rejected: Mapping[str, int], shards: int = 0) -> None:
        super().advance(rows, rejected, shards)
        Seen.last = (Seen.last[0] + rows, Seen.last[1] + shards)


@pytest.mark.slow
@settings(max_examples=6, deadline=None)
@given(st.lists(st.integers(0, 60), min_size=1, max_size=9).map(tuple))
def test_every_shard_is_written_once_whatever_their_sizes(rows: tuple[int, ...]) -> None:
    before, progress.Step = progress.Step, Seen
    try:
        for together in (0, 1, 2):
            with tempfile.TemporaryDirectory() as notes, tempfile.TemporaryDirectory() as folder:
                run_stage(
                    Noting(together), Options(rows, folder=notes), Runtime(Storage(folder), 2)
                )
                assert sorted(map(int, os.listdir(notes))) == list(range(len(rows)))
                assert Seen.last == (sum(rows), len(rows))
    finally:
        progress.Step = before


def test_a_shard_is_one_worker_s_and_the_largest_is_begun_first(tmp_path: Path) -> None:
    (tmp_path / "notes").mkdir()
    options = Options(folder=str(tmp_path / "notes"))
    run_stage(Noting(0), options, Runtime(Storage(str(tmp_path / "run")), 2))
    pids = {
        shard: set((tmp_path / "notes" / str(shard)).read_text().split())
        for shard in range(len(ROWS))
    }
    assert all(len(of_shard) == 1 for of_shard in pids.values())
    assert str(os.getpid()) not in set.union(*pids.values())
    assert len(set.union(*pids.values())) == 2
    notes = sorted((tmp_path / "notes").iterdir(), key=lambda path: path.stat().st_mtime)
    assert notes[-1].name == "1", "700 of 920 rows: the other worker has made all others meanwhile"


def write_documents(run: StageRun, shard: int, _: Sequence[Slice], writer: ShardWriter) -> None:
    fault = run.options.fault
    for start in range(0, ROWS[shard], 10):
        numbers = range(start, start + 10)
        add_rows(
            writer,
            "documents",
            [{"url_id": 1000 * shard + i, "text": f"text {i}"} for i in numbers],
        )
        if shard == 1 and start == 200 and fault:
            while run.record_path("shards", 5).find()[0] is None:
                time.sleep(0.01)
            if fault == "SIGKILL":
                os.kill(os.getpid(), signal.SIGKILL)
            raise {"UserError": UserError, "OSError": OSError, "KeyError": KeyError}[fault](
                "the disk was pulled out"
            )
        time.sleep(0.005)


class Writing(Making):
    steps = (Step(write_documents, rows=rows_of),)


def documents_in(folder: Path, workers: int, fault: str = "") -> dict[str, bytes]:
    run_stage(Writing(), Options(fault=fault), Runtime(Storage(str(folder)), workers))
    return snapshot(folder)


@pytest.mark.parametrize(
    ("fault", "error", "message"),
    [
        ("UserError", UserError, "^the disk was pulled out$"),
        ("OSError", UserError, "the disk was pulled out$"),
        pytest.param("KeyError", WorkerError, "in write_documents", marks=pytest.mark.slow),
        ("SIGKILL", UserError, "was killed, probably by the kernel"),
    ],
)
def test_a_failed_shard_has_a_reason_and_a_rerun_continues_at_it(
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
    fault: str,
    error: type[Exception],
    message: str,
) -> None:
    with pytest.raises(error, match=message):
        documents_in(tmp_path, 2, fault)
    assert list((tmp_path / "documents").glob("part-00005-*.parquet"))
    caplog.set_level("INFO", logger="owt")
    resumed = documents_in(tmp_path, 2)
    assert re.search("resuming with [1-5] of 6 shards finished", caplog.text)
    # The killed processes had begun these files.
    assert not list(tmp_path.rglob("*-*.tmp"))
    shutil.rmtree(tmp_path / "ledger")
    shutil.rmtree(tmp_path / "documents")
    assert resumed == documents_in(tmp_path, 1)
