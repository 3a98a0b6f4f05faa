"""Sources on the network: what each of them is, the event loop in which all shards of a process ask them, and the one
that is the live web.

A source is its options (`Source`); a process makes one client of it (`Client`), which all its shards use, so that turns
and limits hold for all of them together.
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
import gc
import threading
from collections.abc import Callable, Coroutine, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, Protocol, TypeVar

import numpy as np
import pyarrow as pa

from owt_pipeline import progress
from owt_pipeline.fetch.answers import NoPage, Page
from owt_pipeline.fetch.journal import Claim, Journal
from owt_pipeline.fetch.live import Fetcher
from owt_pipeline.fetch.manners import tried_once
from owt_pipeline.fetch.recorder import Recorder, Recording, start_recording
from owt_pipeline.storage.disk import this_process
from owt_pipeline.storage.folder import Storage

if TYPE_CHECKING:
    from owt_pipeline.fetch.stage import Options

R = TypeVar("R")


class Client(Protocol):
    """Asks a source; used in one event loop, by several shards at once."""

    columns: ClassVar[Sequence[str]]
    """Of urls/: what it is asked with; `url_id` is the first."""

    async def ask(self, urls: pa.Table, recorder: Recorder, resumed: bool) -> None:
        """Ask for every URL of `urls` (with the source's columns) and give each answer to `recorder`.

        `resumed` says whether another attempt may have asked the same hosts a moment ago.
        """

    async def close(self) -> None: ...

    def status(self) -> str:
        """What is happening, for a person; empty where there is nothing to say."""


@dataclass(frozen=True)
class Source:
    """A source of pages on the network. Picklable.

    Attributes:
      client: the class of its Client, which is given the options, the crawl and `about`.
      options: those of the stage.
      about: what else its client is given, such as the collections of an index.
    """

    client: type[Any]
    options: Options
    about: tuple[Any, ...] = ()

    def open(self, crawl: Crawl) -> Client:
        """A client, made in the event loop in which it is used."""
        client: Client = self.client(self.options, crawl, *self.about)
        return client


class Crawl:
    """What the shards of a process share; to be made and used in one event loop.

    Attributes:
      on_cluster: whether other processes ask at the same time.
      clients: one a source, by name.
      claims: of the shards at work.
    """

    def __init__(self, sources: Mapping[str, Source], on_cluster: bool):
        self.on_cluster = on_cluster
        self.claims: set[Claim] = set()
        self.clients = {name: source.open(self) for name, source in sources.items()}
        self._recording: asyncio.Future[Recording] | None = None

    async def close(self) -> None:
        for client in self.clients.values():
            await client.close()
        if self._recording is not None:
            await (await self._recording).close()

    async def recording(self) -> Recording:
        """The process that makes records of what comes, started when the first shard asks for it."""
        if self._recording is None:
            self._recording = asyncio.ensure_future(start_recording())
        return await asyncio.shield(self._recording)

    def may_ask(self) -> bool:
        """Whether requests may be made: not when this process was stopped for long, and has just woken up."""
        return all(claim.is_valid for claim in self.claims)

    def workers(self) -> int:
        """How many processes ask at once, so that each keeps to its part of a rate."""
        return max((claim.claims for claim in self.claims), default=1) if self.on_cluster else 1


class LiveClient:
    """Fetches pages from the live web.

    Attributes:
      fetcher: fetches one of them.
      open_hosts: hosts whose URLs are being fetched, over all shards.
      max_open_hosts: as many as keep all connections busy while hosts wait for their turns.
    """

    columns: ClassVar = ("url_id", "posted_url", "host", "host_shards")

    def __init__(self, options: Options, crawl: Crawl):
        self.fetcher = Fetcher(options, crawl.may_ask)
        self.fetcher.client.address_gates.workers = crawl.workers
        self.open_hosts, self.max_open_hosts = 0, 2 * self.fetcher.client.slots.count
        self._crawl = crawl

    async def close(self) -> None:
        await self.fetcher.close()

    def status(self) -> str:
        paused = "; no host answers, paused" * self.fetcher.outages.is_paused
        return f"{self.open_hosts:,} hosts open, {self.fetcher.requests:,} requests{paused}"

    async def ask(self, urls: pa.Table, recorder: Recorder, resumed: bool) -> None:
        """Fetch every URL of `urls` (columns url_id, posted_url, host, host_shards), answers to `recorder`.

        A few hosts are open at a time, those with the most URLs first, since they end last; a host's URLs are fetched
        in the order of the rows. Were all hosts open at once, a crawl of many would come back to each after so long
        that its robots.txt, its address and its connection were forgotten meanwhile.
        """
        fetcher, outages, spread = self.fetcher, self.fetcher.outages, self._crawl.on_cluster
        if recorder.is_last:
            fetcher.forgive()
            outages.forget_failures()
        url_ids, host_shards = (urls[name].to_numpy() for name in ("url_id", "host_shards"))
        posted = urls["posted_url"].combine_chunks()
        closed = rows_by_host(urls["host"])
        del urls  # the hosts' names, of which nothing is needed any more
        pa.default_memory_pool().release_unused()  # what reading took, 80 MB for a million URLs, for the crawl's time
        tasks: set[asyncio.Task[None]] = set()
        loop = asyncio.get_running_loop()
        ended = loop.create_future()

        async def fetch(rows: Iterator[int]) -> None:
            for row in rows:
                url = posted[row].as_py()
                while True:
                    fetched = await fetcher.fetch(url, int(host_shards[row]) if spread else 1)
                    if not isinstance(fetched, NoPage) or await outages.is_final(url, fetched):
                        break
                await recorder.take(int(url_ids[row]), fetched)
                open_hosts()  # another shard may have closed some

        def open_hosts() -> None:
            while not tasks or self.open_hosts < self.max_open_hosts:
                rows = next(closed, None)
                if rows is None:
                    break
                self.open_hosts += 1
                left = iter(rows.tolist())
                connections = min(len(rows), fetcher.options.host_connections)
                host = {loop.create_task(fetch(left)) for _ in range(connections)}
                tasks.update(host)
                outages.tasks += connections
                for task in host:
                    task.add_done_callback(functools.partial(done, host))
            if not tasks and not ended.done():
                ended.set_result(None)

        def done(host: set[asyncio.Task[None]], task: asyncio.Task[None]) -> None:
            host.discard(task)
            tasks.discard(task)
            outages.tasks -= 1
            self.open_hosts -= not host
            if task.cancelled() or (error := task.exception()) is None:
                open_hosts()
            elif not ended.done():
                ended.set_exception(error)
            outages.judge()

        try:
            if resumed:  # another attempt may have asked these hosts a moment ago
                await asyncio.sleep(fetcher.options.host_delay * (int(host_shards.max()) if spread else 1))
            open_hosts()
            await ended
        finally:
            closed = iter(())
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


async def ask_under_claim(
    crawl: Crawl,
    name: str,
    claims: Storage,
    claim_name: str,
    journal: Journal,
    missing: Callable[[], pa.Table],
    answered: Callable[[int, int], None],
    have_answered: Sequence[str],
) -> None:
    """Ask the source `name` for the URLs that are `missing` in `journal`, until none is, while no other attempt does.

    `claims` and `claim_name` say where the shard's claim is. `answered` hears how many answers, and pages among them,
    have come. `have_answered` are URLs of live hosts that have.
    """
    recording = await crawl.recording()
    client = crawl.clients[name]
    while (await asyncio.to_thread(missing)).num_rows:
        async with Claim(claims, claim_name, [this_process(), recording.process.result()]) as claim:
            await asyncio.to_thread(journal.load)
            urls = [await asyncio.to_thread(missing)]  # popped: not held here
            if urls[0].num_rows:
                is_last = bool(np.isin(urls[0]["url_id"].to_numpy(), journal.postponed).all())
                tried_once.set(is_last)
                if isinstance(client, LiveClient):
                    earlier = await asyncio.to_thread(list, journal.answers(journal.pages[:3].tolist()))
                    pages = [page.final_url for page in earlier if isinstance(page, Page)]
                    client.fetcher.outages.trust([*have_answered, *pages])
                crawl.claims.add(claim)
                resumed = claim.was_taken_over or len(journal) > 0
                progress.doing(client.status)
                try:
                    async with Recorder(recording, journal.folder, claim.attempt, answered, is_last) as recorder:
                        await _while_claimed(claim, client.ask(urls.pop(), recorder, resumed))
                finally:
                    crawl.claims.discard(claim)
        await asyncio.to_thread(journal.load)


async def _while_claimed(claim: Claim, asking: Coroutine[Any, Any, None]) -> None:
    """Await `asking`, but not longer than the claim is held."""
    task = asyncio.ensure_future(asking)
    try:
        while not (task.done() or claim.lost.done()):
            await asyncio.wait({task, claim.lost}, timeout=1, return_when=asyncio.FIRST_COMPLETED)
            progress.advance(0)  # shows that the run is alive, also while no answer comes
        if task.done():
            await task
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


class CrawlLoop:
    """An event loop in a thread of its own, with what all shards of this process share."""

    def __init__(self, sources: Mapping[str, Source], on_cluster: bool):
        self.users = 0
        self._tasks: set[asyncio.Task[Any]] = set()
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="fetch", daemon=True)
        self._thread.start()

        async def make() -> Crawl:
            return Crawl(sources, on_cluster)

        self.crawl = self.run(make())
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
            while self._tasks:  # once each: a second time would end what it gives back, such as its claim
                self._tasks.pop().cancel()

        self._loop.call_soon_threadsafe(cancel)

    def close(self) -> None:
        self.run(self.crawl.close())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()
        gc.unfreeze()


_loops: dict[Any, CrawlLoop] = {}  # one a process: the limits on connections and hosts hold for all its shards
_lock = threading.Lock()


@contextlib.contextmanager
def shared_loop(sources: Mapping[str, Source], on_cluster: bool) -> Iterator[CrawlLoop]:
    """This process' loop for these sources, kept as long as some shard uses it.

    Where a shard fails, those of the other threads are cancelled: they are of no use any more.
    """
    key = tuple(sources.items()), on_cluster
    with _lock:
        if key not in _loops:
            _loops[key] = CrawlLoop(sources, on_cluster)
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
