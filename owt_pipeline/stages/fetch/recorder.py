"""A process that makes records of the responses, while the event loop fetches on.

Digests and compression take longer than the request. In a thread of the event loop's process, they would also make the
loop wait for the interpreter's lock at each system call, and run at half its rate.

    event loop --take--> batches --socket--> process: answers, into journals --socket--> how many

When the event loop's process is gone, the other process still writes what it was given, so a killed run loses only the
requests in flight. If both are killed, as with a machine, it loses 5 seconds of work on a disk, 30 in a bucket.
"""

from __future__ import annotations

import asyncio
import contextlib
import pickle
import socket
import struct
import time
import traceback
from collections.abc import Callable
from multiprocessing.connection import Connection
from typing import Any

from owt_pipeline.engine import workers
from owt_pipeline.engine.workers import WorkerDied, WorkerError
from owt_pipeline.errors import UserError
from owt_pipeline.stages.fetch.answers import Answer, Page
from owt_pipeline.stages.fetch.journal import SegmentWriter
from owt_pipeline.stages.fetch.live import Fetched
from owt_pipeline.storage.disk import Process, this_process
from owt_pipeline.storage.folder import Storage

SEGMENT_SECONDS = 5.0
BUCKET_SECONDS = 30.0  # each segment is a request there; it costs money and half a second
SEGMENT_BYTES = 16 << 20
"""A segment of a journal is written when its first answer is so old, or it has so many bytes."""
_KEPT_BYTES = 2 * SEGMENT_BYTES  # of all journals together; beyond, the longest segment is written

_WAITING_BYTES = 2 << 20
"""When so many bytes wait for the process, the event loop fetches no further pages."""

_BATCH_BYTES = 256 << 10
_BATCH_SECONDS = 0.01
"""A batch is sent to the process when it has so many bytes or is so old."""

_SECONDS_TO_END = 10.0
"""Time that the process has for writing what it was given, once the event loop's process is gone."""

_LENGTH = struct.Struct("!i")  # before each message, as multiprocessing's Connection has it


class RecordingFailed(RuntimeError):
    """Recording has failed; the reason is raised on leaving the Recorder."""


class Recorder:
    """Takes the answers for a shard; they are in its journal when the block ends.

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
        """A recorder for the journal in `folder`; calls `recorded` with the numbers of further answers and pages.

        Unless `is_last`, temporary failures do not count as answers.
        """
        self.is_last = is_last
        self._recording, self._folder, self._attempt, self.recorded = recording, folder, attempt, recorded
        self.key = f"{folder} {attempt}"
        self.settled = asyncio.Event()

    async def __aenter__(self) -> Recorder:
        self._recording.begin(self, SegmentWriter(self._folder, self._attempt, self.is_last))
        return self

    async def __aexit__(self, kind: type | None, *_: object) -> None:
        if self._recording.error is None:
            self._recording.put(self.key, None)
            await self.settled.wait()
        if self._recording.error is not None and kind in (None, RecordingFailed):
            raise self._recording.error

    async def take(self, url_id: int, fetched: Fetched | Answer) -> None:
        """Take a result; waits while too much is waiting, and raises RecordingFailed once recording has failed."""
        while self._recording.error is None and not self._recording.ready.is_set():
            await self._recording.ready.wait()
        if self._recording.error is not None:
            raise RecordingFailed
        size = len(fetched.received.body) if isinstance(fetched, Fetched) else 100
        self._recording.put(self.key, (url_id, fetched), size)


async def start_recording() -> Recording:
    """A process at work: answers from before its start could be lost."""
    recording = Recording(workers.start_child(_serve, _SECONDS_TO_END))
    await recording.process
    return recording


class Recording:
    """The event loop's side of the process.

    Attributes:
      child: the process, by `workers.start_child`.
      process: its id; done once it is at work.
      ready: set while it takes more, and for good once it has failed.
      error: why it has failed.
    """

    def __init__(self, child: workers.Child):
        self.child, self.ready = child, asyncio.Event()
        self.process: asyncio.Future[Process] = asyncio.get_running_loop().create_future()
        self.ready.set()
        self.error: BaseException | None = None
        self._recorders: dict[str, Recorder] = {}
        self._batch: list[tuple[str, Any]] = []
        self._batch_bytes = 0
        self._due = asyncio.Event()  # set when the batch is to be sent
        self._exchange = asyncio.ensure_future(self._exchange_messages())

    def begin(self, recorder: Recorder, writer: SegmentWriter) -> None:
        """Let `writer` write the answers of a recorder from now on."""
        self._recorders[recorder.key] = recorder
        self.put(recorder.key, writer)

    def put(self, key: str, content: Any, size: int = 0) -> None:
        """Send an item of the recorder `key` to the process soon; None ends it: it is settled once all is written."""
        if not self._batch:
            asyncio.get_running_loop().call_later(_BATCH_SECONDS, self._due.set)
        self._batch.append((key, content))
        self._batch_bytes += size
        if self._batch_bytes > _BATCH_BYTES:
            self._due.set()
        if self._batch_bytes > _WAITING_BYTES:
            self.ready.clear()

    async def close(self) -> None:
        """End the process."""
        self._exchange.cancel()
        await asyncio.gather(self._exchange, return_exceptions=True)
        self.child.end()

    async def _exchange_messages(self) -> None:
        reader, writer = await asyncio.open_connection(sock=self.child.socket)
        writer.transport.set_write_buffer_limits(0)
        sending = asyncio.ensure_future(self._send(writer))
        sending.add_done_callback(lambda _: writer.close())  # whatever it failed of: the reader hears of it
        try:
            while True:
                (length,) = _LENGTH.unpack(await reader.readexactly(_LENGTH.size))
                self._hear(pickle.loads(await reader.readexactly(length)))
        except (EOFError, ConnectionError):
            if self.error is None:
                died = WorkerDied(self.child.end())
                again = "Out of memory? Run the same command again to continue"
                self._fail(WorkerError(f"recording failed: {died}. {again}"))
        finally:
            sending.cancel()
            writer.close()

    async def _send(self, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(ConnectionError):
            while await self._due.wait():
                self._due.clear()
                if not self._batch:  # sent before it was so old
                    continue
                data = pickle.dumps(self._batch, protocol=5)
                self._batch, self._batch_bytes = [], 0
                self.ready.set()
                writer.write(_LENGTH.pack(len(data)) + data)
                await writer.drain()

    def _hear(self, answer: Any) -> None:
        if isinstance(answer, Exception):
            self._fail(answer)
        elif isinstance(answer, Process):
            self.process.set_result(answer)
        else:
            for key, (number, pages, is_settled) in answer.items():
                self._recorders[key].recorded(number, pages)
                if is_settled:
                    self._recorders.pop(key).settled.set()

    def _fail(self, error: Exception) -> None:
        self.error = error
        self.child.end()
        if not self.process.done():
            self.process.set_exception(error)
        self.ready.set()
        for recorder in self._recorders.values():
            recorder.settled.set()


def _serve(end: socket.socket) -> None:
    """The process: writes batches into journals until the other end is gone."""
    connection = Connection(end.detach())
    writers: dict[str, SegmentWriter] = {}

    def tell(answer: Any) -> None:
        with contextlib.suppress(ConnectionError):  # if the other end is gone, what it sent is still recorded
            connection.send(answer)

    tell(this_process())
    try:
        with contextlib.suppress(EOFError, ConnectionError):
            while True:
                due = min((_due(writer) for writer in writers.values() if writer.bytes), default=None)
                wait = None if due is None else max(due - time.monotonic(), 0.0)
                if connection.poll(wait):
                    tell(_record(connection.recv(), writers))
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
    """The latest time to write its segment, in `time.monotonic` seconds."""
    return writer.since + (SEGMENT_SECONDS if writer.folder.is_local else BUCKET_SECONDS)


def _record(batch: list[tuple[str, Any]], writers: dict[str, SegmentWriter]) -> dict[str, tuple[int, int, bool]]:
    """Take a batch; returns (answers, pages, whether it has ended) of each recorder in it."""
    recorded: dict[str, tuple[int, int, bool]] = {}
    for key, content in batch:
        number, pages, _ = recorded.get(key, (0, 0, False))
        if isinstance(content, SegmentWriter):
            writers[key] = content
        elif content is None:
            writers.pop(key).flush()
            recorded[key] = number, pages, True
        else:
            url_id, fetched = content
            answer = fetched.answer() if isinstance(fetched, Fetched) else fetched
            recorded[key] = number + writers[key].append(url_id, answer), pages + isinstance(answer, Page), False
    for writer in writers.values():
        if writer.bytes >= SEGMENT_BYTES:
            writer.flush()
    if sum(writer.bytes for writer in writers.values()) >= _KEPT_BYTES:
        max(writers.values(), key=lambda writer: writer.bytes).flush()
    return recorded
