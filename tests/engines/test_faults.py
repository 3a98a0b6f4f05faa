"""What a real engine does when its parts die: the files are those of an undisturbed run, and no id is lost.

All tests share one Flink cluster, whose jobs begin again where a task has failed (`restart-strategy: fixed-delay`).
"""

from __future__ import annotations

import contextlib
import dataclasses
import itertools
import os
import signal
import subprocess
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

import msgspec
import pytest

from owt_pipeline.ledger.root import read_manifest, require_manifest
from owt_pipeline.stages import ORDER, load
from owt_pipeline.stages.fetch import sources
from owt_pipeline.storage import lock
from owt_pipeline.storage.folder import Storage
from schemas.manifest import ShardRecord
from tests.engines.conftest import Jobs, metrics
from tests.engines.engines import Flink, worker_pool
from tests.owt_pipeline.fetch.bad_server import DOMAIN, BadServer, serve
from tests.owt_pipeline.fetch.conftest import write_urls_to
from tests.owt_pipeline.fetch.test_live import AGENT
from tests.owt_pipeline.fetch.test_two_attempts import Web
from tests.owt_pipeline.runs import stage_alone

__all__ = ["serve"]

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
        return {path for name in ("records/*.json", "work/*/*/records/*.json") for path in ledger.glob(name)}

    def is_published(self, stage: str) -> bool:
        return read_manifest(Storage(str(self.workdir)), load(stage).output) is not None

    def wait_for(self, happened: Callable[[], object], what: str) -> None:
        end = time.monotonic() + 300
        while not happened():
            assert self.launcher.poll() is None, f"the job ended before {what}:\n{self.launcher.communicate()}"
            assert time.monotonic() < end, f"{what}: has not happened"
            time.sleep(LOOK_SECONDS)

    def wait_for_records(self, stage: str, count: int = 1) -> None:
        """Wait until some parts of the stage are finished, and others are not."""
        self.wait_for(lambda: len(self.records(stage)) >= count, f"{count} records of {stage}")
        assert not self.is_published(stage), f"{stage} was published before anything could be done to it"

    def wait(self) -> str:
        """What `owt run` printed, when it has succeeded."""
        printed, _ = self.launcher.communicate(timeout=600)
        assert self.launcher.returncode == 0, printed
        return printed


@contextlib.contextmanager
def running(command: list[str], workdir: Path) -> Iterator[Running]:
    launcher = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    try:
        yield Running(workdir, launcher)
    finally:
        launcher.kill()
        launcher.communicate()


@pytest.fixture
def cluster(on_flink: Flink) -> Flink:
    """The cluster with two TaskManagers and a job server, whatever an earlier test has left of it."""
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
    """Those files that were written again; what a stage has left when it is published does not count."""
    return [path for path, before in finished.items() if mark(path) not in (before, None)]


def parts(run: Storage) -> dict[str, int]:
    """How many parts of each stage the last job of a run has made."""
    return {stage: counters.get("part_milliseconds_count", 0) for stage, counters in metrics(run).items()}


def test_a_task_manager_killed_in_each_stage_costs_the_parts_in_flight(
    cluster: Flink, jobs: Jobs, tmp_path: Path
) -> None:
    """One after the other, in one job: each time a part was finished and others were at work."""
    with running(jobs.command(cluster.flags, Storage(str(tmp_path))), tmp_path) as job:
        finished: dict[Path, Mark] = {}
        for number, stage in enumerate(ORDER[:-1]):  # the report is one part
            job.wait_for_records(stage, 1 + number % 2)
            finished |= finished_files(job, stage)
            cluster.kill(cluster.task_managers()[number % 2])
            before = job.records(stage)
            cluster.start_task_manager()
            job.wait_for(
                lambda before=before, stage=stage: job.records(stage) != before or job.is_published(stage),
                f"{stage} continues",
            )
            assert made_again(finished) == []
        job.wait()
    assert len(finished) > len(ORDER)
    assert made_again(finished) == []
    jobs.check_after_faults(Storage(str(tmp_path)))


def test_a_task_manager_killed_in_each_plan_and_each_publish_changes_nothing(
    cluster: Flink, jobs: Jobs, folder: Path, tmp_path: Path
) -> None:
    """Each Plan dies when it has found out all and emitted nothing, each Publish right after its manifest is written.

    What the TaskManagers leave are workers that hang, which continue while the next attempt, or the next phase, is at
    work.
    """
    run, holding = tmp_path / "run", tmp_path / "holding"
    holding.mkdir()
    late: Path | None = None
    hook = {"PYTHONPATH": str(Path(__file__).parent / "holding"), "OWT_TESTS_HOLD": str(holding)}
    cluster.start_task_manager()  # takes at once the place of the one that is killed
    with worker_pool(tmp_path, folder / "worker/bin/python", environment=hook) as pool:
        for stages in (ORDER[:3], ORDER[3:5], ORDER[5:]):  # a kill costs what all tasks before it have kept
            until = ("--until", stages[-1])
            command = dataclasses.replace(jobs, pool=pool).command(cluster.flags, Storage(str(run)), *until)
            with running(command, run) as job:
                for number, (stage, phase) in enumerate(itertools.product(stages, ("plan", "publish"))):
                    held = holding / f"{phase}-{stage if phase == 'plan' else load(stage).output}"
                    job.wait_for(lambda held=held: held.exists() and held.read_text(), f"{phase} of {stage}")
                    assert job.is_published(stage) == (phase == "publish")
                    port = pool.workers()[int(held.read_text())]
                    (killed,) = (name for name in cluster.task_managers() if port in cluster.processes[name].ports())
                    cluster.kill(killed)
                    cluster.start_task_manager()
                    if late:
                        late.touch()
                    late = held.with_suffix(".released")
                    if number % 2:
                        late.touch()
                job.wait()
    assert len(list(holding.glob("*.released"))) == 2 * len(ORDER)
    jobs.check_after_faults(Storage(str(run)))


def test_a_job_submitted_again_after_its_job_server_died_continues(cluster: Flink, jobs: Jobs, tmp_path: Path) -> None:
    command = jobs.command(cluster.flags, Storage(str(tmp_path)))
    with running(command, tmp_path) as job:
        job.wait_for_records("clean")
        of_stage = parts(Storage(str(jobs.local)))
        finished = sum(of_stage[name] if job.is_published(name) else len(job.records(name)) for name in ORDER)
        cluster.kill("job server")
        printed, _ = job.launcher.communicate(timeout=120)
        assert job.launcher.returncode == 1, printed
        said = printed.splitlines()[-1]  # below what Beam's own threads say
        assert said.startswith("owt: error: the job failed"), printed
        assert said.endswith("; see the runner's log")
    cluster.start_job_server()
    end = time.monotonic() + 800
    while True:  # refused while the first job, which nobody waits for, is at work
        again = subprocess.run(command, capture_output=True, text=True, check=False)
        if again.returncode == 0 or time.monotonic() > end:
            break
        assert "Traceback" not in again.stderr
        time.sleep(3)
    assert again.returncode == 0, again.stderr
    made = sum(parts(Storage(str(tmp_path))).values())  # 0 if the first job, which nobody waits for, was faster
    print(f"{finished} of {sum(of_stage.values())} parts were finished; the next job made {made}")
    assert made <= sum(of_stage.values()) - finished, "no part is made twice"
    jobs.check_after_faults(Storage(str(tmp_path)))


def test_a_job_whose_run_was_replaced_ends_by_itself_with_one_line(cluster: Flink, jobs: Jobs, tmp_path: Path) -> None:
    """Another run has the lock: no task fails, as Flink may be told to try again without end."""
    run = Storage(str(tmp_path))
    before = {job["jid"] for job in cluster.rest_api("/jobs/overview")["jobs"]}
    with running(jobs.command(cluster.flags, run), tmp_path) as job:
        job.wait_for_records("extract")
        another = msgspec.json.encode(lock.Holder("another", "owt run"))
        run.write(lock.OBJECT, another)
        printed, _ = job.launcher.communicate(timeout=300)
        assert job.launcher.returncode == 1, printed
    said = [line for line in printed.splitlines() if line.startswith("owt: error: ")]
    assert said == [f"owt: error: {run} was taken over by `owt run`; this run stops"], printed
    (state,) = (job["state"] for job in cluster.rest_api("/jobs/overview")["jobs"] if job["jid"] not in before)
    assert state == "FINISHED"
    assert run.read(lock.OBJECT) == another
    assert not run.exists(".outcome")
    assert read_manifest(run, "clean") is None
    run.delete(lock.OBJECT)
    jobs.check_after_faults(run)


def test_a_worker_killed_while_it_fetches_costs_the_answers_of_the_last_seconds(
    cluster: Flink, jobs: Jobs, serve: Callable[..., BadServer], tmp_path: Path
) -> None:
    """And no host is asked more often than before: the next attempt waits for the host's turn."""
    hosts, pages, delay = 6, 40, 0.3
    web = Web()
    server = serve({f"h{host}": web.answer for host in range(hosts)})
    urls = [f"http://h{host}.{DOMAIN}/{page}" for host in range(hosts) for page in range(pages)]
    runtime = write_urls_to(tmp_path, urls, num_shards=2)
    manners = ("--user_agent", AGENT, "--host_delay", delay, "--resolve", *server.rules)
    command = stage_alone("fetch", tmp_path, *manners, *cluster.flags, *jobs.pool.flags)
    with running(command, tmp_path) as job:
        job.wait_for(lambda: web.count() > len(urls) / 3, "a third of the requests")
        os.kill(max(jobs.pool.workers()), signal.SIGKILL)
        job.wait()
    assert require_manifest(runtime.workdir, "pages").counts.left == len(urls)
    assert min(web.gaps()) > 0.8 * delay
    assert web.count() - len(urls) <= hosts * (sources.SEGMENT_SECONDS + 1) / delay
