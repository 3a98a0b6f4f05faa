"""Shards in worker processes: who writes which, and what becomes of the others when one fails."""

from __future__ import annotations

import os
import re
import shutil
import signal
import tempfile
import time
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from owt_pipeline.engine import progress
from owt_pipeline.engine.batches import Outcome
from owt_pipeline.engine.commit import ShardWriter
from owt_pipeline.engine.errors import UserError
from owt_pipeline.engine.runner import run_stage
from owt_pipeline.engine.stage import Runtime, Stage, StageRun
from owt_pipeline.engine.storage import Storage
from owt_pipeline.engine.workers import WorkerError, map_batches, write_in_processes
from schemas import DATASETS
from tests.owt_pipeline.whole_runs import snapshot

ROWS = (40, 700, 60, 50, 0, 70)


def pid_of(batch: pa.RecordBatch) -> int:
    time.sleep(0.0005 * batch.num_rows)
    return os.getpid()


def note_pids(shard: int, folder: str, rows: tuple[int, ...]) -> None:
    """A file for each shard: the processes that worked at its batches, and the one that wrote it."""
    batches = (pa.RecordBatch.from_pydict({"i": range(min(10, rows[shard] - at))}) for at in range(0, rows[shard], 10))
    pids = []
    for batch, pid in map_batches(pid_of, batches, 2):
        pids.append(pid)
        progress.advance(batch.num_rows)
    with open(f"{folder}/{shard}", "x") as file:
        file.write(" ".join(map(str, [*pids, os.getpid()])))
    progress.shard_done()


@settings(max_examples=20, deadline=None)
@given(st.lists(st.integers(0, 60), max_size=9).map(tuple))
def test_every_shard_is_written_once_whatever_their_sizes(rows: tuple[int, ...]) -> None:
    for divisible in (False, True):
        with tempfile.TemporaryDirectory() as folder, progress.step("work", shards=len(rows), rows=sum(rows)):
            write = partial(note_pids, folder=folder, rows=rows)
            write_in_processes(write, dict(enumerate(rows)), 2, divisible=divisible)
            assert sorted(map(int, os.listdir(folder))) == list(range(len(rows)))
            shown = progress._current
            assert shown is not None
            assert (shown.rows_done, shown.shards_done) == (sum(rows), len(rows))


def test_a_shard_is_one_worker_s_unless_it_is_more_than_its_share(tmp_path: Path) -> None:
    write_in_processes(partial(note_pids, folder=str(tmp_path), rows=ROWS), dict(enumerate(ROWS)), 2, divisible=True)
    pids = {shard: (tmp_path / str(shard)).read_text().split() for shard in range(len(ROWS))}
    here, workers = str(os.getpid()), set(pids[1][:-1])
    assert pids[1][-1] == here  # 700 of 920 rows: both workers share it, and this process writes it
    assert len(workers) == 2
    assert here not in workers
    alone = [shard for shard in (0, 2, 3, 4, 5) if pids[shard][-1] != here]
    assert {5, 2} <= set(alone)
    assert all(len(set(pids[shard])) == 1 for shard in alone)


@dataclass(frozen=True)
class NoOptions:
    pass


def write_documents(
    shard: int, writer: ShardWriter, folder: Path, error: type[Exception] | None = None, kill: bool = False
) -> None:
    for start in range(0, ROWS[shard], 10):
        rows = [
            {"url_id": 1000 * shard + i, "url": f"http://h/{shard}/{i}", "text": f"text {i}", "subreddits": []}
            for i in range(start, start + 10)
        ]
        writer.add(10, Outcome(pa.RecordBatch.from_pylist(rows, DATASETS["documents"].schema)))
        if shard == 1 and start == 200 and (kill or error):
            while not list(folder.glob("ledger/documents/.work/*/shards/part-00005.json")):
                time.sleep(0.01)
            if error is not None:
                raise error("the disk was pulled out")
            os.kill(os.getpid(), signal.SIGKILL)
        time.sleep(0.005)


def documents_in(folder: Path, workers: int, beam_flags: tuple[str, ...] = (), **fault: Any) -> dict[str, bytes]:
    def run(run: StageRun) -> None:
        run.write_shards(partial(write_documents, folder=folder, **fault), rows=ROWS, spread="shards")

    stage = Stage("extract", "documents", (), NoOptions, 1, run, "", num_shards=lambda options: len(ROWS))
    run_stage(stage, NoOptions(), Runtime(Storage(str(folder)), workers, beam_flags))
    return snapshot(folder)


@pytest.mark.parametrize(
    ("fault", "error", "message"),
    [
        ({"error": UserError}, UserError, "^the disk was pulled out$"),
        ({"error": OSError}, OSError, "^the disk was pulled out$"),
        ({"error": KeyError}, WorkerError, "in write_documents"),
        ({"kill": True}, WorkerError, "killed by SIGKILL. Out of memory"),
    ],
)
def test_a_shard_that_fails_says_why_and_a_rerun_goes_on_at_it(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, fault: dict[str, Any], error: type[Exception], message: str
) -> None:
    with pytest.raises(error, match=message):
        documents_in(tmp_path, 2, **fault)
    assert list((tmp_path / "documents").glob("part-00005-*.parquet"))
    caplog.set_level("INFO", logger="owt")
    resumed = documents_in(tmp_path, 2)
    assert re.search("[1-5] of 6 parts are finished", caplog.text)
    assert not list(tmp_path.rglob("*-*.tmp"))  # which those that were killed had begun
    shutil.rmtree(tmp_path / "ledger")
    shutil.rmtree(tmp_path / "documents")
    assert resumed == documents_in(tmp_path, 1)


def test_threads_of_beam_s_write_the_bytes_of_our_processes(tmp_path: Path) -> None:
    ours = documents_in(tmp_path, 2)
    shutil.rmtree(tmp_path / "ledger")
    shutil.rmtree(tmp_path / "documents")
    flags = ("--direct_running_mode=multi_threading", "--direct_num_workers=2")
    assert documents_in(tmp_path, 1, flags) == ours
