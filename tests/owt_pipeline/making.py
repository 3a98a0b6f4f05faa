"""Datasets that a test writes by itself, as a stage would have."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any
from uuid import uuid4

import pyarrow as pa

from owt_pipeline.engine.runner import run_stage
from owt_pipeline.engine.stage import Runtime, Stage, StageRun, Step
from owt_pipeline.ledger.commit import ShardWriter, publish, version_of_manifest
from owt_pipeline.ledger.exchange import Slice
from owt_pipeline.storage.folder import Storage
from schemas import DATASETS, REJECTS
from schemas.manifest import Manifest


@dataclass(frozen=True)
class Options:
    num_shards: int = field(default=1, metadata={"help": "shards"})


_writers: list[Callable[[int, ShardWriter], None]] = []  # kept here: the pipeline would ship what they hold to itself


def stage_that_writes(dataset: str, write: Callable[[int, ShardWriter], None], stage: str = "") -> Stage:
    """A stage that makes `dataset` from nothing, shard by shard, by `write(shard, writer)`, in this process."""
    _writers.append(write)
    return Writing(dataset, stage or DATASETS[dataset].stage, len(_writers) - 1)


class Writing(Stage):
    options = Options
    version = 1

    def __init__(self, dataset: str, name: str, number: int):
        self.name, self.output = name, dataset
        self.steps = (Step(partial(_write, number)),)

    def num_shards(self, options: Options) -> int:
        return options.num_shards


def _write(number: int, run: StageRun, shard: int, _: Sequence[Slice], writer: ShardWriter) -> None:
    _writers[number](shard, writer)


def write_dataset(
    workdir: Storage,
    dataset: str,
    write: Callable[[int, ShardWriter], None],
    num_shards: int = 1,
) -> Manifest:
    """Make `dataset` in `workdir`."""
    return run_stage(stage_that_writes(dataset, write), Options(num_shards), Runtime(workdir))[0]


def publish_rows(
    workdir: Storage,
    dataset: str,
    rows: Sequence[Mapping[str, Any]],
    rejects: Sequence[Mapping[str, Any]] = (),
    **about: Any,
) -> Manifest:
    """Write a dataset of one shard, in place of one that is there, without a pipeline; fields not given are empty."""
    schema = DATASETS[dataset].schema
    with ShardWriter(workdir, workdir / f".records/{uuid4()}", 0, {"": schema}, dataset=dataset) as writer:
        writer.enter(len(rows) + len(rejects))
        writer.write(_batch(rows, schema))
        writer.reject(_batch(rejects, REJECTS))
    known = {
        "dataset": dataset,
        "stage": DATASETS[dataset].stage,
        "stage_version": 1,
        "fingerprint": "",
        "num_shards": 1,
    }
    replaces = version_of_manifest(workdir, dataset)
    return publish(workdir, [writer.record], [], replaces=replaces, counts=writer.record.counts, **{**known, **about})


def _batch(rows: Sequence[Mapping[str, Any]], schema: pa.Schema) -> pa.RecordBatch:
    full = [{field.name: row.get(field.name, _empty(field.type)) for field in schema} for row in rows]
    return pa.RecordBatch.from_pylist(full, schema)


def _empty(kind: pa.DataType) -> Any:
    if pa.types.is_list(kind):
        return []
    return "" if pa.types.is_string(kind) else None if pa.types.is_struct(kind) else 0
