"""Worker processes: shards, and an ordered map over batches that survives what one may do to its process.

Each worker has a thread of this process, which gives it one task after the other and waits for the answers. Results
come back in the order of the batches whatever the number of workers, which is what makes the output's bytes
independent of it. A worker that dies, or does not answer in time, is replaced; only the task that it was at is
affected, and the caller learns how it died.
"""

from __future__ import annotations

import copyreg
import pickle
import signal
import socket
import threading
import traceback
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import CancelledError, Future, ThreadPoolExecutor
from dataclasses import dataclass
from functools import lru_cache
from multiprocessing.connection import Connection
from typing import Any, TypeVar

import pyarrow as pa

from owt_pipeline.engine import children, progress
from owt_pipeline.engine.batches import from_ipc, to_ipc
from owt_pipeline.engine.errors import LedgerError, UserError

R = TypeVar("R")
T = TypeVar("T")

copyreg.pickle(pa.RecordBatch, lambda batch: (from_ipc, (to_ipc(batch),)))  # a slice takes only its own rows along

TIMEOUT_SIGNAL = signal.SIGPROF
"""What a worker dies of that has used up the CPU time it was allowed."""


@dataclass(frozen=True)
class WorkerDied:
    """In place of a result: the worker process died of this task.

    Attributes:
      exit_code: the process' exit code; negative for a signal.
      overdue: seconds after which it was killed because it had not answered; 0 where it died by itself.
    """

    exit_code: int
    overdue: float = 0.0

    @property
    def timed_out(self) -> bool:
        return self.overdue > 0 or self.exit_code == -TIMEOUT_SIGNAL

    def __str__(self) -> str:
        if self.overdue:
            return f"its process did not answer within {self.overdue:g} s"
        if self.exit_code >= 0:
            return f"its process exited with code {self.exit_code}"
        return f"its process was killed by {signal.Signals(-self.exit_code).name}"


class WorkerError(RuntimeError):
    """A function raised in a worker, or its process died; the message holds the worker's traceback, or says how."""

    @classmethod
    def died(cls, death: WorkerDied) -> WorkerError:
        return cls(f"a worker process died: {death}. Out of memory? Use fewer --workers")


class WorkerPool:
    """`workers` processes that call functions; each is started when there is something to do for it."""

    def __init__(self, workers: int):
        start_server()
        self.workers, self.closed = workers, False
        self._threads = ThreadPoolExecutor(workers)
        self._lock = threading.Lock()
        self._alive: set[_Worker] = set()
        self._idle: list[_Worker] = []
        self._pickle = lru_cache(1)(pickle.dumps)  # of what is called for one batch after the other

    def submit(
        self,
        fn: Callable[[T], R],
        argument: T,
        *,
        seconds: float | None = None,
        tries: int = 1,
        advance: Callable[[int], None] = progress.advance,
    ) -> Future[R | WorkerDied]:
        """Let the next worker that is free call `fn(argument)`.

        `fn` must be importable in a worker (a function of a module, or a `functools.partial` of one), argument and
        result picklable. Where `fn` raises, so does the future: a UserError, OSError or LedgerError as it is, any
        other as a WorkerError. Where the worker dies, as it does when it has not answered after `seconds`, the result
        is a `WorkerDied`. What a worker died of, but not of a timeout, is given to `tries` workers before.
        `advance` is called in a thread, with the rows that went in since it was last called.
        """
        task = self._pickle(fn), pickle.dumps(argument, 5)
        with self._lock:
            if self.closed:
                raise CancelledError
            return self._threads.submit(self._run, tries, *task, seconds, advance)

    def map(
        self, fn: Callable[[pa.RecordBatch], R], batches: Iterable[pa.RecordBatch], **limits: Any
    ) -> Iterator[tuple[pa.RecordBatch, R | WorkerDied]]:
        """Pairs of (batch, fn(batch)), in the order of `batches`, which are drawn as workers become free.

        `limits` are those of `submit`. If the caller gives up before the end, the pool is closed.
        """
        slots = threading.Semaphore(2 * self.workers)  # for each worker one batch at work and one that waits
        waiting: deque[tuple[pa.RecordBatch, Future[Any]]] = deque()
        try:
            for batch in batches:
                slots.acquire()
                waiting.append((batch, self.submit(fn, batch, **limits)))
                waiting[-1][1].add_done_callback(lambda _: slots.release())
                # Bounded, or one slow batch at the head would let all others pile up behind it.
                while waiting and (waiting[0][1].done() or len(waiting) >= 16 * self.workers):
                    yield waiting[0][0], waiting[0][1].result()
                    waiting.popleft()
            while waiting:
                yield waiting[0][0], waiting[0][1].result()
                waiting.popleft()
        finally:
            if waiting:
                self.close()

    def close(self) -> None:
        """Kill the workers, whatever they are at."""
        with self._lock:
            self.closed = True
            self._threads.shutdown(wait=False, cancel_futures=True)
            for worker in self._alive:
                worker.child.end()

    def _run(self, tries: int, *task: Any) -> Any:
        for _ in range(tries):
            with self._lock:
                if self.closed:
                    raise CancelledError
                worker = self._idle.pop() if self._idle else _Worker()
                self._alive.add(worker)
            answer = worker.ask(*task)
            if not isinstance(answer, WorkerDied):
                self._idle.append(worker)
                result, error = answer
                if error is not None:
                    raise error
                return result
            with self._lock:
                self._alive.remove(worker)  # and its socket with it
            if answer.timed_out:
                break
        return answer


class _Worker:
    """One process and its socket."""

    def __init__(self) -> None:
        self.child = children.start(_serve)
        self._pipe = Connection(self.child.socket.detach())

    def ask(self, fn: bytes, argument: bytes, seconds: float | None, advance: Callable[[int], None]) -> Any:
        """(what came of it, what it raised), or how the worker died of it."""
        try:
            self._pipe.send_bytes(fn)
            self._pipe.send_bytes(argument)
            while self._pipe.poll(seconds):
                if isinstance(answer := pickle.loads(self._pipe.recv_bytes()), tuple):
                    return answer
                advance(answer)
        except (EOFError, OSError):  # it died, perhaps in the midst of an answer
            return WorkerDied(self.child.end())
        return WorkerDied(self.child.end(), seconds or 0.0)


_is_worker = False  # whether this process is one: it has no workers of its own


def _serve(connection: socket.socket) -> None:
    """A worker's life: take a function and what to call it with, send back what comes of it."""
    global _is_worker
    _is_worker = True
    pipe = Connection(connection.detach())
    progress.tell_instead(lambda rows: pipe.send_bytes(pickle.dumps(rows)))
    load = lru_cache(1)(pickle.loads)
    while True:
        fn, argument = pipe.recv_bytes(), pipe.recv_bytes()
        try:
            answer = pickle.dumps((load(fn)(pickle.loads(argument)), None), 5)
        except (UserError, LedgerError, OSError) as error:  # which are shown to the user by their type
            answer = pickle.dumps((None, error))
        except BaseException:
            answer = pickle.dumps((None, WorkerError(traceback.format_exc())))
        pipe.send_bytes(answer)


def start_server(needed: Sequence[str] = ()) -> None:
    """Let the process that workers are forked from load what they need, while the caller does something else.

    `needed` is what `Stage.preload` gives.
    """
    children.prepare([__name__, *needed])


_shared: WorkerPool | None = None  # worker processes are costly to start: all stages of a process share them
_sharing = threading.Lock()


def shared_pool(workers: int) -> WorkerPool:
    """This process' pool of `workers` processes, started when first asked for."""
    global _shared
    with _sharing:
        if _shared is None or _shared.closed or _shared.workers != workers:
            if _shared is not None:
                _shared.close()
            _shared = WorkerPool(workers)
        return _shared


def close_shared_pool() -> None:
    """Kill the worker processes that all stages share."""
    if _shared is not None:
        _shared.close()


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
