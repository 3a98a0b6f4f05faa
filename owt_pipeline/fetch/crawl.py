"""The order in which a shard's URLs are fetched: every host at its own pace, thousands of hosts at once."""

from __future__ import annotations

import asyncio
import contextlib
import functools
import gc
import threading
from collections.abc import Callable, Coroutine, Iterator
from typing import Any, TypeVar

import numpy as np
import pyarrow as pa

from owt_pipeline.engine import progress
from owt_pipeline.engine.processes import this_process
from owt_pipeline.engine.storage import Storage
from owt_pipeline.fetch.commoncrawl import ArchiveClient, CdxOptions
from owt_pipeline.fetch.journal import Claim, Journal
from owt_pipeline.fetch.live import Fetcher, LiveOptions
from owt_pipeline.fetch.recorder import Recorder, start_recording

R = TypeVar("R")


class Crawler:
    """What the shards of a process share; to be made and used in one event loop.

    Attributes:
      fetcher: fetches pages from the live web, if that is asked.
      archive: asks a web archive, if one is asked.
      recording: starts the process that makes records of them.
      claims: of the shards at work.
      open_hosts: hosts whose URLs are being fetched, over all shards.
      max_open_hosts: as many as keep all connections busy while hosts wait for their turns.
    """

    def __init__(self, live: LiveOptions | None, cdx: CdxOptions | None):
        self.claims: set[Claim] = set()
        self.fetcher = Fetcher(live, self._may_ask) if live else None
        self.archive = ArchiveClient(cdx, self._may_ask) if cdx else None
        self.recording = asyncio.ensure_future(start_recording())
        self.open_hosts, self.max_open_hosts = 0, 2 * live.client.connections if live else 0

    async def close(self) -> None:
        for client in (self.fetcher, self.archive):
            if client is not None:
                await client.close()
        await (await self.recording).close()

    def status(self) -> str:
        """What goes on, for a person."""
        requests = self.fetcher.requests if self.fetcher else 0
        return f"{self.open_hosts:,} hosts open, {requests:,} requests"

    def _may_ask(self) -> bool:
        """Whether all shards' claims hold: not when this process was stopped for long, and has just woken up."""
        return all(claim.is_valid for claim in self.claims)


async def ask_under_claim(
    crawler: Crawler,
    claims: Storage,
    name: str,
    journal: Journal,
    missing: Callable[[], pa.Table],
    ask: Callable[[Crawler, pa.Table, Recorder, bool], Coroutine[Any, Any, None]],
    answered: Callable[[int, int], None],
) -> None:
    """Ask for the URLs that are `missing` in `journal`, until none is, while no other attempt does.

    `claims` and `name` say where the shard's claim is. `ask` is given the URLs, what to give the answers to, and
    whether another attempt may have asked the same hosts a moment ago; `answered` hears how many answers, and pages
    among them, have come.
    """
    recording = await asyncio.shield(crawler.recording)
    while (await asyncio.to_thread(missing)).num_rows:
        async with Claim(claims, name, [this_process(), recording.process]) as claim:
            await asyncio.to_thread(journal.load)
            urls = [await asyncio.to_thread(missing)]  # popped: not held here
            if urls[0].num_rows:
                crawler.claims.add(claim)
                resumed = claim.was_taken_over or len(journal) > 0
                try:
                    async with Recorder(recording, journal.folder, claim.attempt, answered) as recorder:
                        await _while_claimed(claim, ask(crawler, urls.pop(), recorder, resumed))
                finally:
                    crawler.claims.discard(claim)
        await asyncio.to_thread(journal.load)


async def _while_claimed(claim: Claim, asking: Coroutine[Any, Any, None]) -> None:
    """Await `asking`, but not longer than the claim is held."""
    task = asyncio.ensure_future(asking)
    try:
        await asyncio.wait({task, claim.lost}, return_when=asyncio.FIRST_COMPLETED)
        if task.done():
            await task
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


async def crawl(crawler: Crawler, urls: pa.Table, recorder: Recorder, resumed: bool, spread: bool) -> None:
    """Fetch every URL of `urls` (columns url_id, posted_url, host, host_shards), and give the answers to `recorder`.

    `spread` says whether the shards over which a host is spread are the business of several processes.

    A few hosts are open at a time, those with the most URLs first, since they end last; a host's URLs are fetched in
    the order of the rows. Were all hosts open at once, a crawl of many would come back to each after so long that its
    robots.txt, its address and its connection were forgotten meanwhile.
    """
    fetcher = crawler.fetcher
    assert fetcher is not None
    url_ids, host_shards = (urls[name].to_numpy() for name in ("url_id", "host_shards"))
    posted = urls["posted_url"].combine_chunks()
    closed = rows_by_host(urls["host"])
    del urls  # the hosts' names, of which nothing is needed any more
    pa.default_memory_pool().release_unused()  # what reading took, 80 MB for a million URLs, for as long as the crawl
    tasks: set[asyncio.Task[None]] = set()
    loop = asyncio.get_running_loop()
    ended = loop.create_future()

    async def fetch(rows: Iterator[int]) -> None:
        for row in rows:
            fetched = await fetcher.fetch(posted[row].as_py(), int(host_shards[row]) if spread else 1)
            await recorder.take(int(url_ids[row]), fetched)
            open_hosts()  # another shard may have closed some

    def open_hosts() -> None:
        while not tasks or crawler.open_hosts < crawler.max_open_hosts:
            rows = next(closed, None)
            if rows is None:
                break
            crawler.open_hosts += 1
            left = iter(rows.tolist())
            connections = min(len(rows), fetcher.options.host_connections)
            host = {loop.create_task(fetch(left)) for _ in range(connections)}
            tasks.update(host)
            for task in host:
                task.add_done_callback(functools.partial(done, host))
        if not tasks and not ended.done():
            ended.set_result(None)

    def done(host: set[asyncio.Task[None]], task: asyncio.Task[None]) -> None:
        host.discard(task)
        tasks.discard(task)
        crawler.open_hosts -= not host
        if task.cancelled() or (error := task.exception()) is None:
            open_hosts()
        elif not ended.done():
            ended.set_exception(error)

    async def tick() -> None:
        while True:  # also while no answer comes: every host waited for
            if spread:
                fetcher.client.address_gates.workers = max((claim.claims for claim in crawler.claims), default=1)
            await asyncio.sleep(1)
            progress.advance(0)

    progress.doing(crawler.status)
    ticking = loop.create_task(tick())
    try:
        if resumed:  # another attempt may have asked these hosts a moment ago
            await asyncio.sleep(fetcher.options.host_delay * (int(host_shards.max()) if spread else 1))
        open_hosts()
        await ended
    finally:
        closed = iter(())
        ticking.cancel()
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


def rows_by_host(hosts: pa.ChunkedArray) -> Iterator[np.ndarray]:
    """The rows of each host, in order; the hosts with the most first. `hosts` is not held by what is returned."""
    encoded = hosts.dictionary_encode().unify_dictionaries()
    codes = np.concatenate([chunk.indices.to_numpy() for chunk in encoded.chunks])
    counts = np.bincount(codes)
    rows = np.argsort(codes, kind="stable").astype(np.int32)  # by host
    ends = np.cumsum(counts)
    order = np.argsort(-counts, kind="stable").tolist()
    return (rows[ends[host] - counts[host] : ends[host]] for host in order)


class CrawlerLoop:
    """An event loop in a thread of its own, with a crawler made in it: what all shards of this process share."""

    def __init__(self, live: LiveOptions | None, cdx: CdxOptions | None):
        self.users = 0
        self._tasks: set[asyncio.Task[Any]] = set()
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="fetch", daemon=True)
        self._thread.start()

        async def make() -> Crawler:
            return Crawler(live, cdx)

        self.crawler = self.run(make())
        gc.freeze()  # or each collection, of which a crawl causes many, would walk through all that was imported

    def run(self, coroutine: Coroutine[Any, Any, R]) -> R:
        """What the coroutine returns; also where it is cancelled, this waits until it has ended."""

        async def task() -> R:
            this = asyncio.current_task()
            assert this is not None
            self._tasks.add(this)
            try:
                return await coroutine
            finally:
                self._tasks.discard(this)

        return asyncio.run_coroutine_threadsafe(task(), self._loop).result()

    def cancel(self) -> None:
        """End what runs, soon."""

        def cancel() -> None:
            for task in self._tasks:
                task.cancel()

        self._loop.call_soon_threadsafe(cancel)

    def close(self) -> None:
        self.run(self.crawler.close())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()
        gc.unfreeze()


_loops: dict[Any, CrawlerLoop] = {}  # one a process: the limits on connections and hosts hold for all its shards
_lock = threading.Lock()


@contextlib.contextmanager
def shared_loop(live: LiveOptions | None, cdx: CdxOptions | None) -> Iterator[CrawlerLoop]:
    """This process' loop for these options, kept as long as some shard uses it.

    Where a shard fails, those of the other threads are cancelled: they are of no use any more.
    """
    key = live, cdx
    with _lock:
        if key not in _loops:
            _loops[key] = CrawlerLoop(live, cdx)
        loop = _loops[key]
        loop.users += 1
    try:
        yield loop
    except BaseException:
        loop.cancel()
        raise
    finally:
        with _lock:
            loop.users -= 1
            if not loop.users:
                del _loops[key]
                loop.close()
