"""Two processes at one shard, as on a cluster: the later one fetches, and each continues where the other stopped."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack

import pytest

from owt_pipeline.engine.parts import Work
from owt_pipeline.engine.plan import plan_stage
from owt_pipeline.engine.publish import publish
from owt_pipeline.engine.stage import Runtime, StageRun
from owt_pipeline.ledger.root import read_root, require_manifest
from owt_pipeline.stages.fetch import attempt as attempts
from owt_pipeline.stages.fetch import recorder
from owt_pipeline.stages.fetch.stage import STAGE, Options
from owt_pipeline.storage import disk
from owt_pipeline.storage.folder import Storage
from tests.conftest import REPOSITORY
from tests.owt_pipeline.fetch.bad_server import DOMAIN, BadServer, Request, Serve
from tests.owt_pipeline.fetch.conftest import Write, write_urls_to
from tests.owt_pipeline.fetch.test_live import AGENT, serve, wait_until
from tests.owt_pipeline.runs import stage_alone
from tests.servers.gcs import gcs_bucket
from tests.servers.s3 import s3_bucket

__all__ = ["serve"]

HOSTS, PAGES, DELAY = 6, 40, 0.2
FASTER = 10
"""How much shorter all times are here than in a real run."""


def options(rules: tuple[str, ...]) -> Options:
    return Options(resolve=rules, user_agent=AGENT, host_delay=DELAY)


def attempt(workdir: str, folder: str, machine: str, rules: tuple[str, ...]) -> None:
    """Make the shard on a machine of this name; the main function of a process."""
    disk._host = lambda: machine  # type: ignore[assignment]
    attempts.PATIENCE_SECONDS /= FASTER
    recorder.SEGMENT_SECONDS /= FASTER
    runtime = Runtime(Storage(workdir), on_cluster=True)
    Work(STAGE, options(rules), runtime, len(STAGE.steps) - 1, folder).do(0, [])


class Machines:
    """Processes that make the same shard, each as if on a machine of its own."""

    def __init__(self, runtime: Runtime, server: BadServer, stack: ExitStack):
        self.runtime, self.server, self.stack = runtime, server, stack
        run = plan_stage(STAGE, options(server.rules), runtime)
        assert isinstance(run, StageRun)
        self.run = run

    def owner(self) -> bytes | None:
        """The id of the attempt that makes the requests."""
        found = self.runtime.workdir.read_version("warc/part-00000/attempt")
        return found[0] if found else None

    def start(self, machine: str) -> subprocess.Popen[bytes]:
        arguments = (self.runtime.workdir.uri, self.run.name, machine, self.server.rules)
        code = f"from {__name__} import attempt; attempt(*{arguments!r})"
        process = self.stack.enter_context(subprocess.Popen([sys.executable, "-c", code], cwd=REPOSITORY))
        self.stack.callback(process.kill)
        return process


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
        """Mean seconds between ten requests to a host in a row: on a busy machine a single one may arrive late."""
        for requests in self.asked.values():
            for (before, _), (after, _) in zip(requests, requests[10:], strict=False):
                yield (after - before) / 10

    def asked_again(self) -> Iterator[tuple[float, float]]:
        """When the pages that were requested twice were first requested, and when again."""
        for requests in self.asked.values():
            for path in {path for _, path in requests}:
                first, *others = (when for when, asked in requests if asked == path)
                yield from ((first, other) for other in others)


@pytest.mark.parametrize("outcome", ["killed", "stopped"])
def test_of_two_attempts_at_a_shard_one_fetches_and_the_other_continues_where_it_ends(
    outcome: str, serve: Serve, write_urls: Write
) -> None:
    web = Web()
    server = serve({f"h{host}": web.answer for host in range(HOSTS)})
    urls = [f"http://h{host}.{DOMAIN}/{page}" for host in range(HOSTS) for page in range(PAGES)]
    with ExitStack() as stack:
        machines = Machines(write_urls(urls, num_shards=1), server, stack)
        first = machines.start("one")
        wait_until(lambda: web.count() > HOSTS)
        begun = machines.owner()
        second = machines.start("two")
        wait_until(lambda: machines.owner() != begun, 120)
        changes = [time.monotonic()]
        wait_until(lambda: web.count() > len(urls) / 2, 120)
        changes.append(time.monotonic())
        if outcome == "killed":
            second.kill()
        else:
            os.kill(second.pid, signal.SIGSTOP)
            wait_until(lambda: web.count() > 3 * len(urls) / 4, 120)
            os.kill(second.pid, signal.SIGCONT)
            changes.append(time.monotonic())
            assert second.wait(60) == 0
        assert first.wait(60) == 0
        run = machines.run
        manifest, _ = publish(run.stage, run.options, run.runtime, run.name, read_root(run.workdir)[1])
        assert manifest.counts.left == len(urls)
    assert min(web.gaps()) > 0.4 * DELAY  # while one does not know of the other, a host is asked twice as often
    again = list(web.asked_again())
    assert recorder.SEGMENT_SECONDS <= 5  # what the documentation promises
    seconds = recorder.SEGMENT_SECONDS / FASTER + 1  # what is written down takes a moment
    assert all(any(abs(at - change) < seconds for change in changes for at in times) for times in again)
    assert len(again) <= len(changes) * HOSTS * (seconds / DELAY + 1)


@pytest.mark.slow
@pytest.mark.parametrize("bucket", [s3_bucket, gcs_bucket], ids=["s3", "gs"])
def test_a_killed_crawl_into_a_bucket_continues_where_it_stopped(
    bucket: Callable[[], AbstractContextManager[str]], serve: Serve
) -> None:
    web = Web()
    server = serve({f"h{host}": web.answer for host in range(HOSTS)})
    urls = [f"http://h{host}.{DOMAIN}/{page}" for host in range(HOSTS) for page in range(20)]
    with bucket() as uri:
        runtime = write_urls_to(f"{uri}/run", urls, num_shards=2)
        arguments = [f"{uri}/run", "--quiet", "--resolve", *server.rules, "--user_agent", AGENT]
        arguments += ["--host_delay", "0.2"]
        command = stage_alone("fetch", *arguments)
        with subprocess.Popen(command) as process:
            wait_until(lambda: web.count() > len(urls) / 2, 60)
            process.kill()
        killed = time.monotonic()
        subprocess.run(command, check=True)
        assert require_manifest(runtime.workdir, "pages").counts.left == len(urls)
        assert not (runtime.workdir / "ledger/fetch/work").names()
    assert min(web.gaps()) > 0.8 * DELAY
    assert sum(killed - when >= recorder.BUCKET_SECONDS + 1 for when, _ in web.asked_again()) == 0
