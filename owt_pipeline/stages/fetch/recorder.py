"""Records made of a shard's answers in threads, while the event loop fetches on, and written to its segments."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable, Sequence

from owt_pipeline.stages.fetch.answers import Answer, Fetched, Page
from owt_pipeline.stages.fetch.attempt import Attempt, Superseded
from owt_pipeline.stages.fetch.segments import SegmentWriter

SEGMENT_SECONDS = 5.0
BUCKET_SECONDS = 30.0  # each segment is a request there; it costs money and half a second
SEGMENT_BYTES = 8 << 20
"""A segment is written so often, or once its records have so many bytes: a kill loses what is in none yet."""

_LATER_SECONDS = 60.0
"""After the first minutes of a shard, segments are written after a sixtieth of its time, at most so many seconds: they
stay, and the last slow hosts of a large shard take hours."""

_BATCH_BYTES = 512 << 10
_BATCHES = 5
"""A batch has so many bytes, or what came in that part of a segment's time."""


def wait_after(seconds: float, shortest: float) -> float:
    """Seconds between two segments of a shard that has taken so many; `shortest` at its beginning."""
    return max(shortest, min(seconds / 60, _LATER_SECONDS))


class Recorder:
    """Takes the answers for a shard; they are in its segments when the block ends.

    async with Recorder(writer, attempt, recorded) as recorder:
        ...  await recorder.take(url_id, fetched)

    Attributes:
      stopped: done once it cannot go on; its result raises why: Superseded, or what writing raised.
    """

    stopped: asyncio.Future[None]

    def __init__(self, writer: SegmentWriter, attempt: Attempt, recorded: Callable[[int, int], None]):
        """A recorder that writes with `writer`; calls `recorded` with the numbers of further answers and pages."""
        self.is_last = writer.is_last
        self._recorded, self._attempt, self._writer = recorded, attempt, writer
        self._seconds = SEGMENT_SECONDS if writer.workdir.is_local else BUCKET_SECONDS
        self._batch: list[tuple[int, Fetched | Answer]] = []
        self._batch_bytes = 0
        self._recording, self._writing = asyncio.Lock(), threading.Lock()

    async def __aenter__(self) -> Recorder:
        self.stopped = asyncio.ensure_future(self._tick())
        return self

    async def __aexit__(self, kind: type | None, *_: object) -> None:
        self.stopped.cancel()
        (error,) = await asyncio.gather(self.stopped, return_exceptions=True)
        if isinstance(error, Exception):
            if kind is None:
                raise error
            return
        await self._record(checks=True, flushes=True)

    async def take(self, url_id: int, fetched: Fetched | Answer) -> None:
        """Take a result; waits while a batch is full and the one before is being recorded. Raises what writing
        raised, such as OSError for a full disk."""
        if self.stopped.done():
            self.stopped.result()
        self._batch.append((url_id, fetched))
        self._batch_bytes += len(fetched.received.body) if isinstance(fetched, Fetched) else 100
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
        """Record the batch if it still has so many bytes; then write the segment, and look for another attempt."""
        async with self._recording:
            if self._batch_bytes < least or not (self._batch or checks):
                return
            batch, self._batch, self._batch_bytes = self._batch, [], 0
            self._recorded(*await asyncio.to_thread(self._write, batch, checks, flushes))

    def _write(self, batch: Sequence[tuple[int, Fetched | Answer]], checks: bool, flushes: bool) -> tuple[int, int]:
        answers = pages = 0
        with self._writing:  # by one thread at a time, also after a task was cancelled
            for url_id, fetched in batch:
                answer = fetched.answer() if isinstance(fetched, Fetched) else fetched
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
