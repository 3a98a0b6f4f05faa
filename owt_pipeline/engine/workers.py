"""Worker processes, for complete shards and for an ordered map over batches, which survives the death of a process.

Each worker has a thread in this process, which gives it one task after the other and waits for the answers. Results
come back in the order of the batches, so the output's bytes do not depend on the number of workers. A worker that dies,
or does not answer in time, is replaced. Only its current task is affected, and the caller learns how it died.

    this process --control--> server --fork--> child --socket--> this process

Child processes start in milliseconds and never outlive this process. The server is started once, imports what children
need, and forks them: a fork of this process would copy locks that Beam's threads hold. When this process has ended,
even by SIGKILL, the server kills the children, even those in C code. Children share neither locks nor pipes, so killing
one at any moment harms no other. They create no files, so none are left behind. multiprocessing's fork server, and the
pools that use it (Pebble, concurrent.futures, loky), guarantee none of this.
"""

from __future__ import annotations

import atexit
import contextlib
import copyreg
import gc
import importlib
import io
import os
import pickle
import signal
import socket
import sys
import threading
import time
import traceback
import warnings
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import CancelledError, Future, ThreadPoolExecutor
from dataclasses import dataclass
from functools import lru_cache
from multiprocessing import reduction, spawn
from multiprocessing.connection import Connection
from subprocess import DEVNULL, Popen
from typing import Any, NoReturn, TypeVar

import pyarrow as pa

from owt_pipeline import progress
from owt_pipeline.errors import LedgerError, UserError, WorkerError

R = TypeVar("R")
T = TypeVar("T")


def _as_stream(batch: pa.RecordBatch) -> tuple[Callable[[pa.Buffer], pa.RecordBatch], tuple[pa.Buffer]]:
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, batch.schema) as writer:
        writer.write_batch(batch)
    return _of_stream, (sink.getvalue(),)


def _of_stream(data: pa.Buffer) -> pa.RecordBatch:
    return pa.ipc.open_stream(data).read_next_batch()


copyreg.pickle(pa.RecordBatch, _as_stream)  # pyarrow's own pickle of a slice holds all rows of its parent

TIMEOUT_SIGNAL = signal.SIGPROF
"""Signal that kills a worker when it has used up its CPU time."""


@dataclass(frozen=True)
class WorkerDied:
    """In place of a result: the worker process died during this task.

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


def died(death: WorkerDied) -> WorkerError:
    """The error for a death that no task should be able to cause."""
    return WorkerError(f"a worker process died: {death}. Out of memory? Use fewer --workers")


class WorkerPool:
    """`workers` processes that call functions; each is started when there is a task for it."""

    def __init__(self, workers: int):
        start_server()
        self.workers, self.closed = workers, False
        self._threads = ThreadPoolExecutor(workers)
        self._lock = threading.Lock()
        self._alive: set[_Worker] = set()
        self._idle: list[_Worker] = []
        self._pickle = lru_cache(1)(pickle.dumps)  # one function is usually called for many batches

    def submit(
        self,
        fn: Callable[[T], R],
        argument: T,
        *,
        seconds: float | None = None,
        tries: int = 1,
        advance: Callable[[int], None] = progress.advance,
    ) -> Future[R | WorkerDied]:
        """Let the next free worker call `fn(argument)`.

        `fn` has to be importable in a worker (a module's function, or a `functools.partial` of one); argument and
        result have to be picklable. If `fn` raises, so does the future: a UserError, OSError or LedgerError unchanged,
        any other error as a WorkerError. If the worker dies, or is killed because it has not answered after `seconds`,
        the result is a `WorkerDied`; unless it timed out, the task is tried by `tries` workers before.
        `advance` is called in a thread, with the number of rows since its last call.
        """
        task = self._pickle(fn), pickle.dumps(argument, 5)
        with self._lock:
            if self.closed:
                raise CancelledError
            return self._threads.submit(self._run, tries, *task, seconds, advance)

    def map(self, fn: Callable[[T], R], batches: Iterable[T], **limits: Any) -> Iterator[tuple[T, R | WorkerDied]]:
        """Pairs of (batch, fn(batch)), in the order of `batches`, which are read as workers become free.

        `limits` are those of `submit`. If the caller stops before the end, the pool is closed.
        """
        slots = threading.Semaphore(2 * self.workers)  # for each worker, one batch at work and one waiting
        waiting: deque[tuple[T, Future[Any]]] = deque()
        try:
            for batch in batches:
                slots.acquire()
                waiting.append((batch, self.submit(fn, batch, **limits)))
                waiting[-1][1].add_done_callback(lambda _: slots.release())
                # Bounded: otherwise the results of all other batches would pile up behind one slow batch.
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
        self.child = start_child(_be_worker)
        self._pipe = Connection(self.child.socket.detach())

    def ask(self, fn: bytes, argument: bytes, seconds: float | None, advance: Callable[[int], None]) -> Any:
        """(result, error) of the call, or how the worker died."""
        try:
            self._pipe.send_bytes(fn)
            self._pipe.send_bytes(argument)
            while self._pipe.poll(seconds):
                if isinstance(answer := pickle.loads(self._pipe.recv_bytes()), tuple):
                    return answer
                advance(answer)
        except (EOFError, OSError):  # it died, perhaps while answering
            return WorkerDied(self.child.end())
        return WorkerDied(self.child.end(), seconds or 0.0)


_is_worker = False  # whether this process is a worker, which has no workers of its own


def _be_worker(connection: socket.socket) -> None:
    """The loop of a worker process: receive a function and its argument, send back the result."""
    global _is_worker
    _is_worker = True
    pipe = Connection(connection.detach())
    progress.report_by(lambda rows: pipe.send_bytes(pickle.dumps(rows)))
    load = lru_cache(1)(_loads)
    while True:
        try:
            fn, argument = pipe.recv_bytes(), pipe.recv_bytes()
        except (EOFError, OSError):  # the parent is gone, perhaps while sending
            return
        try:
            answer = pickle.dumps((load(fn)(_loads(argument)), None), 5)
        except (UserError, LedgerError, OSError) as error:  # handled by type, so sent unchanged
            answer = pickle.dumps((None, error))
        except BaseException:
            answer = pickle.dumps((None, WorkerError(traceback.format_exc())))
        pipe.send_bytes(answer)


def start_server(needed: Sequence[str] = ()) -> None:
    """Let the process that workers are forked from load what they need, without waiting for it.

    `needed` is a result of `Stage.preload`: modules to import, and `module:function`s to call, which cache what they
    load. Errors there are ignored: the worker that needs it will raise them.
    """
    _ask("prepare", needed, answers=False)


_shared: WorkerPool | None = None  # used by all stages of this process, because worker processes are costly to start
_sharing = threading.Lock()


def shared_pool(workers: int) -> WorkerPool:
    """This process's pool of `workers` processes, started on first use."""
    global _shared
    with _sharing:
        if _shared is None or _shared.closed or _shared.workers != workers:
            if _shared is not None:
                _shared.close()
            _shared = WorkerPool(workers)
        return _shared


def close_shared_pool() -> None:
    """Kill the processes of the shared pool."""
    if _shared is not None:
        _shared.close()


def map_batches(
    fn: Callable[[pa.RecordBatch], R], batches: Iterable[pa.RecordBatch], workers: int
) -> Iterator[tuple[pa.RecordBatch, R]]:
    """Pairs of (batch, fn(batch)) in order, computed by `workers` processes; in this process if that is one, or if this
    is a worker.

    Raises WorkerError if a process died: for functions that no batch should be able to kill.
    """
    if workers <= 1 or _is_worker:
        for batch in batches:
            yield batch, fn(batch)
        return
    for batch, result in shared_pool(workers).map(fn, batches):
        if isinstance(result, WorkerDied):
            raise died(result)
        yield batch, result


_lock = threading.Lock()
_server: _Server | None = None  # of this process; a child that asks for children gets its own


@dataclass(frozen=True)
class Child:
    """A child process: its id, and this process's end of its socket, which is at end of file once the child has
    ended."""

    pid: int
    socket: socket.socket

    def end(self) -> int:
        """Kill the child if it is alive; returns its exit code, negative for the signal it died of."""
        try:
            return int(_ask("end", self.pid))
        except ChildProcessError:
            return -signal.SIGKILL


def start_child(target: Callable[[socket.socket], object], seconds: float = 0.0) -> Child:
    """Call `target(socket)` in a new process, which ignores Ctrl-C and SIGTERM; `target` is picklable.

    When this process has ended, the child is killed unless it ends by itself within `seconds`.
    Raises ChildProcessError if the server was killed, or the system allows no more processes.
    """
    # As multiprocessing does it: the module path, and the script, which is imported only if something in it is called.
    preparation = spawn.get_preparation_data("child")
    del preparation["authkey"]
    ours, theirs = socket.socketpair()
    with theirs:
        return Child(_ask("fork", (seconds, preparation, pickle.dumps(target)), theirs.fileno()), ours)


def _ask(request: str, argument: Any, handle: int | None = None, *, answers: bool = True) -> Any:
    global _server
    with _lock:
        _server = server = _server or _Server()
        try:
            server.control.send((request, argument))
            if handle is not None:
                reduction.send_handle(server.control, handle, None)
            return server.control.recv() if answers else None
        except BaseException as error:  # also Ctrl-C between question and answer
            _server = None
            server.close()
            if isinstance(error, (EOFError, ConnectionError)):
                raise ChildProcessError("the process that starts others has ended. Out of memory?") from error
            raise


class _Server:
    def __init__(self) -> None:
        ours, theirs = socket.socketpair()
        code = f"import sys; sys.path[:] = {sys.path!r}; from {__name__} import serve; serve({theirs.fileno()})"
        command = [sys.executable, "-c", code]
        with theirs:  # a new session, so that a terminal's Ctrl-C reaches this process only
            self._process = Popen(command, pass_fds=[theirs.fileno()], start_new_session=True, stdin=DEVNULL)
        self.control = Connection(ours.detach())

    def close(self) -> None:
        self.control.close()
        self._process.wait()


def _forget() -> None:
    """Called in a process forked from this one, which has neither its threads nor its children and needs its own."""
    global _server, _shared, _lock, _sharing
    _server = _shared = None
    _lock, _sharing = threading.Lock(), threading.Lock()


os.register_at_fork(after_in_child=_forget)


@atexit.register
def _close() -> None:
    if _server is not None:
        _server.close()


def serve(control: int) -> None:
    """Fork and end children on request of the process at the other end of `control`; kill them when it has ended."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    gc.disable()  # children share the memory of what is imported here as long as no collection touches it
    keep_pandas_out()
    connection, children = Connection(control), dict[int, float]()  # seconds to end, by process id
    with contextlib.suppress(EOFError, ConnectionError):
        while True:
            request, argument = connection.recv()
            if request == "prepare":
                for needed in argument:
                    module, _, function = needed.partition(":")
                    with contextlib.suppress(Exception):
                        imported = importlib.import_module(module)
                        if function:
                            getattr(imported, function)()
                gc.freeze()
            elif request == "fork":
                seconds, *argument = argument
                with socket.socket(fileno=reduction.recv_handle(connection)) as theirs:
                    pid = os.fork()
                    if pid == 0:
                        connection.close()
                        _be_child(theirs, *argument)
                children[pid] = seconds
                connection.send(pid)
            elif children.pop(argument, None) is not None:
                os.kill(argument, signal.SIGKILL)  # an ended one keeps its id and exit code until `waitpid`
                connection.send(os.waitstatus_to_exitcode(os.waitpid(argument, 0)[1]))
            else:  # it was ended before, or was a child of an earlier server
                connection.send(-signal.SIGKILL)
    gone = time.monotonic()
    for seconds, pid in sorted((seconds, pid) for pid, seconds in children.items()):
        while os.waitpid(pid, os.WNOHANG) == (0, 0):
            if time.monotonic() >= gone + seconds:
                os.kill(pid, signal.SIGKILL)
            time.sleep(0.002)


def _be_child(connection: socket.socket, preparation: dict[str, Any], target: bytes) -> NoReturn:
    code = 1
    try:
        gc.enable()
        with contextlib.suppress(EOFError, ConnectionError):  # the process at the other end has ended
            _script.update({name: preparation.pop(name) for name in [*preparation] if name.startswith("init_main")})
            spawn.prepare(preparation)
            _loads(target)(connection)
        code = 0
    except BaseException:
        traceback.print_exc()
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)


_script: dict[str, str] = {}  # the parent's script, until it is imported here


class _Unpickler(pickle.Unpickler):
    """Imports the parent's script only if something in it is needed: a script without `if __name__ == "__main__":`
    would run again in each worker."""

    def find_class(self, module: str, name: str) -> Any:
        if module == "__main__" and _script:
            script, _ = dict(_script), _script.clear()  # type: ignore[func-returns-value]
            with warnings.catch_warnings():  # about a module run by `python -m` that the server has imported
                warnings.simplefilter("ignore", RuntimeWarning)
                spawn.prepare(script)
        return super().find_class(module, name)


def _loads(data: bytes) -> Any:
    return _Unpickler(io.BytesIO(data)).load()


# pyarrow and Beam import pandas if it is installed: 50 MB per process and half a second, and nothing here uses it.


def keep_pandas_out() -> None:
    """Hide pandas when pyarrow first looks for it; `to_pandas` looks again, and works as usual."""
    with _hidden():
        pa.array([])


@contextlib.contextmanager
def importing() -> Iterator[None]:
    """Import large packages in the block without pandas and without garbage collection, as imports make no garbage.

    Importing Beam takes 0.9 s of CPU time this way, 1.3 s otherwise. Later collections skip what was imported.
    """
    enabled = gc.isenabled()
    gc.disable()
    try:
        with _hidden():
            yield
        gc.freeze()
    finally:
        if enabled:
            gc.enable()


@contextlib.contextmanager
def _hidden() -> Iterator[None]:
    sys.meta_path.insert(0, _NoPandas)  # type: ignore[arg-type]  # the class is the finder
    try:
        yield
    finally:
        sys.meta_path.remove(_NoPandas)  # type: ignore[arg-type]


class _NoPandas:
    """An import finder (importlib.abc.MetaPathFinder) that hides pandas."""

    @staticmethod
    def find_spec(name: str, path: Sequence[str] | None = None, target: object = None) -> None:
        if name == "pandas":
            raise ModuleNotFoundError(name)
