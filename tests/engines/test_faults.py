"""What a real engine does when its parts die: the files are those of an undisturbed run, and no
id is lost.

All tests share one Flink cluster, whose jobs begin again where a task has failed
(`restart-strategy: fixed-delay`).
"""

from __future__ import annotations

import contextlib
import dataclasses
import itertools
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

LOOK_SECONDS = 0.02


@dataclass(frozen=True)
class Running:
    """A job at work.

    Attributes:
      workdir: its working directory.
      launcher: `owt run`, which waits for it.
    """

    workdir: Path
    launcher: subprocess.Popen[str]

    def records(self, stage: str) -> set[Path]:
        """The records of the stage's finished parts, while it is at work."""
        ledger = self.workdir / "ledger" / stage
        return {
            path
            for name in ("records/*.json", "work/*/*/records/*.json")
            for path in ledger.glob(name)
        }

    def is_published(self, stage: str) -> bool:
        return read_manifest(Storage(str(self.workdir)), STAGES[stage].output) is not None

    def wait_for(self, happened: Callable[[], object], what: str) -> None:
        end = time.monotonic() + 300
        while not happened():
            assert self.launcher.poll() is None, (
                f"the job ended before {what}:\n{self.launcher.communicate()}"
            )
            assert time.monotonic() < end, f"{what}: has not happened"
            time.sleep(LOOK_SECONDS)

    def wait_for_records(self, stage: str, count: int = 1) -> None:
        """Wait until some parts of the stage are finished, and others are not."""
        self.wait_for(lambda: len(self.records(stage)) >= count, f"{count} records of {stage}")
        assert not self.is_published(stage), (
            f"{stage} was published before anything could be done to it"
        )

    def wait(self) -> str:
        """What `owt run` printed, when it has succeeded."""
        printed, _ = self.launcher.communicate(timeout=600)
        assert self.launcher.returncode == 0, printed
        return printed


@contextlib.contextmanager
def running(command: list[str], workdir: Path) -> Iterator[Running]:
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
    """The cluster with two TaskManagers and a job server, whatever an earlier test has left of
    it."""
    on_flink.restore()
    return on_flink


Mark = tuple[int, int]
"""What changes of a file that is written again."""


def mark(path: Path) -> Mark | None:
    with contextlib.suppress(FileNotFoundError):
        return (found := path.stat()).st_ino, found.st_mtime_ns
    return None


def finished_files(run: Running, stage: str) -> dict[Path, Mark]:
    """The files of the stage's finished parts, in all its steps."""
    paths = []
    for record in run.records(stage):
        with contextlib.suppress(FileNotFoundError):
            files = ShardRecord.from_json(record.read_bytes()).files
            folder = run.workdir if record.parents[1].name == stage else record.parents[2]
            paths += [folder / file.path for file in files]
    return {path: found for path in paths if (found := mark(path))}


def made_again(finished: Mapping[Path, Mark]) -> list[Path]:
    """Those files that were written again; what a stage has left when it is published does not
    count."""
    return [path for path, before in finished.items() if mark(path) not in (before, None)]


def parts(run: Storage) -> dict[str, int]:
    """How many parts of each stage the last job of a run has made."""
    return {
        stage: counters.get("part_milliseconds_count", 0)
        for stage, counters in metrics(run).items()
    }


def test_a_task_manager_killed_in_a_stage_costs_its_parts(
    cluster: Flink, jobs: Jobs, tmp_path: Path
) -> None:
    """One after the other, in one job: each time a part was finished and others were at work.
    Flink's own runner, which starts a job server, submits it."""
    with running(jobs.command(cluster.runner, Storage(str(tmp_path))), tmp_path) as job:
        finished: dict[Path, Mark] = {}
        for number, stage in enumerate(("collect", "fetch", "dedupe", "tokenize")):
            job.wait_for_records(stage, 1 + number % 2)
            finished |= finished_files(job, stage)
            cluster.kill(cluster.task_managers()[number % 2])
            before = job.records(stage)
            cluster.start_task_manager()
            job.wait_for(
                lambda before=before, stage=stage: (
                    job.records(stage) != before or job.is_published(stage)
                ),
                f"{stage} continues",
            )
            assert made_again(finished) == []
        job.wait()
    assert len(finished) > 4
    assert made_again(finished) == []
    jobs.check_after_faults(Storage(str(tmp_path)))


def test_a_task_manager_killed_while_planning_changes_nothing(
    cluster: Flink, jobs: Jobs, folder: Path, tmp_path: Path
) -> None:
    """A Plan dies when it has found out all and emitted nothing, a Publish right after its
    manifest is written.

    What the TaskManagers leave are workers that hang, which continue while the next attempt, or the
    next phase, is at work.
    """
    run, holding = tmp_path / "run", tmp_path / "holding"
    holding.mkdir()
    stages = ("collect", "dedupe")
    held = {name: [f"plan-{name}", f"publish-{stage.output}"] for name, stage in STAGES.items()}
    for name in itertools.chain(*(names for stage, names in held.items() if stage not in stages)):
        (holding / f"{name}.released").touch()
    late: Path | None = None
    hook = {"PYTHONPATH": str(Path(__file__).parent / "holding"), "OWT_TESTS_HOLD": str(holding)}
    cluster.start_task_manager()  # takes at once the place of the one that is killed
    with worker_pool(tmp_path, folder / "worker/bin/python", environment=hook) as pool:
        command = dataclasses.replace(jobs, pool=pool).command(
            cluster.flags, Storage(str(run)), "--until", stages[-1]
        )
        with running(command, run) as job:
            for stage, name in [(each, name) for each in stages for name in held[each]]:
                attempt = holding / name
                job.wait_for(lambda attempt=attempt: attempt.exists() and attempt.read_text(), name)
                is_published = name.startswith("publish")
                assert job.is_published(stage) == is_published
                port = pool.workers()[int(attempt.read_text())]
                (killed,) = (
                    name
                    for name in cluster.task_managers()
                    if port in cluster.processes[name].ports()
                )
                cluster.kill(killed)
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
        of_stage = {
            name: made for name, made in parts(Storage(str(jobs.local))).items() if name in stages
        }
        finished = sum(
            of_stage[name] if job.is_published(name) else len(job.records(name)) for name in stages
        )
        cluster.kill("job server")
        printed, _ = job.launcher.communicate(timeout=120)
        assert job.launcher.returncode == 1, printed
        said = printed.splitlines()[-1]  # below what Beam's own threads say
        assert said.startswith("owt: error: the job failed"), printed
        assert said.endswith(": see the runner's log")
    cluster.start_job_server()
    end = time.monotonic() + 800
    while True:  # refused while the first job, which nobody waits for, is at work
        again = subprocess.run(command, capture_output=True, text=True, check=False)
        if again.returncode == 0 or time.monotonic() > end:
            break
        assert "Traceback" not in again.stderr
        time.sleep(3)
    assert again.returncode == 0, again.stderr
    made = sum(
        parts(Storage(str(tmp_path))).values()
    )  # 0 if the first job, which nobody waits for, was faster
    print(f"{finished} of {sum(of_stage.values())} parts were finished; the next job made {made}")
    assert made <= sum(of_stage.values()) - finished, "no part is made twice"
    jobs.check_after_faults(Storage(str(tmp_path)))
