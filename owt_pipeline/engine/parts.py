"""Making parts: one in this process, or many in the processes of the local pool."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import FIRST_COMPLETED, CancelledError, Future, ThreadPoolExecutor, wait
from dataclasses import dataclass
from functools import partial
from typing import Any

from owt_pipeline import progress
from owt_pipeline.engine.phases import open_run, plan_stage, publish_stage, superseding
from owt_pipeline.engine.stage import SHARDS, Runtime, Stage, StageRun, Step, read_record
from owt_pipeline.engine.workers import WorkerDied, WorkerError, shared_pool
from owt_pipeline.errors import Superseded
from owt_pipeline.ledger.commit import ShardWriter, find_record, record_name
from owt_pipeline.ledger.exchange import SLICES, Slice, read_index
from owt_pipeline.storage.lease import RENEW_SECONDS, renew
from schemas import DATASETS
from schemas.manifest import Manifest, ShardRecord

_SLOW_SECONDS = 10.0

BATCHES_COST = 1.1
"""Cost of a shard whose batches are sent between processes, relative to one that a single process reads and writes."""


@dataclass(frozen=True)
class Done:
    """A finished part: its record, the (key, slice) pairs it sent to the next step, and the seconds that this attempt
    took; 0 if the part was finished before."""

    record: ShardRecord
    sent: Sequence[tuple[int, Slice]]
    seconds: float


@dataclass(frozen=True)
class Work:
    """One step of a stage at work: everything a process needs to make any of its parts; picklable."""

    stage: Stage
    options: Any
    runtime: Runtime
    index: int
    folder: str

    @property
    def step(self) -> Step:
        return self.stage.steps[self.index]

    def open(self) -> StageRun:
        return open_run(self.stage, self.options, self.runtime, self.folder)

    def keys_after(self) -> list[int]:
        """Keys of the next step's parts that exist even if nothing is sent to them; raises Superseded as `do` does."""
        run = self.open()
        with superseding(run):
            return list(self.stage.steps[self.index + 1].keys(run))

    def do(self, key: int, slices: Sequence[Slice]) -> Done:
        """Make a part, unless its record says that it is finished.

        Raises Superseded if the attempt is late: the stage's output has been published since it was planned.
        """
        started = time.monotonic()
        run, seconds = self.open(), 0.0
        with superseding(run):
            record, version = find_record(run.records(self.step.name), record_name(key))
            if record is None:
                if run.is_superseded():
                    raise Superseded(f"{run.workdir}/{run.stage.output} was published")
                record = _make(run, self.step, key, sorted(set(slices)), version)
                if run.runtime.owner:
                    renew(run.workdir, run.runtime.owner, every=RENEW_SECONDS)
                seconds = time.monotonic() - started
            paths = [file.path for file in record.files if file.kind == SLICES]
            sent = [slice for path in paths for slice in read_index(run.work, path)]
        return Done(record, sent, seconds)


def _make(run: StageRun, step: Step, key: int, slices: Sequence[Slice], replaces: str | None) -> ShardRecord:
    records = run.records(step.name)
    if step.name == SHARDS:
        dataset = DATASETS[run.stage.output]
        outputs = step.outputs(run) or {"": dataset.schema}
        writer = ShardWriter(
            run.workdir, records, key, outputs, dataset=dataset.name, file_format=dataset.format, replaces=replaces
        )
    else:
        writer = ShardWriter(run.work, records, key, {}, step=step.name, replaces=replaces)
    with writer:
        step.work(run, key, slices, writer)
    # If another attempt's record came first, that attempt's files count.
    return writer.record if writer.is_first else read_record(records, record_name(key))


def do_locally(work: Work, parts: Mapping[int, Sequence[Slice]]) -> Iterator[tuple[int, Done]]:
    """Make parts with the local pool, the largest first; yields each when it is finished.

    Raises what a part raised, or WorkerError if a process died; the other processes are then killed.
    """
    step, run = work.step, work.open()
    if (known := step.rows(run)) is not None:
        rows = dict(known) if isinstance(known, Mapping) else dict(enumerate(known))
    else:
        rows = {key: sum(slice.rows for slice in slices) for key, slices in parts.items()} if work.index else {}
    finished = set(run.records(step.name).names())
    pending = {key: rows.get(key, 1) for key in sorted(parts) if record_name(key) not in finished}
    for key in sorted(parts.keys() - pending.keys()):
        yield key, work.do(key, parts[key])
    if not pending:
        return
    together = step.together(run) if callable(step.together) else step.together
    total = sum(pending.values()) if rows else None
    with progress.step(title(work.stage, step), shards=len(pending), rows=total):
        if together > 1:
            done = _in_threads(work, list(pending), parts, together)
        elif step.spread and work.runtime.workers > 1:
            done = _in_processes(work, pending, parts)
        else:
            done = ((key, work.do(key, parts[key])) for key in pending)
        for key, result in done:
            progress.shard_done()
            yield key, result


def make_here(stage: Stage, options: Any, runtime: Runtime) -> Manifest:
    """Run a stage in this process and its pool, without a runner: the same phases and steps as in the graph.

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
    return publish_stage(open_run(stage, options, runtime, run.name))


def title(stage: Stage, step: Step) -> str:
    """The name of a step in the progress."""
    return stage.name if step.name == SHARDS else f"{stage.name} ({step.name})"


def _in_processes(
    work: Work, rows: Mapping[int, int], parts: Mapping[int, Sequence[Slice]]
) -> Iterator[tuple[int, Done]]:
    """Make each part in one worker process. If the step spreads `batches`, a shard that is more than a worker's share
    of the remaining rows (one much larger than the others, or one of the last) is made here, and its batches are
    distributed to the workers."""
    workers, divisible = work.runtime.workers, work.step.spread == "batches"
    pool = shared_pool(workers)
    waiting = sorted(rows, key=lambda key: rows[key])
    given: dict[Future[Done | WorkerDied], int] = {}
    begun: dict[int, float] = {}
    left = Counter(rows)
    progress.doing(lambda: _slowest(begun))

    def advance(key: int, done: int) -> None:
        left[key] -= done
        progress.advance(done)

    try:
        while waiting or given:
            if waiting and len(given) < workers:
                key = waiting.pop()
                begun[key] = time.monotonic()
                if divisible and rows[key] * workers > BATCHES_COST * sum(left.values()):
                    yield key, work.do(key, parts[key])
                    del left[key], begun[key]
                else:
                    given[pool.submit(partial(work.do, key), parts[key], advance=partial(advance, key))] = key
                continue
            for future in wait(given, return_when=FIRST_COMPLETED).done:
                done = future.result()
                if isinstance(done, WorkerDied):
                    raise WorkerError.died(done)
                key = given.pop(future)
                del left[key], begun[key]
                yield key, done
    except BaseException:
        pool.close()
        raise


def _slowest(begun: Mapping[int, float]) -> str:
    """The part that has taken longest so far, once it is slow."""
    since, key = min(((since, key) for key, since in list(begun.items())), default=(0.0, 0))
    seconds = time.monotonic() - since
    return f"part {key} for {seconds:.0f} s" if begun and seconds >= _SLOW_SECONDS else ""


def _in_threads(
    work: Work, keys: Sequence[int], parts: Mapping[int, Sequence[Slice]], together: int
) -> Iterator[tuple[int, Done]]:
    """Make `together` parts at once in threads: for parts that wait, or that use the pool themselves."""
    threads = ThreadPoolExecutor(together)
    given = {threads.submit(work.do, key, parts[key]): key for key in keys}
    cancelled: CancelledError | None = None
    try:
        while given:
            for future in wait(given, return_when=FIRST_COMPLETED).done:
                key = given.pop(future)
                try:
                    done = future.result()
                except CancelledError as error:  # another part has failed and closed the pool; its error comes next
                    cancelled = error
                    continue
                yield key, done
        if cancelled:
            raise cancelled
    finally:  # an error, or Ctrl-C, does not wait for the others
        threads.shutdown(wait=False, cancel_futures=True)
