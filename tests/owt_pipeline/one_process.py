"""Run commands in this process, each as if it had a process of its own.

A command can be stopped at a write, and the stages can run without Beam's runner.
"""

from __future__ import annotations

import contextlib
import functools
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from unittest import mock

from owt_pipeline.engine import graph, parts, plan, publish, runner, takedowns
from owt_pipeline.engine.stage import Stage
from owt_pipeline.errors import UserError
from owt_pipeline.ledger import dataset, root
from owt_pipeline.stages.export import corpus
from owt_pipeline.storage import lock
from owt_pipeline.storage.disk import Disk
from tests.owt_pipeline.runs import ask_owt


def forget_processes() -> None:
    """Clear what this process has cached about a run, as the start of a process would."""
    takedowns._read.cache_clear()
    corpus._forgotten_texts.cache_clear()
    plan._warn_once.cache_clear()
    parts._opened = None
    root._checked.clear()
    for value in vars(dataset).values():
        if hasattr(value, "cache_clear"):
            value.cache_clear()


run_with_beam = runner._run_locally
"""What runs the unfinished stages of a command."""


@contextlib.contextmanager
def without_runner() -> Iterator[None]:
    """Run the stages without Beam's runner, which takes half of the CPU time."""
    original = runner._run_locally
    plan_stage = runner.plan_stage

    def run_here(stages: Any, runtime: Any, version: str | None) -> None:
        for number, (stage, options) in enumerate(stages):
            # The later stages may read files that are missing.
            plan_with_later = functools.partial(plan_stage, later=stages[number + 1 :])
            with mock.patch.object(runner, "plan_stage", plan_with_later):
                runner.make_here(stage, options, runtime)
        publish.end_run(runtime, lock.take(runtime.workdir, runtime.run))

    runner._run_locally = run_here
    try:
        yield
    finally:
        runner._run_locally = original


_WRITES = ("put_file", "put", "put_if", "delete")


@contextlib.contextmanager
def stopping_at(num_writes: int, stop: Callable[[], None]) -> Iterator[None]:
    """Call `stop` in place of each write to a disk after the first `num_writes`."""
    remaining = iter(range(num_writes))
    originals = {name: getattr(Disk, name) for name in _WRITES}

    def counted(original: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(original)
        def write(*arguments: Any) -> Any:
            if next(remaining, None) is None:
                stop()
            return original(*arguments)

        return write

    for name, original in originals.items():
        setattr(Disk, name, counted(original))
    try:
        yield
    finally:
        for name, original in originals.items():
            setattr(Disk, name, original)


def interrupt(run: Path, stage: str, *flags: object) -> list[Path]:
    """Run a stage with these flags, and stop it before it publishes; returns its new records."""
    records = run / "ledger" / stage / "records"
    before = set(records.glob("*.json"))
    with stopping_before_publication():
        ask_owt("run", run, "--until", stage, *flags, code=1)
    finished = sorted(set(records.glob("*.json")) - before)
    assert len(finished) == 2
    return finished


@contextlib.contextmanager
def stopping_before_publication() -> Iterator[None]:
    """Stop each stage that has written its shards, with Beam's runner and without it."""

    def stop(*_: object) -> None:
        raise UserError("stopped")

    with mock.patch.object(graph, "publish", stop), mock.patch.object(runner, "publish", stop):
        yield


@contextlib.contextmanager
def stopping_at_publication_of(name: str) -> Iterator[None]:
    """Stop a stage that has written its shards, and none of the stages before it."""
    publish = runner.publish

    def publish_or_stop(stage: Stage, *arguments: Any) -> Any:
        if stage.name == name:
            raise UserError("stopped")
        return publish(stage, *arguments)

    with mock.patch.object(runner, "publish", publish_or_stop):
        yield


def refuse_writes() -> None:
    """Raise the error of a disk that was removed."""
    raise OSError(5, os.strerror(5), "a disk that was taken away")


def kill_this_process() -> None:
    """Stop this process as a power cut would."""
    os.kill(os.getpid(), 9)
