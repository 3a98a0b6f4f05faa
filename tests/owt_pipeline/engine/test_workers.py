"""No process, page or signal leaves anything behind: children end with their parent, and report how
they ended."""

from __future__ import annotations

import importlib.util
import os
import re
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from functools import partial
from multiprocessing import forkserver
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest

from owt_pipeline import progress
from owt_pipeline.engine.workers import WorkerDied, WorkerPool, died
from owt_pipeline.errors import UserError, WorkerError
from tests.conftest import REPOSITORY
from tests.owt_pipeline.runs import start_owt

pytestmark = pytest.mark.beam

_WORK = """
import sys
import pyarrow as pa
from owt_pipeline.engine.workers import shared_pool
from owt_pipeline.command_line import interruptible
from tests.owt_pipeline.engine import test_workers

def work():
    for _ in shared_pool(2).map(getattr(test_workers, sys.argv[1]), [pa.record_batch({"a": [1]})] * 4):
        pass
    return 0

sys.exit(interruptible(work))
"""


def spin(_: pa.RecordBatch) -> None:
    os.write(1, b"at work\n")  # at once, as `print` may not
    while True:
        pass


def hang_in_c(_: pa.RecordBatch) -> None:
    """Holds the interpreter's lock forever, and ignores all that can be ignored."""
    os.write(1, b"at work\n")  # at once, as `print` may not
    for number in signal.valid_signals() - {signal.SIGKILL, signal.SIGSTOP}:
        if number < 32:
            signal.signal(number, signal.SIG_IGN)
    signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals())
    re.match(r"(a*)*b", "a" * 64)


def processes_of(folder: Path) -> list[int]:
    """The live processes that were given this folder for their temporary files."""
    found = []
    for name in filter(str.isdigit, os.listdir("/proc")):
        try:
            # The file is empty once the process has ended.
            environment = Path(f"/proc/{name}/environ").read_bytes()
        except OSError:
            continue
        if f"TMPDIR={folder}".encode() in environment.split(b"\0"):
            found.append(int(name))
    return found


@pytest.fixture
def own_temporary_folder(tmp_path: Path) -> Iterator[Path]:
    # The name has to be short, since the path of a socket has at most 107 bytes.
    folder = Path(tempfile.mkdtemp(dir="/tmp"))
    yield folder
    assert not list(folder.iterdir())
    folder.rmdir()


@pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="reads /proc")
@pytest.mark.parametrize(
    ("work", "number"),
    [
        (spin, signal.SIGINT),
        *((hang_in_c, number) for number in (signal.SIGKILL, signal.SIGTERM, signal.SIGINT)),
    ],
)
def test_a_parent_that_ends_leaves_no_child_and_no_file(
    own_temporary_folder: Path, work: object, number: signal.Signals
) -> None:
    environment = {**os.environ, "TMPDIR": str(own_temporary_folder)}
    process = subprocess.Popen(
        [sys.executable, "-c", _WORK, work.__name__],  # type: ignore[attr-defined]
        cwd=REPOSITORY, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        start_new_session=True,
    )  # fmt: skip
    try:
        assert process.stdout is not None
        assert process.stdout.readline() + process.stdout.readline() == "at work\nat work\n"
        # This process, two of multiprocessing, and two workers.
        assert len(processes_of(own_temporary_folder)) == 5
        started = time.monotonic()
        process.send_signal(number)
        code = process.wait(30)
        while processes_of(own_temporary_folder) and time.monotonic() < started + 30:
            time.sleep(0.05)
        assert processes_of(own_temporary_folder) == []
    finally:
        for pid in processes_of(own_temporary_folder):
            os.kill(pid, signal.SIGKILL)
        _, output = process.communicate()
    expected = {
        signal.SIGKILL: (-signal.SIGKILL, ""),
        signal.SIGTERM: (143, "owt: error: terminated; run the same command again to continue\n"),
        signal.SIGINT: (130, "owt: error: interrupted; run the same command again to continue\n"),
    }
    assert (code, output) == expected[number]


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_a_signal_ends_owt_with_a_message(
    small_config: Path, tmp_path: Path, number: signal.Signals, code: int
) -> None:
    run = tmp_path / "run"
    with start_owt("run", run, small_config, "--workers", 2) as process:
        deadline = time.monotonic() + 60
        while not list(run.glob("ledger/*/work")) and time.monotonic() < deadline:
            time.sleep(0.02)
        # A terminal sends the signal to the whole group, and so does a service manager.
        os.killpg(process.pid, number)
        _, output = process.communicate(timeout=60)
    assert process.returncode == code
    assert output.splitlines()[-1].endswith("; run the same command again to continue")
    assert "Traceback" not in output


def give_back(batch: pa.RecordBatch) -> pa.RecordBatch:
    return batch


def test_killed_workers_cost_only_their_own_batches() -> None:
    batches: list[pa.RecordBatch] = []
    killed = set()

    def until_twelve_are_killed() -> Iterator[pa.RecordBatch]:
        while len(killed) < 12:
            # With 1 MB, most kills hit a transfer.
            batches.append(pa.record_batch({"i": np.full(1 << 17, len(batches))}))
            yield batches[-1]

    pool = WorkerPool(2)
    dead = []
    try:
        for index, (batch, result) in enumerate(pool.map(give_back, until_twelve_are_killed())):
            assert batch is batches[index]
            if isinstance(result, WorkerDied):
                assert result == WorkerDied(-signal.SIGKILL)
                dead.append(index)
            else:
                assert result.equals(batch)
            if index % 10 == 3:
                for worker in pool._alive - killed:
                    os.kill(worker.process.pid, signal.SIGKILL)
                    killed.add(worker)
        assert len(pool._alive) <= 2
    finally:
        pool.close()
    assert index == len(batches) - 1
    assert len(dead) <= len(killed)


@pytest.mark.slow
@pytest.mark.skipif(not Path("/proc/self/fd").exists(), reason="reads /proc")
def test_workers_that_died_leave_no_socket_open() -> None:
    pool = WorkerPool(2)
    batches = [pa.record_batch({"i": [i]}) for i in range(10)]
    try:
        list(pool.map(give_back, batches))
        before = len(os.listdir("/proc/self/fd"))
        assert [r for _, r in pool.map(kill_self, batches)] == [WorkerDied(-signal.SIGKILL)] * 10
        list(pool.map(give_back, batches))
        assert len(os.listdir("/proc/self/fd")) <= before
    finally:
        pool.close()


def kill_self(_: pa.RecordBatch) -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def end_by_shard(shard: int) -> None:
    progress.advance(1)
    if shard == 1:
        os.kill(os.getpid(), signal.SIGKILL)
    if shard == 2:
        os.kill(os.getpid(), signal.SIGSEGV)
    if shard == 3:
        hoard = []
        while True:
            # The memory does not suffice, or the address space ends.
            hoard.append(np.ones(1 << 34))


@pytest.mark.parametrize(
    ("shard", "message"),
    [
        (1, "a worker process was killed, probably by the kernel because memory is used up"),
        (2, "killed by SIGSEGV"),
        (3, "memory is used up: use fewer --workers"),
    ],
)
def test_a_worker_that_dies_at_a_shard_is_a_clear_error(
    shard: int, message: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(progress, "_mode", "log")
    pool = WorkerPool(2)
    try:
        with pytest.raises((UserError, WorkerError), match=message):
            if isinstance(death := pool.submit(end_by_shard, shard).result(), WorkerDied):
                raise died(death)
        with progress.step("work", shards=2, rows=2):
            for number in (0, 4):
                pool.submit(end_by_shard, number).result()
            assert progress._current is not None
            assert progress._current._bar.n == 2
    finally:
        pool.close()


@pytest.mark.slow
def test_an_endless_batch_is_given_up_and_not_retried() -> None:
    batches = [pa.record_batch({"i": [i]}) for i in range(6)]
    pool = WorkerPool(2)
    try:
        started = time.monotonic()
        results = [result for _, result in pool.map(hang_at_three, batches, seconds=8.0, tries=2)]
        assert results == [0, 1, 2, WorkerDied(-signal.SIGKILL, 8.0), 4, 5]
        assert results[3].timed_out  # type: ignore[union-attr]
        # It takes 8 s on an idle machine.
        assert time.monotonic() - started < 60
    finally:
        pool.close()


def hang_at_three(batch: pa.RecordBatch) -> int:
    if batch["i"][0].as_py() == 3:
        hang_in_c(batch)
    return int(batch["i"][0].as_py())


def die_once(batch: pa.RecordBatch, folder: str) -> int:
    marker = Path(folder, str(batch["i"][0]))
    if not marker.exists():
        marker.touch()
        os.kill(os.getpid(), signal.SIGKILL)
    return int(batch["i"][0].as_py())


def test_a_batch_whose_worker_was_killed_is_retried(tmp_path: Path) -> None:
    batches = [pa.record_batch({"i": [i]}) for i in range(3)]
    pool = WorkerPool(2)
    try:
        results = pool.map(partial(die_once, folder=str(tmp_path)), batches, tries=2)
        assert [result for _, result in results] == [0, 1, 2]
    finally:
        pool.close()


@pytest.mark.slow
def test_workers_outlive_their_killed_server() -> None:
    batch = pa.record_batch({"i": [1]})
    pool = WorkerPool(1)
    try:
        for fn, expected in (
            (hang_at_three, 1),
            (hang_at_three, 1),
            (kill_self, None),
            (hang_at_three, 1),
        ):
            [(_, result)] = pool.map(fn, [batch])
            assert isinstance(result, WorkerDied) if expected is None else result == expected
            if fn is hang_at_three:
                server: int = forkserver._forkserver._forkserver_pid  # type: ignore[attr-defined]
                os.kill(server, signal.SIGKILL)
                # Wait until it has ended, but leave its exit status.
                os.waitid(os.P_PID, server, os.WEXITED | os.WNOWAIT)
    finally:
        pool.close()


_PRELOADING = """
import pyarrow as pa
from owt_pipeline.engine.workers import WorkerPool, start_server
from tests.owt_pipeline.engine.test_workers import has_colorsys

start_server({preloads})
pool = WorkerPool(1)
[(_, found)] = pool.map(has_colorsys, [pa.record_batch({{"a": [1]}})])
print(found)
pool.close()
"""


def has_colorsys(_: pa.RecordBatch) -> bool:
    """Whether this process has a module that nothing else imports."""
    return "colorsys" in sys.modules


def load_colorsys() -> None:
    import colorsys  # noqa: F401


@pytest.mark.parametrize(
    ("preloads", "expected"),
    [
        ([], "False"),
        (
            [
                "not_there",
                "colorsys:not_there",
                "tests.owt_pipeline.engine.test_workers:load_colorsys",
            ],
            "True",
        ),
    ],
)
def test_workers_are_forked_with_preloads_that_exist(preloads: list[str], expected: str) -> None:
    script = _PRELOADING.format(preloads=preloads)
    done = subprocess.run(
        [sys.executable, "-c", script], cwd=REPOSITORY, capture_output=True, text=True
    )
    assert (done.stdout.strip(), done.stderr) == (expected, "")


def test_arrays_are_made_without_pandas_and_frames_with_it() -> None:
    if importlib.util.find_spec("pandas") is None:
        pytest.skip("pandas is not installed")
    program = """
import sys
import pyarrow as pa
import gc
from owt_pipeline.engine.workers import importing, keep_pandas_out

with importing():
    import apache_beam
assert "pandas" not in sys.modules and gc.isenabled()
keep_pandas_out()
table = pa.table({"a": pa.array(["x", "y"])})
assert "pandas" not in sys.modules
assert table.to_pandas()["a"].tolist() == ["x", "y"]
import pandas
assert pa.array(pandas.Series([1.0, None])).null_count == 1
keep_pandas_out()
"""
    subprocess.run([sys.executable, "-c", program], check=True, timeout=60)
