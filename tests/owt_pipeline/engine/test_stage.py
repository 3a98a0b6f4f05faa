"""The life of a stage: skipping, resuming, balancing, and saying why."""

from __future__ import annotations

import re
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pytest

from owt_pipeline.engine.runner import run_stage
from owt_pipeline.engine.stage import Runtime, Stage, StageRun, Step, rows_of_input
from owt_pipeline.engine.workers import WorkerPool, map_batches
from owt_pipeline.errors import UserError, WorkerError
from owt_pipeline.ledger.commit import ShardWriter
from owt_pipeline.ledger.dataset import DatasetReader, Outcome, rejects_batch, replace_columns
from owt_pipeline.ledger.exchange import Slice
from owt_pipeline.ledger.root import read_manifest, require_manifest
from owt_pipeline.storage.folder import Storage
from schemas import DATASETS, Reason, option
from tests.owt_pipeline.making import add_rows, publish_rows
from tests.owt_pipeline.runs import copy_of, snapshot

pytestmark = pytest.mark.beam

DOCUMENTS = DATASETS["documents"].schema
ROWS = 50


@dataclass(frozen=True)
class MakeOptions:
    shards: int = option(3, "shards")


@dataclass(frozen=True)
class FilterOptions:
    divisor: int = option(2, "ids it divides are rejected", minimum=1)
    lose: bool = option(False, "lose a row", shapes_bytes=False)


def filter_batch(batch: pa.RecordBatch, divisor: int, lose: bool) -> Outcome:
    is_dropped = pc.equal(
        pc.subtract(batch["url_id"], pc.multiply(pc.divide(batch["url_id"], divisor), divisor)), 0
    )
    dropped = batch.filter(is_dropped)
    rejects = rejects_batch(
        (i, None, Reason.TOO_SHORT, None) for i in dropped["url_id"].to_pylist()
    )
    clean = DATASETS["clean"].schema
    kept_rows = batch.filter(pc.invert(is_dropped))
    ones = [1] * kept_rows.num_rows
    counts = {"language_score": ones, "n_words": ones, "n_chars": ones, "n_bytes": ones}
    none = [None] * kept_rows.num_rows
    kept_rows = replace_columns(kept_rows, clean, **counts, signals=none, own_signals=none)
    return Outcome(kept_rows.slice(1) if lose else kept_rows, rejects, {"batches": 1})


def make_shard(run: StageRun, shard: int, _: Sequence[Slice], writer: ShardWriter) -> None:
    rows = [{"url_id": 1000 * shard + i, "text": f"text {i} " * 20} for i in range(ROWS)]
    add_rows(writer, "documents", rows)


def filter_shard(run: StageRun, shard: int, _: Sequence[Slice], writer: ShardWriter) -> None:
    run.map_batches(
        shard,
        writer,
        partial(filter_batch, divisor=run.options.divisor, lose=run.options.lose),
        rows=16,
    )


class Make(Stage):
    name = "extract"
    output = "documents"
    options = MakeOptions
    version = 1

    def __init__(
        self, work: Callable[[StageRun, int, Sequence[Slice], ShardWriter], None] = make_shard
    ):
        self.steps = (Step(work),)

    def shards_for(self, options: MakeOptions, sources: Any) -> int:
        return options.shards


class Filter(Stage):
    name = "clean"
    inputs = ("documents",)
    output = "clean"
    options = FilterOptions
    version = 1
    steps = (Step(filter_shard, rows=rows_of_input),)


MAKE = Make()
FILTER = Filter()


@pytest.fixture
def runtime(tmp_path: Path) -> Runtime:
    return Runtime(Storage(str(tmp_path)), workers=1)


def test_a_stage_balances_and_is_finished_when_run_again(runtime: Runtime) -> None:
    run_stage(MAKE, MakeOptions(), runtime)
    manifest, ran = run_stage(FILTER, FilterOptions(), runtime)
    assert ran
    assert manifest.counts.entered == 3 * ROWS
    assert manifest.counts.left == manifest.counts.rejected["too_short"] == 3 * ROWS // 2
    rerun_manifest, ran = run_stage(FILTER, FilterOptions(), runtime)
    assert not ran
    assert rerun_manifest == manifest
    rows = DatasetReader(runtime.workdir, manifest).table()
    assert rows["url_id"].to_pylist() == [1000 * s + i for s in range(3) for i in range(1, ROWS, 2)]


def test_an_option_that_fails_leaves_the_old_output(runtime: Runtime, tmp_path: Path) -> None:
    run_stage(MAKE, MakeOptions(), runtime)
    manifest = run_stage(FILTER, FilterOptions(), runtime)[0]
    files = snapshot(tmp_path)
    with pytest.raises(WorkerError):
        run_stage(FILTER, FilterOptions(divisor=5, lose=True), runtime)
    assert snapshot(tmp_path).items() >= files.items()
    # The published options need nothing, so the unpublished files of the others stay for their
    # next run.
    assert run_stage(FILTER, FilterOptions(), runtime) == (manifest, False)
    assert snapshot(tmp_path).items() >= files.items()
    run_stage(FILTER, FilterOptions(divisor=5), runtime)
    assert run_stage(FILTER, FilterOptions(), runtime)[0] == manifest
    assert snapshot(tmp_path) == files


def test_a_lost_row_fails_the_stage(runtime: Runtime) -> None:
    run_stage(MAKE, MakeOptions(), runtime)
    with pytest.raises(WorkerError, match="50 in ≠ 21 out"):
        run_stage(FILTER, FilterOptions(lose=True), runtime)
    assert read_manifest(runtime.workdir, "clean") is None


def test_a_missing_input_names_the_stage_to_run(runtime: Runtime) -> None:
    with pytest.raises(UserError, match="documents is missing or not finished"):
        run_stage(FILTER, FilterOptions(), runtime)
    # A stage before it writes urls/.
    publish_rows(runtime.workdir, "urls", [])
    with pytest.raises(UserError, match=r"run `owt run .* --until extract"):
        run_stage(FILTER, FilterOptions(), runtime)


def first_is_slow(batch: pa.RecordBatch) -> int:
    (i,) = batch["i"].to_pylist()
    time.sleep(0.5 * (i % 50 == 0))
    return i


def test_a_slow_batch_holds_others_back_then_they_continue() -> None:
    pool = WorkerPool(2)
    try:
        batches = [pa.RecordBatch.from_pydict({"i": [i]}) for i in range(150)]
        assert [result for _, result in pool.map(first_is_slow, batches)] == list(range(150))
    finally:
        pool.close()


def test_a_map_that_is_given_up_does_not_answer_into_the_next() -> None:
    batches = [pa.RecordBatch.from_pydict({"i": [i]}) for i in range(10, 40)]
    first = map_batches(first_is_slow, batches, 2)
    next(first)
    first.close()
    assert [r for _, r in map_batches(first_is_slow, batches[5:], 2)] == list(range(15, 40))


PAGE = Path(__file__).parents[3] / "CONTRIBUTING.md"
MIN_WORDS = 250
SCRIPT = """
import sys

from long_documents import Long, Options
from owt_pipeline.engine.runner import run_stage
from owt_pipeline.engine.stage import Runtime
from owt_pipeline.storage.folder import Storage

_, folder, workers, min_words = sys.argv
for _ in range(2):
    print(run_stage(Long(), Options(int(min_words)), Runtime(Storage(folder), int(workers)))[1])
"""


def test_the_stage_of_the_page_runs_and_is_then_finished(small_run: Path, tmp_path: Path) -> None:
    (code,) = re.findall(r"## Add a stage\n.*?```python\n(.*?)```", PAGE.read_text(), re.DOTALL)
    assert len(code.splitlines()) <= 45
    (tmp_path / "long_documents.py").write_text(code)
    (tmp_path / "script.py").write_text(SCRIPT)
    written = []
    for workers in ("1", "2"):
        run = copy_of(
            small_run, tmp_path / f"run-{workers}", without=("corpus", "tokens", "report")
        )
        command = [sys.executable, tmp_path / "script.py", run, workers, str(MIN_WORDS)]
        assert subprocess.run(
            command, check=True, capture_output=True, text=True
        ).stdout.split() == ["True", "False"]
        manifest = require_manifest(Storage(str(run)), "corpus")
        lengths = (
            DatasetReader(Storage(str(run)), manifest)
            .table(columns=["n_words"])["n_words"]
            .to_pylist()
        )
        assert lengths
        assert min(lengths) >= MIN_WORDS
        assert manifest.counts.rejected["too_short"] > 0
        written.append(snapshot(run))
    assert written[0] == written[1]
