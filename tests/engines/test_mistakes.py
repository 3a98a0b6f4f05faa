"""A mistake on a cluster is reported in one line, and in time."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Sequence
from pathlib import Path

import pytest

from owt_pipeline.storage.folder import Storage
from tests.engines.conftest import Jobs
from tests.engines.engines import Engine, worker_pool
from tests.engines.environments import install, wheel
from tests.owt_pipeline.runs import owt

pytestmark = [pytest.mark.engines, pytest.mark.timeout(300)]


def complaint(command: Sequence[object], code: int) -> str:
    """Run a command; return its only line with an error."""
    process = subprocess.run(
        list(map(str, command)), capture_output=True, text=True, timeout=200, check=False
    )
    assert process.returncode == code, process.stdout + process.stderr
    assert "Traceback" not in process.stderr, process.stderr
    output = process.stdout + process.stderr
    lines = [line for line in output.splitlines() if line.startswith("owt: error: ")]
    (line,) = lines
    return line


def test_workers_without_the_package_are_refused_before_the_job(
    on_prism: Engine, jobs: Jobs, tmp_path: Path
) -> None:
    num_jobs_before = on_prism.jobs()
    command = owt("run", tmp_path / "run", jobs.config, *on_prism.flags)
    assert "the workers need this package" in complaint(command, 2)
    assert on_prism.jobs() == num_jobs_before


def test_a_worker_pool_without_the_wheel(on_prism: Engine, jobs: Jobs, tmp_path: Path) -> None:
    with worker_pool(tmp_path, install(tmp_path / "bare", [])) as pool:
        command = owt("run", tmp_path / "run", jobs.config, *on_prism.flags, *pool.flags)
        process = subprocess.run(
            list(map(str, command)), capture_output=True, text=True, timeout=300, check=False
        )
        # The log of Beam is above it.
        last_line = process.stderr.splitlines()[-1]
        assert process.returncode == 1
        assert last_line.startswith("owt: error: the job failed")
        assert "No module named 'owt_pipeline'" in last_line


def test_a_working_directory_that_the_workers_do_not_see(
    on_prism: Engine, jobs: Jobs, tmp_path: Path
) -> None:
    """The workers see an empty folder of this name, as if they were on another machine."""
    (tmp_path / "run").mkdir()
    with worker_pool(tmp_path, hidden=tmp_path / "run") as pool:
        command = owt("run", tmp_path / "run", jobs.config, *on_prism.flags, *pool.flags)
        assert "the workers do not see the files in " in complaint(command, 1)


def test_a_worker_of_other_versions_stops_the_run(
    on_prism: Engine, jobs: Jobs, tmp_path: Path
) -> None:
    """The workers have the code of an older wheel."""
    python = install(tmp_path / "worker", [wheel()])
    (module,) = (tmp_path / "worker").glob("lib/python*/site-packages/owt_pipeline/__init__.py")
    module.write_text(module.read_text() + "\n# an older wheel\n")
    with worker_pool(tmp_path, python) as pool:
        run = ("run", tmp_path / "run", jobs.config, "--until", "collect")
        command = owt(*run, *on_prism.flags, *pool.flags)
        line = complaint(command, 1)
        assert "has other versions than the process that started the run" in line
        assert line.count("owt-pipeline 0.1.0 (") == line.count(" pyarrow ") == 2


def test_a_mistake_that_a_worker_finds_ends_the_job(
    jobs: Jobs, on_prism: Engine, tmp_path: Path
) -> None:
    broken = tmp_path / "RS_broken.zst"
    broken.write_bytes(b"\x28\xb5\x2f\xfd no frame")
    command = jobs.command(
        on_prism.flags, Storage(str(tmp_path / "run")), "--dumps", os.path.relpath(broken)
    )
    message = complaint(command, 1)
    # Workers begin in another folder. A relative path would end like the absolute one.
    assert message.startswith(f"owt: error: {broken}: "), message
