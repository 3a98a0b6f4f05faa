"""Records made of what was fetched, in a process of their own, while the event loop fetches on.

Digests and compression take longer than the request. In a thread of the event loop's process they would also make
it wait for the interpreter's lock at each system call: the loop would run at half its rate.

    event loop --take--> batches --thread--> pipe --> process: answers, encoded --> pipe --thread--> journals
"""

from __future__ import annotations

import asyncio
import contextlib
import multiprocessing
import pickle
import queue
import signal
import threading
import traceback
from collections import deque
from collections.abc import Callable
from multiprocessing.connection import Connection
from typing import Any

from owt_pipeline.fetch.answers import Answer
from owt_pipeline.fetch.journal import Journal, encode_entry
from owt_pipeline.fetch.live import Fetched
from owt_pipeline.runtime.workers import WorkerDied, WorkerError

_WAITING_BYTES = 64 << 20
"""Bodies that wait to be recorded; beyond, the event loop fetches no more until there are fewer."""

_BATCH_BYTES = 512 << 10
_BATCH_SECONDS = 0.01
"""A batch goes to the process when it has so many bytes or is so old: what a kill can cost beside pages in flight."""


class Recorder:
    """What a shard's pages are given to; they are in `journal` when the block ends.

    with Recorder(journal, progress.advance) as recorder:
        ...  await recorder.take(url_id, fetched)
    """

    def __init__(self, journal: Journal, recorded: Callable[[int], None]):
        """A recorder into `journal`, that calls `recorded` with how many more are in it, from a thread."""
        self.journal, self.recorded = journal, recorded
        self.pending = 0
        self.settled = threading.Condition()
        self._process = _shared_process()

    def __enter__(self) -> Recorder:
        return self

    def __exit__(self, kind: type | None, *_: object) -> None:
        self._process.flush()
        with self.settled:
            self.settled.wait_for(lambda: not self.pending or self._process.error is not None)
        if self._process.error is not None and kind in (None, RecordingFailed):
            raise self._process.error

    async def take(self, url_id: int, fetched: Fetched | Answer) -> None:
        """Give what was fetched; waits while too much is waiting, raises RecordingFailed once recording has failed."""
        while self._process.waiting_bytes > _WAITING_BYTES and self._process.error is None:
            await asyncio.sleep(0.005)
        if self._process.error is not None:
            raise RecordingFailed
        with self.settled:
            self.pending += 1
        self._process.put(self, url_id, fetched)


class RecordingFailed(RuntimeError):
    """Recording has failed; why is raised on leaving the Recorder."""


_Item = tuple[int, "Fetched | Answer"]


class _Process:
    """The process, its pipe, and the threads at this end of it."""

    def __init__(self) -> None:
        context = multiprocessing.get_context("forkserver")
        self._pipe, remote = context.Pipe()
        self._process = context.Process(target=_serve, args=(remote,), daemon=True)
        self._process.start()
        remote.close()
        self._pipe.recv_bytes()  # it has begun: what is fetched before would be lost to a kill meanwhile
        self.error: BaseException | None = None
        self.waiting_bytes = 0
        self._lock = threading.Lock()
        self._batch: list[_Item] = []
        self._batch_bytes = 0
        self._full: queue.SimpleQueue[list[_Item]] = queue.SimpleQueue()
        self._recorders: deque[tuple[Recorder, int]] = deque()  # of what has no answer yet, with its bytes
        for target in (self._send, self._receive):
            threading.Thread(target=target, name="record", daemon=True).start()

    def put(self, recorder: Recorder, url_id: int, fetched: Fetched | Answer) -> None:
        size = len(fetched.received.body) if isinstance(fetched, Fetched) else 100
        with self._lock:
            self._recorders.append((recorder, size))
            self.waiting_bytes += size
            self._batch.append((url_id, fetched))
            self._batch_bytes += size
            full, first = self._batch_bytes > _BATCH_BYTES, len(self._batch) == 1
        if full:
            self.flush()
        elif first:
            asyncio.get_running_loop().call_later(_BATCH_SECONDS, self.flush)

    def flush(self) -> None:
        with self._lock:
            if self._batch:
                self._full.put(self._batch)
                self._batch, self._batch_bytes = [], 0

    def _send(self) -> None:
        with contextlib.suppress(OSError):  # the process is gone: `_receive` tells
            while True:
                self._pipe.send_bytes(pickle.dumps(self._full.get(), protocol=5))

    def _receive(self) -> None:
        try:
            while True:
                answer = pickle.loads(self._pipe.recv_bytes())
                if isinstance(answer, str):
                    raise WorkerError(f"the recording process failed:\n{answer}")
                self._record(answer)
        except (EOFError, ConnectionResetError):
            self._process.join()
            died = WorkerDied(self._process.exitcode or 0)
            self._fail(WorkerError(f"recording failed: {died}. Out of memory? Run the same command again to go on"))
        except BaseException as error:
            self._fail(error)

    def _record(self, entries: list[bytes]) -> None:
        by_recorder: dict[Recorder, list[bytes]] = {}
        for entry in entries:
            recorder, size = self._recorders.popleft()
            by_recorder.setdefault(recorder, []).append(entry)
            with self._lock:
                self.waiting_bytes -= size
        for recorder, of_journal in by_recorder.items():
            recorder.journal.write(of_journal)
            recorder.recorded(len(of_journal))
            with recorder.settled:
                recorder.pending -= len(of_journal)
                recorder.settled.notify_all()

    def _fail(self, error: BaseException) -> None:
        global _process
        _process = None  # the next run begins with another
        self.error = error
        self._process.kill()
        for recorder, _ in list(self._recorders):
            with recorder.settled:
                recorder.settled.notify_all()


_process: _Process | None = None  # one a process: it is costly to start, and as fast as an event loop
_process_lock = threading.Lock()


def _shared_process() -> _Process:
    global _process
    with _process_lock:
        if _process is None:
            _process = _Process()
        return _process


def _serve(pipe: Connection) -> None:
    """The process' life: answers for batches, until the other end is gone."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is the parent's business
    with contextlib.suppress(EOFError, OSError):
        pipe.send_bytes(b"begun")
        while True:
            items: list[_Item] = pickle.loads(pipe.recv_bytes())
            answer: Any
            try:
                answer = [
                    encode_entry(url_id, fetched.answer() if isinstance(fetched, Fetched) else fetched)
                    for url_id, fetched in items
                ]
            except Exception:
                answer = traceback.format_exc()
            pipe.send_bytes(pickle.dumps(answer, protocol=5))
