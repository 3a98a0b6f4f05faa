"""A complete run keeps its promises.

It writes the same bytes whatever happens, accounts for every id, and reports one clear error.
"""

from __future__ import annotations

import os
import random
import shutil
import signal
import subprocess
from pathlib import Path

import apache_beam as beam
import pytest

from owt_pipeline.pipeline import STAGES, Run, build
from owt_pipeline.storage import lock
from owt_pipeline.storage.folder import Storage
from tests.owt_pipeline.conftest import PLACES
from tests.owt_pipeline.repeating import RepeatingRunner
from tests.owt_pipeline.runs import (
    ask_owt,
    contents,
    copy_of,
    differing,
    manifest_of,
    run_owt,
    snapshot,
    start_owt,
)

pytestmark = pytest.mark.beam

KILLS = 10
REPEATING = f"--runner={RepeatingRunner.__module__}.{RepeatingRunner.__name__}"


def test_every_stage_keeps_and_rejects_and_the_run_verifies(small_run: Path) -> None:
    for stage in list(STAGES)[:-2]:
        counts = manifest_of(small_run, STAGES[stage].output).counts
        assert counts.left > 0, stage
        assert counts.rejected, stage
    tokens = manifest_of(small_run, "tokens")
    assert tokens.counts.left == manifest_of(small_run, "corpus").counts.left > 100
    assert "no problems found" in ask_owt("verify", small_run)


def test_two_workers_write_the_bytes_of_one(
    small_config: Path, small_run: Path, tmp_path: Path
) -> None:
    run_owt("run", tmp_path / "run", small_config, "--workers", 2)
    assert differing(small_run, tmp_path / "run") == []


@pytest.mark.slow
def test_workers_that_share_no_memory_write_the_same_bytes(
    small_config: Path, small_run: Path, tmp_path: Path
) -> None:
    """As on a distributed runner, a bundle goes to another process by pickles and Beam's coders."""
    elsewhere = ("--direct_running_mode=multi_processing", "--direct_num_workers=2")
    run_owt("run", tmp_path / "run", small_config, "--workers", 1, *elsewhere)
    assert differing(small_run, tmp_path / "run") == []


def test_a_rerun_only_makes_the_datasets_that_change(
    small_config: Path, small_run: Path, tmp_path: Path
) -> None:
    run = copy_of(small_run, tmp_path / "run")
    table = ask_owt("run", run, small_config, "--workers", 1)
    lines = table.splitlines()[1 : 1 + len(STAGES)]
    assert [line.split()[3] for line in lines] == ["finished"] * len(STAGES)
    plan = ask_owt("run", run, small_config, "--min_tokens", 100, "--dry_run").splitlines()
    (plan_of_clean,) = (line for line in plan if line.startswith("clean"))
    assert plan_of_clean.startswith("clean     finished  3 of 3  clean/")
    assert plan_of_clean.endswith("min_tokens is now 100 (was 64)")
    output = ask_owt("run", run, small_config, "--workers", 1, "--min_tokens", 100)
    assert "min_tokens is now 100 (was 64); running 3 of 3 shards" in output
    lines = [line for line in output.splitlines() if line.startswith(tuple(STAGES)[:3])]
    assert [line.split()[3] for line in lines] == ["finished"] * 3
    assert "no problems found" in ask_owt("verify", run)
    ask_owt("run", run, small_config, "--workers", 1)
    assert differing(small_run, run) == []


@pytest.mark.slow
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("place", PLACES[:2], indirect=True)
def test_a_run_killed_again_and_again_ends_in_the_same_bytes(
    small_config: Path, small_run: Path, place: str
) -> None:
    """Each run is killed at a random moment. If it ends before that, another run follows.

    A bucket gets the same bytes as a disk.
    """
    expected = snapshot(small_run)
    rng = random.Random(30)
    num_killed = 0
    num_finished = 0
    while num_killed < KILLS:
        run = Storage(f"{place}/run-{num_finished}")
        num_workers = 1 + num_finished % 2
        with start_owt("run", run, small_config, "--workers", num_workers) as process:
            try:
                _, error = process.communicate(timeout=rng.uniform(0.5, 5.0))
            except subprocess.TimeoutExpired:
                os.killpg(process.pid, signal.SIGKILL)
                num_killed += 1
                # In a bucket, the next run would wait for ten minutes.
                run.delete(lock.OBJECT)
                continue
        assert process.returncode == 0, error
        assert contents(run) == expected
        num_finished += 1
    for _ in range(2):
        table = run_owt("run", run, small_config, "--workers", 2)
        assert contents(run) == expected
    assert table.count("(finished)") == len(STAGES)
    assert "no problems found" in ask_owt("verify", run)


@pytest.mark.parametrize(
    "seed", [0, *(pytest.param(seed, marks=pytest.mark.slow) for seed in range(1, 10))]
)
def test_a_runner_that_repeats_and_drops_makes_the_same_bytes(
    small_config: Path, small_run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, seed: int
) -> None:
    """A DoFn of the graph may run any number of times, at any time, in any overlap."""
    monkeypatch.setattr(RepeatingRunner, "seed", seed)
    ask_owt("run", tmp_path, small_config, REPEATING)
    counts = RepeatingRunner.counts
    assert counts["bundles"] > 30
    assert counts["late"] > 5
    assert counts["dropped"] > 0
    # This run removes the files of late attempts.
    ask_owt("run", tmp_path, small_config)
    assert differing(tmp_path, small_run) == []


@pytest.mark.slow
def test_a_local_runner_that_repeats_makes_the_same_bytes(
    small_config: Path, small_run: Path, tmp_path: Path
) -> None:
    """The local pool makes the parts, and the graph holds the lock."""
    with beam.Pipeline(RepeatingRunner()) as pipeline:
        build(pipeline, Run.of(str(tmp_path), str(small_config), workers=2))
    ask_owt("run", tmp_path, small_config)
    assert differing(tmp_path, small_run) == []


def test_an_unreadable_file_is_one_clear_error(tmp_path: Path) -> None:
    """The file opens and then cannot be read, even by root, as on a broken disk."""
    dump = Path("/proc/self/mem")
    if not dump.exists():
        pytest.skip("this system has no file that opens and cannot be read")
    error = run_owt("run", tmp_path / "run", "--until", "collect", "--dumps", dump, code=1)
    assert f"cannot read {dump}" in error
    assert len(error.splitlines()) == 1


@pytest.mark.slow
def test_a_full_disk_is_one_clear_error_and_the_rerun_continues(
    small_config: Path, small_run: Path, tmp_path: Path
) -> None:
    """The run's folder is on a file system that is too small, and then gets larger."""
    disk = tmp_path / "disk"
    disk.mkdir()
    paths = [path for path in small_run.rglob("*") if path.is_file()]
    kilobytes = sum(path.stat().st_size for path in paths) // 1024
    mount = ["mount", "-t", "tmpfs", "-o", f"size={kilobytes // 2}k", "owt", disk]
    if shutil.which("mount") is None or subprocess.run(mount, check=False).returncode:
        pytest.skip("no permission to mount a small file system")
    try:
        error = run_owt("run", disk / "run", small_config, "--workers", 1, code=1)
        assert "the disk is full" in error
        assert len(error.strip().splitlines()[-1]) < 300
        subprocess.run(["mount", "-o", "remount,size=1g", disk], check=True)
        run_owt("run", disk / "run", small_config, "--workers", 1)
        assert differing(small_run, disk / "run") == []
    finally:
        subprocess.run(["umount", disk], check=True)
