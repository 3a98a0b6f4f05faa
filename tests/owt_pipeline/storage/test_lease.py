"""The lease: one run at a time in a working directory, on a disk and in every kind of bucket."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import msgspec
import pytest
from apache_beam.runners.portability.fn_api_runner import FnApiRunner

from owt_pipeline.engine.runner import run_stages
from owt_pipeline.engine.stage import Runtime, Stage, StageRun, Step
from owt_pipeline.errors import UserError
from owt_pipeline.ledger.commit import ShardWriter
from owt_pipeline.ledger.exchange import Slice
from owt_pipeline.storage import lease
from owt_pipeline.storage.disk import this_process
from owt_pipeline.storage.folder import Storage
from owt_pipeline.storage.lease import LEASE_NAME, Job, Lease, LeaseLost, hold, name_job, renew, rewrite, running

TERM, RENEW = 3.0, 0.5

RUN = f"""
import sys
from owt_pipeline.storage import lease
from owt_pipeline.errors import UserError
from owt_pipeline.storage.folder import Storage
lease.TERM_SECONDS, lease.RENEW_SECONDS = {TERM}, {RENEW}
workdir, name = Storage(sys.argv[1]), sys.argv[2]
try:
    with lease.hold(workdir) as held:
        print("held", flush=True)
        for line in sys.stdin:
            lease.renew(workdir, held.owner)
            workdir.write("manifest.json", name.encode())
            print("published", flush=True)
    print("ended", flush=True)
except UserError as error:
    print(f"error: {{error}}", flush=True)
"""


class ClusterRunner(FnApiRunner):
    """As a cluster's runner does, it returns when it has the job; the job runs while it is waited for."""

    def run_pipeline(self, pipeline: Any, options: Any) -> Any:
        run = super().run_pipeline

        class Result:
            def job_id(self) -> str:
                return "job-1"

            def wait_until_finish(self) -> None:
                self.metrics = run(pipeline, options).metrics

        return Result()


class InterruptedRunner(ClusterRunner):
    """The wait for its job is interrupted, as by Ctrl-C."""

    def run_pipeline(self, pipeline: Any, options: Any) -> Any:
        result = super().run_pipeline(pipeline, options)
        wait = result.wait_until_finish

        def wait_until_interrupted() -> None:
            wait()
            signal.raise_signal(signal.SIGINT)

        result.wait_until_finish = wait_until_interrupted
        return result


@dataclass(frozen=True)
class NoOptions:
    pass


def note_job(run: StageRun, shard: int, _: Sequence[Slice], writer: ShardWriter) -> None:
    """What a worker does: note what the lease says. It renews it after each part."""
    run.workdir.write("noted", str(running(run.workdir).job.id).encode())


class Noting(Stage):
    name, output, options, version = "extract", "documents", NoOptions, 1
    steps = (Step(note_job),)

    def num_shards(self, options: NoOptions) -> int:
        return 1


@pytest.fixture(autouse=True)
def _short_terms(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lease, "TERM_SECONDS", TERM)
    monkeypatch.setattr(lease, "RENEW_SECONDS", RENEW)


@pytest.fixture
def start(folder: Storage) -> Iterator[Callable[[str], subprocess.Popen]]:
    children = []

    def start(name: str) -> subprocess.Popen:
        child = subprocess.Popen(
            [sys.executable, "-c", RUN, folder.uri, name],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            bufsize=1,
        )
        children.append(child)
        return child

    yield start
    for child in children:
        child.kill()
        child.wait()


def another_holds(folder: Storage, **changes: Any) -> Lease:
    """The lease of a run on another machine, or of whatever `changes` say."""
    values = {"owner": "other", "host": "elsewhere.1", "pid": 7, "started": "7", "command": "owt run", "renewals": 3}
    held = Lease(**{**values, "expires": time.time() + TERM, **changes})
    folder.write(LEASE_NAME, msgspec.json.encode(held))
    return held


def test_of_two_runs_started_together_one_works_and_one_refuses(
    folder: Storage, start: Callable[[str], subprocess.Popen]
) -> None:
    runs = [start("first"), start("second")]
    said = [run.stdout.readline() for run in runs]
    winner, loser = runs if said[0] == "held\n" else reversed(runs)
    assert "held\n" in said
    refusal = next(line for line in said if line != "held\n")
    assert refusal.startswith(f"error: {folder} is in use by ")
    assert f"process {winner.pid} on {os.uname().nodename.partition('.')[0]}), until 20" in refusal
    assert loser.wait(60) == 0
    time.sleep(TERM + 1)
    assert running(folder).pid == winner.pid  # renewed meanwhile
    winner.stdin.write("publish\n")
    assert winner.stdout.readline() == "published\n"
    winner.stdin.close()
    assert winner.stdout.readline() == "ended\n"
    assert folder.names() == ["manifest.json"]
    assert running(folder) is None


def test_after_a_kill_the_next_run_on_the_machine_takes_over_at_once(
    folder: Storage, start: Callable[[str], subprocess.Popen]
) -> None:
    killed = start("killed")
    assert killed.stdout.readline() == "held\n"
    killed.send_signal(signal.SIGKILL)  # and not waited for: a zombie does not run, either
    time.sleep(0.2)
    assert folder.exists(LEASE_NAME)
    assert running(folder) is None
    started = time.monotonic()
    with hold(folder):
        assert time.monotonic() - started < TERM
        assert running(folder).pid == os.getpid()
    assert folder.names() == []


def test_a_stopped_run_that_wakes_after_a_takeover_publishes_nothing(
    folder: Storage, start: Callable[[str], subprocess.Popen]
) -> None:
    first = start("first")
    assert first.stdout.readline() == "held\n"
    first.send_signal(signal.SIGSTOP)
    owner = running(folder).owner
    assert rewrite(folder, LEASE_NAME, Lease, owner, expires=time.time() + 3600)
    early = start("early")
    assert early.stdout.readline().startswith(f"error: {folder} is in use by")
    assert rewrite(folder, LEASE_NAME, Lease, owner, expires=0.0)
    started = time.monotonic()
    second = start("second")
    assert second.stdout.readline() == "held\n"
    assert time.monotonic() - started > TERM - 1
    first.stdin.write("publish\n")  # what it does first on waking, before it learns anything
    first.send_signal(signal.SIGCONT)
    said = first.stdout.readline()
    assert said.startswith(f"error: {folder} was taken over by ")
    assert f"process {second.pid}" in said
    assert first.wait(60) == 0
    second.stdin.write("publish\n")
    assert second.stdout.readline() == "published\n"
    assert folder.read("manifest.json") == b"second"
    second.stdin.close()
    assert second.stdout.readline() == "ended\n"


@pytest.mark.parametrize("skew", [-86_400, 0, 86_400])
def test_a_dead_run_of_another_machine_is_replaced_after_its_term_whatever_its_clock(
    folder: Storage, skew: float
) -> None:
    another_holds(folder, expires=time.time() + skew)
    started = time.monotonic()
    with hold(folder) as held:
        assert time.monotonic() - started >= TERM
        renew(folder, held.owner)
    assert folder.names() == []


@pytest.mark.parametrize("skew", [-86_400, 86_400])
def test_a_live_run_of_another_machine_is_seen_whatever_its_clock(folder: Storage, skew: float) -> None:
    another_holds(folder, expires=time.time() + skew)
    timer = threading.Timer(TERM / 10, lambda: another_holds(folder, renewals=4, expires=time.time() + skew))
    timer.start()
    with pytest.raises(UserError, match=r"is in use by `owt run` \(process 7 on elsewhere\), until "), hold(folder):
        pytest.fail("both hold it")
    timer.join()


def test_a_process_id_that_is_used_again_does_not_hold_the_lease(folder: Storage) -> None:
    another_holds(folder, host=this_process().host, pid=os.getpid(), started="1")
    with hold(folder):
        assert running(folder).started == this_process().started


def test_a_job_is_replaced_when_its_runner_says_that_it_ended_or_the_user_does(folder: Storage) -> None:
    job = Job("DataflowRunner", "2026-11-21_1")
    for answer in (None, True):
        another_holds(folder, job=job, expires=0.0)
        asked: list[Job] = []
        with (
            pytest.raises(UserError, match="is in use by job 2026-11-21_1 on DataflowRunner, started by") as error,
            hold(folder, job_runs=lambda job, answer=answer, asked=asked: (asked.append(job), answer)[1]),
        ):
            pytest.fail("both hold it")
        assert asked == [job]
        assert ("--take_over" in str(error.value)) == (answer is None)
    with pytest.raises(UserError, match="run the same command with --take_over"), hold(folder):
        pytest.fail("both hold it")
    with hold(folder, job_runs=lambda job: False):
        pass
    another_holds(folder, job=job)
    with hold(folder, take_over=True):
        assert running(folder).job is None


def test_a_job_keeps_the_lease_when_the_process_that_started_it_ends(folder: Storage) -> None:
    job = Job("FlinkRunner", "abc")
    with hold(folder) as held:
        name_job(folder, held.owner, job)
    assert running(folder).job == job
    renew(folder, held.owner)
    with hold(folder, take_over=True) as held:
        name_job(folder, held.owner, job)
        name_job(folder, held.owner, None)
    assert folder.names() == []


@pytest.mark.parametrize("runner", [ClusterRunner, InterruptedRunner])
def test_the_lease_names_the_job_while_it_runs_and_after_an_interrupted_wait(
    folder: Storage, runner: type[ClusterRunner]
) -> None:
    interrupted = runner is InterruptedRunner
    expected = pytest.raises(KeyboardInterrupt) if interrupted else contextlib.nullcontext()
    name = f"{runner.__module__}.{runner.__name__}"
    with expected, hold(folder) as held:
        run_stages([(Noting(), NoOptions())], Runtime(folder, beam_flags=(f"--runner={name}",), owner=held.owner))
        assert running(folder).job is None
    assert folder.read("noted") == b"job-1"
    lease = running(folder)
    assert (lease.job if lease else None) == (Job(name, "job-1") if interrupted else None)


def test_workers_renew_the_lease_of_their_run_only(folder: Storage) -> None:
    with hold(folder) as held:
        before = running(folder).renewals
        renew(folder, held.owner)
        after = running(folder).renewals
        assert after > before
        for _ in range(10):
            renew(folder, held.owner, every=60)
        assert running(folder).renewals <= after + 1  # which the background may have done
        with pytest.raises(LeaseLost, match=r"was taken over by `.*` .*; this run stops"):
            renew(folder, "another run")
    with pytest.raises(LeaseLost):
        renew(folder, held.owner)


WORKER = f"""
import sys, time
from owt_pipeline.storage import lease
from owt_pipeline.storage.folder import Storage
folder = Storage(sys.argv[1])
lease.renew(folder, "other", every={RENEW})
print("seen", flush=True)
sys.stdin.readline()
lease.renew(folder, "other", every={RENEW})
print("looked", flush=True)
"""


def test_of_many_processes_that_see_one_stale_lease_one_renews_it(folder: Storage) -> None:
    """Whatever the clock of the machine that it names says."""
    another_holds(folder, renewals=7, expires=time.time() + 86_400)
    command = [sys.executable, "-c", WORKER, folder.uri]
    workers = [
        subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) for _ in range(6)
    ]  # fmt: skip
    assert [worker.stdout.readline() for worker in workers] == ["seen\n"] * 6
    assert running(folder).renewals == 7, "it is new to each of them"
    time.sleep(2 * RENEW)
    for worker in workers:
        worker.stdin.write("\n")
        worker.stdin.flush()
    assert [worker.communicate()[0] for worker in workers] == ["looked\n"] * 6
    lease = running(folder)
    assert lease.renewals == 8
    assert lease.expires > time.time() + 80_000, "which another host's process has left alone"


def test_a_run_that_loses_its_lease_is_interrupted(folder: Storage) -> None:
    with pytest.raises(LeaseLost, match=r"was taken over by `owt run` \(process 7 on elsewhere\)"), hold(folder):
        another_holds(folder)
        time.sleep(60)
        pytest.fail("it was not interrupted")
    assert running(folder).owner == "other"  # it is not deleted by who lost it


@pytest.mark.parametrize("content", [b"", b'{"owner": "\xff"}'])
def test_a_lease_that_cannot_be_read_is_replaced_after_its_term(folder: Storage, content: bytes) -> None:
    folder.write(LEASE_NAME, content)
    with hold(folder):
        assert running(folder)


def test_an_error_in_the_run_releases_the_lease(folder: Storage) -> None:
    with pytest.raises(ZeroDivisionError), hold(folder):
        raise ZeroDivisionError
    assert folder.names() == []
