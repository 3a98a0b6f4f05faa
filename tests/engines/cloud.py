"""The tests' Dataflow: a project with a bucket, and a machine that launches jobs."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import subprocess
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import rsa

from tests.engines.environments import DEPENDENCIES, REPOSITORY, bare, install, wheel
from tests.servers.process import free_port, serving

PROJECT = "my-project"
REGION = "us-central1"
# Of google.dataflow.v1beta3.JobState.
STATES = {3: "DONE", 4: "FAILED", 5: "CANCELLED"}
# The service runs it as an image that the Dockerfile built: `flex/launch.py` is in its WORKDIR, and
# its Python is the environment of the launcher.
IMAGE = f"{REGION}-docker.pkg.dev/{PROJECT}/owt/owt:0.1.0"


@dataclass(frozen=True)
class Cloud:
    """The service to which jobs are sent, and the machine that sends them.

    Attributes:
      bucket: `gs://NAME`.
      url: the address of the Dataflow service.
      wheel: the wheel of the checkout.
      launcher: the bin folder of an environment that holds only the wheel and its dependencies.
      environment: the variables of launched programs.
    """

    bucket: str
    url: str
    wheel: Path
    launcher: Path
    environment: dict[str, str]

    def flags(self, name: str, staging: str | None = None) -> list[str]:
        """Return the flags of a job that Beam reads."""
        return [
            "--runner=DataflowRunner",
            f"--project={PROJECT}",
            f"--region={REGION}",
            f"--temp_location={self.bucket if staging is None else staging}/tmp",
            f"--job_name={name}",
            "--dataflow_endpoint=http://dataflow.sandbox",
        ]

    def run(
        self, *command: object, cwd: Path | None = None, timeout: int = 500
    ) -> subprocess.CompletedProcess[str]:
        """Run a program of the launcher's environment to its end."""
        program, *arguments = map(str, command)
        return subprocess.run(
            [str(self.launcher / program), *arguments],
            capture_output=True,
            text=True,
            env=self.environment,
            cwd=cwd or self.launcher,
            timeout=timeout,
            check=False,
        )

    def jobs(self) -> list[dict[str, Any]]:
        """Return all jobs of the project."""
        return list(self.get("")["jobs"])

    def launch(
        self, name: str, template: str, parameters: dict[str, str], **environment: object
    ) -> dict[str, Any]:
        """Launch a Flex Template, as `gcloud dataflow flex-template run` does."""
        launch_parameter = {
            "jobName": name,
            "containerSpecGcsPath": template,
            "parameters": parameters,
            "environment": {
                "tempLocation": f"{self.bucket}/tmp",
                "stagingLocation": f"{self.bucket}/staging",
                **environment,
            },
        }
        body = json.dumps({"launchParameter": launch_parameter}).encode()
        address = f"{self.url}/v1b3/projects/{PROJECT}/locations/{REGION}/flexTemplates:launch"
        return self._answer(urllib.request.Request(address, body, method="POST"))

    def get(self, path: str) -> dict[str, Any]:
        """Return the service's response to a request about jobs."""
        return self._answer(urllib.request.Request(self._address(path)))

    def cancel(self, job: str) -> None:
        """Cancel a job, as `gcloud dataflow jobs cancel` does."""
        body = b'{"requestedState": "JOB_STATE_CANCELLED"}'
        self._answer(urllib.request.Request(self._address(f"/{job}"), body, method="PUT"))

    def wait(self, job: str) -> str:
        """Wait for the end of a job; return its last state."""
        ended = {"DONE", "FAILED", "CANCELLED"}
        while (state := STATES.get(self.get(f"/{job}")["currentState"], "")) not in ended:
            time.sleep(1)
        return state

    def messages(self, job: str) -> list[str]:
        """Return the texts of a job's messages."""
        return [message["messageText"] for message in self.get(f"/{job}/messages")["jobMessages"]]

    def _address(self, path: str, region: str = REGION) -> str:
        return f"{self.url}/v1b3/projects/{PROJECT}/locations/{region}/jobs{path}"

    def _answer(self, request: urllib.request.Request) -> dict[str, Any]:
        try:
            with urllib.request.urlopen(request) as response:
                return dict(json.load(response))
        except urllib.error.HTTPError as error:
            return dict(json.load(error))


@contextlib.contextmanager
def cloud(folder: Path, bucket: str, workers: int = 2) -> Iterator[Cloud]:
    """Start a service whose files are in `folder`.

    Skips the test if the environment of dependencies is not installed.
    """
    if not (DEPENDENCIES / "installed").exists():
        advice = (
            "the workers' environment is not installed: run `make .venv-dependencies/installed`"
        )
        if "OWT_REQUIRE_SERVERS" in os.environ:
            pytest.fail(advice)
        pytest.skip(advice)
    built_wheel = wheel()
    launcher = install(folder / "launcher", [built_wheel]).parent
    port = free_port()
    url = f"http://127.0.0.1:{port}"
    key_file = folder / "key.json"
    image_file = folder / "image.json"
    key_file.write_text(json.dumps(_credentials(f"{url}/token")))
    shutil.copy(REPOSITORY / "flex/launch.py", folder)
    image_environment = {"FLEX_TEMPLATE_PYTHON_PY_FILE": str(folder / "launch.py")}
    image_file.write_text(
        json.dumps({"python": str(launcher / "python"), "environment": image_environment})
    )
    credentials = {"GOOGLE_APPLICATION_CREDENTIALS": str(key_file), "GOOGLE_CLOUD_PROJECT": PROJECT}
    path = f"{launcher}:{os.environ['PATH']}"
    environment = bare(**credentials) | {
        "PYTHONFAULTHANDLER": "1",
        "PATH": path,
        "http_proxy": url,
        "no_proxy": "127.0.0.1,localhost",
    }
    command = [
        DEPENDENCIES / "bin/python",
        REPOSITORY / "tests/engines/dataflow.py",
        folder / "jobs",
        str(port),
    ]
    with serving(
        [*command, f"--workers={workers}", f"--image={IMAGE}={image_file}"],
        url,
        {**os.environ, **credentials},
    ):
        yield Cloud(bucket, url, built_wheel, launcher, environment)


def _credentials(token: str) -> dict[str, str]:
    """Return the key of a service account, for which the service issues tokens."""
    key = rsa.generate_private_key(public_exponent=65537, key_size=2048)
    pem = key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )
    return {
        "type": "service_account",
        "project_id": PROJECT,
        "client_email": f"launcher@{PROJECT}.iam.gserviceaccount.com",
        "private_key_id": "1",
        "private_key": pem.decode(),
        "token_uri": token,
    }
