"""Checks before a job is sent to a cluster, and the message of a job that has failed there."""

from __future__ import annotations

import os
import time
from dataclasses import replace

import pytest

from owt_pipeline.engine.submission import (
    CACHE_MILLISECONDS,
    failure,
    options_for,
    with_absolute_paths,
)
from owt_pipeline.errors import UsageError, UserError
from owt_pipeline.ledger.versions import check_versions, versions_of_everything
from owt_pipeline.stages.collect.options import Options
from owt_pipeline.storage.folder import Storage
from tests.servers.process import free_port

pytestmark = pytest.mark.beam

NOBODY = f"localhost:{free_port()}"
WORKERS = ("--environment_type=EXTERNAL", "--environment_config=localhost:50000")
BUCKET = Storage("/run")


@pytest.mark.parametrize(
    ("flags", "error_type", "message"),
    [
        (
            ["--runner=FlnkRunner"],
            UsageError,
            "there is no such runner; did you mean 'FlinkRunner'?",
        ),
        (["--runner=PortableRunner"], UsageError, "needs --job_endpoint HOST:PORT"),
        (
            ["--runner=PortableRunner", "--job_endpoint=flink"],
            UsageError,
            "--job_endpoint flink: expected HOST:PORT",
        ),
        (
            ["--runner=PortableRunner", f"--job_endpoint={NOBODY}", *WORKERS],
            UserError,
            f"{NOBODY}: no server responds",
        ),
        (
            ["--runner=FlinkRunner", f"--flink_master={NOBODY}", *WORKERS],
            UserError,
            f"--flink_master {NOBODY}: no server responds",
        ),
        (
            ["--runner=SparkRunner", f"--spark_master_url=spark://{NOBODY}"],
            UserError,
            f"spark://{NOBODY}: no server responds",
        ),
    ],
    ids=range(6),  # the port is another one in each process
)
def test_an_unknown_runner_or_address_is_an_error_and_no_wait(
    flags: list[str], error_type: type[UserError], message: str
) -> None:
    started = time.monotonic()
    with pytest.raises(error_type) as error:
        options_for(flags, BUCKET)
    assert message in str(error.value)
    assert time.monotonic() - started < 60


def test_local_masters_keep_workers_between_shuffles() -> None:
    from apache_beam.options.pipeline_options import PortableOptions

    for flags in (
        ["--runner=FlinkRunner"],
        ["--runner=FlinkRunner", "--flink_master=[local]"],
        ["--runner=SparkRunner"],
    ):
        options = options_for(flags, BUCKET).view_as(PortableOptions)
        assert options.environment_cache_millis == CACHE_MILLISECONDS


def test_a_job_that_has_failed_without_an_outcome_is_one_line() -> None:
    error = failure(RuntimeError("Pipeline job-1 failed in state FAILED: no slots\n\tat x.java"))
    assert str(error) == (
        "the job failed (RuntimeError: Pipeline job-1 failed in state FAILED: no slots at x.java): "
        "see the runner's log"
    )


def test_other_versions_are_an_error_with_both_lists() -> None:
    versions = versions_of_everything(["numpy"])
    check_versions(versions)
    check_versions({})
    other_versions = versions | {"numpy": "0.1"}
    with pytest.raises(UserError) as error:
        check_versions(other_versions)
    for either in (versions, other_versions):
        assert all(f"{name} {version}" in str(error.value) for name, version in either.items())


def test_files_that_workers_read_have_absolute_paths() -> None:
    options = Options(dumps=("RS_*.zst", "gs://bucket/RS.zst"), num_shards=3)
    absolute_options = with_absolute_paths(options)
    assert absolute_options == replace(
        options, dumps=(f"{os.getcwd()}/RS_*.zst", "gs://bucket/RS.zst")
    )
