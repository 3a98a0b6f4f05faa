"""Run functions in worker processes, which may die: for parts, and for a map over batches.

Each worker has a thread in this process, which gives it one task after the other and waits for the
results. Results come back in the order of the batches, so the output's bytes do not depend on the
number of workers. A worker that dies, or does not respond in time, is replaced. Only its current
task is affected, and the caller learns how it died.

The fork server of `multiprocessing` starts the workers, because a fork of this process would copy
locks that Beam's threads hold. The server loads `worker_server` once for all workers. Each worker
has its own pipe, so killing one worker at any moment does not harm the others. A worker dies with
this process, even in the midst of C code. The kernel kills it when the pipe closes that
multiprocessing holds open for as long as the parent lives.

Workers do not import the script that this process runs. So the script needs no `if __name__ ==
"__main__":`, but functions for workers have to be in a module.
"""

from __future__ import annotations

import atexit
import contextlib
import copyreg
import fcntl
import gc
import multiprocessing
import os
import pickle
import select
import signal
import sys
import tempfile
import threading
import time
import traceback
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import CancelledError, Future, ThreadPoolExecutor
from dataclasses import dataclass
from multiprocessing import forkserver, process, resource_tracker
from multiprocessing.connection import Connection
from typing import Any, TypeVar

import pyarrow as pa

from owt_pipeline import progress
from owt_pipeline.errors import (
    OUT_OF_MEMORY,
    LedgerError,
    UserError,
    WorkerError,
    is_out_of_memory,
)

R = TypeVar("R")
T = TypeVar("T")

# pyarrow's own pickle of a slice holds all rows of its parent.
copyreg.pickle(
    pa.RecordBatch, lambda batch: (pa.ipc.read_record_batch, (batch.serialize(), batch.schema))
)

TIMEOUT_SIGNAL = signal.SIGPROF
"""Signal that kills a worker when it has used up its CPU time."""

PRELOAD = "OWT_PRELOAD"
"""Variable with the folder of the fork server's socket, and then the modules that it loads."""

# Characters of a folder for a socket, whose path may have about a hundred.
_MAX_TEMPORARY = 60


@dataclass(frozen=True)
class WorkerDied:
    """The result of a task during which the worker process died.

    Attributes:
      exit_code: the process's exit code; negative for a signal.
      overdue: the time limit in seconds, if it was killed for exceeding it; 0 if it died by itself.
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


def died(death: WorkerDied) -> UserError | WorkerError:
    """Return the error for a death that no task should be able to cause."""
    if death.exit_code == -signal.SIGKILL and not death.timed_out:
        return UserError(
            "a worker process was killed, probably by the kernel because memory is used up: use "
            "fewer --workers, or a machine with more memory, and run the same command again"
        )
    return WorkerError(f"a worker process died: {death}")


class WorkerPool:
    """`workers` processes that call functions. Each is started when there is a task for it."""

    def __init__(self, workers: int):
        start_server()
        self.workers = workers
        self.closed = False
        self._threads = ThreadPoolExecutor(workers)
        self._lock = threading.Lock()
        self._alive: set[_Worker] = set()
        self._idle: list[_Worker] = []

    def submit(
        self, fn: Callable[[T], R], argument: T, *, seconds: float | None = None, tries: int = 1
    ) -> Future[R | WorkerDied]:
        """Let the next free worker call `fn(argument)`.

        `fn` has to be importable in a worker (a module's function, or a `functools.partial` of
        one); argument and result have to be picklable. If `fn` raises, so does the future: a
        UserError, OSError or LedgerError unchanged, any other error as a WorkerError. If the worker
        dies, or is killed because it has not answered after `seconds`, the result is a
        `WorkerDied`; unless it timed out, the task is tried by `tries` workers before.
        """
        task = pickle.dumps((fn, argument), 5)
        with self._lock:
            if self.closed:
                raise CancelledError
            return self._threads.submit(self._run, task, seconds, tries)

    def map(
        self, fn: Callable[[T], R], batches: Iterable[T], **limits: Any
    ) -> Iterator[tuple[T, R | WorkerDied]]:
        """Yield pairs of (batch, fn(batch)), in the order of `batches`.

        The batches are read as workers become free. `limits` are the arguments of `submit`. If the
        caller stops before the end, the pool is closed.
        """
        # For each worker, one batch at work and one that waits.
        slots = threading.Semaphore(2 * self.workers)
        waiting: deque[tuple[T, Future[Any]]] = deque()
        try:
            for batch in batches:
                slots.acquire()
                waiting.append((batch, self.submit(fn, batch, **limits)))
                waiting[-1][1].add_done_callback(lambda _: slots.release())
                # Bounded: otherwise the results of all other batches would pile up behind one slow
                # batch.
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
        """Kill the workers at once."""
        with self._lock:
            self.closed = True
            self._threads.shutdown(wait=False, cancel_futures=True)
            for worker in self._alive:
                worker.process.kill()

    def _run(self, task: bytes, seconds: float | None, tries: int) -> Any:
        for _ in range(tries):
            with self._lock:
                if self.closed:
                    raise CancelledError
                worker = self._idle.pop() if self._idle else _Worker()
                self._alive.add(worker)
            answer = worker.ask(task, seconds)
            if not isinstance(answer, WorkerDied):
                self._idle.append(worker)
                result, error = answer
                if error is not None:
                    raise error
                return result
            with self._lock:
                self._alive.remove(worker)
            if answer.timed_out:
                break
        return answer


class _Worker:
    """One process and the pipe to it."""

    def __init__(self) -> None:
        self._pipe, theirs = multiprocessing.Pipe()
        with theirs:
            self.process = _start(_be_worker, theirs)

    def ask(self, task: bytes, seconds: float | None) -> Any:
        """Return (result, error) of the call, or how the worker died."""
        overdue = 0.0
        try:
            self._pipe.send_bytes(task)
            while self._pipe.poll(seconds):
                if isinstance(answer := self._pipe.recv(), tuple):
                    return answer
                progress.advance(answer.rows, answer.rejected)
            overdue = seconds or 0.0
        except (EOFError, OSError):
            # It died, perhaps while it sent its result.
            pass
        self._pipe.close()
        return WorkerDied(_end(self.process), overdue)


# Whether this process is a worker, which has no workers of its own.
_is_worker = False


def _be_worker(pipe: Connection) -> None:
    """Receive functions and their arguments, and send back the results, until the parent ends."""
    global _is_worker
    _is_worker = True
    _die_with_parent()
    progress.report_by(pipe.send)
    while True:
        try:
            task = pipe.recv_bytes()
        except (EOFError, OSError):
            # The parent has ended, perhaps while it sent a task.
            return
        try:
            fn, argument = pickle.loads(task)
            answer = pickle.dumps((fn(argument), None), 5)
        except (UserError, LedgerError, OSError) as error:
            # The caller handles these by their type.
            answer = pickle.dumps((None, error))
        except BaseException as error:
            failure: Exception = WorkerError(traceback.format_exc())
            if is_out_of_memory(error):
                failure = UserError(OUT_OF_MEMORY)
            answer = pickle.dumps((None, failure))
        pipe.send_bytes(answer)


def _die_with_parent() -> None:
    """Let the kernel kill this process when its parent has ended, whatever it is doing then."""
    parent = multiprocessing.parent_process()
    assert parent is not None
    # A pipe that only the parent holds open.
    life = int(parent.sentinel)
    fcntl.fcntl(life, fcntl.F_SETOWN, os.getpid())
    if hasattr(fcntl, "F_SETSIG"):
        fcntl.fcntl(life, fcntl.F_SETSIG, signal.SIGKILL)
    else:
        # On macOS, a worker in C code ends when that returns.
        signal.signal(signal.SIGIO, lambda *_: os._exit(1))
    fcntl.fcntl(life, fcntl.F_SETFL, fcntl.fcntl(life, fcntl.F_GETFL) | os.O_ASYNC)
    has_ended = bool(select.select([life], [], [], 0)[0])
    if has_ended:
        os._exit(1)


def start_server(preloaded: Sequence[str] = ()) -> None:
    """Start the process from which workers are forked, unless it runs, without waiting for it.

    It loads what workers need. `preloaded` is a result of `Stage.preload`: modules to import, and
    `module:function`s to call, which fill a cache. Errors there are ignored, because the worker
    that needs the module will raise them.
    """
    global _folder
    with _processes:
        if not os.path.isdir(_folder):
            # The folder of multiprocessing would stay if this process is killed.
            parent = tempfile.gettempdir()
            if len(parent) >= _MAX_TEMPORARY:
                parent = "/tmp"
            _folder = tempfile.mkdtemp(prefix="owt-", dir=parent)
            process.current_process()._config["tempdir"] = _folder  # type: ignore[attr-defined]
        forkserver.set_forkserver_preload(["owt_pipeline.engine.worker_server"])
        os.environ[PRELOAD] = "\n".join([_folder, *preloaded])
        # If the server had to start it, it would unblock signals.
        resource_tracker.ensure_running()
        # The server and all workers inherit this mask: a terminal's Ctrl-C is for this process,
        # which ends them.
        old_mask = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT, signal.SIGTERM})
        try:
            forkserver.ensure_running()
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, old_mask)
            del os.environ[PRELOAD]


def _start(target: Callable[..., object], *arguments: Any) -> Any:
    """Start a process that calls `target`.

    Raises ChildProcessError if the system allows no more.
    """
    with _processes:
        for wait in (0.1, None):
            start_server()
            child = multiprocessing.get_context("forkserver").Process(
                target=target, args=arguments, daemon=True
            )
            try:
                child.start()
                break
            except (EOFError, ConnectionError) as error:
                if wait is None:
                    raise ChildProcessError(
                        "the process that starts the workers has ended, perhaps because memory is "
                        "used up: use fewer --workers, and run the same command again"
                    ) from error
                # A server that was killed a moment ago is started again once it has ended.
                time.sleep(wait)
        return child


def _end(child: Any) -> int:
    """Kill a process, and return its exit code; it is negative for a signal."""
    with _processes:
        child.kill()
        child.join()
        return int(child.exitcode)


# multiprocessing looks at all its processes when it starts one, so none may end meanwhile.
_processes = threading.RLock()

# The folder of the server's socket.
_folder = ""

# Used by all stages, because worker processes are costly to start.
_shared: WorkerPool | None = None
_sharing = threading.Lock()


def shared_pool(workers: int) -> WorkerPool:
    """Return this process's pool of `workers` processes, which is started on first use."""
    global _shared
    with _sharing:
        if _shared is None or _shared.closed or _shared.workers != workers:
            close_shared_pool()
            _shared = WorkerPool(workers)
        return _shared


@atexit.register
def close_shared_pool() -> None:
    """Kill the processes of the shared pool."""
    if _shared is not None:
        _shared.close()


def _forget() -> None:
    """Forget the parent's pool in a process that was forked.

    It has neither the parent's threads nor its children, and needs its own.
    """
    global _folder, _processes, _shared, _sharing
    _folder = ""
    _processes = threading.RLock()
    _shared = None
    _sharing = threading.Lock()
    forkserver._forkserver.__init__()  # type: ignore[misc]
    process._children.clear()  # type: ignore[attr-defined]


os.register_at_fork(after_in_child=_forget)


def map_batches(
    fn: Callable[[pa.RecordBatch], R], batches: Iterable[pa.RecordBatch], workers: int
) -> Iterator[tuple[pa.RecordBatch, R]]:
    """Yield pairs of (batch, fn(batch)) in order, computed by `workers` processes.

    With one worker, or within a worker, this process computes them. Raises WorkerError if a process
    died: no batch should be able to kill these functions.
    """
    if workers <= 1 or _is_worker:
        for batch in batches:
            yield batch, fn(batch)
        return
    for batch, result in shared_pool(workers).map(fn, batches):
        if isinstance(result, WorkerDied):
            raise died(result)
        yield batch, result


@contextlib.contextmanager
def importing() -> Iterator[None]:
    """Import large packages in the block without pandas and without garbage collection.

    Imports make no garbage. pyarrow and Beam import pandas if it is installed, which takes 50 MB
    per process and half a second, and nothing here uses it. Importing Beam takes 0.9 s of CPU time
    this way, 1.3 s otherwise. Later collections skip the imported objects.
    """
    collects = gc.isenabled()
    gc.disable()
    try:
        with _without_pandas():
            yield
        # Frozen objects are never freed, so this is done once.
        if not gc.get_freeze_count():
            gc.freeze()
    finally:
        if collects:
            gc.enable()


@contextlib.contextmanager
def _without_pandas() -> Iterator[None]:
    sys.meta_path.insert(0, _NoPandas)  # type: ignore[arg-type]  # the class is the finder
    try:
        yield
    finally:
        sys.meta_path.remove(_NoPandas)  # type: ignore[arg-type]


class _NoPandas:
    @staticmethod
    def find_spec(name: str, path: Sequence[str] | None = None, target: object = None) -> None:
        if name == "pandas":
            raise ModuleNotFoundError(name)


def keep_pandas_out() -> None:
    """Let pyarrow look for pandas now, and find none.

    `to_pandas` looks again, and works as usual.
    """
    with _without_pandas():
        pa.array([])
