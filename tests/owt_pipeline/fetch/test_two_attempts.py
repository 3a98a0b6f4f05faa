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

from owt_pipeline.engine.parts import Work
from owt_pipeline.engine.publish import publish
from owt_pipeline.engine.stage import Runtime, StageRun
from owt_pipeline.engine.stage_work import plan_stage
from owt_pipeline.formats.urls import canonical_url, id_of
from owt_pipeline.ledger.root import read_root, require_manifest
from owt_pipeline.stages.fetch import recorder
from owt_pipeline.stages.fetch.options import Options
from owt_pipeline.stages.fetch.segments import SegmentReader
from owt_pipeline.stages.fetch.stage import STAGE
from owt_pipeline.storage import disk, lock
from owt_pipeline.storage.folder import Storage
from tests.conftest import REPOSITORY
from tests.owt_pipeline.fetch.bad_server import DOMAIN, BadServer, Request, Serve
from tests.owt_pipeline.fetch.conftest import Write, write_urls_to
from tests.owt_pipeline.fetch.test_live import AGENT, PATIENCE, command, wait_until
from tests.servers.s3 import s3_bucket

HOSTS, PAGES, DELAY = 6, 40, 0.2
FASTER = 10
"""How much shorter all times are here than in a real run."""


def options(rules: tuple[str, ...]) -> Options:
    return Options(resolve=rules, user_agent=AGENT, host_delay=DELAY)


def attempt(workdir: str, folder: str, machine: str, rules: tuple[str, ...]) -> None:
    """Make the shard on a machine of this name, once it is let go; the main function of a
    process."""
    disk._host = lambda: machine  # type: ignore[assignment]
    recorder.PATIENCE_SECONDS /= FASTER
    recorder.SEGMENT_SECONDS /= FASTER
    runtime = Runtime(Storage(workdir), on_cluster=True)
    sys.stdin.readline()
    Work(STAGE, options(rules), runtime, len(STAGE.steps) - 1, folder).do(0, [])


class Machines:
    """Processes that make the same shard, each as if on a machine of its own."""

    def __init__(self, runtime: Runtime, server: BadServer, stack: ExitStack):
        self.runtime, self.server, self.stack = runtime, server, stack
        lock.take(
            runtime.workdir, runtime.run, as_object=True
        )  # for both: they are attempts of one run
        stack.callback(lock.release, runtime.workdir, runtime.run)
        run = plan_stage(STAGE, options(server.rules), runtime)
        assert isinstance(run, StageRun)
        self.run = run

    def owner(self) -> bytes | None:
        """The id of the attempt that makes the requests."""
        found = self.runtime.workdir.read_version("warc/part-00000/attempt")
        return found[0] if found else None

    def in_segments(self, urls: list[str]) -> set[str]:
        """Those of the URLs whose answers are in segments."""
        by_id = {id_of(canonical_url(url)): url for url in urls}
        prefix = f"live-{self.run.properties['digests']['live']}"
        ids = np.fromiter(by_id, np.uint64)
        return {
            by_id[found]
            for found in SegmentReader(
                self.runtime.workdir, self.run.root, 0, prefix, ids
            ).ids.tolist()
        }

    def start(self, machine: str) -> subprocess.Popen[bytes]:
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
        self.asked: dict[str, list[tuple[float, str]]] = {}

    async def answer(self, request: Request) -> None:
        self.asked.setdefault(request.host, []).append((time.monotonic(), request.path))
        await request.answer()

    def count(self) -> int:
        return sum(map(len, self.asked.values()))

    def gaps(self) -> Iterator[float]:
        """Mean seconds between twenty requests to a host in a row: on a busy machine a single
        one may arrive late."""
        for requests in self.asked.values():
            for (before, _), (after, _) in zip(requests, requests[20:], strict=False):
                yield (after - before) / 20

    def asked_in(self, since: float = 0.0, until: float = math.inf) -> set[str]:
        """The pages that were requested in a time."""
        return {
            f"http://{host}.{DOMAIN}{path}"
            for host, of in self.asked.items()
            for when, path in of
            if since < when < until
        }


@pytest.mark.slow
def test_of_two_leases_of_a_shard_one_fetches_at_a_time(serve: Serve, write_urls: Write) -> None:
    """The second takes over, is stopped, and goes on once the first has taken over; then the
    first is killed."""
    web = Web()
    server = serve({f"h{host}": web.answer for host in range(HOSTS)})
    urls = [f"http://h{host}.{DOMAIN}/{page}" for host in range(HOSTS) for page in range(PAGES)]
    with ExitStack() as stack:
        machines = Machines(write_urls(urls, num_shards=1), server, stack)
        first, second = machines.start("one"), machines.start("two")
        let_go(first)
        wait_until(lambda: bool(machines.in_segments(urls)))
        known, begun, taken_over = machines.in_segments(urls), machines.owner(), time.monotonic()
        let_go(second)
        wait_until(lambda: machines.owner() != begun)
        wait_until(lambda: web.count() > len(urls) / 3)
        os.kill(second.pid, signal.SIGSTOP)
        known_when_stopped, stopped = machines.in_segments(urls), time.monotonic()
        wait_until(lambda: web.count() > len(urls) / 2)
        os.kill(second.pid, signal.SIGCONT)
        wait_until(lambda: web.count() > 2 * len(urls) / 3)
        first.kill()
        known_when_killed, killed = machines.in_segments(urls), time.monotonic()
        assert second.wait(PATIENCE) == 0
        run = machines.run
        manifest, _ = publish(
            run.stage, run.options, run.runtime, run.name, read_root(run.workdir)[1]
        )
        assert manifest.counts.left == len(urls)
    assert (
        min(web.gaps()) > 0.4 * DELAY
    )  # while one does not know of the other, a host is asked twice as often
    assert not known & web.asked_in(taken_over)
    assert not known_when_stopped & web.asked_in(stopped)
    assert not known_when_killed & web.asked_in(killed)


@pytest.mark.slow
def test_a_killed_crawl_into_a_bucket_continues_where_it_stopped(serve: Serve) -> None:
    web = Web()
    server = serve({f"h{host}": web.answer for host in range(HOSTS)})
    urls = [f"http://h{host}.{DOMAIN}/{page}" for host in range(HOSTS) for page in range(20)]
    with s3_bucket() as uri:
        runtime = write_urls_to(f"{uri}/run", urls, num_shards=2)
        crawl = command(f"{uri}/run", server, DELAY)
        with subprocess.Popen(crawl) as process:
            wait_until(lambda: web.count() > len(urls) / 2)
            process.kill()
        killed = time.monotonic()
        subprocess.run(crawl, check=True)
        assert require_manifest(runtime.workdir, "pages").counts.left == len(urls)
        assert not (runtime.workdir / "ledger/fetch/work").names()
    assert min(web.gaps()) > 0.8 * DELAY
    assert not web.asked_in(until=killed - recorder.BUCKET_SECONDS - 1) & web.asked_in(since=killed)
