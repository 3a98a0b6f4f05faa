"""Worker processes: whole shards, and an ordered map over batches that survives what one may do to its process.

Each worker has a pipe of its own and at most two batches: one at work, one waiting, so that it never idles
while the parent writes. Results come back in the order of the batches whatever the number of workers, which
is what makes the output's bytes independent of it. A worker that dies is replaced; only the batch it was
working on is affected, and the caller is told which and how it died. A worker at a shard has nothing else to do.
"""

from __future__ import annotations

import atexit
import contextlib
import enum
import multiprocessing
import os
import pickle
import queue
import signal
import sys
import threading
import traceback
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from multiprocessing import connection, forkserver
from typing import Any, TypeVar

import pyarrow as pa

from owt_pipeline.runtime import progress
from owt_pipeline.runtime.batches import from_ipc, to_ipc
from owt_pipeline.runtime.errors import LedgerError, UserError
from owt_pipeline.runtime.without_pandas import keep_pandas_out

R = TypeVar("R")

_QUEUED_PER_WORKER = 2
_SECONDS_TO_CLEAR_UP = 2.0


@dataclass(frozen=True)
class WorkerDied:
    """In place of a result: the worker process died of this batch.

    Attributes:
      exit_code: the process' exit code; negative for a signal.
    """

    exit_code: int

    def __str__(self) -> str:
        if self.exit_code >= 0:
            return f"its process exited with code {self.exit_code}"
        try:
            return f"its process was killed by {signal.Signals(-self.exit_code).name}"
        except ValueError:
            return f"its process was killed by signal {-self.exit_code}"


class WorkerError(RuntimeError):
    """A function raised in a worker, or its process died; the message holds the worker's traceback, or says how."""

    @classmethod
    def died(cls, death: WorkerDied) -> WorkerError:
        return cls(f"a worker process died: {death}. Out of memory? Use fewer --workers")


class WorkerPool:
    """`workers` processes that write shards, or apply functions to record batches."""

    def __init__(self, workers: int):
        # forkserver: a fork of this process would copy Beam's threads' locks; a spawn would import everything
        # again for each replacement of a worker.
        self._context = multiprocessing.get_context("forkserver")
        start_server()
        self._workers = [_Worker(self._context) for _ in range(workers)]
        self._lock = threading.Lock()

    def map(
        self, fn: Callable[[pa.RecordBatch], R], batches: Iterable[pa.RecordBatch]
    ) -> Iterator[tuple[pa.RecordBatch, R | WorkerDied]]:
        """Pairs of (batch, fn(batch)), in the order of `batches`, which are drawn as workers become free.

        `fn` must be importable in a worker (a function of a module, or a `functools.partial` of one), and
        what it returns picklable. Where the worker dies, the result is a `WorkerDied`; where `fn` raises, the
        error is raised here: a UserError, OSError or LedgerError as it is, any other as a WorkerError.
        """
        with self._lock:  # one map at a time: the pipes are its own
            yield from self._map(pickle.dumps(partial(_on_batch, fn)), iter(batches))

    @property
    def has_room(self) -> bool:
        """Whether a worker has nothing to do."""
        return any(not worker.tasks for worker in self._workers)

    def start(self, write: Callable[[int], None], shard: int) -> Task:
        """Let a worker that has nothing to do call `write(shard)`; `receive` until the task is done."""
        task = Task(shard)
        worker = next(worker for worker in self._workers if not worker.tasks)
        worker.submit(pickle.dumps(partial(_on_shard, write)), task)
        return task

    def receive(self) -> None:
        """Wait for one or more answers, or deaths. Raises what a task raised, and WorkerError for a shard's death."""
        busy = {worker.pipe: worker for worker in self._workers if worker.tasks}
        for pipe in connection.wait(list(busy)):
            worker = busy[pipe]  # type: ignore[index]
            try:
                kind, value = pickle.loads(worker.pipe.recv_bytes())
            except (EOFError, OSError):  # it died, perhaps in the midst of an answer
                self._bury(worker)
                continue
            if kind is _Answer.ROWS:
                worker.tasks[0].rows_done += value
                progress.advance(value)
                continue
            task = worker.tasks.popleft()
            if kind is _Answer.FAILED:
                raise value
            task.result, task.done = value, True
            if task.is_shard:
                progress.shard_done()

    def give_up(self) -> None:
        """Break off whatever is at work, so that it does not answer into what comes next."""
        for index, worker in enumerate(self._workers):
            if worker.tasks:
                worker.kill()
                self._workers[index] = _Worker(self._context)

    def close(self) -> None:
        for worker in self._workers:
            worker.kill()

    def _map(self, fn: bytes, batches: Iterator[pa.RecordBatch]) -> Iterator[tuple[pa.RecordBatch, Any]]:
        waiting: deque[Task] = deque()
        exhausted = False
        try:
            while True:
                # Bounded, or one slow batch at the head would let all others pile up behind it.
                while not exhausted and len(waiting) < 16 * len(self._workers):
                    worker = min(self._workers, key=_Worker.load)
                    if worker.load() >= _QUEUED_PER_WORKER:
                        break
                    batch = next(batches, None)
                    if batch is None:
                        exhausted = True
                        break
                    task = Task(batch)
                    waiting.append(task)
                    worker.submit(fn, task)
                while waiting and waiting[0].done:
                    task = waiting.popleft()
                    yield task.item, task.result
                if exhausted and not waiting:
                    return
                if any(worker.tasks for worker in self._workers):  # else a slow head held the others back: submit
                    self.receive()
        finally:
            if waiting:  # the caller gave up
                self.give_up()

    def _bury(self, worker: _Worker) -> None:
        """Replace a dead worker; the batch it was at is marked, the one behind it given to its successor."""
        culprit, *others = worker.tasks
        culprit.result, culprit.done = WorkerDied(worker.wait()), True
        successor = _Worker(self._context)
        self._workers[self._workers.index(worker)] = successor
        if culprit.is_shard:
            raise WorkerError.died(culprit.result)
        for task in others:
            successor.submit(worker.fn, task)


@dataclass(eq=False)
class Task:
    """What a worker was given, a shard or a batch, and what became of it so far."""

    item: int | pa.RecordBatch
    result: Any = None
    done: bool = False
    rows_done: int = 0

    @property
    def is_shard(self) -> bool:
        return isinstance(self.item, int)

    def payload(self) -> bytes:
        return str(self.item).encode() if isinstance(self.item, int) else to_ipc(self.item)


class _Worker:
    """One process and its pipe."""

    def __init__(self, context: Any):
        self.pipe, remote = context.Pipe()
        self.process = context.Process(target=_serve, args=(remote,), daemon=True)
        self.process.start()
        remote.close()
        self.tasks: deque[Task] = deque()
        self.fn = b""

    def load(self) -> int:
        """How many batches it has, a shard counting as all it can take."""
        return _QUEUED_PER_WORKER if self.tasks and self.tasks[0].is_shard else len(self.tasks)

    def submit(self, fn: bytes, task: Task) -> None:
        self.fn = fn
        self.tasks.append(task)
        # The worker may be dying: then its end of file tells, when it is waited for.
        with contextlib.suppress(BrokenPipeError, ConnectionResetError):
            self.pipe.send_bytes(fn)
            self.pipe.send_bytes(task.payload())

    def wait(self) -> int:
        self.process.join()
        self.pipe.close()
        return int(self.process.exitcode or 0)

    def kill(self) -> None:
        if self.tasks and self.tasks[0].is_shard:
            self.process.terminate()  # and it removes what it has half written
            self.process.join(_SECONDS_TO_CLEAR_UP)
        self.process.kill()
        self.wait()


class _Answer(enum.Enum):
    DONE = enum.auto()  # with the result
    FAILED = enum.auto()  # with the error
    ROWS = enum.auto()  # with the rows of a shard that went in since the last such answer


def _on_batch(fn: Callable[[pa.RecordBatch], Any], payload: bytes) -> Any:
    return fn(from_ipc(payload))


def _on_shard(write: Callable[[int], None], payload: bytes) -> None:
    write(int(payload))


_is_worker = False  # whether this process is one: it has no workers of its own


def _serve(pipe: connection.Connection) -> None:
    """A worker's life: take a function and what to call it with, send back what comes of it."""
    global _is_worker
    _is_worker = True
    keep_pandas_out()
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is the parent's business
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))
    progress.tell_instead(lambda rows: pipe.send_bytes(pickle.dumps((_Answer.ROWS, rows))))
    inbox: queue.SimpleQueue[tuple[bytes, bytes]] = queue.SimpleQueue()

    def read() -> None:
        # Reading in a thread keeps the parent from blocking in `send` while this process blocks in its own.
        try:
            while True:
                inbox.put((pipe.recv_bytes(), pipe.recv_bytes()))
        except (EOFError, OSError):
            os._exit(0)  # the parent is gone, or done with us, whatever the main thread is at
        except MemoryError:
            os._exit(1)  # the main thread's work used it up; without a reader this process would wait for ever

    threading.Thread(target=read, daemon=True).start()
    pickled, fn = b"", None
    while True:
        item = inbox.get()
        try:
            if item[0] != pickled:
                pickled, fn = item[0], pickle.loads(item[0])
            answer = pickle.dumps((_Answer.DONE, fn(item[1])), protocol=5)  # type: ignore[misc]
        except SystemExit:
            raise
        except (UserError, LedgerError, OSError) as error:  # which are told to the user by their type
            answer = pickle.dumps((_Answer.FAILED, error))
        except BaseException:
            answer = pickle.dumps((_Answer.FAILED, WorkerError(traceback.format_exc())))
        with contextlib.suppress(BrokenPipeError):
            pipe.send_bytes(answer)


def start_server(modules: Sequence[str] = ()) -> None:
    """Start the process that workers are forked from, without waiting for it: it imports while the caller does.

    Once it runs, it imports nothing more; each worker then imports the `modules` for itself.
    """
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["owt_pipeline.runtime.workers", *modules])
    forkserver.ensure_running()


_shared: dict[int, WorkerPool] = {}  # worker processes are costly to start: all stages of a process share them


def shared_pool(workers: int) -> WorkerPool:
    """This process' pool of `workers` processes, started when first asked for."""
    if workers not in _shared:
        for pool in _shared.values():
            pool.close()
        _shared.clear()
        _shared[workers] = WorkerPool(workers)
        atexit.register(_shared[workers].close)
    return _shared[workers]


def map_batches(
    fn: Callable[[pa.RecordBatch], R], batches: Iterable[pa.RecordBatch], workers: int
) -> Iterator[tuple[pa.RecordBatch, R]]:
    """Pairs of (batch, fn(batch)) in order: in this process for one worker, or in a worker, else in `workers` others.

    Raises WorkerError where a process died: for functions that no batch should be able to kill.
    """
    if workers <= 1 or _is_worker:
        for batch in batches:
            yield batch, fn(batch)
        return
    for batch, result in shared_pool(workers).map(fn, batches):
        if isinstance(result, WorkerDied):
            raise WorkerError.died(result)
        yield batch, result
