"""The order in which a shard's URLs are fetched: every host at its own pace, thousands of hosts at once."""

from __future__ import annotations

import asyncio
import contextlib
import functools
import gc
import heapq
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pyarrow as pa

from owt_pipeline.fetch.live import Fetcher
from owt_pipeline.fetch.recorder import Recorder
from owt_pipeline.runtime import progress

_WAITING_PER_CONNECTION = 2
"""URLs under way for each connection: some wait for their host's turn, and must not keep others from theirs."""


async def crawl(fetcher: Fetcher, urls: pa.Table, spread: bool, recorder: Recorder) -> None:
    """Fetch every URL of `urls` (columns url_id, posted_url, host, host_shards), and give what came to `recorder`.

    A host's URLs are fetched in the order of the rows; the hosts with the most begin, since they end last.
    `spread` says whether the shards over which a host is spread are the business of several processes.
    """
    frontier = Frontier(urls["host"], fetcher)
    url_ids, posted, host_shards = (urls[name].combine_chunks() for name in ("url_id", "posted_url", "host_shards"))
    most_tasks = _WAITING_PER_CONNECTION * fetcher.options.connections
    tasks: set[asyncio.Task[None]] = set()
    failed: list[BaseException] = []
    changed = asyncio.Event()
    loop = asyncio.get_running_loop()

    async def fetch(row: int) -> None:
        fetched = await fetcher.fetch(posted[row].as_py(), host_shards[row].as_py() if spread else 1)
        await recorder.take(url_ids[row].as_py(), fetched)

    def done(host: int, task: asyncio.Task[None]) -> None:
        tasks.discard(task)
        frontier.finish(host)
        changed.set()
        if not task.cancelled() and (error := task.exception()) is not None:
            failed.append(error)

    async def tick() -> None:
        while True:  # also while no answer comes: every host waited for
            await asyncio.sleep(1)
            progress.advance(0)

    progress.doing(fetcher.status)
    ticking = loop.create_task(tick())
    try:
        while not failed:
            ready = frontier.next_turn()
            if ready is None and not tasks:
                return
            wait = 0.0 if ready is None else ready - time.monotonic()
            if ready is None or wait > 0 or len(tasks) >= most_tasks:
                alarm = loop.call_later(wait, changed.set) if wait > 0 else None
                await changed.wait()
                changed.clear()
                if alarm is not None:
                    alarm.cancel()
                continue
            host, row = frontier.begin()
            task = loop.create_task(fetch(row))
            tasks.add(task)
            task.add_done_callback(functools.partial(done, host))
        raise failed[0]
    finally:
        ticking.cancel()
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        frontier.close()


class Frontier:
    """What is left to fetch, by host: a few hosts are open at a time, those with the most URLs first.

    Were all open at once, a crawl of many hosts would come back to each after so long that its robots.txt, its
    address and its connection were forgotten meanwhile.
    """

    def __init__(self, hosts: pa.ChunkedArray, fetcher: Fetcher):
        """The rows of `hosts`, to be fetched by `fetcher`, whose shards open so many hosts together."""
        encoded = hosts.dictionary_encode().unify_dictionaries()
        self._names = encoded.chunk(0).dictionary
        codes = np.concatenate([chunk.indices.to_numpy() for chunk in encoded.chunks])
        counts = np.bincount(codes, minlength=len(self._names))
        self._rows = np.argsort(codes, kind="stable").astype(np.int32)  # by host
        self._ends = np.cumsum(counts)
        self._cursors = self._ends - counts  # into _rows: the next URL of each host
        self._under_way = np.zeros(len(counts), np.int32)
        self._closed = iter(np.argsort(-counts, kind="stable").tolist())
        self._ready: list[tuple[float, int, int]] = []  # a heap: when, URLs left (negative), host
        self._fetcher = fetcher
        self._open = 0

    def next_turn(self) -> float | None:
        """When the next URL may be begun, in `time.monotonic` seconds; None where all are begun or under way."""
        while not self._open or self._fetcher.open_hosts < self._fetcher.max_open_hosts:
            host = next(self._closed, None)
            if host is None:
                break
            self._open += 1
            self._fetcher.open_hosts += 1
            self._enqueue(host)
        return self._ready[0][0] if self._ready else None

    def begin(self) -> tuple[int, int]:
        """(host, row) of the URL whose turn is next."""
        _, _, host = heapq.heappop(self._ready)
        row = int(self._rows[self._cursors[host]])
        self._cursors[host] += 1
        self._under_way[host] += 1
        if self._under_way[host] < self._fetcher.options.host_connections:
            self._enqueue(host)
        return host, row

    def finish(self, host: int) -> None:
        """A URL of `host` has been fetched."""
        if self._under_way[host] == self._fetcher.options.host_connections:
            self._enqueue(host)
        self._under_way[host] -= 1
        if not self._under_way[host] and self._cursors[host] == self._ends[host]:
            self._open -= 1
            self._fetcher.open_hosts -= 1

    def close(self) -> None:
        """Give up what is left."""
        self._fetcher.open_hosts -= self._open

    def _enqueue(self, host: int) -> None:
        left = int(self._ends[host] - self._cursors[host])
        if left:
            turn = self._fetcher.gates[self._names[host].as_py()].next_turn
            heapq.heappush(self._ready, (turn, -left, host))


class _Loop:
    """An event loop in a thread of its own, with a fetcher made in it: what all shards of this process share."""

    def __init__(self, make_fetcher: Callable[[], Any]):
        self.users = 0
        self._futures: set[Any] = set()
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="fetch", daemon=True)
        self._thread.start()

        async def make() -> Any:
            return make_fetcher()

        self.fetcher = asyncio.run_coroutine_threadsafe(make(), self._loop).result()
        gc.freeze()  # or each collection, of which a crawl causes many, would walk through all that was imported

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
        gc.unfreeze()


_loops: dict[Any, _Loop] = {}  # one a process: the limits on connections and hosts hold for all its shards
_lock = threading.Lock()


def stop_all() -> None:
    """Cancel every crawl of this process: the stage has failed or was interrupted, while shards' threads wait."""
    with _lock:
        for loop in _loops.values():
            loop.cancel()


@contextlib.contextmanager
def shared_loop(options: Any, fetcher: Callable[[Any], Any]) -> Iterator[_Loop]:
    """This process' loop for `fetcher(options)`, kept as long as some shard uses it."""
    with _lock:
        if options not in _loops:
            _loops[options] = _Loop(functools.partial(fetcher, options))
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
