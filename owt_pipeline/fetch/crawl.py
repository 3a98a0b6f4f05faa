"""The order in which a shard's URLs are fetched: every host at its own pace, thousands of hosts at once."""

from __future__ import annotations

import asyncio
import contextlib
import heapq
import queue
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pyarrow as pa

from owt_pipeline.fetch.answers import Answer, NoPage
from owt_pipeline.fetch.live import Fetched, Fetcher, LiveOptions

_WAITING_PER_CONNECTION = 4
"""URLs under way for each connection: some wait for their host's turn, and must not keep others from theirs."""


_WAITING_BYTES = 64 << 20
"""Bodies that wait to be recorded."""


async def crawl(fetcher: Fetcher, urls: pa.Table, spread: bool, recorder: Recorder) -> None:
    """Fetch every URL of `urls` (columns url_id, posted_url, host, host_shards), and give what came to `recorder`.

    A host's URLs are fetched in the order of the rows; the hosts with the most begin, since they end last.
    `spread` says whether the shards over which a host is spread are the business of several processes.
    """
    encoded = urls["host"].dictionary_encode().unify_dictionaries()
    hosts = encoded.chunk(0).dictionary
    codes = np.concatenate([chunk.indices.to_numpy() for chunk in encoded.chunks])
    rows = np.argsort(codes, kind="stable").astype(np.int32)
    counts = np.bincount(codes, minlength=len(hosts))
    ends = np.cumsum(counts)
    cursors = ends - counts
    under_way = np.zeros(len(ends), np.int32)
    ready = [(0.0, -int(end - start), code) for code, (start, end) in enumerate(zip(cursors, ends, strict=True))]
    heapq.heapify(ready)
    tasks: set[asyncio.Task[None]] = set()
    changed = asyncio.Event()

    async def fetch(code: int, row: int) -> None:
        factor = urls["host_shards"][row].as_py() if spread else 1
        fetched = await fetcher.fetch(urls["posted_url"][row].as_py(), factor)
        await recorder.take(urls["url_id"][row].as_py(), fetched)

    def done(code: int, task: asyncio.Task[None]) -> None:
        tasks.discard(task)
        if under_way[code] == fetcher.options.host_connections:
            enqueue(code)
        under_way[code] -= 1
        changed.set()
        if not task.cancelled() and task.exception() is not None:
            failed.append(task.exception())

    def enqueue(code: int) -> None:
        if cursors[code] < ends[code]:
            turn = fetcher.gates[hosts[code].as_py()].next_turn
            heapq.heappush(ready, (turn, -int(ends[code] - cursors[code]), code))

    failed: list[Any] = []
    try:
        while (ready or tasks) and not failed:
            changed.clear()
            wait = ready[0][0] - time.monotonic() if ready else None
            if wait is None or wait > 0 or len(tasks) >= _WAITING_PER_CONNECTION * fetcher.options.connections:
                with contextlib.suppress(asyncio.TimeoutError):
                    await asyncio.wait_for(changed.wait(), wait if wait is not None and wait > 0 else None)
                continue
            _, _, code = heapq.heappop(ready)
            row = int(rows[cursors[code]])
            cursors[code] += 1
            under_way[code] += 1
            task = asyncio.ensure_future(fetch(code, row))
            tasks.add(task)
            task.add_done_callback(lambda task, code=code: done(code, task))  # type: ignore[misc]
            if under_way[code] < fetcher.options.host_connections:
                enqueue(code)
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
    if failed:
        raise failed[0]


class Recorder:
    """A thread that makes answers of what was fetched, while the event loop fetches on.

    with Recorder(journal.append) as recorder:
        ...  await recorder.take(url_id, fetched)
    """

    def __init__(self, record: Callable[[int, Answer], None]):
        """A recorder that calls `record(url_id, answer)`, in its thread; an error of it is raised on leaving."""
        self._record = record
        self._queue: queue.SimpleQueue[tuple[int, Fetched | NoPage] | None] = queue.SimpleQueue()
        self._waiting_bytes = 0
        self._error: BaseException | None = None
        self._thread = threading.Thread(target=self._run, name="record")

    def __enter__(self) -> Recorder:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._queue.put(None)
        self._thread.join()
        if self._error is not None:
            raise self._error

    async def take(self, url_id: int, fetched: Fetched | NoPage) -> None:
        """Queue what was fetched; waits while too much is queued, raises RuntimeError once recording has failed."""
        size = len(fetched.received.body) if isinstance(fetched, Fetched) else 0
        while self._waiting_bytes + size > _WAITING_BYTES and self._waiting_bytes and self._error is None:
            await asyncio.sleep(0.005)
        if self._error is not None:
            raise RuntimeError("recording has failed")
        self._waiting_bytes += size
        self._queue.put((url_id, fetched))

    def _run(self) -> None:
        while (item := self._queue.get()) is not None:
            url_id, fetched = item
            if self._error is not None:
                continue
            try:
                if isinstance(fetched, Fetched):
                    self._record(url_id, fetched.answer())
                    self._waiting_bytes -= len(fetched.received.body)
                else:
                    self._record(url_id, fetched)
            except BaseException as error:
                self._error = error


class _Loop:
    """An event loop in a thread of its own, with a fetcher: what all shards of this process share."""

    def __init__(self, options: LiveOptions):
        self.users = 0
        self._futures: set[Any] = set()
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="fetch", daemon=True)
        self._thread.start()

        async def make() -> Fetcher:
            return Fetcher(options)

        self.fetcher = asyncio.run_coroutine_threadsafe(make(), self._loop).result()

    def run(self, coroutine: Any) -> None:
        future = asyncio.run_coroutine_threadsafe(coroutine, self._loop)
        self._futures.add(future)
        try:
            future.result()
        except BaseException:
            future.cancel()
            raise
        finally:
            self._futures.discard(future)

    def cancel(self) -> None:
        for future in list(self._futures):
            future.cancel()

    def close(self) -> None:
        asyncio.run_coroutine_threadsafe(self.fetcher.close(), self._loop).result()
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()


_loops: dict[LiveOptions, _Loop] = {}  # one a process: the limits on connections and hosts hold for all its shards
_lock = threading.Lock()


def stop_all() -> None:
    """Cancel every crawl of this process: the stage has failed or was interrupted, while shards' threads wait."""
    with _lock:
        for loop in _loops.values():
            loop.cancel()


@contextlib.contextmanager
def shared_loop(options: LiveOptions) -> Iterator[_Loop]:
    """This process' fetching loop, kept as long as some shard uses it."""
    with _lock:
        if options not in _loops:
            _loops[options] = _Loop(options)
        loop = _loops[options]
        loop.users += 1
    try:
        yield loop
    finally:
        with _lock:
            loop.users -= 1
            if not loop.users:
                del _loops[options]
                loop.close()
