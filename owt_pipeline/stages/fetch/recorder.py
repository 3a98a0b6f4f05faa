"""Sources on the network: each part makes its requests in an event loop of its own, and the
answers go into segments.

    client  ->  Breaker: no URL is rejected because the network or an archive is down
            ->  Recorder: records are made in threads, while the event loop fetches on
            ->  the shard's segments, by the one Attempt whose id is in warc/SHARD/attempt

Parts share nothing: a host is in one shard, and limits of all hosts together are divided over the
parts of a process.
"""

from __future__ import annotations

import asyncio
import math
import time
import uuid
from collections import Counter, deque
from collections.abc import Awaitable, Callable, Coroutine, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, ClassVar, Protocol, TypeVar

import pyarrow as pa

from owt_pipeline import progress
from owt_pipeline.engine.parts import stop_after_failure
from owt_pipeline.errors import UserError
from owt_pipeline.stages.fetch.answers import Answer, FetchedResponse, FetchFailure, Page
from owt_pipeline.stages.fetch.options import allowed_connections
from owt_pipeline.stages.fetch.segments import SegmentReader, SegmentWriter
from owt_pipeline.storage.folder import Storage

if TYPE_CHECKING:
    from owt_pipeline.stages.fetch.options import Options

R = TypeVar("R")
C = TypeVar("C", bound="Client")

SEGMENT_SECONDS = 5.0
BUCKET_SECONDS = 30.0  # each segment is a request there; it costs money and half a second
SEGMENT_BYTES = 8 << 20
"""A segment is written so often, or once its records have so many bytes: a kill loses what is in
none yet."""

_LATER_SECONDS = 60.0
"""After the first minutes of a shard, segments are written after a sixtieth of its time, at most
so many seconds: they stay, and the last slow hosts of a large shard take hours."""

_BATCH_BYTES = 512 << 10
_BATCHES = 5
"""A batch has so many bytes, or what came in that part of a segment's time."""

PATIENCE_SECONDS = 60.0
"""An attempt that writes no segment for so long is taken for dead; two segments of a run in a
bucket."""


class Client(Protocol):
    """Makes requests to a source; made and used in one event loop."""

    columns: ClassVar[Sequence[str]]
    """The columns of urls/ that it needs; `url_id` is the first."""

    async def ask(self, urls: pa.Table, recorder: Recorder, before: SegmentReader | None) -> None:
        """Request each URL of `urls` (with the source's columns) and give each answer to
        `recorder`.

        `before` is what an earlier attempt was answered, which may have sent requests to the same
        hosts a moment ago.
        """

    async def close(self) -> None: ...


def with_client(make: Callable[[], C], use: Callable[[C], Coroutine[Any, Any, R]]) -> R:
    """The result of `use` with a client, in an event loop of its own."""

    async def run() -> R:
        client = make()
        try:
            return await use(client)
        finally:
            await client.close()

    return asyncio.run(run())


def share(options: Options, parts: int) -> Options:
    """The options of one of so many parts of a process at once: its share of the connections,
    and of the requests to Common Crawl."""
    connections = -(-allowed_connections(options.connections) // parts)
    return replace(options, connections=connections, cc_delay=options.cc_delay * parts)


async def until_stopped(recorder: Recorder, asking: Awaitable[None]) -> None:
    """Await `asking`, but no longer than the recorder goes on; raises what either raises."""
    task = asyncio.ensure_future(asking)
    try:
        while not (task.done() or recorder.stopped.done()):
            await asyncio.wait(
                {task, recorder.stopped}, timeout=1, return_when=asyncio.FIRST_COMPLETED
            )
            progress.advance(0)  # shows that the run is alive while no answer arrives
            stop_after_failure()
        await (task if task.done() else recorder.stopped)
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


class CircuitBreaker:
    """Takes the answers of one source to the URLs of one shard; used in one event loop, by any
    number of tasks.

    Failures without an answer are held back. They become their URLs' outcomes once a later request
    succeeds, or when no request is left. If too many in a row are held, the network, the resolver,
    the proxy or an archive is down: the run stops, and these URLs have no outcome, so the next run
    requests them again.
    """

    def __init__(
        self,
        recorder: Recorder,
        most: float,
        is_silent: Callable[[FetchFailure], bool],
        what: str,
        works: Callable[[], Awaitable[bool]] | None = None,
    ):
        """Outcomes go to `recorder`. After failures of `most` names in a row, for which
        `is_silent` returns True, the run stops with a message about `what`; but not if `works`
        finds that an answer comes from elsewhere."""
        self._recorder, self._most, self._is_silent = recorder, most, is_silent
        self._what, self._works = what, works
        self._held: deque[tuple[float, str, int, FetchFailure]] = deque()  # when, whose
        self._names: Counter[str] = Counter()  # of those held
        self._judging = asyncio.Lock()

    async def take(
        self, url_id: int, answer: Answer | FetchedResponse, begun: float, name: str = ""
    ) -> None:
        """Take the answer to a request that began at `begun`, in `time.monotonic` seconds;
        raises UserError. `name` is whose failure it is: by default the URL's."""
        if not isinstance(answer, FetchFailure) or not self._is_silent(answer):
            await self.settle(begun)
            await self._recorder.take(url_id, answer)
            return
        name = name or str(url_id)
        self._held.append((time.monotonic(), name, url_id, answer))
        self._names[name] += 1
        if len(self._names) < self._most:
            return
        async with self._judging:
            if len(self._names) < self._most:
                return
            if self._works is None or not await self._works():
                raise UserError(self._problem())
            await self.settle()

    async def settle(self, begun: float = math.inf) -> None:
        """Record the failures before `begun`, when a request that succeeded began; at the end,
        all of them."""
        while self._held and self._held[0][0] < begun:
            _, name, url_id, answer = self._held.popleft()
            self._names[name] -= 1
            if not self._names[name]:
                del self._names[name]
            await self._recorder.take(url_id, answer)

    def _problem(self) -> str:
        reasons = Counter(str(answer.reason) for _, _, _, answer in self._held)
        counted = ", ".join(f"{reason} {count:,}" for reason, count in reasons.most_common())
        return (
            f"{len(self._names):,} {self._what} ({counted}); the last one: "
            f"{self._held[-1][3].detail}. Their URLs have "
            "no outcome yet: run the same command again later, and it continues where it stopped"
        )


def wait_after(seconds: float, shortest: float) -> float:
    """Seconds between two segments of a shard that has taken so many; `shortest` at its
    beginning."""
    return max(shortest, min(seconds / 60, _LATER_SECONDS))


class Recorder:
    """Takes the answers for a shard; they are in its segments when the block ends.

    async with Recorder(writer, attempt, recorded) as recorder:
        ...  await recorder.take(url_id, fetched)

    Attributes:
      stopped: done once it cannot go on; its result raises why: Superseded, or what writing raised.
    """

    stopped: asyncio.Future[None]
    _writing: asyncio.Future[
        tuple[int, int]
    ]  # the last write; it goes on if the task that waits for it is cancelled

    def __init__(
        self,
        writer: SegmentWriter,
        attempt: ShardLease,
        recorded: Callable[[int, int, Mapping[str, int]], None],
    ):
        """A recorder that writes with `writer`; calls `recorded` with the numbers of further
        answers, pages, and failures by reason."""
        self.is_last = writer.is_last
        self._recorded, self._attempt, self._writer = recorded, attempt, writer
        self._seconds = SEGMENT_SECONDS if writer.workdir.is_local else BUCKET_SECONDS
        self._batch: list[tuple[int, FetchedResponse | Answer]] = []
        self._batch_bytes = 0
        self._recording = asyncio.Lock()

    async def __aenter__(self) -> Recorder:
        self._writing = asyncio.ensure_future(asyncio.to_thread(self._write, [], False, False))
        self.stopped = asyncio.ensure_future(self._tick())
        return self

    async def __aexit__(self, kind: type | None, *_: object) -> None:
        self.stopped.cancel()
        (error,) = await asyncio.gather(self.stopped, return_exceptions=True)
        if isinstance(error, Superseded):  # what was taken while it looked
            await asyncio.to_thread(self._write, self._batch, False, True)
        if not isinstance(error, Exception):
            await self._record(checks=True, flushes=True)
        elif kind is None:
            raise error

    async def take(self, url_id: int, fetched: FetchedResponse | Answer) -> None:
        """Take a result; waits while a batch is full and the one before is being recorded.
        Raises what writing raised, such as OSError for a full disk."""
        if self.stopped.done():
            self.stopped.result()
        self._batch.append((url_id, fetched))
        self._batch_bytes += (
            len(fetched.received.body) if isinstance(fetched, FetchedResponse) else 100
        )
        if self._batch_bytes >= _BATCH_BYTES:
            await self._record(_BATCH_BYTES)

    async def _tick(self) -> None:
        started = written = time.monotonic()
        while True:
            await asyncio.sleep(self._seconds / _BATCHES)
            now = time.monotonic()
            is_due = now - written >= wait_after(now - started, self._seconds)
            written = now if is_due else written
            await self._record(checks=True, flushes=is_due)

    async def _record(self, least: int = 0, *, checks: bool = False, flushes: bool = False) -> None:
        """Record the batch if it still has so many bytes; then write the segment, and look for
        another attempt."""
        async with self._recording:
            await asyncio.shield(self._writing)
            if self._batch_bytes < least or not (self._batch or checks):
                return
            batch, self._batch, self._batch_bytes = self._batch, [], 0
            self._writing = asyncio.ensure_future(
                asyncio.to_thread(self._write, batch, checks, flushes)
            )
            failures = Counter(
                str(result.reason) for _, result in batch if isinstance(result, FetchFailure)
            )
            self._recorded(*await asyncio.shield(self._writing), failures)

    def _write(
        self, batch: Sequence[tuple[int, FetchedResponse | Answer]], checks: bool, flushes: bool
    ) -> tuple[int, int]:
        answers = pages = 0
        for url_id, fetched in batch:
            answer = fetched.answer() if isinstance(fetched, FetchedResponse) else fetched
            answers += self._writer.append(url_id, answer)
            pages += isinstance(answer, Page)
        if flushes or self._writer.bytes >= SEGMENT_BYTES:
            self._writer.flush()
        try:
            if checks:
                self._attempt.check()
        except Superseded:
            self._writer.flush()
            raise
        return answers, pages


class Superseded(Exception):
    """Another attempt makes the requests for the shard now."""


class ShardLease:
    """The right of one attempt to make requests for a shard: a file with its id, which the next
    attempt replaces.

    An attempt that finds another's id there stops. It looks when it writes a segment, so both may
    make requests for as long as a segment takes.

    Attributes:
      id: a unique name.
    """

    def __init__(self, workdir: Storage, folder: str):
        """An attempt at the shard whose segments are in `folder`."""
        self.id = uuid.uuid4().hex
        self._workdir, self._folder, self._path = workdir, folder, f"{folder}/attempt"

    def begin(self) -> bool:
        """Take the file over; returns whether another attempt had it, which may still make
        requests."""
        was_there = self._workdir.exists(self._path)
        self._workdir.write(self._path, self.id.encode())
        return was_there

    def check(self) -> None:
        """Raise Superseded if the file has another attempt's id."""
        if self._owner() not in (None, self.id):
            raise Superseded

    def end(self) -> None:
        """Remove the file, unless it is another attempt's."""
        if self._owner() == self.id:
            self._workdir.delete(self._path)

    async def wait_for_other(self) -> None:
        """Wait until the attempt that has superseded this one ends, or has written nothing for
        PATIENCE_SECONDS."""
        seen, since = ("", 0), 0.0
        while (owner := await asyncio.to_thread(self._owner)) not in (None, self.id):
            if (
                now := (owner, len(await asyncio.to_thread((self._workdir / self._folder).names)))
            ) != seen:
                seen, since = now, time.monotonic()
            elif time.monotonic() - since > PATIENCE_SECONDS:
                return
            await asyncio.sleep(PATIENCE_SECONDS / 20)

    def _owner(self) -> str | None:
        found = self._workdir.read_version(self._path)
        return found[0].decode("utf-8", "replace") if found is not None else None
