"""The graph of stages: steps that send rows to each other, in this process."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import pyarrow as pa
import pytest

from owt_pipeline.engine.batches import Outcome
from owt_pipeline.engine.commit import ShardWriter
from owt_pipeline.engine.dataset import DatasetReader
from owt_pipeline.engine.exchange import Slice, gather
from owt_pipeline.engine.runner import run_stage
from owt_pipeline.engine.stage import Runtime, Stage, StageRun, Step
from owt_pipeline.engine.storage import Storage
from schemas import DATASETS, option
from tests.owt_pipeline.whole_runs import snapshot

NUMBER = pa.schema([("number", pa.int64())])
DOCUMENTS = DATASETS["documents"].schema
SHARDS = 4


@dataclass(frozen=True)
class Options:
    parts: int = option(3, "parts of the first step", minimum=0)
    up_to: int = option(100, "numbers of each part", minimum=0)


def five_parts(run: StageRun) -> range:
    return range(run.options.parts)


def shards(options: Options) -> int:
    return SHARDS


def send_numbers(run: StageRun, part: int, _: Sequence[Slice], writer: ShardWriter) -> None:
    for number in range(part, run.options.up_to, run.options.parts):
        # Nothing goes to the last shard, which has to come out all the same.
        writer.send(number % (SHARDS - 1), pa.record_batch([pa.array([number])], NUMBER))


def write_numbers(run: StageRun, shard: int, slices: Sequence[Slice], writer: ShardWriter) -> None:
    numbers = sorted(gather(run.work, slices, NUMBER)["number"].to_pylist())
    rows = [{"url_id": number, "url": f"http://h/{number}", "text": "t", "subreddits": []} for number in numbers]
    writer.add(len(rows), Outcome(pa.RecordBatch.from_pylist(rows, DOCUMENTS)))


STAGE = Stage(
    "extract", "documents", (), Options, 1,
    (Step(send_numbers, "numbers", keys=five_parts, spread="shards"), Step(write_numbers, spread="shards")),
    "makes documents", num_shards=shards,
)  # fmt: skip


@pytest.mark.parametrize("parts", [0, 1, 5])
def test_rows_reach_the_part_they_are_sent_to_with_any_number_of_workers(tmp_path: Path, parts: int) -> None:
    written = []
    for workers in (1, 2):
        workdir = Storage(str(tmp_path / str(workers)))
        manifest, ran = run_stage(STAGE, Options(parts), Runtime(workdir, workers))
        assert ran
        assert manifest.num_shards == SHARDS
        reader = DatasetReader(workdir, manifest)
        found = [reader.table(shard)["url_id"].to_pylist() for shard in range(SHARDS)]
        expected = range(100) if parts else range(0)
        assert found == [[n for n in expected if n % (SHARDS - 1) == shard] for shard in range(SHARDS)]
        written.append(snapshot(tmp_path / str(workers)))
    assert written[0] == written[1]
