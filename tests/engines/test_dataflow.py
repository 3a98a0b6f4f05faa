"""The complete job on the tests' Dataflow, by workers that have only the staged wheel."""

from __future__ import annotations

import json
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from owt_pipeline.ledger.root import read_manifest
from owt_pipeline.storage.folder import Storage
from tests.engines.cloud import IMAGE, Cloud
from tests.engines.conftest import Jobs, Sent
from tests.engines.environments import REPOSITORY

pytestmark = [pytest.mark.engines, pytest.mark.timeout(900)]


def test_one_job_writes_the_files_of_a_local_run(sent: Sent) -> None:
    cloud = sent.cloud
    workdir = f"{cloud.bucket}/dataflow"
    num_jobs_before = len(cloud.jobs())
    code, printed = sent.run("complete", workdir)
    assert code == 0, printed
    sent.check(Storage(workdir))
    (job,) = cloud.jobs()[num_jobs_before:]
    assert job["name"] == "complete"
    description = cloud.get(f"/{job['id']}/seen")["description"]
    packages = description["environment"]["workerPools"][0]["packages"]
    assert {package["name"] for package in packages} == {
        cloud.wheel.name,
        "extra_packages.txt",
        "requirements.txt",
        "submission_environment_dependencies.txt",
    }
    code, printed = sent.run("again", workdir)
    assert code == 0, printed
    assert cloud.jobs()[num_jobs_before:] == [job]


def test_a_cancelled_job_is_continued_by_the_same_command(sent: Sent) -> None:
    workdir = Storage(f"{sent.cloud.bucket}/cancelled")
    ledger = workdir / "ledger/extract"
    command = ("cancelled", workdir.uri, "--until", "clean")
    with ThreadPoolExecutor(1) as launcher:
        launched = launcher.submit(sent.run, *command)
        while not any(name.startswith("records/") for name in ledger.names()):
            assert not launched.done(), launched.result()
            time.sleep(0.05)
        (job,) = (job for job in sent.cloud.jobs() if job["name"] == "cancelled")
        sent.cloud.cancel(job["id"])
        code, printed = launched.result()
    assert code == 1
    assert "the job failed" in printed
    assert "CANCELLED" in printed
    assert "Traceback" not in printed
    assert read_manifest(workdir, "clean") is None
    versions_before = {
        entry.name: entry.modified for entry in workdir.list() if entry.name.endswith(".parquet")
    }
    code, printed = sent.run(*command)
    assert code == 0, printed
    versions_after = {entry.name: entry.modified for entry in workdir.list()}
    assert {name: versions_after[name] for name in versions_before if name in versions_after} == {
        name: version for name, version in versions_before.items() if name in versions_after
    }, "finished files are not written again"
    # This run removes the files of late attempts.
    code, printed = sent.run(*command)
    assert code == 0, printed
    sent.check_until_clean(workdir)


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (["--job_name=My_Job"], "Invalid job_name (My_Job)"),
        (["--temp_location=gs://no-such-bucket/tmp"], "no-such-bucket"),
        (["--sdk_container_image=registry/none:1"], "the job failed"),
    ],
)
def test_a_refused_job_is_reported_in_one_line(sent: Sent, flags: list[str], message: str) -> None:
    workdir = f"{sent.cloud.bucket}/refused/{abs(hash(message))}"
    code, printed = sent.run("refused", workdir, *flags)
    assert code in (1, 2)
    assert message in printed
    assert "Traceback" not in printed
    # Beam logs lines of its own.
    errors = [line for line in printed.splitlines() if line.startswith("owt: error: ")]
    assert len(errors) == 1, printed


def test_unreachable_inputs_are_refused_before_the_job(
    sent: Sent, jobs: Jobs, tmp_path: Path
) -> None:
    dump = jobs.config.parent / "RS_real.zst"
    code, printed = sent.run("local-dump", f"{sent.cloud.bucket}/local-dump", f"--dumps={dump}")
    assert code == 2
    assert f"Dataflow's workers cannot read the local path {dump}" in printed
    code, printed = sent.run("local", str(tmp_path / "run"))
    assert code == 2
    assert printed.strip() == (
        f"owt: error: Dataflow's workers cannot read {tmp_path}/run; "
        "give a bucket, gs://BUCKET/FOLDER"
    )


def test_a_job_without_a_waiting_launcher_ends_with_one_line(sent: Sent) -> None:
    """The same command submits a job, exits with 4 while it runs, and reports its outcome.

    The mistake only shows when the dumps are read.
    """
    broken = Storage(f"{sent.cloud.bucket}/broken")
    codes = [4]
    broken.write("RS_broken.zst", b"\x28\xb5\x2f\xfd no frame")
    flags = (f"--dumps={broken}/RS_broken.zst", "--no_wait_until_finish")
    while codes[-1] == 4:
        code, printed = sent.run("mistake", f"{sent.cloud.bucket}/mistake", *flags)
        codes.append(code)
    assert codes[1] == 4
    assert code == 1, printed
    # The service's own messages are above it.
    errors = [line for line in printed.splitlines() if line.startswith("owt: error: ")]
    assert errors == [printed.splitlines()[-1]], printed
    assert "RS_broken.zst" in errors[0]
    (job,) = (job for job in sent.cloud.jobs() if job["name"] == "mistake")
    # The worker reports the cause before the service ends the job.
    assert sent.cloud.wait(job["id"]) == "FAILED"


@pytest.fixture(scope="module")
def template(service: Cloud) -> str:
    """The template's file in the bucket, as `gcloud dataflow flex-template build` writes it."""
    metadata = json.loads((REPOSITORY / "flex/metadata.json").read_bytes())
    spec = {"image": IMAGE, "sdkInfo": {"language": "PYTHON"}, "metadata": metadata}
    folder = Storage(f"{service.bucket}/templates")
    folder.write("owt.json", json.dumps(spec).encode())
    return folder.path("owt.json")


def test_a_template_writes_the_files_of_a_run_on_this_machine(
    service: Cloud, template: str, sent: Sent
) -> None:
    workdir = f"{service.bucket}/template"
    parameters = {
        "settings": sent.config,
        "run": workdir,
        "beam_flags": f"--sdk_container_image={IMAGE} --until=clean",
    }
    launched = service.launch("from-a-template", template, parameters, numWorkers=2)
    assert "job" in launched, launched
    job = launched["job"]["id"]
    assert service.wait(job) == "DONE", service.messages(job)
    seen = service.get(f"/{job}/seen")
    pool = seen["description"]["environment"]["workerPools"][0]
    assert pool["sdkHarnessContainerImages"][0]["containerImage"] == IMAGE
    sent.check_until_clean(Storage(workdir))
    # The lease names a job that has ended, so no job is submitted.
    code, printed = sent.run("after-the-template", workdir, "--until=clean")
    assert code == 0, printed
    assert "after-the-template" not in [job["name"] for job in service.jobs()]


def test_a_wrong_flag_is_refused_by_the_launcher(service: Cloud, template: str) -> None:
    parameters = {"run": "gs://bucket/run", "beam_flags": "--num_shards=0"}
    message = service.launch("wrong", template, parameters)["error"]["message"]
    assert "owt: error: --num_shards: 0 is not" in message
    assert "Traceback" not in message
