"""A project on the Dataflow service and the bucket of the tests, and a machine to launch jobs
from."""

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

PROJECT, REGION = "my-project", "us-central1"
STATES = {3: "DONE", 4: "FAILED", 5: "CANCELLED"}  # of google.dataflow.v1beta3.JobState
IMAGE = f"{REGION}-docker.pkg.dev/{PROJECT}/owt/owt:0.1.0"
"""An image with what the Dockerfile copies into it, in its WORKDIR; its Python is the launcher's
environment."""


@dataclass(frozen=True)
class Cloud:
    """Where jobs are sent.

    Attributes:
      bucket: `gs://NAME`.
      url: of the Dataflow service.
      launcher: the bin folder of an environment that holds the wheel and its dependencies alone.
      environment: variables of what is launched.
    """

    bucket: str
    url: str
    wheel: Path
    launcher: Path
    environment: dict[str, str]

    def flags(self, name: str, staging: str | None = None) -> list[str]:
        """The flags of a job that go to Beam."""
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
        return list(self.get("")["jobs"])

    def launch(
        self, name: str, template: str, parameters: dict[str, str], **environment: object
    ) -> dict[str, Any]:
        """Launch a Flex Template, as `gcloud dataflow flex-template run` does."""
        places = {"tempLocation": f"{self.bucket}/tmp", "stagingLocation": f"{self.bucket}/staging"}
        body = {"jobName": name, "containerSpecGcsPath": template, "parameters": parameters}
        request = json.dumps(
            {"launchParameter": {**body, "environment": {**places, **environment}}}
        ).encode()
        address = f"{self.url}/v1b3/projects/{PROJECT}/locations/{REGION}/flexTemplates:launch"
        return self._answer(urllib.request.Request(address, request, method="POST"))

    def get(self, path: str) -> dict[str, Any]:
        return self._answer(urllib.request.Request(self._address(path)))

    def cancel(self, job: str) -> None:
        """Cancel a job, as `gcloud dataflow jobs cancel` does."""
        body = b'{"requestedState": "JOB_STATE_CANCELLED"}'
        self._answer(urllib.request.Request(self._address(f"/{job}"), body, method="PUT"))

    def wait(self, job: str) -> str:
        """The state in which a job has ended, by its name in the API."""
        ended = {"DONE", "FAILED", "CANCELLED"}
        while (state := STATES.get(self.get(f"/{job}")["currentState"], "")) not in ended:
            time.sleep(1)
        return state

    def messages(self, job: str) -> list[str]:
        return [said["messageText"] for said in self.get(f"/{job}/messages")["jobMessages"]]

    def _address(self, path: str, region: str = REGION) -> str:
        return f"{self.url}/v1b3/projects/{PROJECT}/locations/{region}/jobs{path}"

    def _answer(self, request: urllib.request.Request) -> dict[str, Any]:
        try:
            with urllib.request.urlopen(request) as answer:
                return dict(json.load(answer))
        except urllib.error.HTTPError as error:
            return dict(json.load(error))


@contextlib.contextmanager
def cloud(folder: Path, bucket: str, workers: int = 2) -> Iterator[Cloud]:
    """A service, in `folder`; skips the test where the environment of dependencies is not
    installed."""
    if not (DEPENDENCIES / "installed").exists():
        missing = (
            "the workers' environment is not installed: run `make .venv-dependencies/installed`"
        )
        if "OWT_REQUIRE_SERVERS" in os.environ:
            pytest.fail(missing)
        pytest.skip(missing)
    ours = wheel()
    launcher = install(folder / "launcher", [ours]).parent
    port = free_port()
    url = f"http://127.0.0.1:{port}"
    key, image = folder / "key.json", folder / "image.json"
    key.write_text(json.dumps(_credentials(f"{url}/token")))
    shutil.copy(REPOSITORY / "flex/launch.py", folder)
    of_image = {"FLEX_TEMPLATE_PYTHON_PY_FILE": str(folder / "launch.py")}
    image.write_text(json.dumps({"python": str(launcher / "python"), "environment": of_image}))
    google = {"GOOGLE_APPLICATION_CREDENTIALS": str(key), "GOOGLE_CLOUD_PROJECT": PROJECT}
    path = f"{launcher}:{os.environ['PATH']}"
    environment = bare(**google) | {
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
        [*command, f"--workers={workers}", f"--image={IMAGE}={image}"],
        url,
        {**os.environ, **google},
    ):
        yield Cloud(bucket, url, ours, launcher, environment)


def _credentials(token: str) -> dict[str, str]:
    """A service account's key, whose tokens the service gives."""
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
