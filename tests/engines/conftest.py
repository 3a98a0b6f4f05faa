"""Fixtures of the engines' tests: engines, workers, buckets, and the run that each must equal."""

from __future__ import annotations

import re
import subprocess
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import pytest
import zstandard

from owt_pipeline.engine.publish import read_log
from owt_pipeline.ledger.root import read_manifest
from owt_pipeline.storage.folder import Storage
from tests.engines.cloud import Cloud, cloud
from tests.engines.engines import Engine, Flink, WorkerPool, flink, prism, spark, worker_pool
from tests.owt_pipeline.runs import contents, manifest_of, owt, run_owt, snapshot
from tests.servers.gcs import gcs_bucket
from tests.servers.s3 import s3_bucket

# Of RS_wcxb-dev.zst. They have 304 links with pages.
SUBMISSIONS = 420

CONFIG = """\
[collect]
dumps = ["{folder}/RS_*.zst"]
num_shards = 4

[fetch]
pages_from = ["{pages}", "{folder}/demo.warc.gz"]

[clean]
min_tokens = 64
"""


@dataclass(frozen=True)
class Jobs:
    """Runs of one configuration on engines, next to the same run on this machine.

    Attributes:
      config: the CONFIG.toml.
      local: the folder of the run on this machine.
      pool: runs the engines' workers.
    """

    config: Path
    local: Path
    pool: WorkerPool

    def command(self, flags: Sequence[str], workdir: Storage, *more_flags: object) -> list[str]:
        """Return the command that a user types to run the job on an engine with these flags."""
        return owt("run", workdir, self.config, *flags, *self.pool.flags, *more_flags)

    def run(self, engine: Engine, workdir: Storage) -> None:
        """Run the job to its end by the engine's own runner."""
        started = time.monotonic()
        command = self.command(engine.runner, workdir)
        process = subprocess.run(command, capture_output=True, text=True, timeout=900, check=False)
        assert process.returncode == 0, f"{process.stdout}{process.stderr}\n{engine.last_words()}"
        print(f"{engine.name}, {workdir}: {time.monotonic() - started:.1f} s\n{process.stdout}")

    def check(self, workdir: Storage) -> None:
        """Check that a run has the bytes of the run on this machine, and that no id is lost."""
        check_same(self.local, workdir)

    def check_after_faults(self, workdir: Storage) -> None:
        """Check the same after another run.

        A late attempt may commit after its stage was published, and then writes files that no
        manifest names. The next run has nothing to make, and removes them.
        """
        run_owt("run", workdir, self.config)
        self.check(workdir)


def check_same(local: Path, workdir: Storage) -> None:
    """Check that a run has the files and bytes of the local run, and that no id is lost."""
    expected = snapshot(local)
    files = contents(workdir)
    names = expected.keys() | files.keys()
    assert sorted(name for name in names if expected.get(name) != files.get(name)) == []
    assert "no problems found" in run_owt("verify", workdir)


def metrics(run: Storage) -> dict[str, dict[str, int]]:
    """Return the Beam counters of each stage, from the run's last job whose launcher saw its end.

    Returns an empty dictionary if there is no such job.
    """
    metrics_of_jobs = [entry["metrics"] for entry in read_log(run) if "job" in entry]
    return metrics_of_jobs[-1] if metrics_of_jobs else {}


@pytest.fixture(scope="session")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of the engines' logs and temporary files."""
    return tmp_path_factory.mktemp("engines")


@pytest.fixture(scope="session")
def buckets() -> Iterator[Mapping[str, str]]:
    """A bucket of each kind, by the scheme of its URI."""
    with gcs_bucket() as gs, s3_bucket() as s3:
        yield {"gs": gs, "s3": s3}


@pytest.fixture(scope="session")
def service(folder: Path, buckets: Mapping[str, str]) -> Iterator[Cloud]:
    """The tests' Dataflow."""
    with cloud(folder / "cloud", buckets["gs"]) as running_cloud:
        yield running_cloud


@pytest.fixture(scope="session")
def jobs(testdata: Path, folder: Path, buckets: Mapping[str, str]) -> Iterator[Jobs]:
    """Real submissions with the archived pages of their links, and the demo's web.

    The demo's web has near-duplicates.
    """
    decompressor = zstandard.ZstdDecompressor(max_window_size=2**31)
    with open(testdata / "reddit/RS_wcxb-dev.zst", "rb") as file:
        lines = decompressor.stream_reader(file).read().splitlines(keepends=True)
    (folder / "RS_real.zst").write_bytes(zstandard.compress(b"".join(lines[:SUBMISSIONS])))
    run_owt("demo", "--write_inputs", folder)
    config = folder / "config.toml"
    local = folder / "local"
    config.write_text(CONFIG.format(folder=folder, pages=testdata / "web/wcxb-dev.warc.gz"))
    run_owt("run", local, config, "--workers", 2)
    assert manifest_of(local, "duplicates").counts.left > 20
    with worker_pool(folder) as pool:
        yield Jobs(config, local, pool)


@pytest.fixture(scope="session")
def on_prism(folder: Path) -> Iterator[Engine]:
    """A running Prism."""
    with prism(folder) as engine:
        yield engine


@pytest.fixture(scope="session")
def on_spark(folder: Path) -> Engine:
    """The flags and files of Spark."""
    return spark(folder)


@pytest.fixture(scope="session")
def on_flink(folder: Path) -> Iterator[Flink]:
    """A running Flink."""
    with flink(folder) as engine:
        yield engine


@dataclass(frozen=True)
class Sent:
    """The job's inputs, uploaded to the bucket.

    Attributes:
      config: the CONFIG.toml in the bucket, which names the other inputs.
      local: the folder of the run on this machine, which read the inputs from a disk.
    """

    cloud: Cloud
    config: str
    local: Path

    def check(self, workdir: Storage) -> None:
        """Check that a run has the bytes of the run on this machine, and that no id is lost."""
        check_same(self.local, workdir)

    def check_until_clean(self, workdir: Storage) -> None:
        """Check the files of a run that has ended with clean.

        Another run has to have removed what late attempts have left.
        """
        files = contents(workdir)
        expected = snapshot(self.local)
        assert read_manifest(workdir, "clean") is not None
        # The root of the local run names further stages.
        del files["ledger/manifest.json"]
        assert [name for name in files if files[name] != expected[name]] == []

    def run(self, name: str, workdir: str, *flags: str) -> tuple[int, str]:
        """Run `owt run` on Dataflow; return its exit code and output."""
        wheel = f"--extra_package={self.cloud.wheel}"
        command = ["owt", "run", workdir, self.config, *self.cloud.flags(name), wheel, *flags]
        process = self.cloud.run(*command, timeout=800)
        return process.returncode, process.stdout + process.stderr


@pytest.fixture(scope="session")
def sent(service: Cloud, jobs: Jobs) -> Sent:
    """The run's inputs in the bucket. A run's files do not depend on the place of its inputs."""
    inputs = Storage(f"{service.bucket}/inputs")
    text = jobs.config.read_text()
    for pattern in re.findall(r'"(/[^"]+)"', text):
        for path in matching_files(pattern):
            inputs.write(path.name, path.read_bytes())
    inputs.write("config.toml", re.sub(r'"/[^"]*/([^"/]+)"', rf'"{inputs}/\1"', text).encode())
    return Sent(service, inputs.path("config.toml"), jobs.local)


def matching_files(pattern: str) -> list[Path]:
    """Return the files whose paths match a pattern."""
    path = Path(pattern)
    return sorted(path.parent.glob(path.name))
