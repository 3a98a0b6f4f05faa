"""Sources on the network: the results of requests in an event loop go into segments.

    client  ->  CircuitBreaker: no URL is rejected because the network or an archive is down
            ->  Recorder: records are made in threads, while the event loop fetches on
            ->  the shard's segments, by the one ShardLease whose id is in warc/SHARD/attempt

Parts share nothing: a host is in one shard, and limits of all hosts together are divided over the
parts of a process.
"""

from __future__ import annotations

import asyncio
import math
import time
import uuid
from collections import Counter
from collections.abc import Awaitable, Callable, Coroutine, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple, Protocol, TypeVar

import pyarrow as pa

from owt_pipeline import progress
from owt_pipeline.engine.parts import stop_after_failure
from owt_pipeline.errors import UserError
from owt_pipeline.stages.fetch.answers import FetchedResponse, FetchFailure, FetchResult, Page
from owt_pipeline.stages.fetch.options import allowed_connections
from owt_pipeline.stages.fetch.segments import SegmentReader, SegmentWriter
from owt_pipeline.storage.folder import Storage

if TYPE_CHECKING:
    from owt_pipeline.stages.fetch.options import Options

R = TypeVar("R")
C = TypeVar("C", bound="Client")

# A segment is written after this many seconds, or once its records have this many bytes. A kill
# loses the results that are not in a segment yet.
SEGMENT_SECONDS = 5.0
SEGMENT_BYTES = 8 << 20
# In a bucket, each segment is a request, which costs money and half a second.
BUCKET_SECONDS = 30.0

# After the first minutes of a shard, segments are written after a sixtieth of its time, at most
# this many seconds: segments stay, and the last slow hosts of a large shard take hours.
_MAX_SEGMENT_SECONDS = 60.0

# A batch of records is made once it has this many bytes, and this many times in the time between
# two segments.
_BATCH_BYTES = 512 << 10
_BATCHES_PER_SEGMENT = 5

# About the memory of a result without a body.
_FAILURE_BYTES = 100

# A lease whose holder writes no segment for this long is taken for abandoned. In a bucket, that is
# the time of two segments.
PATIENCE_SECONDS = 60.0


class Client(Protocol):
    """Makes requests to a source; made and used in one event loop."""

    columns: ClassVar[Sequence[str]]
    """The columns of urls/ that it needs; `url_id` is the first."""

    async def fetch_all(
        self, urls: pa.Table, recorder: Recorder, earlier_results: SegmentReader | None
    ) -> None:
        """Request each URL of `urls` (with `columns`) and give each result to `recorder`.

        `earlier_results` come from an earlier lease. It may have sent requests to the same hosts a
        moment ago.
        """

    async def close(self) -> None: ...


def with_client(make: Callable[[], C], use: Callable[[C], Coroutine[Any, Any, R]]) -> R:
    """Return the result of `use` with a client, in an event loop of its own."""

    async def run() -> R:
        client = make()
        try:
            return await use(client)
        finally:
            await client.close()

    return asyncio.run(run())


def split_limits(options: Options, num_parts: int) -> Options:
    """Return the options for one of several parts that run in one process.

    Each gets its share of the connections, and of the requests to Common Crawl.
    """
    connections = -(-allowed_connections(options.connections) // num_parts)
    return replace(options, connections=connections, cc_delay=options.cc_delay * num_parts)


async def until_stopped(recorder: Recorder, fetching: Awaitable[None]) -> None:
    """Await `fetching`, but no longer than the recorder goes on; raises what either raises."""
    task = asyncio.ensure_future(fetching)
    try:
        while not (task.done() or recorder.stopped.done()):
            await asyncio.wait(
                {task, recorder.stopped}, timeout=1, return_when=asyncio.FIRST_COMPLETED
            )
            # Shows that the run is alive while no response arrives.
            progress.advance(0)
            stop_after_failure()
        await (task if task.done() else recorder.stopped)
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


class ResultTaker(Protocol):
    """Takes the results for a shard, as a Recorder does."""

    async def take(self, url_id: int, result: FetchedResponse | FetchResult) -> None: ...


class _HeldFailure(NamedTuple):
    """A failure that may be the network's: when it happened, and whose it is."""

    at: float
    name: str
    url_id: int
    failure: FetchFailure


class _Silence:
    """The failures since which no response has come; failures are added, and none is taken out.

    A response starts another silence instead. So a silence that a task has judged still has its
    failures after the task had to wait, and its identity tells whether a response came meanwhile.

    Attributes:
      names: the names that failed.
    """

    def __init__(self, failures: Iterable[_HeldFailure] = ()):
        """Return the silence that starts with `failures`, in the order of their time."""
        self._failures = list(failures)
        self.names = {held_failure.name for held_failure in self._failures}

    def add(self, held_failure: _HeldFailure) -> None:
        """Add a failure that happened now."""
        self._failures.append(held_failure)
        self.names.add(held_failure.name)

    def split(self, started: float) -> tuple[list[_HeldFailure], _Silence]:
        """Return the failures before `started`, and the silence of the later ones."""
        num_before = sum(held_failure.at < started for held_failure in self._failures)
        return self._failures[:num_before], _Silence(self._failures[num_before:])

    def problem(self, subject: str) -> str:
        """Return the message for a run that this silence stops; it has one failure at least."""
        num_by_reason = Counter(str(held_failure.failure.reason) for held_failure in self._failures)
        reasons = ", ".join(f"{reason} {num:,}" for reason, num in num_by_reason.most_common())
        return (
            f"{len(self.names):,} {subject} ({reasons}). The last failure: "
            f"{self._failures[-1].failure.detail}. Their URLs have no outcome yet: run the "
            "same command again later to continue"
        )


class CircuitBreaker:
    """Takes the results of one source for the URLs of one shard; used in one event loop, by any
    number of tasks.

    Failures without a response are held back. They become their URLs' outcomes once a later request
    succeeds, or when no request is left. If too many in a row are held, the network, the resolver,
    the proxy or an archive is down: the run stops, and these URLs have no outcome, so the next run
    requests them again.
    """

    def __init__(
        self,
        recorder: ResultTaker,
        max_failures: float,
        is_silent: Callable[[FetchFailure], bool],
        subject: str,
        is_network_up: Callable[[], Awaitable[bool]] | None = None,
    ):
        """Return a breaker whose outcomes go to `recorder`.

        Args:
          max_failures: the number of names that fail in a row and stop the run.
          is_silent: whether a failure is one without a response.
          subject: what failed, for the message.
          is_network_up: whether a response comes from elsewhere, so that the run goes on.
        """
        self._recorder = recorder
        self._max_failures = max_failures
        self._is_silent = is_silent
        self._subject = subject
        self._is_network_up = is_network_up
        self._silence = _Silence()
        self._judging = asyncio.Lock()

    async def take(
        self,
        url_id: int,
        result: FetchResult | FetchedResponse,
        started: float,
        name: str = "",
        *,
        has_response: bool = True,
    ) -> None:
        """Take the result of a URL whose work began at `started`, in `time.monotonic` seconds.

        `name` is whose failure it is: by default the URL's. `has_response` is whether a response
        came since `started`. Raises UserError if the run has to stop.
        """
        if not isinstance(result, FetchFailure) or not self._is_silent(result):
            if has_response:
                await self.settle(started)
            await self._recorder.take(url_id, result)
            return
        name = name or str(url_id)
        self._silence.add(_HeldFailure(time.monotonic(), name, url_id, result))
        if len(self._silence.names) < self._max_failures:
            return
        # One task finds out whether the network works; the others wait for it.
        async with self._judging:
            while len(self._silence.names) >= self._max_failures:
                await self._judge(self._silence)

    async def _judge(self, silence: _Silence) -> None:
        """Settle the failures so far if the network works.

        Raises UserError if it does not, unless a response has ended `silence` meanwhile.
        """
        started = time.monotonic()
        if self._is_network_up is not None and await self._is_network_up():
            await self.settle(started)
        elif silence is self._silence:
            raise UserError(silence.problem(self._subject))

    async def settle(self, started: float = math.inf) -> None:
        """Record the failures before `started`, when a request that succeeded began; at the end,
        all of them."""
        if not self._silence.names:
            return
        failures_before, self._silence = self._silence.split(started)
        for held_failure in failures_before:
            await self._recorder.take(held_failure.url_id, held_failure.failure)


def wait_after(seconds: float, min_wait: float) -> float:
    """Return the seconds between two segments of a shard, `seconds` after its beginning."""
    return max(min_wait, min(seconds / 60, _MAX_SEGMENT_SECONDS))


class Recorder:
    """Takes the results for a shard; they are in its segments when the block ends.

    async with Recorder(writer, lease, on_recorded) as recorder:
        ...  await recorder.take(url_id, result)

    Attributes:
      is_last_try: whether temporary failures are final.
      stopped: done once it cannot go on. Its result raises Superseded, or the error of writing.
    """

    stopped: asyncio.Future[None]
    # The last write. It goes on if the task that waits for it is cancelled.
    _writing: asyncio.Future[tuple[int, int, Counter[str]]]

    def __init__(
        self,
        writer: SegmentWriter,
        lease: ShardLease,
        on_recorded: Callable[[int, int, Mapping[str, int]], None],
    ):
        """Return a recorder that writes with `writer`.

        It calls `on_recorded` with the numbers of further results, pages, and failures by reason.
        """
        self.is_last_try = writer.is_last_try
        self._on_recorded = on_recorded
        self._lease = lease
        self._writer = writer
        self._seconds = SEGMENT_SECONDS if writer.workdir.is_local else BUCKET_SECONDS
        self._batch: list[tuple[int, FetchedResponse | FetchResult]] = []
        self._batch_bytes = 0
        self._recording = asyncio.Lock()

    async def __aenter__(self) -> Recorder:
        nothing: list[tuple[int, FetchedResponse | FetchResult]] = []
        self._writing = asyncio.ensure_future(asyncio.to_thread(self._write, nothing, False, False))
        self.stopped = asyncio.ensure_future(self._tick())
        return self

    async def __aexit__(self, error_type: type | None, *_: object) -> None:
        self.stopped.cancel()
        (error,) = await asyncio.gather(self.stopped, return_exceptions=True)
        if isinstance(error, Superseded):
            # Results may have been taken while it looked for another lease.
            await asyncio.to_thread(self._write, self._batch, False, True)
        if not isinstance(error, Exception):
            await self._record(checks_lease=True, flushes=True)
        elif error_type is None:
            raise error

    async def take(self, url_id: int, result: FetchedResponse | FetchResult) -> None:
        """Take a result; waits while a batch is full and the one before is being recorded.

        Raises the error of writing, such as OSError for a full disk.
        """
        if self.stopped.done():
            self.stopped.result()
        self._batch.append((url_id, result))
        if isinstance(result, FetchedResponse):
            self._batch_bytes += len(result.received.body)
        else:
            self._batch_bytes += _FAILURE_BYTES
        if self._batch_bytes >= _BATCH_BYTES:
            await self._record(_BATCH_BYTES)

    async def _tick(self) -> None:
        """Record the results in batches, until it is cancelled."""
        started = time.monotonic()
        written = started
        while True:
            await asyncio.sleep(self._seconds / _BATCHES_PER_SEGMENT)
            now = time.monotonic()
            is_due = now - written >= wait_after(now - started, self._seconds)
            if is_due:
                written = now
            await self._record(checks_lease=True, flushes=is_due)

    async def _record(
        self, min_bytes: int = 0, *, checks_lease: bool = False, flushes: bool = False
    ) -> None:
        """Record the batch if it still has `min_bytes`; then write the segment, and look for
        another lease."""
        async with self._recording:
            # A task that was cancelled here leaves a write that goes on: the next one waits for it.
            await asyncio.shield(self._writing)
            if self._batch_bytes < min_bytes or not (self._batch or checks_lease):
                return
            batch = self._batch
            self._batch = []
            self._batch_bytes = 0
            self._writing = asyncio.ensure_future(
                asyncio.to_thread(self._write, batch, checks_lease, flushes)
            )
            self._on_recorded(*await asyncio.shield(self._writing))

    def _write(
        self,
        batch: Sequence[tuple[int, FetchedResponse | FetchResult]],
        checks_lease: bool,
        flushes: bool,
    ) -> tuple[int, int, Counter[str]]:
        """Make the records of a batch.

        Returns the numbers of final results and pages, and of final failures by reason.
        """
        num_results = 0
        num_pages = 0
        failures: Counter[str] = Counter()
        for url_id, taken in batch:
            result = taken.result() if isinstance(taken, FetchedResponse) else taken
            is_final = self._writer.append(url_id, result)
            num_results += is_final
            num_pages += isinstance(result, Page)
            if is_final and isinstance(result, FetchFailure):
                failures[str(result.reason)] += 1
        if flushes or self._writer.bytes >= SEGMENT_BYTES:
            self._writer.flush()
        try:
            if checks_lease:
                self._lease.check()
        except Superseded:
            self._writer.flush()
            raise
        return num_results, num_pages, failures


class Superseded(Exception):
    """Another lease makes the requests for the shard now."""


class ShardLease:
    """The right to make requests for a shard: a file with the holder's id, which the next holder
    replaces.

    A holder that finds another's id there stops. It looks when it writes a segment, so both may
    make requests for as long as a segment takes.

    Attributes:
      id: a unique name.
    """

    def __init__(self, workdir: Storage, folder: str):
        """Return a lease of the shard whose segments are in `folder`."""
        self.id = uuid.uuid4().hex
        self._workdir = workdir
        self._folder = folder
        self._path = f"{folder}/attempt"

    def begin(self) -> bool:
        """Take the file over; returns whether another one had it, which may still make requests."""
        has_holder = self._workdir.exists(self._path)
        self._workdir.write(self._path, self.id.encode())
        return has_holder

    def check(self) -> None:
        """Raise Superseded if the file has another lease's id."""
        if self._owner() not in (None, self.id):
            raise Superseded

    def end(self) -> None:
        """Remove the file, unless it is another lease's.

        A lease that takes it over just now goes on without it: only another id supersedes it.
        """
        if self._owner() == self.id:
            self._workdir.delete(self._path)

    async def wait_for_other(self) -> None:
        """Wait until the lease that has superseded this one ends, or its holder has written
        nothing for PATIENCE_SECONDS."""
        last_seen = ("", 0)
        seen_since = 0.0
        while True:
            owner = await asyncio.to_thread(self._owner)
            if owner in (None, self.id):
                return
            names = await asyncio.to_thread((self._workdir / self._folder).names)
            seen = (str(owner), len(names))
            if seen != last_seen:
                last_seen = seen
                seen_since = time.monotonic()
            elif time.monotonic() - seen_since > PATIENCE_SECONDS:
                return
            await asyncio.sleep(PATIENCE_SECONDS / 20)

    def _owner(self) -> str | None:
        """Return the id in the file; None if there is no file."""
        version = self._workdir.read_version(self._path)
        if version is None:
            return None
        content, _ = version
        return content.decode("utf-8", "replace")
