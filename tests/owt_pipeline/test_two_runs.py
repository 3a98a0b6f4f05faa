"""Two runs in one working directory: one works, the other says so; a killed one is replaced."""

from __future__ import annotations

import contextlib
import fcntl
import os
import signal
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from owt_pipeline.storage.folder import Storage
from owt_pipeline.storage.lease import LEASE_NAME, TERM_SECONDS
from tests.owt_pipeline.runs import differing, owt, run_owt, write_sources
from tests.servers.gcs import gcs_bucket
from tests.servers.s3 import s3_bucket

SERVERS = {"s3": s3_bucket, "gs": gcs_bucket}


@pytest.fixture(scope="module")
def config(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_sources(tmp_path_factory.mktemp("sources"))


@pytest.fixture(params=["disk", *(pytest.param(name, marks=pytest.mark.slow) for name in SERVERS)])
def run(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Storage]:
    """A working directory that is not there yet."""
    if request.param == "disk":
        yield Storage(str(tmp_path / "run"))
    else:
        with SERVERS[request.param]() as bucket:
            yield Storage(f"{bucket}/run")


@contextlib.contextmanager
def at_work(config: Path, run: Storage) -> Iterator[subprocess.Popen[str]]:
    """An `owt run` that has written its first dataset; its processes are gone when the block ends."""
    command = owt("run", config, "--workdir", run, "--workers", 1)
    with subprocess.Popen(
        command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True, start_new_session=True
    ) as first:
        try:
            while not run.exists("ledger/urls/manifest.json"):
                assert first.poll() is None
                time.sleep(0.05)
            yield first
        finally:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(first.pid, signal.SIGKILL)


def stop(process: subprocess.Popen[str], run: Storage) -> None:
    """Stop a process and its children, but not while they hold the lock of a swap: others get another error then."""
    while True:
        os.killpg(process.pid, signal.SIGSTOP)
        time.sleep(0.2)  # a system call is completed first
        if not is_swapping(run):
            return
        os.killpg(process.pid, signal.SIGCONT)


def is_swapping(run: Storage) -> bool:
    """Whether a process holds the lock with which files on a disk are swapped."""
    with contextlib.suppress(FileNotFoundError), open(run.path(".tmp/lock"), "rb") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return True
    return False


def test_one_works_the_other_refuses_and_a_killed_one_is_replaced_at_once(config: Path, run: Storage) -> None:
    with at_work(config, run) as first:
        stop(first, run)  # so that it does not end meanwhile; its lease holds for 30 s more
        held = f"{run} is in use by `owt run` (process {first.pid} on "
        refusal = run_owt("collect", "--config", config, "--workdir", run, code=1)
        assert refusal.startswith(f"owt: error: {held}")
        assert len(refusal.splitlines()) == 1
        assert run_owt("verify", "--repair", "--workdir", run, code=1).startswith(f"owt: error: {held}")
        for reader in (["why", "http://nobody.example/", "--workdir", run], ["inspect", run.path("urls")]):
            assert held in run_owt(*reader, code=3 if reader[0] == "why" else 0)
        verify = subprocess.run(owt("verify", "--workdir", run), capture_output=True, text=True, check=False)
        assert held in verify.stderr
        assert "urls: ok" in verify.stdout
    assert run.exists(LEASE_NAME)
    started = time.monotonic()
    done = run_owt("run", config, "--workdir", run, "--until", "collect", "--workers", 1)
    assert time.monotonic() - started < TERM_SECONDS
    assert "waiting" not in done
    assert not run.exists(LEASE_NAME)
    assert "is in use" not in run_owt("inspect", run.path("urls"))


@pytest.mark.slow
def test_a_run_that_was_stopped_and_replaced_ends_when_it_wakes(config: Path, tmp_path: Path) -> None:
    run, undisturbed = Storage(str(tmp_path / "run")), tmp_path / "undisturbed"
    run_owt("run", config, "--workdir", undisturbed, "--workers", 1)
    with at_work(config, run) as first:
        stop(first, run)
        time.sleep(TERM_SECONDS)
        done = run_owt("run", config, "--workdir", run, "--workers", 1)
        assert f"{run} is in use by `owt run` (process {first.pid} on " in done
        assert "waiting up to 30 s for a sign of life" in done
        os.killpg(first.pid, signal.SIGCONT)
        errors = first.communicate(timeout=60)[1]
        assert first.returncode == 1
        assert errors.splitlines()[-1].startswith(f"owt: error: {run} was taken over by ")
    assert differing(undisturbed, tmp_path / "run") == []
