"""The complete job on the tests' Dataflow: as it is submitted there, by workers that have the
staged wheel alone."""

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


def test_one_job_writes_the_files_of_a_local_run(
    sent: Sent,
) -> None:
    cloud, workdir = sent.cloud, f"{sent.cloud.bucket}/dataflow"
    before = len(cloud.jobs())
    code, printed = sent.run("complete", workdir)
    assert code == 0, printed
    sent.check(Storage(workdir))
    (job,) = cloud.jobs()[before:]
    assert job["name"] == "complete"
    description = cloud.get(f"/{job['id']}/seen")["description"]
    staged = {
        package["name"] for package in description["environment"]["workerPools"][0]["packages"]
    }
    assert staged == {
        cloud.wheel.name,
        "extra_packages.txt",
        "requirements.txt",
        "submission_environment_dependencies.txt",
    }
    code, printed = sent.run("again", workdir)
    assert code == 0, printed
    assert cloud.jobs()[before:] == [job]


def test_a_cancelled_job_is_continued_by_the_same_command(sent: Sent) -> None:
    workdir, command = Storage(f"{sent.cloud.bucket}/cancelled"), ("cancelled", "--until", "clean")
    with ThreadPoolExecutor(1) as launcher:
        launched = launcher.submit(sent.run, command[0], workdir.uri, *command[1:])
        while not any(name.startswith("records/") for name in (workdir / "ledger/extract").names()):
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
    before = {
        entry.name: entry.modified for entry in workdir.list() if entry.name.endswith(".parquet")
    }
    code, printed = sent.run(command[0], workdir.uri, *command[1:])
    assert code == 0, printed
    after = {entry.name: entry.modified for entry in workdir.list()}
    assert {name: after[name] for name in before if name in after} == {
        name: version for name, version in before.items() if name in after
    }, "what was finished is not written again"
    code, printed = sent.run(
        command[0], workdir.uri, *command[1:]
    )  # removes what a late attempt left
    assert code == 0, printed
    sent.check_until_clean(workdir)


@pytest.mark.parametrize(
    ("flags", "said"),
    [
        (["--job_name=My_Job"], "Invalid job_name (My_Job)"),
        (["--temp_location=gs://no-such-bucket/tmp"], "no-such-bucket"),
        (["--sdk_container_image=registry/none:1"], "the job failed"),
    ],
)
def test_what_is_refused_is_one_line(sent: Sent, flags: list[str], said: str) -> None:
    code, printed = sent.run("refused", f"{sent.cloud.bucket}/refused/{abs(hash(said))}", *flags)
    assert code in (1, 2)
    assert said in printed
    assert "Traceback" not in printed
    errors = [line for line in printed.splitlines() if line.startswith("owt: error: ")]
    assert len(errors) == 1, printed  # next to what Beam logs


def test_what_workers_cannot_reach_is_refused(sent: Sent, jobs: Jobs, tmp_path: Path) -> None:
    dump = jobs.config.parent / "RS_real.zst"
    code, printed = sent.run("local-dump", f"{sent.cloud.bucket}/local-dump", f"--dumps={dump}")
    assert code == 2
    assert f"Dataflow's workers cannot read the local path {dump}" in printed
    code, printed = sent.run("local", str(tmp_path / "run"))
    assert (code, printed.strip().splitlines()) == (
        2,
        [
            f"owt: error: Dataflow's workers cannot read {tmp_path}/run; give a bucket, gs://BUCKET/FOLDER"
        ],
    )


def test_a_job_without_a_waiting_launcher_ends_with_one_line(
    sent: Sent,
) -> None:
    """One command submits, says with 4 that the job is at work, and gets the outcome: what only
    shows when the dumps are read."""
    broken, codes = Storage(f"{sent.cloud.bucket}/broken"), [4]
    broken.write("RS_broken.zst", b"\x28\xb5\x2f\xfd no frame")
    flags = (f"--dumps={broken}/RS_broken.zst", "--no_wait_until_finish")
    while codes[-1] == 4:
        code, printed = sent.run("mistake", f"{sent.cloud.bucket}/mistake", *flags)
        codes.append(code)
    assert codes[1] == 4
    assert code == 1, printed
    errors = [
        line for line in printed.splitlines() if line.startswith("owt: error: ")
    ]  # below what the service says
    assert errors == [printed.splitlines()[-1]], printed
    assert "RS_broken.zst" in errors[0]
    (job,) = (job for job in sent.cloud.jobs() if job["name"] == "mistake")
    assert (
        sent.cloud.wait(job["id"]) == "FAILED"
    )  # the worker says why before the service ends the job


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
    code, printed = sent.run(
        "after-the-template", workdir, "--until=clean"
    )  # the lease names a job that has ended
    assert code == 0, printed
    assert "after-the-template" not in [job["name"] for job in service.jobs()]


def test_a_wrong_flag_is_refused_by_the_launcher(service: Cloud, template: str) -> None:
    parameters = {"run": "gs://bucket/run", "beam_flags": "--num_shards=0"}
    message = service.launch("wrong", template, parameters)["error"]["message"]
    assert "owt: error: --num_shards: 0 is not" in message
    assert "Traceback" not in message
