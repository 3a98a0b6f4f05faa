"""Child processes that start in milliseconds and never outlive this process.

    this process --control--> server --fork--> child --socket--> this process

The server is started once, imports what children will need, and forks them: a fork of this process would copy the
locks that Beam's threads hold. When this process is gone, however it ended, the server kills the children, whatever C
code they are in. Children share neither locks nor pipes with each other, so one that is killed at any moment harms no
other one; nothing has a name in the file system, so nothing is left there. multiprocessing's fork server and the
pools on it (Pebble, concurrent.futures, loky) promise none of this.
"""

from __future__ import annotations

import atexit
import contextlib
import gc
import importlib
import os
import pickle
import signal
import socket
import sys
import threading
import time
import traceback
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from multiprocessing import reduction, spawn
from multiprocessing.connection import Connection
from subprocess import DEVNULL, Popen
from typing import Any, NoReturn

from owt_pipeline.engine.without_pandas import keep_pandas_out

_lock = threading.Lock()
_server: _Server | None = None  # of this process; a child that asks for children gets its own


@dataclass(frozen=True)
class Child:
    """A child process: its id, and this process' end of its socket, at end of file once the child has ended."""

    pid: int
    socket: socket.socket

    def end(self) -> int:
        """Kill the child if it is alive; returns its exit code, negative for the signal it died of."""
        try:
            return int(_ask("end", self.pid))
        except ChildProcessError:
            return -signal.SIGKILL


def start(target: Callable[[socket.socket], object], seconds: float = 0.0) -> Child:
    """Call `target(socket)` in a new process, which ignores Ctrl-C and SIGTERM; `target` is picklable.

    When this process is gone, it has so many `seconds` to end by itself before it is killed.
    Raises ChildProcessError where the server was killed, or the system allows no more processes.
    """
    # As multiprocessing does it: the module path, and functions of `__main__` under `python -m`.
    preparation = spawn.get_preparation_data("child")
    del preparation["authkey"]
    ours, theirs = socket.socketpair()
    with theirs:
        return Child(_ask("fork", (seconds, preparation, pickle.dumps(target)), theirs.fileno()), ours)


def prepare(needed: Sequence[str]) -> None:
    """Let the server do what all children to come would, without waiting for it; what fails there does no harm.

    `needed` are modules to import, and `module:function`s to call, which keep what they load.
    """
    _ask("prepare", needed, answers=False)


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
        with theirs:  # a session of its own: a terminal's Ctrl-C is for this process, which tells the server
            self._process = Popen(command, pass_fds=[theirs.fileno()], start_new_session=True, stdin=DEVNULL)
        self.control = Connection(ours.detach())

    def close(self) -> None:
        self.control.close()
        self._process.wait()


@atexit.register
def _close() -> None:
    if _server is not None:
        _server.close()


def serve(control: int) -> None:
    """Fork children as the process at the other end of `control` asks; end them when it is gone."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    gc.disable()  # what is imported stays, and children share its memory as long as nobody looks for garbage in it
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
                os.kill(argument, signal.SIGKILL)  # one that has ended keeps its id and its code until `waitpid`
                connection.send(os.waitstatus_to_exitcode(os.waitpid(argument, 0)[1]))
            else:  # it was ended before, or is a child of the server before this one
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
        with contextlib.suppress(EOFError, ConnectionError):  # the process at the other end is gone
            with warnings.catch_warnings():  # of a module that is run by `python -m`, and the server has imported
                warnings.simplefilter("ignore", RuntimeWarning)
                spawn.prepare(preparation)
            pickle.loads(target)(connection)
        code = 0
    except BaseException:
        traceback.print_exc()
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)
