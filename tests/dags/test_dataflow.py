"""The DAG `openwebtext` on Dataflow: a worker submits a stage's job and asks for its end, the triggerer only waits.

The service is the tests' (`tests/engines/dataflow.py`), which executes the jobs it is sent.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from google.auth.credentials import AnonymousCredentials
from google.cloud.storage import Bucket, Client

from tests.dags.inputs import PAGES, write_dump, write_pages
from tests.engines.cloud import PROJECT, REGION, STATES, Cloud, cloud
from tests.servers.gcs import gcs_bucket

RUNNING = 4

OTHERS = "(?!collect$).*"
"""The tasks that are marked as successful, not run: they are of the same class, and a job takes its time."""


@pytest.fixture
def service(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Cloud]:
    """The service; what this process starts finds it, and imports nothing of the checkout."""
    with gcs_bucket() as bucket, cloud(tmp_path / "cloud", bucket) as found:
        monkeypatch.delenv("PYTHONPATH", raising=False)
        for name, value in found.environment.items():
            monkeypatch.setenv(name, value)
        yield found


@pytest.fixture
def bucket(service: Cloud) -> Bucket:
    return Client(PROJECT, AnonymousCredentials()).bucket(service.bucket.removeprefix("gs://"))


@pytest.mark.timeout(900)  # two jobs, on a machine that may be busy
def test_a_stage_is_deferred_until_its_launcher_ends_and_fails_with_it(
    dag: Any, service: Cloud, bucket: Bucket, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By a mistake that a worker finds, at first."""
    from airflow.providers.standard.hooks.subprocess import SubprocessHook

    commands: list[tuple[list[str], int]] = []
    collect = type(dag.get_task("collect"))
    run_command = SubprocessHook.run_command

    def noted(hook: Any, command: list[str]) -> Any:
        done = run_command(hook, command)
        commands.append((command, done.exit_code))
        return done

    monkeypatch.setattr(SubprocessHook, "run_command", noted)
    monkeypatch.setattr(collect, "look_every", timedelta(seconds=1))
    monkeypatch.setenv("AIRFLOW_VAR_OWT_PYTHON", str(service.launcher / "python"))
    write_dump(tmp_path / "RS_2024-01.zst", write_pages(tmp_path / "pages.warc.gz"))
    bucket.blob("damaged.zst").upload_from_string(b"\x28\xb5\x2f\xfd no frame")
    bucket.blob("RS_2024-01.zst").upload_from_filename(tmp_path / "RS_2024-01.zst")

    def run(dump: str) -> str:
        """The state in which a run of the DAG ends."""
        beam = {
            "project": PROJECT,
            "region": REGION,
            "temp_location": f"{service.bucket}/tmp",
            "job_name": "collect",
            "dataflow_endpoint": "http://dataflow.sandbox",
            "extra_package": str(service.wheel),
        }
        given = {"run": f"{service.bucket}/run", "dumps": [f"{service.bucket}/{dump}"], "num_shards": 2}
        place = {"runner": "DataflowRunner", "beam_flags": beam}
        return str(dag.test(run_conf={**given, **place}, mark_success_pattern=OTHERS).state)

    for dump, state, code in (("damaged.zst", "failed", 1), ("RS_2024-01.zst", "success", 0)):
        assert run(dump) == state
        assert len({str(command) for command, _ in commands}) == 1, "one command submits, asks, and gets the outcome"
        assert {code for _, code in commands[:-1]} == {RUNNING}
        assert commands[-1][1] == code
        commands.clear()
    assert [STATES[job["currentState"]] for job in service.jobs()] == ["FAILED", "DONE"], (
        "the working directory alone knows"
    )
    manifest = json.loads(bucket.blob("run/ledger/manifest.json").download_as_bytes())
    assert manifest["datasets"]["urls"]["counts"]["left"] == PAGES
