"""The engines, their workers, buckets, and the run on this machine that every engine's has to
equal."""

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

SUBMISSIONS = 420  # of RS_wcxb-dev.zst: 304 links with pages

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
      config: its CONFIG.toml.
      local: the folder of the run on this machine.
      pool: where the engines' workers run.
    """

    config: Path
    local: Path
    pool: WorkerPool

    def command(self, flags: Sequence[str], workdir: Storage, *others: object) -> list[str]:
        """What a user types to run the job on an engine, given its flags."""
        return owt("run", workdir, self.config, *flags, *self.pool.flags, *others)

    def run(self, engine: Engine, workdir: Storage) -> None:
        """Run the job to its end by the engine's own runner."""
        started = time.monotonic()
        command = self.command(engine.runner, workdir)
        done = subprocess.run(command, capture_output=True, text=True, timeout=900, check=False)
        assert done.returncode == 0, f"{done.stdout}{done.stderr}\n{engine.last_words()}"
        print(f"{engine.name}, {workdir}: {time.monotonic() - started:.1f} s\n{done.stdout}")

    def check(self, workdir: Storage) -> None:
        """Every file of the run there has the name and the bytes of the run here, and no id is
        lost."""
        check_same(self.local, workdir)

    def check_after_faults(self, workdir: Storage) -> None:
        """The same once the next run, which has nothing to make, has removed what late attempts
        left: one that commits after its stage was published writes files that no manifest names."""
        run_owt("run", workdir, self.config)
        self.check(workdir)


def check_same(local: Path, workdir: Storage) -> None:
    """Every file of a run has the name and the bytes of the run on this machine, and no id is
    lost."""
    expected, found = snapshot(local), contents(workdir)
    differing = sorted(
        name for name in expected.keys() | found.keys() if expected.get(name) != found.get(name)
    )
    assert differing == []
    assert "no problems found" in run_owt("verify", workdir)


def metrics(run: Storage) -> dict[str, dict[str, int]]:
    """The Beam counters of each stage, of the last job of a run whose launcher saw its end; none
    if there is none."""
    return next((entry["metrics"] for entry in reversed(read_log(run)) if "job" in entry), {})


@pytest.fixture(scope="session")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What the engines write to: logs and temporary files."""
    return tmp_path_factory.mktemp("engines")


@pytest.fixture(scope="session")
def buckets() -> Iterator[Mapping[str, str]]:
    """A bucket of each kind, by the scheme of its URI."""
    with gcs_bucket() as gs, s3_bucket() as s3:
        yield {"gs": gs, "s3": s3}


@pytest.fixture(scope="session")
def service(folder: Path, buckets: Mapping[str, str]) -> Iterator[Cloud]:
    """The tests' Dataflow."""
    with cloud(folder / "cloud", buckets["gs"]) as found:
        yield found


@pytest.fixture(scope="session")
def jobs(testdata: Path, folder: Path, buckets: Mapping[str, str]) -> Iterator[Jobs]:
    """Real submissions with the archived pages that they link to, and the demo's web, which has
    near-duplicates."""
    with open(testdata / "reddit/RS_wcxb-dev.zst", "rb") as file:
        lines = (
            zstandard.ZstdDecompressor(max_window_size=2**31)
            .stream_reader(file)
            .read()
            .splitlines(keepends=True)
        )
    (folder / "RS_real.zst").write_bytes(zstandard.compress(b"".join(lines[:SUBMISSIONS])))
    run_owt("demo", "--write_inputs", folder)
    config, local = folder / "config.toml", folder / "local"
    config.write_text(CONFIG.format(folder=folder, pages=testdata / "web/wcxb-dev.warc.gz"))
    run_owt("run", local, config, "--workers", 2)
    assert manifest_of(local, "duplicates").counts.left > 20
    with worker_pool(folder) as pool:
        yield Jobs(config, local, pool)


@pytest.fixture(scope="session")
def on_prism(folder: Path) -> Iterator[Engine]:
    with prism(folder) as engine:
        yield engine


@pytest.fixture(scope="session")
def on_spark(folder: Path) -> Engine:
    return spark(folder)


@pytest.fixture(scope="session")
def on_flink(folder: Path) -> Iterator[Flink]:
    with flink(folder) as engine:
        yield engine


@dataclass(frozen=True)
class Sent:
    """The job's inputs in the bucket.

    Attributes:
      config: its CONFIG.toml, which names the others.
      local: the folder of the run on this machine, which read them from a disk.
    """

    cloud: Cloud
    config: str
    local: Path

    def check(self, workdir: Storage) -> None:
        check_same(self.local, workdir)

    def check_until_clean(self, workdir: Storage) -> None:
        """The same of a run that has ended with clean; what late attempts left, the next run has
        removed."""
        found, expected = contents(workdir), snapshot(self.local)
        assert read_manifest(workdir, "clean") is not None
        del found["ledger/manifest.json"]  # the other run has further stages
        assert [name for name in found if found[name] != expected[name]] == []

    def run(self, name: str, workdir: str, *flags: str) -> tuple[int, str]:
        """`owt run` on Dataflow: its exit code, and what it printed."""
        wheel = f"--extra_package={self.cloud.wheel}"
        command = ["owt", "run", workdir, self.config, *self.cloud.flags(name), wheel, *flags]
        done = self.cloud.run(*command, timeout=800)
        return done.returncode, done.stdout + done.stderr


@pytest.fixture(scope="session")
def sent(service: Cloud, jobs: Jobs) -> Sent:
    """The run's inputs, uploaded: wherever they are, the files of the run are the same."""
    inputs = Storage(f"{service.bucket}/inputs")
    text = jobs.config.read_text()
    for path in sorted(
        {found for quoted in re.findall(r'"(/[^"]+)"', text) for found in matches(quoted)}
    ):
        inputs.write(path.name, path.read_bytes())
    inputs.write("config.toml", re.sub(r'"/[^"]*/([^"/]+)"', rf'"{inputs}/\1"', text).encode())
    return Sent(service, inputs.path("config.toml"), jobs.local)


def matches(pattern: str) -> list[Path]:
    path = Path(pattern)
    return sorted(path.parent.glob(path.name))
