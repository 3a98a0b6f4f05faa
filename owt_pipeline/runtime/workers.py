"""Worker processes: an ordered map over batches that survives what one batch may do to its process.

Each worker has a pipe of its own and at most two batches: one at work, one waiting, so that it never idles
while the parent writes. Results come back in the order of the batches whatever the number of workers, which
is what makes the output's bytes independent of it. A worker that dies is replaced; only the batch it was
working on is affected, and the caller is told which and how it died.
"""

from __future__ import annotations

import atexit
import contextlib
import multiprocessing
import os
import pickle
import queue
import signal
import threading
import traceback
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from multiprocessing import connection, forkserver
from typing import Any, TypeVar

import pyarrow as pa

from owt_pipeline.runtime.batches import from_ipc, to_ipc
from owt_pipeline.runtime.errors import UserError

R = TypeVar("R")

_QUEUED_PER_WORKER = 2


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
    """A function raised in a worker; the message holds the worker's traceback."""


class WorkerPool:
    """`workers` processes that apply functions to record batches."""

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
        error is raised here: a UserError or OSError as it is, any other as a WorkerError.
        """
        with self._lock:  # one map at a time: the pipes are its own
            yield from self._map(pickle.dumps(fn), iter(batches))

    def _map(self, fn: bytes, batches: Iterator[pa.RecordBatch]) -> Iterator[tuple[pa.RecordBatch, Any]]:
        waiting: deque[_Task] = deque()
        exhausted = False
        try:
            while True:
                # Bounded, or one slow batch at the head would let all others pile up behind it.
                while not exhausted and len(waiting) < 16 * len(self._workers):
                    worker = min(self._workers, key=lambda w: len(w.tasks))
                    if len(worker.tasks) >= _QUEUED_PER_WORKER:
                        break
                    batch = next(batches, None)
                    if batch is None:
                        exhausted = True
                        break
                    task = _Task(batch)
                    waiting.append(task)
                    worker.submit(fn, task)
                while waiting and waiting[0].done:
                    task = waiting.popleft()
                    yield task.batch, task.result
                if exhausted and not waiting:
                    return
                if any(worker.tasks for worker in self._workers):  # else a slow head held the others back: submit
                    self._receive(fn)
        finally:
            if waiting:  # the caller gave up: what is at work must not answer into the next map
                self._replace_busy()

    def _receive(self, fn: bytes) -> None:
        """Wait for one or more answers, or deaths."""
        busy = {worker.pipe: worker for worker in self._workers if worker.tasks}
        for pipe in connection.wait(list(busy)):
            worker = busy[pipe]  # type: ignore[index]
            try:
                ok, result = pickle.loads(worker.pipe.recv_bytes())
            except (EOFError, OSError):  # it died, perhaps in the midst of an answer
                self._bury(worker, fn)
                continue
            task = worker.tasks.popleft()
            if not ok:
                raise result if isinstance(result, Exception) else WorkerError(result)
            task.result, task.done = result, True

    def _bury(self, worker: _Worker, fn: bytes) -> None:
        """Replace a dead worker; the batch it was at is marked, the one behind it given to its successor."""
        culprit, *others = worker.tasks
        culprit.result, culprit.done = WorkerDied(worker.wait()), True
        successor = _Worker(self._context)
        self._workers[self._workers.index(worker)] = successor
        for task in others:
            successor.submit(fn, task)

    def _replace_busy(self) -> None:
        for index, worker in enumerate(self._workers):
            if worker.tasks:
                worker.kill()
                self._workers[index] = _Worker(self._context)

    def close(self) -> None:
        for worker in self._workers:
            worker.kill()


@dataclass(eq=False)
class _Task:
    batch: pa.RecordBatch
    result: Any = None
    done: bool = False


class _Worker:
    """One process and its pipe."""

    def __init__(self, context: Any):
        self.pipe, remote = context.Pipe()
        self.process = context.Process(target=_serve, args=(remote,), daemon=True)
        self.process.start()
        remote.close()
        self.tasks: deque[_Task] = deque()

    def submit(self, fn: bytes, task: _Task) -> None:
        self.tasks.append(task)
        # The worker may be dying: then its end of file tells, when it is waited for.
        with contextlib.suppress(BrokenPipeError, ConnectionResetError):
            self.pipe.send_bytes(fn)
            self.pipe.send_bytes(to_ipc(task.batch))

    def wait(self) -> int:
        self.process.join()
        self.pipe.close()
        return int(self.process.exitcode or 0)

    def kill(self) -> None:
        self.process.kill()
        self.wait()


def _serve(pipe: connection.Connection) -> None:
    """A worker's life: take a function and a batch, send back what it makes of it."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is the parent's business
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
            answer = pickle.dumps((True, fn(from_ipc(item[1]))), protocol=5)  # type: ignore[misc]
        except (UserError, OSError) as error:  # which need no traceback
            answer = pickle.dumps((False, error))
        except BaseException:
            answer = pickle.dumps((False, traceback.format_exc()))
        with contextlib.suppress(BrokenPipeError):
            pipe.send_bytes(answer)


def start_server() -> None:
    """Start the process that workers are forked from, without waiting for it: it imports while the caller does."""
    multiprocessing.get_context("forkserver").set_forkserver_preload(["owt_pipeline.runtime.workers"])
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
    """Pairs of (batch, fn(batch)) in order: in this process for one worker, else in `workers` processes.

    Raises WorkerError where a process died: for functions that no batch should be able to kill.
    """
    if workers <= 1:
        for batch in batches:
            yield batch, fn(batch)
        return
    for batch, result in shared_pool(workers).map(fn, batches):
        if isinstance(result, WorkerDied):
            raise WorkerError(f"a worker process died: {result}. Out of memory? Use fewer --workers")
        yield batch, result
