"""Sources of pages on the network: the event loop in which all shards of a process make requests, and the live web.

A process makes one `Client` of each `Source`, which all of its shards use, so that turns and limits hold for all of
them together.
"""

from __future__ import annotations

import asyncio
import contextlib
import threading
import time
from collections.abc import Callable, Coroutine, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, Protocol, TypeVar

import numpy as np
import pyarrow as pa
from yarl import URL

from owt_pipeline import progress
from owt_pipeline.stages.fetch.answers import NoPage
from owt_pipeline.stages.fetch.attempt import Attempt, Superseded
from owt_pipeline.stages.fetch.breaker import Breaker
from owt_pipeline.stages.fetch.live import Fetcher
from owt_pipeline.stages.fetch.manners import for_each, tried_once
from owt_pipeline.stages.fetch.recorder import Recorder
from owt_pipeline.stages.fetch.segments import Answered
from schemas import Reason

if TYPE_CHECKING:
    from owt_pipeline.stages.fetch.stage import Options

R = TypeVar("R")

OUTAGE_HOSTS = 20
"""If so many hosts in a row give no answer, the network, the resolver or the proxy may be down."""


class Client(Protocol):
    """Makes requests to a source; used in one event loop, by several shards at once."""

    columns: ClassVar[Sequence[str]]
    """The columns of urls/ that it needs; `url_id` is the first."""

    async def ask(self, urls: pa.Table, recorder: Recorder, resumed: bool) -> None:
        """Request each URL of `urls` (with the source's columns) and give each answer to `recorder`.

        `resumed` says whether another attempt may have sent requests to the same hosts a moment ago.
        """

    async def close(self) -> None: ...

    def status(self) -> str:
        """What is happening, for the progress display."""


@dataclass(frozen=True)
class Source:
    """A source of pages on the network. Picklable.

    Attributes:
      client: the class of its Client, called with the options and the crawl.
      options: those of the stage.
    """

    client: type[Any]
    options: Options


class Crawl:
    """What the shards of a process share: one client per source, by name; used in one event loop."""

    def __init__(self, sources: Mapping[str, Source]):
        self.clients: dict[str, Client] = {
            name: source.client(source.options, self) for name, source in sources.items()
        }

    async def close(self) -> None:
        for client in self.clients.values():
            await client.close()


class LiveClient:
    """Fetches pages from the live web.

    Attributes:
      fetcher: fetches one page.
      open_hosts: a slot for each host whose URLs are being fetched, by any shard. A host has one request at a time, so
        these are the connections.
    """

    columns: ClassVar = ("url_id", "posted_url", "host")

    def __init__(self, options: Options, crawl: Crawl):
        self.fetcher = Fetcher(options)
        self.open_hosts = asyncio.Semaphore(self.fetcher.client.connections)
        self._crawl = crawl

    async def close(self) -> None:
        await self.fetcher.close()

    def status(self) -> str:
        return f"{self.fetcher.requests:,} requests"

    async def ask(self, urls: pa.Table, recorder: Recorder, resumed: bool) -> None:
        """Fetch each URL of `urls` (columns url_id, posted_url, host), answers to `recorder`.

        Only some hosts are open at a time, those with the most URLs first, since they take longest; a host's URLs are
        fetched in the order of the rows. With all hosts open, a large crawl would return to each so late that its
        robots.txt, address and connection would no longer be kept.
        """
        fetcher = self.fetcher
        if recorder.is_last:
            fetcher.forgive()
        held = Breaker(recorder, OUTAGE_HOSTS, _is_silent, "hosts in a row gave no answer", fetcher.works)
        url_ids = urls["url_id"].to_numpy()
        posted = urls["posted_url"].combine_chunks()
        hosts = rows_by_host(urls["host"])
        del urls  # the hosts' names are not needed any more
        pa.default_memory_pool().release_unused()  # 80 MB for a million URLs, for the time of the crawl
        if resumed:  # another attempt may have sent requests to these hosts a moment ago
            await asyncio.sleep(fetcher.options.host_delay)

        async def fetch_host(rows: np.ndarray) -> None:
            async with self.open_hosts:
                for row in rows.tolist():
                    begun = time.monotonic()
                    fetched = await fetcher.fetch(posted[row].as_py())
                    await held.take(int(url_ids[row]), fetched, begun, name=str(rows[0]))

        await for_each(fetch_host, hosts, fetcher.client.connections)
        await held.settle()


def _is_silent(answer: NoPage) -> bool:
    return answer.reason in (Reason.DNS, Reason.CONNECT, Reason.TIMEOUT, Reason.PROXY)


def rows_by_host(hosts: pa.ChunkedArray) -> Iterator[np.ndarray]:
    """The rows of each host, in order; hosts with the most rows first. The iterator does not hold `hosts`."""
    encoded = hosts.dictionary_encode().unify_dictionaries()
    codes = np.concatenate([chunk.indices.to_numpy() for chunk in encoded.chunks])
    counts = np.bincount(codes)
    rows = np.argsort(codes, kind="stable").astype(np.int32)  # by host
    ends = np.cumsum(counts)
    order = np.argsort(-counts, kind="stable").tolist()
    return (rows[ends[host] - counts[host] : ends[host]] for host in order)


async def ask_source(
    client: Client,
    answered: Answered,
    missing: Callable[[], pa.Table],
    advance: Callable[[int, int], None],
    about: Mapping[str, str],
) -> None:
    """Request the URLs that are `missing` in `answered` from a source until none is; raises UserError.

    `advance` is called with the numbers of further answers and of pages among them; `about` is for the segments.
    """
    while (await asyncio.to_thread(missing)).num_rows:
        attempt = Attempt(answered.workdir, answered.folder)
        resumed = await asyncio.to_thread(attempt.begin) or len(answered.ids) > 0
        try:
            await asyncio.to_thread(answered.load)
            urls = [await asyncio.to_thread(missing)]  # a list, so that `pop` leaves no reference here
            if urls[0].num_rows:
                is_last = bool(np.isin(urls[0]["url_id"].to_numpy(), answered.postponed).all())
                tried_once.set(is_last)
                if isinstance(client, LiveClient):
                    for url in answered.rows(answered.pages[:3])["final_url"].to_pylist():
                        client.fetcher.trust(str(URL(url, encoded=True).origin()))
                progress.doing(client.status)
                async with Recorder(answered.writer(about, is_last=is_last), attempt, advance) as recorder:
                    await _until_stopped(recorder, client.ask(urls.pop(), recorder, resumed))
        except Superseded:
            await attempt.wait_for_other()
        finally:
            await asyncio.to_thread(attempt.end)
        await asyncio.to_thread(answered.load)


async def _until_stopped(recorder: Recorder, asking: Coroutine[Any, Any, None]) -> None:
    """Await `asking`, but no longer than the recorder goes on; raises what either raises."""
    task = asyncio.ensure_future(asking)
    try:
        while not (task.done() or recorder.stopped.done()):
            await asyncio.wait({task, recorder.stopped}, timeout=1, return_when=asyncio.FIRST_COMPLETED)
            progress.advance(0)  # shows that the run is alive while no answer arrives
        await (task if task.done() else recorder.stopped)
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


class CrawlLoop:
    """An event loop in a thread of its own, with what all shards of this process share."""

    def __init__(self, sources: Mapping[str, Source]):
        self.users = 0
        self._tasks: set[asyncio.Task[Any]] = set()
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="fetch", daemon=True)
        self._thread.start()

        async def make() -> Crawl:
            return Crawl(sources)

        self.crawl = self.run(make())

    def run(self, coroutine: Coroutine[Any, Any, R]) -> R:
        """The coroutine's result; if it is cancelled, this still waits until it has ended."""

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
        """Cancel all that runs."""

        def cancel() -> None:
            while self._tasks:
                self._tasks.pop().cancel()

        self._loop.call_soon_threadsafe(cancel)

    def close(self) -> None:
        async def end() -> None:
            await self.crawl.close()
            left = asyncio.all_tasks() - {asyncio.current_task()}  # such as a robots.txt that nobody waits for any more
            for task in left:
                task.cancel()
            await asyncio.gather(*left, return_exceptions=True)

        asyncio.run_coroutine_threadsafe(end(), self._loop).result()
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()


_loops: dict[Any, CrawlLoop] = {}  # one per process, whose shards share the limits on connections
_lock = threading.Lock()


@contextlib.contextmanager
def shared_loop(sources: Mapping[str, Source]) -> Iterator[CrawlLoop]:
    """This process' loop for these sources, kept as long as some shard uses it.

    If a shard fails, those of the other threads are cancelled: their work is no longer needed.
    """
    key = tuple(sources.items())
    with _lock:
        if key not in _loops:
            _loops[key] = CrawlLoop(sources)
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
