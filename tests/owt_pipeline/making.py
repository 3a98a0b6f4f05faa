"""Datasets that a test writes by itself, as a stage would have."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial

from owt_pipeline.engine.commit import ShardWriter
from owt_pipeline.engine.exchange import Slice
from owt_pipeline.engine.runner import run_stage
from owt_pipeline.engine.stage import Runtime, Stage, StageRun, Step
from owt_pipeline.engine.storage import Storage
from owt_pipeline.formats.urls import VERSION
from schemas import DATASETS
from schemas.manifest import Manifest


@dataclass(frozen=True)
class Options:
    num_shards: int = field(default=1, metadata={"help": "shards"})
    url_rules: int = field(default=VERSION, metadata={"help": "version of the rules for URLs"})


_writers: list[Callable[[int, ShardWriter], None]] = []  # kept here: the pipeline would ship what they hold to itself


def stage_that_writes(dataset: str, write: Callable[[int, ShardWriter], None], stage: str = "") -> Stage:
    """A stage that makes `dataset` from nothing, shard by shard, by `write(shard, writer)`, in this process."""
    _writers.append(write)
    steps = (Step(partial(_write, len(_writers) - 1)),)
    return Stage(stage or DATASETS[dataset].stage, dataset, (), Options, 1, steps, "makes", num_shards=_num_shards)


def _write(number: int, run: StageRun, shard: int, _: Sequence[Slice], writer: ShardWriter) -> None:
    _writers[number](shard, writer)


def _num_shards(options: Options) -> int:
    return options.num_shards


def write_dataset(
    workdir: Storage, dataset: str, write: Callable[[int, ShardWriter], None], num_shards: int = 1
) -> Manifest:
    """Make `dataset` in `workdir`."""
    return run_stage(stage_that_writes(dataset, write), Options(num_shards), Runtime(workdir))[0]
