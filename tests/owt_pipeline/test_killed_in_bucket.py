"""A run in a bucket that is killed again and again, at any moment, ends in the bytes of an undisturbed one."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import time
from collections.abc import Callable
from contextlib import AbstractContextManager
from pathlib import Path

import pytest

from owt_pipeline.storage.folder import Storage
from tests.owt_pipeline.runs import contents, owt, run_owt, snapshot
from tests.servers.gcs import gcs_bucket
from tests.servers.s3 import s3_bucket

KILLS = 30  # of each kind of bucket


@pytest.mark.slow
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("serve", [s3_bucket, gcs_bucket], ids=["s3", "gs"])
def test_thirty_kills_at_random_moments_end_in_the_same_bytes(
    serve: Callable[[], AbstractContextManager[str]], small_config: Path, small_run: Path
) -> None:
    expected = snapshot(small_run)
    rng = random.Random(30)
    killed = finished = 0
    with serve() as bucket:
        while killed < KILLS:
            run = Storage(f"{bucket}/run-{finished}")
            command = owt("run", run, small_config, "--workers", 2)
            started = time.monotonic()
            with subprocess.Popen(
                command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, start_new_session=True
            ) as process:
                try:
                    process.wait(timeout=rng.uniform(0.5, 5.0))
                except subprocess.TimeoutExpired:
                    os.killpg(process.pid, signal.SIGKILL)
                    killed += 1
                    continue
                said = process.stderr.read().decode() if process.stderr else ""
            assert process.returncode == 0, f"after {time.monotonic() - started:.1f} s: {said}"
            assert contents(run) == expected
            finished += 1
        run_owt("run", run, small_config, "--workers", 2)
        assert contents(run) == expected
        assert "no problems found" in run_owt("verify", run)
