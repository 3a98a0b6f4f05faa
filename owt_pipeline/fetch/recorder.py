"""Records made of what was fetched, in a process of their own, while the event loop fetches on.

Digests and compression take longer than the request. In a thread of the event loop's process they would also make
it wait for the interpreter's lock at each system call: the loop would run at half its rate.

    event loop --take--> batches --socket--> process: answers, into journals --socket--> what is in them now
"""

from __future__ import annotations

import asyncio
import contextlib
import pickle
import socket
import struct
import traceback
from collections import deque
from collections.abc import Callable
from typing import Any

from owt_pipeline.engine import children
from owt_pipeline.engine.workers import WorkerDied, WorkerError
from owt_pipeline.fetch.answers import NoPage
from owt_pipeline.fetch.fetched import Fetched
from owt_pipeline.fetch.journal import Appender, Entries, Journal, encode_entry

_WAITING_BATCHES = 16
"""Batches that wait to be sent to the process; beyond, the event loop fetches no more until there are fewer."""

_BATCH_BYTES = 256 << 10
_BATCH_SECONDS = 0.01
"""A batch goes to the process when it has so many bytes or is so old: what a kill can cost beside pages in flight."""

_SECONDS_TO_END = 3.0
"""Of the process, when the event loop's is gone: for the batches it has been given."""

_LENGTH = struct.Struct("<Q")  # before what the process sends

_Item = tuple[str, int, "Fetched | NoPage"]  # the journal's path, url_id, what came of it


class Recorder:
    """What a shard's pages are given to; they are in `journal` when the block ends.

    async with Recorder(recording, journal, recorded) as recorder:
        ...  await recorder.take(url_id, fetched)
    """

    def __init__(self, recording: Recording, journal: Journal, recorded: Callable[[], None]):
        """A recorder into `journal`, that calls `recorded` whenever more is in it."""
        self._recording, self._journal, self._recorded = recording, journal, recorded
        self._waiting = 0
        self.settled = asyncio.Event()

    async def __aenter__(self) -> Recorder:
        self._recording.recorders[self._journal.path] = self
        return self

    async def __aexit__(self, kind: type | None, *_: object) -> None:
        self._recording.flush()
        if self._waiting and self._recording.error is None:
            await self.settled.wait()
        self._recording.finish(self._journal.path)
        if self._recording.error is not None and kind in (None, RecordingFailed):
            raise self._recording.error

    async def take(self, url_id: int, fetched: Fetched | NoPage) -> None:
        """Give what was fetched; waits while too much is waiting, raises RecordingFailed once recording has failed."""
        if not self._recording.ready.is_set():
            await self._recording.ready.wait()
        if self._recording.error is not None:
            raise RecordingFailed
        self._waiting += 1
        self.settled.clear()
        self._recording.put((self._journal.path, url_id, fetched))

    def note(self, entries: Entries) -> None:
        """These are in the journal now."""
        self._journal.note(entries)
        self._recorded()
        self._waiting -= len(entries.ids)
        if not self._waiting:
            self.settled.set()


class RecordingFailed(RuntimeError):
    """Recording has failed; why is raised on leaving the Recorder."""


async def start_recording() -> Recording:
    """A process at work: what is fetched before it is would be lost to a kill meanwhile."""
    process = children.start(_serve, _SECONDS_TO_END)
    _, recording = await asyncio.get_running_loop().create_connection(lambda: Recording(process), sock=process.socket)
    await recording.begun.wait()
    return recording


class Recording(asyncio.Protocol):
    """The process, as the event loop sees it.

    Attributes:
      process: what `children.start` gave.
      recorders: by the paths of their journals.
      begun: whether it is at work, or never will be.
      ready: whether it takes more, or never will again.
      error: why it has failed.
    """

    def __init__(self, process: children.Child):
        self.process = process
        self.recorders: dict[str, Recorder] = {}
        self.begun, self.ready = asyncio.Event(), asyncio.Event()
        self.ready.set()
        self.error: BaseException | None = None
        self._transport: Any = None
        self._closing = False
        self._closed = asyncio.Event()
        self._received = bytearray()
        self._messages: deque[bytes] = deque()  # not sent yet: in the transport's buffer, each would cost a copy of all
        self._is_sending = False
        self._batch: list[_Item] = []
        self._batch_bytes = 0

    def put(self, item: _Item) -> None:
        """Give the process something to record, soon."""
        if not self._batch:
            asyncio.get_running_loop().call_later(_BATCH_SECONDS, self.flush)
        self._batch.append(item)
        fetched = item[2]
        self._batch_bytes += len(fetched.received.body) if isinstance(fetched, Fetched) else 100
        if self._batch_bytes > _BATCH_BYTES:
            self.flush()

    def flush(self) -> None:
        """Give the process what waits."""
        if self._batch:
            self._send(self._batch)
            self._batch, self._batch_bytes = [], 0

    def finish(self, path: str) -> None:
        """No more comes into the journal at `path`."""
        del self.recorders[path]
        self._send(path)

    async def close(self) -> None:
        """End the process."""
        self._closing = True
        self._transport.close()
        await self._closed.wait()
        self.process.end()

    def _send(self, message: list[_Item] | str) -> None:
        self._messages.append(pickle.dumps(message, protocol=5))
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
            if not answer:
                self.begun.set()
            for path, entries in answer.items():
                self.recorders[path].note(entries)

    def connection_lost(self, _: Exception | None) -> None:
        self._closed.set()
        if not self._closing and self.error is None:
            died = WorkerDied(self.process.end())
            self._fail(WorkerError(f"recording failed: {died}. Out of memory? Run the same command again to go on"))

    def _fail(self, error: Exception) -> None:
        self.error = error
        self.process.end()
        self.begun.set()
        self.ready.set()
        for recorder in self.recorders.values():
            recorder.settled.set()


def _serve(connection: socket.socket) -> None:
    """The process' life: batches into journals, until the other end is gone."""
    journals: dict[str, Appender] = {}
    with contextlib.suppress(EOFError, ConnectionError), connection.makefile("rb") as messages:
        _answer(connection, {})
        while True:
            message: list[_Item] | str = pickle.load(messages)
            if isinstance(message, list):
                try:
                    _answer(connection, _record(message, journals))
                except OSError as error:  # such as a full disk
                    _answer(connection, error)
                except Exception:
                    problem = f"the recording process failed:\n{traceback.format_exc()}"
                    _answer(connection, WorkerError(problem))
            elif message in journals:
                journals.pop(message).close()


def _answer(connection: socket.socket, answer: dict[str, Entries] | Exception) -> None:
    data = pickle.dumps(answer, protocol=5)
    connection.sendall(_LENGTH.pack(len(data)) + data)


def _record(batch: list[_Item], journals: dict[str, Appender]) -> dict[str, Entries]:
    entries: dict[str, list[bytes]] = {}
    for path, url_id, fetched in batch:
        answer = fetched.answer() if isinstance(fetched, Fetched) else fetched
        entries.setdefault(path, []).append(encode_entry(url_id, answer))
    for path in entries.keys() - journals.keys():
        journals[path] = Appender(path)
    return {path: journals[path].write(of_journal) for path, of_journal in entries.items()}
