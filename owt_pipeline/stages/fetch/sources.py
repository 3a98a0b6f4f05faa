"""Sources of pages on the network: each part makes its requests in an event loop of its own.

Parts share nothing: a host is in one shard, and limits of all hosts together are divided over the
parts of a process.
"""

from __future__ import annotations

import asyncio
import concurrent.futures
from collections.abc import Awaitable, Callable, Coroutine, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, ClassVar, Protocol, TypeVar

import numpy as np
import pyarrow as pa

from owt_pipeline import progress
from owt_pipeline.engine.parts import stop_after_failure
from owt_pipeline.stages.fetch.attempt import Attempt, Superseded
from owt_pipeline.stages.fetch.client import allowed_connections
from owt_pipeline.stages.fetch.recorder import Recorder
from owt_pipeline.stages.fetch.segments import Answered, is_in

if TYPE_CHECKING:
    from owt_pipeline.stages.fetch.stage import Options

R = TypeVar("R")
C = TypeVar("C", bound="Client")


class Client(Protocol):
    """Makes requests to a source; made and used in one event loop."""

    columns: ClassVar[Sequence[str]]
    """The columns of urls/ that it needs; `url_id` is the first."""

    async def ask(self, urls: pa.Table, recorder: Recorder, before: Answered | None) -> None:
        """Request each URL of `urls` (with the source's columns) and give each answer to `recorder`.

        `before` is what an earlier attempt was answered, which may have sent requests to the same hosts a moment ago.
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

    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return asyncio.run(run())
    with concurrent.futures.ThreadPoolExecutor(1) as thread:  # since this one runs a loop already, as a notebook's does
        return thread.submit(asyncio.run, run()).result()


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
                is_last = bool(is_in(ids, answered.postponed).all())
                async with Recorder(answered.writer(about, is_last=is_last), attempt, advance) as recorder:
                    await until_stopped(recorder, client.ask(read(ids), recorder, answered if resumed else None))
        except Superseded:
            await attempt.wait_for_other()
        finally:
            attempt.end()
        answered.load()


async def until_stopped(recorder: Recorder, asking: Awaitable[None]) -> None:
    """Await `asking`, but no longer than the recorder goes on; raises what either raises."""
    task = asyncio.ensure_future(asking)
    try:
        while not (task.done() or recorder.stopped.done()):
            await asyncio.wait({task, recorder.stopped}, timeout=1, return_when=asyncio.FIRST_COMPLETED)
            progress.advance(0)  # shows that the run is alive while no answer arrives
            stop_after_failure()
        await (task if task.done() else recorder.stopped)
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
