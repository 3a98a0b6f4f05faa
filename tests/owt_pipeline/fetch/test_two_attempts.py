"""Two processes at one shard, as on a cluster: the later one fetches, and each continues where
the other stopped."""

from __future__ import annotations

import math
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack

import numpy as np
import pytest

from owt_pipeline.engine.parts import Work, plan_stage
from owt_pipeline.engine.publish import publish
from owt_pipeline.engine.stage import Runtime, StageRun
from owt_pipeline.formats.urls import canonical_url, id_of
from owt_pipeline.ledger.root import read_root
from owt_pipeline.stages.fetch import recorder
from owt_pipeline.stages.fetch.options import Options
from owt_pipeline.stages.fetch.segments import SegmentReader
from owt_pipeline.stages.fetch.stage import STAGE
from owt_pipeline.storage import disk, lock
from owt_pipeline.storage.folder import Storage
from tests.conftest import REPOSITORY
from tests.owt_pipeline.fetch.conftest import Serve, Write
from tests.owt_pipeline.fetch.test_live import AGENT, PATIENCE, wait_until
from tests.servers.web import DOMAIN, Request, WebServer

HOSTS = 6
PAGES = 40
DELAY = 0.2
# All times of the recorder are shorter than in a real run, by this factor.
FASTER = 10


def options(rules: tuple[str, ...]) -> Options:
    """Return options by which a crawl takes long enough for two attempts."""
    return Options(resolve=rules, user_agent=AGENT, host_delay=DELAY)


def attempt(workdir: str, folder: str, machine: str, rules: tuple[str, ...]) -> None:
    """Fetch the shard as a machine of this name, once a line comes on stdin.

    This is the main function of a process.
    """
    disk._host = lambda: machine  # type: ignore[assignment]
    recorder.PATIENCE_SECONDS /= FASTER
    recorder.SEGMENT_SECONDS /= FASTER
    runtime = Runtime(Storage(workdir), on_cluster=True)
    sys.stdin.readline()
    Work(STAGE, options(rules), runtime, len(STAGE.steps) - 1, folder).do(0, [])


class Machines:
    """Processes that make the same shard, each as if on a machine of its own."""

    def __init__(self, runtime: Runtime, server: WebServer, stack: ExitStack):
        self.runtime = runtime
        self.server = server
        self.stack = stack
        # One lock for both machines, since their attempts belong to one run.
        lock.take(runtime.workdir, runtime.run, as_object=True)
        stack.callback(lock.release, runtime.workdir, runtime.run)
        run = plan_stage(STAGE, options(server.rules), runtime)
        assert isinstance(run, StageRun)
        self.run = run

    def owner(self) -> bytes | None:
        """Return the id of the attempt that makes the requests."""
        content = self.runtime.workdir.read_version("warc/part-00000/attempt")
        return content[0] if content else None

    def kept(self, urls: list[str]) -> set[str]:
        """Return the URLs whose answers are in segments."""
        by_id = {id_of(canonical_url(url)): url for url in urls}
        prefix = f"live-{self.run.properties['digests'][0]['live']}"
        ids = np.fromiter(by_id, np.uint64)
        return {
            by_id[url_id]
            for url_id in SegmentReader(
                self.runtime.workdir, self.run.root, 0, prefix, ids
            ).ids.tolist()
        }

    def start(self, machine: str) -> subprocess.Popen[bytes]:
        """Start an attempt, which waits until `let_go`."""
        arguments = (self.runtime.workdir.uri, self.run.name, machine, self.server.rules)
        code = f"from {__name__} import attempt; attempt(*{arguments!r})"
        process = self.stack.enter_context(
            subprocess.Popen([sys.executable, "-c", code], cwd=REPOSITORY, stdin=subprocess.PIPE)
        )
        self.stack.callback(process.kill)
        return process


def let_go(process: subprocess.Popen[bytes]) -> None:
    """Let an attempt begin."""
    assert process.stdin is not None
    process.stdin.write(b"\n")
    process.stdin.flush()


class Web:
    """A web that notes when each page is requested."""

    def __init__(self) -> None:
        self.times_by_host: dict[str, list[tuple[float, str]]] = {}

    async def behave(self, request: Request) -> None:
        self.times_by_host.setdefault(request.host, []).append((time.monotonic(), request.path))
        await request.answer()

    def count(self) -> int:
        """Return the number of requests so far."""
        return sum(map(len, self.times_by_host.values()))

    def gaps(self) -> Iterator[float]:
        """Yield the mean seconds between twenty requests to a host in a row.

        On a busy machine, a single request may arrive late.
        """
        for requests in self.times_by_host.values():
            for (before, _), (after, _) in zip(requests, requests[20:], strict=False):
                yield (after - before) / 20

    def requested(self, since: float = 0.0, until: float = math.inf) -> set[str]:
        """Return the pages that were requested in a time."""
        return {
            f"http://{host}.{DOMAIN}{path}"
            for host, requests in self.times_by_host.items()
            for when, path in requests
            if since < when < until
        }


@pytest.mark.slow
def test_of_two_leases_of_a_shard_one_fetches_at_a_time(serve: Serve, write_urls: Write) -> None:
    """The second takes over, is stopped, and goes on once the first has taken over; then the
    first is killed."""
    web = Web()
    server = serve({f"h{host}": web.behave for host in range(HOSTS)})
    urls = [f"http://h{host}.{DOMAIN}/{page}" for host in range(HOSTS) for page in range(PAGES)]
    with ExitStack() as stack:
        machines = Machines(write_urls(urls, num_shards=1), server, stack)
        first = machines.start("one")
        second = machines.start("two")
        let_go(first)
        wait_until(lambda: bool(machines.kept(urls)))
        kept_before_second = machines.kept(urls)
        first_owner = machines.owner()
        taken_over = time.monotonic()
        let_go(second)
        wait_until(lambda: machines.owner() != first_owner)
        wait_until(lambda: web.count() > len(urls) / 3)
        os.kill(second.pid, signal.SIGSTOP)
        kept_when_stopped = machines.kept(urls)
        stopped = time.monotonic()
        wait_until(lambda: web.count() > len(urls) / 2)
        os.kill(second.pid, signal.SIGCONT)
        wait_until(lambda: web.count() > 2 * len(urls) / 3)
        first.kill()
        kept_when_killed = machines.kept(urls)
        killed = time.monotonic()
        assert second.wait(PATIENCE) == 0
        run = machines.run
        manifest, _ = publish(
            run.stage, run.options, run.runtime, run.name, read_root(run.workdir)[1]
        )
        assert manifest.counts.left == len(urls)
    # While one does not know of the other, a host gets twice as many requests.
    assert min(web.gaps()) > 0.4 * DELAY
    assert not kept_before_second & web.requested(taken_over)
    assert not kept_when_stopped & web.requested(stopped)
    assert not kept_when_killed & web.requested(killed)
