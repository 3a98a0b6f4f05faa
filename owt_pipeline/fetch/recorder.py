"""Records made of what was fetched, in a process of their own, while the event loop fetches on.

Digests and compression take longer than the request. In a thread of the event loop's process they would also make
it wait for the interpreter's lock at each system call: the loop would run at half its rate.

    event loop --take--> batches --socket--> process: answers, into journals --socket--> how many

When the event loop's process is gone, the process writes down what it was given, so that a killed run loses what was
in flight; where both are killed, as with a machine, it loses 5 seconds of work on a disk, 30 in a bucket.
"""

from __future__ import annotations

import asyncio
import contextlib
import pickle
import socket
import struct
import time
import traceback
from collections import deque
from collections.abc import Callable
from multiprocessing.connection import Connection
from typing import Any

from owt_pipeline.engine import workers
from owt_pipeline.engine.workers import WorkerDied, WorkerError
from owt_pipeline.errors import UserError
from owt_pipeline.fetch.answers import Answer, Page
from owt_pipeline.fetch.journal import SegmentWriter
from owt_pipeline.fetch.live import Fetched
from owt_pipeline.storage.disk import Process, this_process
from owt_pipeline.storage.folder import Storage

SEGMENT_SECONDS = 5.0
BUCKET_SECONDS = 30.0  # each segment is a request there, which costs money and half a second
SEGMENT_BYTES = 16 << 20
"""A journal's segment is written when its first answer is so old, or it has so many bytes."""
_KEPT_BYTES = 2 * SEGMENT_BYTES  # for all journals together; beyond, the longest segment is written

_WAITING_BATCHES = 16
"""Batches that wait to be sent to the process; beyond, the event loop fetches no more until there are fewer."""

_BATCH_BYTES = 256 << 10
_BATCH_SECONDS = 0.01
"""A batch goes to the process when it has so many bytes or is so old."""

_SECONDS_TO_END = 10.0
"""Of the process, when the event loop's is gone: to write down what it was given."""

_LENGTH = struct.Struct("!i")  # before each message, as multiprocessing's Connection has it


class RecordingFailed(RuntimeError):
    """Recording has failed; why is raised on leaving the Recorder."""


class Recorder:
    """What a shard's answers are given to; they are in the journal when the block ends.

    async with Recorder(recording, folder, attempt, recorded) as recorder:
        ...  await recorder.take(url_id, fetched)
    """

    def __init__(
        self,
        recording: Recording,
        folder: Storage,
        attempt: str,
        recorded: Callable[[int, int], None],
        is_last: bool = True,
    ):
        """A recorder into the journal in `folder`; calls `recorded` with how many more answers and pages there are.

        Unless `is_last`, failures that time may mend are no answers yet.
        """
        self.is_last = is_last
        self._recording, self._folder, self._attempt, self.recorded = recording, folder, attempt, recorded
        self.key = f"{folder} {attempt}"
        self.settled = asyncio.Event()

    async def __aenter__(self) -> Recorder:
        self._recording.begin(self, self._folder, self._attempt)
        return self

    async def __aexit__(self, kind: type | None, *_: object) -> None:
        if self._recording.error is None:
            self._recording.finish(self)
            await self.settled.wait()
        if self._recording.error is not None and kind in (None, RecordingFailed):
            raise self._recording.error

    async def take(self, url_id: int, fetched: Fetched | Answer) -> None:
        """Give what was fetched; waits while too much is waiting, raises RecordingFailed once recording has failed."""
        if not self._recording.ready.is_set():
            await self._recording.ready.wait()
        if self._recording.error is not None:
            raise RecordingFailed
        self._recording.put(self.key, url_id, fetched)


async def start_recording() -> Recording:
    """A process at work: what is fetched before it is would be lost to a kill meanwhile."""
    child = workers.start_child(_serve, _SECONDS_TO_END)
    _, recording = await asyncio.get_running_loop().create_connection(lambda: Recording(child), sock=child.socket)
    await recording.process
    return recording


class Recording(asyncio.Protocol):
    """The process, as the event loop sees it.

    Attributes:
      child: what `workers.start_child` gave.
      process: which it is, once it is at work.
      ready: whether it takes more, or never will again.
      error: why it has failed.
    """

    def __init__(self, child: workers.Child):
        self.child, self.ready = child, asyncio.Event()
        self.process: asyncio.Future[Process] = asyncio.get_running_loop().create_future()
        self.ready.set()
        self.error: BaseException | None = None
        self._recorders: dict[str, Recorder] = {}
        self._transport: Any = None
        self._closing = False
        self._closed = asyncio.Event()
        self._received = bytearray()
        self._messages: deque[bytes] = deque()  # not sent yet: in the transport's buffer, each would cost a copy of all
        self._is_sending = False
        self._batch: list[tuple[str, int, Fetched | Answer]] = []
        self._batch_bytes = 0

    def begin(self, recorder: Recorder, folder: Storage, attempt: str) -> None:
        """Answers for the journal in `folder` come from now on."""
        self._recorders[recorder.key] = recorder
        self._send(("begin", (recorder.key, SegmentWriter(folder, attempt, recorder.is_last))))

    def put(self, key: str, url_id: int, fetched: Fetched | Answer) -> None:
        """Give the process something to record, soon."""
        if not self._batch:
            asyncio.get_running_loop().call_later(_BATCH_SECONDS, self.flush)
        self._batch.append((key, url_id, fetched))
        self._batch_bytes += len(fetched.received.body) if isinstance(fetched, Fetched) else 100
        if self._batch_bytes > _BATCH_BYTES:
            self.flush()

    def flush(self) -> None:
        """Give the process what waits."""
        if self._batch:
            self._send(("record", self._batch))
            self._batch, self._batch_bytes = [], 0

    def finish(self, recorder: Recorder) -> None:
        """No more comes from this recorder: it is settled once all is in the journal."""
        self.flush()
        self._send(("finish", recorder.key))

    async def close(self) -> None:
        """End the process."""
        self._closing = True
        self._transport.close()
        await self._closed.wait()
        self.child.end()

    def _send(self, message: tuple[str, Any]) -> None:
        data = pickle.dumps(message, protocol=5)
        self._messages.append(_LENGTH.pack(len(data)) + data)
        if len(self._messages) > _WAITING_BATCHES:
            self.ready.clear()
        if not self._is_sending:
            self.resume_writing()

    def connection_made(self, transport: Any) -> None:
        self._transport = transport
        transport.set_write_buffer_limits(0)

    def pause_writing(self) -> None:
        self._is_sending = True

    def resume_writing(self) -> None:
        self._is_sending = False
        while self._messages and not self._is_sending:
            self._transport.write(self._messages.popleft())
        if len(self._messages) <= _WAITING_BATCHES:
            self.ready.set()

    def data_received(self, data: bytes) -> None:
        self._received += data
        while len(self._received) >= _LENGTH.size:
            end = _LENGTH.size + _LENGTH.unpack_from(self._received)[0]
            if len(self._received) < end:
                return
            answer = pickle.loads(self._received[_LENGTH.size : end])
            del self._received[:end]
            if isinstance(answer, Exception):
                self._fail(answer)
                return
            if isinstance(answer, Process):
                self.process.set_result(answer)
            elif isinstance(answer, str):
                self._recorders.pop(answer).settled.set()
            else:
                for key, (number, pages) in answer.items():
                    self._recorders[key].recorded(number, pages)

    def connection_lost(self, _: Exception | None) -> None:
        self._closed.set()
        if not self._closing and self.error is None:
            died = WorkerDied(self.child.end())
            self._fail(WorkerError(f"recording failed: {died}. Out of memory? Run the same command again to continue"))

    def _fail(self, error: Exception) -> None:
        self.error = error
        self.child.end()
        if not self.process.done():
            self.process.set_exception(error)
        self.ready.set()
        for recorder in self._recorders.values():
            recorder.settled.set()


def _serve(end: socket.socket) -> None:
    """The process' life: batches into journals, until the other end is gone."""
    connection = Connection(end.detach())
    writers: dict[str, SegmentWriter] = {}

    def tell(answer: Any) -> None:
        with contextlib.suppress(ConnectionError):  # what was sent before the other end went is recorded all the same
            connection.send(answer)

    tell(this_process())
    try:
        with contextlib.suppress(EOFError, ConnectionError):
            while True:
                due = min((_due(writer) for writer in writers.values() if writer.bytes), default=None)
                wait = None if due is None else max(due - time.monotonic(), 0.0)
                if connection.poll(wait):
                    tell(_obey(connection.recv(), writers))
                for writer in writers.values():
                    if writer.bytes and time.monotonic() >= _due(writer):
                        writer.flush()
        for writer in writers.values():
            writer.flush()
    except (OSError, UserError) as error:  # such as a full disk
        tell(error)
    except Exception:
        tell(WorkerError(f"the recording process failed:\n{traceback.format_exc()}"))


def _due(writer: SegmentWriter) -> float:
    """When its segment is written at the latest, in `time.monotonic` seconds."""
    return writer.since + (SEGMENT_SECONDS if writer.folder.is_local else BUCKET_SECONDS)


def _obey(message: tuple[str, Any], writers: dict[str, SegmentWriter]) -> Any:
    """Do what a message says; returns the answer to it."""
    what, about = message
    if what == "begin":
        key, writers[key] = about
        return {}
    if what == "finish":
        writers.pop(about).flush()
        return about
    recorded: dict[str, tuple[int, int]] = {}
    for key, url_id, fetched in about:
        answer = fetched.answer() if isinstance(fetched, Fetched) else fetched
        number, pages = recorded.get(key, (0, 0))
        recorded[key] = number + writers[key].append(url_id, answer), pages + isinstance(answer, Page)
    for writer in writers.values():
        if writer.bytes >= SEGMENT_BYTES:
            writer.flush()
    if sum(writer.bytes for writer in writers.values()) >= _KEPT_BYTES:
        max(writers.values(), key=lambda writer: writer.bytes).flush()
    return recorded
