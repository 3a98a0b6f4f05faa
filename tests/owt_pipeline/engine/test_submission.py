"""What is checked before a job is sent to a cluster, and what a job that has failed there says."""

from __future__ import annotations

import os
import time
from dataclasses import replace

import grpc
import pytest

from owt_pipeline.engine.submission import (
    CACHE_MILLISECONDS,
    JobLost,
    explaining,
    options_for,
    with_absolute_paths,
)
from owt_pipeline.engine.workers import WorkerError
from owt_pipeline.errors import UsageError, UserError
from owt_pipeline.ledger.plan import version_skew, versions_of_everything
from owt_pipeline.stages.collect.options import Options
from owt_pipeline.storage.folder import Storage
from tests.servers.process import free_port

NOBODY = f"localhost:{free_port()}"
WORKERS = ("--environment_type=EXTERNAL", "--environment_config=localhost:50000")
BUCKET = Storage("/run")


@pytest.mark.parametrize(
    ("flags", "kind", "said"),
    [
        (["--runner=FlnkRunner"], UsageError, "there is no such runner; did you mean 'FlinkRunner'?"),
        (["--runner=PortableRunner"], UsageError, "needs --job_endpoint HOST:PORT"),
        (["--runner=PortableRunner", "--job_endpoint=flink"], UsageError, "--job_endpoint flink: expected HOST:PORT"),
        (["--runner=PortableRunner", f"--job_endpoint={NOBODY}", *WORKERS], UserError, f"{NOBODY}: nothing answers"),
        (
            ["--runner=FlinkRunner", f"--flink_master={NOBODY}", *WORKERS],
            UserError,
            f"--flink_master {NOBODY}: nothing",
        ),
        (["--runner=SparkRunner", f"--spark_master_url=spark://{NOBODY}"], UserError, f"spark://{NOBODY}: nothing"),
    ],
    ids=range(6),  # the port is another one in each process
)
def test_an_unknown_runner_or_address_is_an_error_within_ten_seconds(
    flags: list[str], kind: type[UserError], said: str
) -> None:
    started = time.monotonic()
    with pytest.raises(kind) as error:
        options_for(flags, BUCKET)
    assert said in str(error.value)
    assert time.monotonic() - started < 10


def test_masters_on_this_machine_need_nothing_to_answer_and_workers_are_kept_between_shuffles() -> None:
    from apache_beam.options.pipeline_options import PortableOptions

    for flags in (
        ["--runner=FlinkRunner"],
        ["--runner=FlinkRunner", "--flink_master=[local]"],
        ["--runner=SparkRunner"],
    ):
        options = options_for(flags, BUCKET).view_as(PortableOptions)
        assert options.environment_cache_millis == CACHE_MILLISECONDS


class Unavailable(grpc.RpcError):
    def details(self) -> str:
        return "failed to connect to all addresses"


FAILED = "Pipeline job-1 failed in state FAILED: "


@pytest.mark.parametrize(
    ("error", "kind", "said"),
    [
        (Unavailable(), JobLost, "the job may continue"),
        (RuntimeError("Pipeline job-1 failed in state CANCELLED: x"), UserError, "the job was cancelled"),
        (RuntimeError(FAILED + "ModuleNotFoundError: No module named 'owt_pipeline'"), UserError, "install the wheel"),
        (RuntimeError(FAILED + "java.lang.RuntimeException: Traceback (most recent\n"), WorkerError, "Traceback"),
        (
            RuntimeError(FAILED + "org.apache.flink.NoSlots\n\tat x.java"),
            UserError,
            "failed: org.apache.flink.NoSlots;",
        ),
    ],
)
def test_a_job_that_has_failed_is_explained(error: Exception, kind: type[Exception], said: str) -> None:
    with pytest.raises(kind) as found, explaining():
        raise error
    assert said in str(found.value)
    assert "\tat " not in str(found.value)


def test_other_versions_are_an_error_with_both_lists_unless_they_are_allowed() -> None:
    here = versions_of_everything(["numpy"])
    assert version_skew(here, allowed=False) == {}
    there = here | {"numpy": "0.1"}
    with pytest.raises(UserError) as error:
        version_skew(there, allowed=False)
    for listed in (here, there):
        assert all(f"{name} {version}" in str(error.value) for name, version in listed.items())
    assert version_skew(there, allowed=True) == here


def test_files_that_workers_read_have_absolute_paths() -> None:
    given = Options(dumps=("RS_*.zst", "gs://bucket/RS.zst"), num_shards=3)
    found = with_absolute_paths(given)
    assert found == replace(given, dumps=(f"{os.getcwd()}/RS_*.zst", "gs://bucket/RS.zst"))
