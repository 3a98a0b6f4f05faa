"""The Flex Template, launched on the tests' Dataflow as the real service launches one."""

from __future__ import annotations

import json

import pytest

from owt_pipeline.storage.folder import Storage
from tests.engines.cloud import IMAGE, Cloud
from tests.engines.conftest import Sent
from tests.engines.environments import REPOSITORY

pytestmark = [pytest.mark.engines, pytest.mark.timeout(900)]


@pytest.fixture(scope="module")
def template(service: Cloud) -> str:
    """The template's file in the bucket, as `gcloud dataflow flex-template build` writes it."""
    metadata = json.loads((REPOSITORY / "flex/metadata.json").read_bytes())
    spec = {"image": IMAGE, "sdkInfo": {"language": "PYTHON"}, "metadata": metadata}
    folder = Storage(f"{service.bucket}/templates")
    folder.write("owt.json", json.dumps(spec).encode())
    return folder.path("owt.json")


def test_a_template_writes_the_files_of_a_run_on_this_machine(service: Cloud, template: str, sent: Sent) -> None:
    workdir = f"{service.bucket}/template"
    parameters = {"settings": sent.config, "run": workdir, "beam_flags": f"--sdk_container_image={IMAGE} --until=clean"}
    launched = service.launch("from-a-template", template, parameters, numWorkers=2)
    assert "job" in launched, launched
    job = launched["job"]["id"]
    assert service.wait(job) == "DONE", service.messages(job)
    seen = service.get(f"/{job}/seen")
    pool = seen["description"]["environment"]["workerPools"][0]
    assert pool["sdkHarnessContainerImages"][0]["containerImage"] == IMAGE
    sent.check_until_clean(Storage(workdir))
    code, printed = sent.run("after-the-template", workdir, "--until=clean")  # the lease names a job that has ended
    assert code == 0, printed
    assert "after-the-template" not in [job["name"] for job in service.jobs()]


def test_a_wrong_flag_is_refused_by_the_launcher(service: Cloud, template: str) -> None:
    parameters = {"run": "gs://bucket/run", "beam_flags": "--num_shards=0"}
    message = service.launch("wrong", template, parameters)["error"]["message"]
    assert "owt: error: --num_shards: 0 is not" in message
    assert "Traceback" not in message
