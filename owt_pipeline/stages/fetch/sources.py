"""Sources of pages on the network: each part makes its requests in an event loop of its own; and the live web.

Nothing is shared but the processor: a host is in one shard, and limits of all hosts together are divided over the parts
of a process.
"""

from __future__ import annotations

import asyncio
import concurrent.futures
import contextlib
import time
from collections.abc import Awaitable, Callable, Coroutine, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, ClassVar, Protocol, TypeVar

import numpy as np
import pyarrow as pa
from yarl import URL

from owt_pipeline import progress
from owt_pipeline.stages.fetch.answers import NoPage
from owt_pipeline.stages.fetch.attempt import Attempt, Superseded
from owt_pipeline.stages.fetch.breaker import Breaker
from owt_pipeline.stages.fetch.client import allowed_connections
from owt_pipeline.stages.fetch.live import Fetcher
from owt_pipeline.stages.fetch.manners import for_each
from owt_pipeline.stages.fetch.recorder import Recorder
from owt_pipeline.stages.fetch.segments import Answered
from schemas import Reason

if TYPE_CHECKING:
    from owt_pipeline.stages.fetch.stage import Options

R = TypeVar("R")
C = TypeVar("C", bound="Client")

OUTAGE_HOSTS = 20
"""If so many hosts in a row give no answer, the network, the resolver or the proxy may be down."""


class Client(Protocol):
    """Makes requests to a source; made and used in one event loop."""

    columns: ClassVar[Sequence[str]]
    """The columns of urls/ that it needs; `url_id` is the first."""

    @property
    def requests(self) -> int:
        """How many are under way."""

    async def ask(self, urls: pa.Table, recorder: Recorder, resumed: bool) -> None:
        """Request each URL of `urls` (with the source's columns) and give each answer to `recorder`.

        `resumed` says whether another attempt may have sent requests to the same hosts a moment ago.
        """

    async def close(self) -> None: ...

    def about(self) -> str:
        """What its requests are for, for the progress display."""


_asking: dict[asyncio.Task[Any], Client] = {}
"""Of the parts of this process that make requests: the progress shows them together, and all end if one fails."""


def with_client(make: Callable[[], C], use: Callable[[C], Coroutine[Any, Any, R]]) -> R:
    """The result of `use` with a client, in an event loop of its own.

    If it fails, the requests of this process' other parts are no longer needed, and they raise CancelledError.
    """

    async def run() -> R:
        this, client = asyncio.current_task(), make()
        assert this is not None
        _asking[this] = client
        progress.doing(_status)
        try:
            return await use(client)
        except Exception:
            for task in _asking.keys() - {this}:
                with contextlib.suppress(RuntimeError):  # its loop has ended meanwhile
                    task.get_loop().call_soon_threadsafe(task.cancel)
            raise
        finally:
            del _asking[this]
            await client.close()

    try:
        return asyncio.run(run())
    except asyncio.CancelledError as error:
        raise concurrent.futures.CancelledError from error


def _status() -> str:
    clients = list(_asking.values())
    return f"{sum(client.requests for client in clients):,} requests{''.join({client.about() for client in clients})}"


def share(options: Options, parts: int) -> Options:
    """The options of one of so many parts of a process at once: its share of the connections, and of the requests to
    Common Crawl."""
    connections = -(-allowed_connections(options.connections) // parts)
    return replace(options, connections=connections, cc_delay=options.cc_delay * parts)


async def ask_source(
    client: Client,
    answered: Answered,
    missing: Callable[[], np.ndarray],
    read: Callable[[np.ndarray], pa.Table],
    advance: Callable[[int, int], None],
    about: Mapping[str, str],
) -> None:
    """Request the URLs that are `missing` in `answered`, which `read` reads, until none is; raises UserError.

    `advance` is called with the numbers of further answers and of pages among them; `about` is for the segments.
    """
    while len(missing()):
        attempt = Attempt(answered.workdir, answered.folder)
        resumed = attempt.begin() or len(answered.ids) > 0
        try:
            answered.load()
            if len(ids := missing()):
                is_last = bool(np.isin(ids, answered.postponed).all())
                if isinstance(client, LiveClient):
                    for url in answered.rows(answered.pages[:3])["final_url"].to_pylist():
                        client.fetcher.trust(str(URL(url, encoded=True).origin()))
                async with Recorder(answered.writer(about, is_last=is_last), attempt, advance) as recorder:
                    await _until_stopped(recorder, client.ask(read(ids), recorder, resumed))
        except Superseded:
            await attempt.wait_for_other()
        finally:
            attempt.end()
        answered.load()


async def _until_stopped(recorder: Recorder, asking: Awaitable[None]) -> None:
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


class LiveClient:
    """Fetches pages from the live web.

    Attributes:
      fetcher: fetches one page.
    """

    columns: ClassVar[Sequence[str]] = ("url_id", "posted_url", "host")

    def __init__(self, options: Options):
        self.fetcher = Fetcher(options)
        self._options = options

    @property
    def requests(self) -> int:
        return self.fetcher.client.requests

    def about(self) -> str:
        return ""

    async def close(self) -> None:
        await self.fetcher.client.close()

    async def ask(self, urls: pa.Table, recorder: Recorder, resumed: bool) -> None:
        """Fetch each URL of `urls` (columns url_id, posted_url, host), answers to `recorder`.

        Only some hosts are open at a time, those with the most URLs first, since they take longest; a host's URLs are
        fetched in the order of the rows. With all hosts open, a large crawl would return to each so late that its
        robots.txt, address and connection would no longer be kept.
        """
        fetcher = self.fetcher
        if recorder.is_last:
            fetcher.try_once()
        held = Breaker(recorder, OUTAGE_HOSTS, _is_silent, "hosts in a row gave no answer", fetcher.works)
        url_ids = urls["url_id"].to_numpy()
        posted = urls["posted_url"].combine_chunks()
        hosts = rows_by_host(urls["host"])
        del urls  # the hosts' names are not needed any more
        pa.default_memory_pool().release_unused()  # 80 MB for a million URLs, for the time of the crawl
        if resumed:  # another attempt may have sent requests to these hosts a moment ago
            await asyncio.sleep(self._options.host_delay)

        async def fetch_host(rows: np.ndarray) -> None:
            for row in rows.tolist():
                begun = time.monotonic()
                fetched = await fetcher.fetch(posted[row].as_py())
                await held.take(int(url_ids[row]), fetched, begun, name=str(rows[0]))

        await for_each(fetch_host, hosts, self._options.connections)
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
