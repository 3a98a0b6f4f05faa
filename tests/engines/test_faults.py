"""A run whose engine loses a part has the files of an undisturbed run, and no id is lost.

All tests share one Flink cluster, whose jobs restart when a task has failed (`restart-strategy:
fixed-delay`).
"""

from __future__ import annotations

import contextlib
import dataclasses
import subprocess
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

import pytest

from owt_pipeline.ledger.root import read_manifest
from owt_pipeline.pipeline import STAGES
from owt_pipeline.storage.folder import Storage
from schemas.manifest import ShardRecord
from tests.engines.conftest import Jobs, metrics
from tests.engines.engines import Flink, worker_pool

pytestmark = [pytest.mark.engines, pytest.mark.timeout(900, func_only=True)]

POLL_SECONDS = 0.02


@dataclass(frozen=True)
class Running:
    """A running job.

    Attributes:
      workdir: its working directory.
      launcher: the process of `owt run`, which waits for it.
    """

    workdir: Path
    launcher: subprocess.Popen[str]

    def records(self, stage: str) -> set[Path]:
        """Return the records of a stage's finished parts, while the stage runs."""
        ledger = self.workdir / "ledger" / stage
        return {
            path
            for name in ("records/*.json", "work/*/*/records/*.json")
            for path in ledger.glob(name)
        }

    def is_published(self, stage: str) -> bool:
        """Return whether the manifest of a stage is published."""
        return read_manifest(Storage(str(self.workdir)), STAGES[stage].output) is not None

    def wait_for(self, happened: Callable[[], object], title: str) -> None:
        """Wait until something has happened; fail if the job ends before."""
        end = time.monotonic() + 300
        while not happened():
            assert self.launcher.poll() is None, (
                f"the job ended before {title}:\n{self.launcher.communicate()}"
            )
            assert time.monotonic() < end, f"{title}: has not happened"
            time.sleep(POLL_SECONDS)

    def wait_for_records(self, stage: str, count: int = 1) -> None:
        """Wait until some parts of the stage are finished, and others are not."""
        self.wait_for(lambda: len(self.records(stage)) >= count, f"{count} records of {stage}")
        assert not self.is_published(stage), (
            f"{stage} was published before anything could be done to it"
        )

    def wait(self) -> str:
        """Wait until `owt run` has succeeded; return its output."""
        printed, _ = self.launcher.communicate(timeout=600)
        assert self.launcher.returncode == 0, printed
        return printed


@contextlib.contextmanager
def running(command: list[str], workdir: Path) -> Iterator[Running]:
    """Start the command of a job, and kill it at the end."""
    launcher = subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    )
    try:
        yield Running(workdir, launcher)
    finally:
        launcher.kill()
        launcher.communicate()


@pytest.fixture
def cluster(on_flink: Flink) -> Flink:
    """The cluster with two TaskManagers and a job server, as before the first test."""
    on_flink.restore()
    return on_flink


# The inode and the time of a file. They change if it is written again.
Mark = tuple[int, int]


def mark(path: Path) -> Mark | None:
    """Return the mark of a file; None if it is missing."""
    try:
        status = path.stat()
    except FileNotFoundError:
        return None
    return status.st_ino, status.st_mtime_ns


def finished_files(run: Running, stage: str) -> dict[Path, Mark]:
    """Return the marks of the files of a stage's finished parts, in all its steps."""
    paths = []
    for record in run.records(stage):
        with contextlib.suppress(FileNotFoundError):
            files = ShardRecord.from_json(record.read_bytes()).files
            folder = run.workdir if record.parents[1].name == stage else record.parents[2]
            paths += [folder / file.path for file in files]
    return {path: file_mark for path in paths if (file_mark := mark(path))}


def rewritten_files(finished: Mapping[Path, Mark]) -> list[Path]:
    """Return the files that were written again.

    A stage that is published has moved some of its files, which does not count.
    """
    return [path for path, mark_before in finished.items() if mark(path) not in (mark_before, None)]


def parts(run: Storage) -> dict[str, int]:
    """Return the number of parts of each stage that the last job of a run has made."""
    return {
        stage: counters.get("part_milliseconds_count", 0)
        for stage, counters in metrics(run).items()
    }


def test_a_task_manager_killed_in_a_stage_costs_its_parts(
    cluster: Flink, jobs: Jobs, tmp_path: Path
) -> None:
    """One job loses a TaskManager in each of four stages.

    Each time, a part was finished and others were running. Flink's own runner submits the job; it
    starts a job server.
    """
    with running(jobs.command(cluster.runner, Storage(str(tmp_path))), tmp_path) as job:
        finished: dict[Path, Mark] = {}
        for number, stage in enumerate(("collect", "fetch", "dedupe", "tokenize")):
            job.wait_for_records(stage, 1 + number % 2)
            finished |= finished_files(job, stage)
            cluster.kill(cluster.task_managers()[number % 2])
            records_before = job.records(stage)
            cluster.start_task_manager()
            job.wait_for(
                lambda records_before=records_before, stage=stage: (
                    job.records(stage) != records_before or job.is_published(stage)
                ),
                f"{stage} continues",
            )
            assert rewritten_files(finished) == []
        job.wait()
    assert len(finished) > 4
    assert rewritten_files(finished) == []
    jobs.check_after_faults(Storage(str(tmp_path)))


def test_a_task_manager_killed_while_planning_changes_nothing(
    cluster: Flink, jobs: Jobs, folder: Path, tmp_path: Path
) -> None:
    """A plan dies before it emits anything, and a publication right after its manifest is written.

    The TaskManagers leave workers that hang. They continue while the next attempt, or the next
    phase, is running.
    """
    run = tmp_path / "run"
    holding = tmp_path / "holding"
    holding.mkdir()
    stages = ("collect", "dedupe")
    held = {name: [f"plan-{name}", f"publish-{stage.output}"] for name, stage in STAGES.items()}
    # Nothing hangs in the other stages.
    for stage, names in held.items():
        if stage not in stages:
            for name in names:
                (holding / f"{name}.released").touch()
    phases = []
    for stage in stages:
        phases += [(stage, name) for name in held[stage]]
    late: Path | None = None
    hook = {"PYTHONPATH": str(Path(__file__).parent / "holding"), "OWT_TESTS_HOLD": str(holding)}
    # It takes the place of the first one that is killed.
    cluster.start_task_manager()
    with worker_pool(tmp_path, folder / "worker/bin/python", environment=hook) as pool:
        command = dataclasses.replace(jobs, pool=pool).command(
            cluster.flags, Storage(str(run)), "--until", stages[-1]
        )
        with running(command, run) as job:
            for stage, name in phases:
                attempt = holding / name
                job.wait_for(lambda attempt=attempt: attempt.exists() and attempt.read_text(), name)
                is_published = name.startswith("publish")

                assert job.is_published(stage) == is_published
                port = pool.workers()[int(attempt.read_text())]
                (task_manager,) = (
                    name
                    for name in cluster.task_managers()
                    if port in cluster.processes[name].ports()
                )
                cluster.kill(task_manager)
                cluster.start_task_manager()
                if late:
                    late.touch()
                late = attempt.with_suffix(".released")
                if is_published:
                    late.touch()
            job.wait()
    assert len(list(holding.glob("*.released"))) == 2 * len(STAGES)
    jobs.check_after_faults(Storage(str(run)))


def test_a_job_submitted_after_its_servers_death_continues(
    cluster: Flink, jobs: Jobs, tmp_path: Path
) -> None:
    stages = list(STAGES)[: list(STAGES).index("dedupe") + 1]
    command = jobs.command(cluster.flags, Storage(str(tmp_path)), "--until", stages[-1])
    with running(command, tmp_path) as job:
        job.wait_for_records("clean")
        num_parts = parts(Storage(str(jobs.local)))
        num_finished = 0
        for stage in stages:
            is_published = job.is_published(stage)
            num_finished += num_parts[stage] if is_published else len(job.records(stage))
        cluster.kill("job server")
        printed, _ = job.launcher.communicate(timeout=120)
        assert job.launcher.returncode == 1, printed
        # The log of Beam's own threads is above it.
        last_line = printed.splitlines()[-1]
        assert last_line.startswith("owt: error: the job failed"), printed
        assert last_line.endswith(": see the runner's log")
    cluster.start_job_server()
    end = time.monotonic() + 800
    # The command is refused while the first job runs, for which no launcher waits any more.
    while True:
        process = subprocess.run(command, capture_output=True, text=True, check=False)
        if process.returncode == 0 or time.monotonic() > end:
            break
        assert "Traceback" not in process.stderr
        time.sleep(3)
    assert process.returncode == 0, process.stderr
    num_all = sum(num_parts[stage] for stage in stages)
    # It is 0 if the first job was faster.
    num_made = sum(parts(Storage(str(tmp_path))).values())
    print(f"{num_finished} of {num_all} parts were finished; the next job made {num_made}")
    assert num_made <= num_all - num_finished, "no part is made twice"
    jobs.check_after_faults(Storage(str(tmp_path)))
