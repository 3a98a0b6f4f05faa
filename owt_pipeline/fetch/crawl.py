"""The live web as a source, and the order in which URLs are fetched: every host at its own pace, thousands at once."""

from __future__ import annotations

import asyncio
import functools
from collections.abc import Iterator
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import pyarrow as pa

from owt_pipeline.fetch.live import Fetcher, LiveOptions
from owt_pipeline.fetch.recorder import Recorder
from owt_pipeline.fetch.sources import Shared


@dataclass(frozen=True)
class LiveSource:
    """The web as it is now."""

    options: LiveOptions
    columns: ClassVar = ("url_id", "posted_url", "host", "host_shards")

    def open(self, crawl: Shared) -> LiveClient:
        return LiveClient(self.options, crawl)


class LiveClient:
    """Fetches pages from the live web.

    Attributes:
      fetcher: fetches one of them.
      open_hosts: hosts whose URLs are being fetched, over all shards.
      max_open_hosts: as many as keep all connections busy while hosts wait for their turns.
    """

    def __init__(self, options: LiveOptions, shared: Shared):
        self.fetcher = Fetcher(options, shared.may_ask)
        self.open_hosts, self.max_open_hosts = 0, 2 * options.client.connections
        self._shared = shared

    async def close(self) -> None:
        await self.fetcher.close()

    def status(self) -> str:
        return f"{self.open_hosts:,} hosts open, {self.fetcher.requests:,} requests"

    async def ask(self, urls: pa.Table, recorder: Recorder, resumed: bool) -> None:
        """Fetch every URL of `urls` (columns url_id, posted_url, host, host_shards), answers to `recorder`.

        A few hosts are open at a time, those with the most URLs first, since they end last; a host's URLs are fetched
        in the order of the rows. Were all hosts open at once, a crawl of many would come back to each after so long
        that its robots.txt, its address and its connection were forgotten meanwhile.
        """
        fetcher, spread = self.fetcher, self._shared.on_cluster
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
                fetched = await fetcher.fetch(posted[row].as_py(), int(host_shards[row]) if spread else 1)
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
                for task in host:
                    task.add_done_callback(functools.partial(done, host))
            if not tasks and not ended.done():
                ended.set_result(None)

        def done(host: set[asyncio.Task[None]], task: asyncio.Task[None]) -> None:
            host.discard(task)
            tasks.discard(task)
            self.open_hosts -= not host
            if task.cancelled() or (error := task.exception()) is None:
                open_hosts()
            elif not ended.done():
                ended.set_exception(error)

        async def share_addresses() -> None:
            while True:
                fetcher.client.address_gates.workers = self._shared.workers()
                await asyncio.sleep(1)

        sharing = loop.create_task(share_addresses())
        try:
            if resumed:  # another attempt may have asked these hosts a moment ago
                await asyncio.sleep(fetcher.options.host_delay * (int(host_shards.max()) if spread else 1))
            open_hosts()
            await ended
        finally:
            closed = iter(())
            sharing.cancel()
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
