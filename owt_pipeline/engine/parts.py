"""Making parts: one in this process, or many in the processes of the local pool."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import CancelledError, ThreadPoolExecutor, as_completed
from contextvars import ContextVar
from dataclasses import dataclass
from functools import partial
from typing import Any, TypeVar

# numpy imports it when it is first used, and may fail where two threads do so at once
import numpy.ma  # noqa: F401

from owt_pipeline import progress
from owt_pipeline.engine.plan import is_published, open_run, plan_stage
from owt_pipeline.engine.publish import publish
from owt_pipeline.engine.stage import SHARDS, Runtime, Stage, StageRun, Step
from owt_pipeline.engine.workers import WorkerDied, WorkerPool, died, shared_pool
from owt_pipeline.errors import UserError
from owt_pipeline.ledger.commit import ShardWriter
from owt_pipeline.ledger.exchange import SLICES, Slice, read_index
from owt_pipeline.ledger.root import read_root
from owt_pipeline.storage.folder import Storage
from owt_pipeline.storage.lock import renew
from schemas import DATASETS
from schemas.manifest import Manifest, ShardFile, ShardRecord

T = TypeVar("T")


_failed: ContextVar[threading.Event] = ContextVar("_failed")
"""Of a thread that makes a part next to others: set once one of them has failed."""


def stop_after_failure() -> None:
    """Raise CancelledError if a part that this process made next to this one has failed; for
    work that takes hours."""
    if (failed := _failed.get(None)) is not None and failed.is_set():
        raise CancelledError


@dataclass(frozen=True)
class Done:
    """A finished part: its record, the (key, slice) pairs it sent to the next step, and the
    seconds that this attempt took; 0 if the part was finished before. It has no record if the
    attempt is late: its output is published.
    """

    record: ShardRecord | None
    sent: Sequence[tuple[int, Slice]] = ()
    seconds: float = 0.0


@dataclass(frozen=True)
class Work:
    """One step of a stage at work: everything a process needs to make any of its parts;
    picklable."""

    stage: Stage
    options: Any
    runtime: Runtime
    index: int
    plan: str

    @property
    def step(self) -> Step:
        return self.stage.steps[self.index]

    def open(self) -> StageRun:
        return open_run(self.stage, self.options, self.runtime, self.plan)

    def keys_after(self) -> list[int]:
        """Keys of the next step's parts that exist even if nothing is sent to them; none if the
        attempt is late."""
        return (
            self.skip_if_superseded(
                lambda: list(self.stage.steps[self.index + 1].keys(self.open()))
            )
            or []
        )

    def do(self, key: int, slices: Sequence[Slice]) -> Done:
        """Make a part, unless its record says that it is finished."""
        return self.skip_if_superseded(lambda: self._do(key, slices)) or Done(None)

    def skip_if_superseded(self, call: Callable[[], T]) -> T | None:
        """`call()`; None if it fails because the stage is published, so that nothing needs this
        attempt, and what it reads may have been swept away."""
        try:
            return call()
        except (UserError, OSError):
            if self._is_late():
                return None
            raise

    def _do(self, key: int, slices: Sequence[Slice]) -> Done:
        started = time.monotonic()
        run, seconds = self.open(), 0.0
        if (
            self.runtime.lock
        ):  # a part of a later step looks: it lacks what parts of a lost run have not sent
            renew(run.workdir, self.runtime.run, look=self.index > 0)
        place = run.record_path(self.step.name, key)
        folder = run.workdir if self.step.name == SHARDS else run.work
        record, version = place.find()
        if record is not None and not all(_is_there(folder, file) for file in record.files):
            record = None
        if record is None:
            record = _make(run, self.step, key, sorted(set(slices)), version)
            seconds = time.monotonic() - started
        paths = [file.path for file in record.files if file.kind == SLICES]
        return Done(
            record, [slice for path in paths for slice in read_index(run.work, path)], seconds
        )

    def _is_late(self) -> bool:
        try:
            return is_published(self.open())
        except OSError:  # its plan was swept away, which happens after the run has ended
            return self.stage.output in read_root(self.runtime.workdir)[0].datasets


def _is_there(folder: Storage, file: ShardFile) -> bool:
    try:
        return folder.size(file.path) == file.bytes
    except FileNotFoundError:
        return False


def _make(
    run: StageRun, step: Step, key: int, slices: Sequence[Slice], replaces: str | None
) -> ShardRecord:
    place = run.record_path(step.name, key)
    if step.name == SHARDS:
        dataset = DATASETS.get(run.stage.output)
        outputs = (step.outputs(run) or {"": dataset.schema}) if dataset else {}
        file_format = dataset.format if dataset else "parquet"
        writer = ShardWriter(
            run.workdir,
            place,
            outputs,
            dataset=run.stage.output,
            file_format=file_format,
            replaces=replaces,
        )
    else:
        writer = ShardWriter(run.work, place, {}, step=step.name, replaces=replaces)
    with writer:
        step.work(run, key, slices, writer)
    # If another attempt's record came first, that attempt's files count.
    return writer.record if writer.is_first else place.find()[0] or writer.record


def do_locally(work: Work, parts: Mapping[int, Sequence[Slice]]) -> Iterator[tuple[int, Done]]:
    """Make parts with the local pool, the largest first; yields each when it is finished.

    Raises what a part raised, or WorkerError if a process died; the other processes are then
    killed.
    """
    step, run = work.step, work.skip_if_superseded(work.open)
    if run is None or not parts:
        return
    if (known := step.rows(run)) is not None:
        rows = dict(known) if isinstance(known, Mapping) else dict(enumerate(known))
    else:
        rows = (
            {key: sum(slice.rows for slice in slices) for key, slices in parts.items()}
            if work.index
            else {}
        )
    sizes = {key: rows.get(key, 1) for key in sorted(parts)}
    together = step.max_concurrent(run) if callable(step.max_concurrent) else step.max_concurrent
    workers = work.runtime.workers
    pool = shared_pool(workers) if workers > 1 and not together else None
    order = sorted(sizes, key=lambda key: -sizes[key]) if pool else list(sizes)

    def make(key: int) -> Done:
        if pool is None:
            return work.do(key, parts[key])
        done = pool.submit(partial(work.do, key), parts[key]).result()
        if isinstance(done, WorkerDied):
            raise died(done)
        return done

    with progress.step(
        title(work.stage, step), shards=len(sizes), rows=sum(sizes.values()) if rows else None
    ):
        number = together or workers
        done = (
            ((key, make(key)) for key in order)
            if number == 1
            else at_once(order, number, make, pool)
        )
        for key, result in done:
            progress.shard_done()
            yield key, result


def make_here(stage: Stage, options: Any, runtime: Runtime) -> Manifest:
    """Run a stage in this process and its pool, without a runner: the same phases and steps as
    in the graph.

    Raises UserError for errors that the user can fix, LedgerError if rows were lost or invented.
    """
    run = plan_stage(stage, options, runtime)
    if isinstance(run, Manifest):
        return run
    parts: dict[int, list[Slice]] = {key: [] for key in stage.steps[0].keys(run)}
    for index, step in enumerate(stage.steps):
        if index:
            parts = {**{key: [] for key in step.keys(run)}, **parts}
        sent: dict[int, list[Slice]] = {}
        for _, done in do_locally(Work(stage, options, runtime, index, run.name), parts):
            for key, slice in done.sent:
                sent.setdefault(key, []).append(slice)
        parts = sent
    return publish(stage, options, runtime, run.name, read_root(runtime.workdir)[1])[0]


def title(stage: Stage, step: Step) -> str:
    """The name of a step in the progress."""
    return stage.name if step.name == SHARDS else f"{stage.name} ({step.name})"


def at_once(
    keys: Sequence[int], number: int, make: Callable[[int], Done], pool: WorkerPool | None
) -> Iterator[tuple[int, Done]]:
    """Make `number` parts at once, in this order; an error, or Ctrl-C, does not wait for the
    others."""
    failed = threading.Event()
    threads = ThreadPoolExecutor(number, initializer=_failed.set, initargs=(failed,))
    cancelled: CancelledError | None = None
    try:
        futures = {threads.submit(make, key): key for key in keys}
        for future in as_completed(futures):
            try:
                yield futures[future], future.result()
            except (
                CancelledError
            ) as error:  # another part has failed and closed the pool; its error comes next
                cancelled = error
        if cancelled:
            raise cancelled
    except BaseException:
        failed.set()
        threads.shutdown(wait=False, cancel_futures=True)
        if pool is not None:
            pool.close()
        raise
