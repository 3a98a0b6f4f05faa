"""One of two runs in a working directory works, and the other is refused.

A killed run is replaced.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest

from owt_pipeline.errors import JobRuns, RunSuperseded, UserError
from owt_pipeline.ledger.root import COPY, change_root, read_manifest, read_root
from owt_pipeline.storage import lock
from owt_pipeline.storage.folder import Storage
from owt_pipeline.storage.lock import running
from schemas.manifest import ROOT
from tests.owt_pipeline.conftest import PLACES
from tests.owt_pipeline.runs import ask_owt, differing, owt, run_owt, start_owt
from tests.servers.s3 import s3_bucket


@contextlib.contextmanager
def at_work(config: Path, run: Storage) -> Iterator[subprocess.Popen[str]]:
    """Start an `owt run`, and yield its process when it works on its second dataset.

    Its processes are killed at the end of the block.
    """
    with start_owt("run", run, config, "--workers", 1) as first:
        try:
            while read_manifest(run, "urls") is None or not (run / "warc").list():
                assert first.poll() is None
                time.sleep(0.05)
            yield first
        finally:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(first.pid, signal.SIGKILL)


def stop(process: subprocess.Popen[str], run: Storage) -> None:
    """Stop a process and its children, but not while they hold the lock of a swap.

    Other processes would report another error then.
    """
    while True:
        os.killpg(process.pid, signal.SIGSTOP)
        # A system call is completed first.
        time.sleep(0.2)
        if not is_swapping(run):
            return
        os.killpg(process.pid, signal.SIGCONT)


def is_swapping(run: Storage) -> bool:
    """Return whether a process holds the lock with which files on a disk are swapped."""
    with contextlib.suppress(FileNotFoundError), open(run.path(".tmp/lock"), "rb") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return True
    return False


@pytest.mark.parametrize("place", PLACES[:2], indirect=True)
def test_one_run_works_and_a_killed_one_is_replaced(small_config: Path, place: str) -> None:
    """On a disk at once, in a bucket after ten minutes or when its lock is deleted."""
    run = Storage(f"{place}/run")
    with at_work(small_config, run) as first:
        # It must not end meanwhile.
        stop(first, run)
        held = f"{run} is in use by `owt run` (process {first.pid} on "
        if run.is_local:
            refusal = run_owt("run", run, small_config, "--until", "collect", code=1)
            assert refusal.startswith(f"owt: error: {held}")
            assert len(refusal.splitlines()) == 1
            assert run_owt("verify", run, "--repair", code=1).startswith(f"owt: error: {held}")
        assert held in run_owt("why", run, "http://nobody.example/", code=3)
        verify = subprocess.run(owt("verify", run), capture_output=True, text=True, check=False)
        assert held in verify.stderr
        assert "urls: ok" in verify.stdout
    if not run.is_local:
        run.delete(lock.OBJECT)
    output = run_owt("run", run, small_config, "--until", "collect", "--workers", 1)
    assert "waiting" not in output
    assert running(run) is None


@pytest.mark.slow
def test_a_run_that_was_stopped_and_replaced_ends_when_it_wakes(
    small_config: Path, small_run: Path, tmp_path: Path
) -> None:
    """Its lock was taken away, as from a bucket after ten minutes. It publishes nothing."""
    run = Storage(str(tmp_path / "run"))
    with at_work(small_config, run) as first:
        stop(first, run)
        (tmp_path / "run/.lock").unlink()
        run_owt("run", run, small_config, "--workers", 1)
        os.killpg(first.pid, signal.SIGCONT)
        _, errors = first.communicate(timeout=60)
        assert first.returncode == 1
        last_line = errors.splitlines()[-1]
        assert last_line == f"owt: error: another run has published in {run}; this one stops"
    # This run removes the files that the first one wrote when it woke.
    run_owt("run", run, small_config, "--workers", 1)
    assert differing(small_run, tmp_path / "run") == []
    assert "no problems found" in run_owt("verify", run)


@pytest.mark.slow
def test_an_object_that_is_not_renewed_is_taken_over(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lock, "TERM_SECONDS", 2.0)
    with s3_bucket() as bucket:
        run = Storage(f"{bucket}/run")
        elsewhere = lock.Holder("one", "owt run", 7, "elsewhere")
        assert run.create(lock.OBJECT, msgspec.json.encode(elsewhere))
        started = time.monotonic()
        lock.take(run, "two")
        # A runner may call it again.
        lock.take(run, "two")
        assert 1.5 < time.monotonic() - started < 60
        monkeypatch.setattr(lock, "RENEW_SECONDS", 0.0)
        with pytest.raises(RunSuperseded, match="was taken over by"):
            lock.renew(run, "one")
        lock.release(run, "one")
        assert running(run) is not None
        lock.release(run, "two")
        assert running(run) is None


def test_a_job_nobody_waits_for_keeps_the_lock_to_its_end(tmp_path: Path) -> None:
    run = Storage(str(tmp_path))
    with pytest.raises(JobRuns), lock.hold(run, "one", as_object=True):
        raise JobRuns("the job is at work")
    assert running(run) is not None
    lock.release(run, "another")
    assert run.exists(lock.OBJECT)
    # The job does this in another process.
    lock.take(run, "one", as_object=True)
    lock.release(run, "one")
    with lock.hold(run, "two", as_object=True), pytest.raises(RunSuperseded):
        lock.renew(run, "one")
    assert not run.exists(lock.OBJECT)


def test_a_lost_root_is_restored_from_its_copy(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    run = Storage(str(tmp_path))
    root, _ = change_root(
        run, lambda root: msgspec.structs.replace(root, takedowns=["0.parquet"]), "one"
    )
    content = run.read(ROOT)
    for damage in (lambda: run.write(ROOT, b"{"), lambda: run.delete(ROOT)):
        damage()
        assert read_root(run)[0] == root
        assert "manifest.json was damaged or missing; restored it from its copy" in caplog.text
        assert run.read(ROOT) == content
        caplog.clear()
        assert read_root(run)[0] == root
        assert caplog.text == ""
    run.write(ROOT, b"{")
    run.write(COPY, b"{")
    with pytest.raises(UserError, match="and its copy are damaged"):
        read_root(run)


def test_a_lock_whose_holder_has_yet_to_write_its_name_is_named(tmp_path: Path) -> None:
    """Another run looks at the lock between `flock` and the writing of the name."""
    name = msgspec.json.encode(lock.Holder("id", "script.py"))
    with open(tmp_path / lock.FILE, "ab", buffering=0) as first:
        fcntl.flock(first, fcntl.LOCK_EX)
        writing = threading.Timer(0.3, first.write, [name])
        writing.start()
        with pytest.raises(lock.InUse, match=r"in use by `script\.py`"):
            lock.take(Storage(str(tmp_path)), "mine")
        writing.join()


def in_container(code: str, *words: object) -> str:
    """Run Python with process numbers of its own and this host's name; return what it printed.

    So do containers with `docker run --network host`.
    """
    unshare = ["unshare", "--pid", "--fork", "--mount-proc"]
    is_installed = shutil.which("unshare") is not None
    if not is_installed or subprocess.run([*unshare, "true"], check=False).returncode != 0:
        pytest.skip("needs the right to make a PID namespace")
    command = [*unshare, sys.executable, "-c", code, *map(str, words)]
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout


TAKE = """
import sys
from owt_pipeline.errors import UserError
from owt_pipeline.storage.folder import Storage
from owt_pipeline.storage.lock import release, take
run = Storage(sys.argv[1])
try:
    print(take(run, sys.argv[2]))
    release(run, sys.argv[2])
except UserError as error:
    print(error)
"""


def test_the_lock_file_of_a_run_in_another_container(tmp_path: Path) -> None:
    """Workers in a container begin the run again; another run waits for its end, and no longer."""
    run = Storage(str(tmp_path))
    with lock.hold(run, "one") as since:
        assert float(in_container(TAKE, run, "one")) == since
        assert "in use by" in in_container(TAKE, run, "two")
        # A worker that has ended has not released the run's lock.
        assert running(run) is not None
    # The file stays, and nobody holds it.
    (tmp_path / ".lock").write_bytes(msgspec.json.encode(lock.Holder("one", "owt run", 1)))
    assert float(in_container(TAKE, run, "one")) > 0
    assert float(in_container(TAKE, run, "two")) > 0
    assert running(run) is None


def test_a_run_next_to_one_that_adds_sources_says_who_is_at_work(tmp_path: Path) -> None:
    for number in (1, 2):
        (tmp_path / f"{number}.txt").write_text(f"https://example.org/{number}\n")
    folder = tmp_path / "run"
    words = ["run", folder, "--until", "collect", "--workers", "1"]
    ask_owt(*words, "--links", tmp_path / "1.txt")
    settings = (folder / "settings.toml").read_bytes()
    ask_owt(*words, "--add", "--links", tmp_path / "2.txt")
    (folder / "settings.toml").write_bytes(settings)
    with lock.hold(Storage(str(folder)), "another"):
        assert "is in use by" in ask_owt(*words, code=1)
    assert "running" not in ask_owt(*words)
