"""The beginning and the end of a run, which are the same with and without a process that waits for
the job.

A run begins by taking the lock of its folder and recording its generations, and ends by sweeping
the folder and releasing the lock. Repeated by the same run, both have no effect: `owt run` begins a
run before it builds the graph, to refuse impossible options, and the graph's first transform begins
it again. Whoever notices a failure first releases the lock.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from owt_pipeline.engine.generations import record_generations
from owt_pipeline.engine.stage import Runtime, Stage
from owt_pipeline.ledger.sweep import sweep
from owt_pipeline.storage.lock import is_held, release, take
from schemas.datasets import LEDGER


def start_run(
    stages: Sequence[tuple[Stage, Any]], runtime: Runtime, version: str | None
) -> tuple[str | None, float]:
    """Take the lock of the run's folder, and record the run's generations.

    `version` is the version of the root that this run has written last. If it is given, the
    generations are recorded already. Returns the version of the root manifest, and since when the
    lock is held, in seconds since 1970 by the clock of the storage. Raises InUse if another run is
    at work.
    """
    since = take(runtime.workdir, runtime.run, as_object=runtime.on_cluster)
    if version is None:
        _, version = record_generations(stages, runtime)
    return version, since


def end_run(runtime: Runtime, since: float) -> None:
    """Remove the files that nothing needs from the run's folder, and release the lock.

    `start_run` returned `since`. Without the lock, nothing is done: an earlier attempt at the end
    has released it, or another run has it.
    """
    workdir = runtime.workdir
    if runtime.lock and not is_held(workdir, runtime.run):
        return
    sweep(workdir, runtime.run, since, is_complete=runtime.is_complete)
    workdir.remove_dead_spools()
    workdir.tidy(LEDGER)
    release(workdir, runtime.run)
