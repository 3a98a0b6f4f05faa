"""Make parts: one in this process, or many in the processes of the local pool."""

from __future__ import annotations

import dataclasses
import hashlib
import logging
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import CancelledError, ThreadPoolExecutor, as_completed
from contextvars import ContextVar
from dataclasses import dataclass
from functools import partial
from typing import Any, TypeVar

import msgspec
import numpy.ma  # noqa: F401

from owt_pipeline import progress
from owt_pipeline.engine.plan import StagePlan, plan_stages, read_list
from owt_pipeline.engine.stage import SHARDS, Plan, Runtime, Stage, StageRun, Step, work_of
from owt_pipeline.engine.workers import WorkerDied, WorkerPool, died, keep_pandas_out, shared_pool
from owt_pipeline.errors import UserError
from owt_pipeline.ledger.commit import ShardWriter, lost_files
from owt_pipeline.ledger.exchange import SLICES, Slice, read_index
from owt_pipeline.ledger.root import read_root
from owt_pipeline.ledger.sweep import work_name
from owt_pipeline.storage.folder import Storage
from owt_pipeline.storage.lock import renew
from schemas import DATASETS
from schemas.manifest import Manifest, Root, ShardFile, ShardRecord

T = TypeVar("T")


_failed: ContextVar[threading.Event] = ContextVar("_failed")
"""In threads that make parts at once: an event that is set when the first part has failed."""


def stop_after_failure() -> None:
    """Raise CancelledError if another part that this process makes has failed.

    Work that takes hours calls it now and then.
    """
    failed = _failed.get(None)
    if failed is not None and failed.is_set():
        raise CancelledError


@dataclass(frozen=True)
class Done:
    """A finished part.

    Attributes:
      record: its record; None if the attempt is late, since the output is published.
      sent: the (key, slice) pairs that it sent to the next step.
      seconds: how long this attempt took; 0 if the part was finished before.
    """

    record: ShardRecord | None
    sent: Sequence[tuple[int, Slice]] = ()
    seconds: float = 0.0


@dataclass(frozen=True)
class Work:
    """One step of a stage at work: everything a process needs to make any of its parts. Picklable.

    Attributes:
      stage: the stage.
      options: its options.
      runtime: how and where it runs.
      index: the step's place among the stage's steps.
      plan: `StageRun.name`.
    """

    stage: Stage
    options: Any
    runtime: Runtime
    index: int
    plan: str

    @property
    def step(self) -> Step:
        """Return the step."""
        return self.stage.steps[self.index]

    def open(self) -> StageRun:
        """Open the stage at work."""
        return open_run(self.stage, self.options, self.runtime, self.plan)

    def keys_after(self) -> list[int]:
        """Return the keys of the next step's parts that exist even if nothing is sent to them.

        There are none if the attempt is late.
        """
        next_step = self.stage.steps[self.index + 1]
        return self.skip_if_superseded(lambda: list(next_step.keys(self.open()))) or []

    def do(self, key: int, slices: Sequence[Slice]) -> Done:
        """Make a part, unless its record shows that it is finished."""
        return self.skip_if_superseded(lambda: self._do(key, slices)) or Done(None)

    def skip_if_superseded(self, call: Callable[[], T]) -> T | None:
        """Return `call()`; None if it fails because the stage is published.

        Then nothing needs this attempt, and its inputs may have been swept away.
        """
        try:
            return call()
        except (UserError, OSError):
            if self._is_late():
                return None
            raise

    def _do(self, key: int, slices: Sequence[Slice]) -> Done:
        started = time.monotonic()
        run = self.open()
        if self.runtime.lock:
            # A part of a later step always reads the lock. Otherwise it could be made without the
            # rows that parts of a superseded run have not sent.
            renew(run.workdir, self.runtime.run, look=self.index > 0)
        path = run.record_path(self.step.name, key)
        folder = run.workdir if self.step.name == SHARDS else run.work
        record, version = path.find()
        seconds = 0.0
        if record is None or not all(_has_size(folder, file) for file in record.files):
            record = _make(run, self.step, key, sorted(set(slices)), version)
            seconds = time.monotonic() - started
        sent: list[tuple[int, Slice]] = []
        for file in record.files:
            if file.kind == SLICES:
                sent += read_index(run.work, file.path)
        return Done(record, sent, seconds)

    def _is_late(self) -> bool:
        try:
            return is_published(self.open())
        except OSError:
            # The plan was swept away, which happens after the run has ended.
            return self.stage.output in read_root(self.runtime.workdir)[0].datasets


def _has_size(folder: Storage, file: ShardFile) -> bool:
    """Return whether a file exists with its size."""
    try:
        return folder.size(file.path) == file.bytes
    except FileNotFoundError:
        return False


def _make(
    run: StageRun, step: Step, key: int, slices: Sequence[Slice], replaces: str | None
) -> ShardRecord:
    """Make a part and return its record.

    `replaces` is the version of a damaged record, or of a record whose files are missing.
    """
    path = run.record_path(step.name, key)
    with _writer_of(run, step, key, replaces) as writer:
        step.work(run, key, slices, writer)
    if writer.is_first:
        return writer.record
    # If another attempt's record came first, that attempt's files count.
    first_record, _ = path.find()
    return first_record or writer.record


def _writer_of(run: StageRun, step: Step, key: int, replaces: str | None) -> ShardWriter:
    """Return the writer of a part."""
    path = run.record_path(step.name, key)
    if step.name != SHARDS:
        return ShardWriter(run.work, path, {}, step=step.name, replaces=replaces)
    output = run.stage.output
    dataset = DATASETS.get(output)
    if dataset is None:
        # The report has figures, and no rows.
        return ShardWriter(run.workdir, path, {}, dataset=output, replaces=replaces)
    return ShardWriter(
        run.workdir,
        path,
        step.outputs(run) or {"": dataset.schema},
        dataset=output,
        file_format=dataset.format,
        replaces=replaces,
    )


def do_locally(work: Work, parts: Mapping[int, Sequence[Slice]]) -> Iterator[tuple[int, Done]]:
    """Make parts on this machine, and yield each when it is finished.

    The processes of the local pool make them, the largest part first. The parts of a step with
    `max_concurrent` are made in threads of this process instead. Raises the error of a part, or
    WorkerError if a process died. The other processes are then killed.
    """
    step = work.step
    run = work.skip_if_superseded(work.open)
    if run is None or not parts:
        return
    rows_by_key = _rows_of_parts(work, run, parts)
    size_by_key = {key: rows_by_key.get(key, 1) for key in sorted(parts)}
    max_concurrent = step.max_concurrent
    if callable(max_concurrent):
        max_concurrent = max_concurrent(run)
    workers = work.runtime.workers
    pool: WorkerPool | None = None
    keys = list(size_by_key)
    if workers > 1 and not max_concurrent:
        pool = shared_pool(workers)
        # If the largest part came last, the other processes would wait for it.
        keys.sort(key=lambda key: -size_by_key[key])

    def make(key: int) -> Done:
        if pool is None:
            return work.do(key, parts[key])
        done = pool.submit(partial(work.do, key), parts[key]).result()
        if isinstance(done, WorkerDied):
            raise died(done)
        return done

    num_rows = sum(size_by_key.values()) if rows_by_key else None
    name = title(work.stage, step)
    with progress.step(name, shards=len(keys), rows=num_rows, unit=step.unit):
        num_threads = max_concurrent or workers
        finished: Iterator[tuple[int, Done]]
        if num_threads == 1:
            finished = ((key, make(key)) for key in keys)
        else:
            finished = at_once(keys, num_threads, make, pool)
        for key, done in finished:
            progress.shard_done()
            yield key, done


def _rows_of_parts(
    work: Work, run: StageRun, parts: Mapping[int, Sequence[Slice]]
) -> Mapping[int, int]:
    """Return the number of rows of each part, by its key; empty if it is not known."""
    rows = work.step.rows(run)
    if isinstance(rows, Mapping):
        return rows
    if rows is not None:
        return dict(enumerate(rows))
    if work.index == 0:
        return {}
    return {key: sum(slice.rows for slice in slices) for key, slices in parts.items()}


def title(stage: Stage, step: Step) -> str:
    """Return the name of a step in the progress."""
    if step.name == SHARDS:
        return stage.name
    return f"{stage.name} ({step.name})"


def at_once(
    keys: Sequence[int], number: int, make: Callable[[int], Done], pool: WorkerPool | None
) -> Iterator[tuple[int, Done]]:
    """Make `number` parts at once, in the order of `keys`, and yield each when it is finished.

    An error, or Ctrl-C, does not wait for the other parts.
    """
    failed = threading.Event()
    threads = ThreadPoolExecutor(number, initializer=_failed.set, initargs=(failed,))
    cancelled: CancelledError | None = None
    try:
        futures = {threads.submit(make, key): key for key in keys}
        for future in as_completed(futures):
            try:
                yield futures[future], future.result()
            except CancelledError as error:
                # Another part has failed and closed the pool. Its error comes next.
                cancelled = error
        if cancelled:
            raise cancelled
    except BaseException:
        failed.set()
        threads.shutdown(wait=False, cancel_futures=True)
        if pool is not None:
            pool.close()
        raise


logger = logging.getLogger("owt")


def plan_stage(
    stage: Stage, options: Any, runtime: Runtime, later: Sequence[tuple[Stage, Any]] = ()
) -> Manifest | StageRun:
    """Return the manifest if the output is finished, otherwise the stage ready to work.

    `later` are the stages after it. Their shards may need lost files of its output. Raises
    UserError for errors that the user can fix.
    """
    runtime.check_versions()
    workdir = runtime.workdir
    root, _ = read_root(workdir)
    plan = plan_stages([(stage, options), *later], workdir, root)[0]
    if plan.finished and plan.published is not None:
        return plan.published
    why = plan.why
    if why:
        num_pending = len(plan.pending)
        num_shards = len(plan.keys)
        logger.info("%s: %s; running %d of %d shards", stage.name, why, num_pending, num_shards)
    workdir.remove_dead_spools()
    logger.debug("%s: %s", stage.name, options)
    return _set_up(plan, runtime, root)


def _set_up(plan: StagePlan, runtime: Runtime, root: Root) -> StageRun:
    """Write the plan's file, and return the stage ready to work."""
    stage = plan.stage
    workdir = runtime.workdir
    names = [*stage.inputs, *stage.optional_inputs]
    if read_list(workdir, root.datasets.get(stage.output)) is not None:
        names.append(stage.output)
    datasets = {name: root.datasets[name] for name in names if name in root.datasets}
    bare_plan = Plan(
        root=msgspec.structs.replace(plan.root, datasets=datasets),
        keys=plan.keys,
        parts={shard: plan.parts[shard] for shard in sorted(plan.pending)},
        pending=frozenset(plan.pending),
        patched=frozenset(plan.patched),
        lost=frozenset(plan.lost),
        num_settled=plan.num_settled,
        started=time.time(),
    )
    folder = work_name(plan.keys, plan.num_settled)
    run = StageRun(stage, plan.options, runtime, bare_plan, f"{folder}/")
    summary = stage.set_up(run)
    for path, content in summary.contents.items():
        workdir.write(path, content)
    complete_plan = msgspec.structs.replace(
        bare_plan, properties=dict(summary.properties or {}), assets=summary.assets
    )
    encoded = msgspec.json.encode(complete_plan)
    digest = hashlib.sha256(encoded).hexdigest()[:8]
    run.work.write(f"plan-{digest}.json", encoded)
    return dataclasses.replace(run, plan=complete_plan, name=f"{run.name}{digest}")


# The run that this process works on, with its key. It is opened once, not once per part.
_opened: tuple[Any, StageRun] | None = None


def open_run(stage: Stage, options: Any, runtime: Runtime, name: str) -> StageRun:
    """Return the stage at work, in a process that makes its parts or publishes it.

    `name` is `StageRun.name`. Raises FileNotFoundError if the plan was swept away.
    """
    global _opened
    key = (stage.name, options, runtime.workdir.uri, runtime.workers, runtime.run, name)
    # Read once: another thread may replace it.
    opened = _opened
    if opened is None or opened[0] != key:
        opened = (key, _open_run(stage, options, runtime, name))
        _opened = opened
    return opened[1]


def _open_run(stage: Stage, options: Any, runtime: Runtime, name: str) -> StageRun:
    keep_pandas_out()
    runtime.check_versions()
    folder, _, digest = name.partition("/")
    work = work_of(runtime.workdir, stage) / folder
    plan = msgspec.json.decode(work.read(f"plan-{digest}.json"), type=Plan)
    return StageRun(stage, options, runtime, plan, name)


def is_published(run: StageRun) -> bool:
    """Return whether the output is published with the keys of this plan, and complete.

    Then an attempt at it is late.
    """
    root, _ = read_root(run.workdir)
    manifest = root.datasets.get(run.stage.output)
    if manifest is None or manifest.stage != run.stage.name:
        return False
    table = read_list(run.workdir, manifest)
    if table is None or [record.key for record in table.records] != run.plan.keys:
        return False
    made_again = [file for shard in run.plan.lost for file in table.records[shard].files]
    return not lost_files(run.workdir, made_again)
