"""A project on the Dataflow service and the bucket of the tests, and a machine to launch jobs from."""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
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
from tests.servers.gcs import gcs_bucket
from tests.servers.process import free_port, serving

PROJECT, REGION = "my-project", "us-central1"


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

    def run(self, *command: object, cwd: Path | None = None, timeout: int = 500) -> subprocess.CompletedProcess[str]:
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

    def get(self, path: str) -> dict[str, Any]:
        return self._answer(urllib.request.Request(self._address(path)))

    def post(self, body: bytes, region: str = REGION) -> dict[str, Any]:
        """Create a job; what is refused is `{"error": ...}`."""
        return self._answer(urllib.request.Request(self._address("", region), body, method="POST"))

    def _address(self, path: str, region: str = REGION) -> str:
        return f"{self.url}/v1b3/projects/{PROJECT}/locations/{region}/jobs{path}"

    def _answer(self, request: urllib.request.Request) -> dict[str, Any]:
        try:
            with urllib.request.urlopen(request) as answer:
                return dict(json.load(answer))
        except urllib.error.HTTPError as error:
            return dict(json.load(error))


@contextlib.contextmanager
def cloud(folder: Path, workers: int = 2) -> Iterator[Cloud]:
    """A service with a bucket, in `folder`; skips the test where the environment of dependencies is not installed."""
    if not (DEPENDENCIES / "installed").exists():
        missing = "the workers' environment is not installed: run `make .venv-dependencies/installed`"
        if "OWT_REQUIRE_SERVERS" in os.environ:
            pytest.fail(missing)
        pytest.skip(missing)
    ours = wheel()
    launcher = install(folder / "launcher", [ours]).parent
    port = free_port()
    url = f"http://127.0.0.1:{port}"
    command = [DEPENDENCIES / "bin/python", REPOSITORY / "tests/engines/dataflow.py", folder / "jobs", str(port)]
    with gcs_bucket() as bucket, serving([*command, f"--workers={workers}"], url):
        key = folder / "key.json"
        key.write_text(json.dumps(_credentials(f"{url}/token")))
        environment = bare(
            PATH=f"{launcher}:{os.environ['PATH']}",
            GOOGLE_APPLICATION_CREDENTIALS=str(key),
            GOOGLE_CLOUD_PROJECT=PROJECT,
            http_proxy=url,
            no_proxy="127.0.0.1,localhost",
        )
        yield Cloud(bucket, url, ours, launcher, environment)


def _credentials(token: str) -> dict[str, str]:
    """A service account's key, whose tokens the service gives."""
    key = rsa.generate_private_key(public_exponent=65537, key_size=2048)
    pem = key.private_bytes(serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption())
    return {
        "type": "service_account",
        "project_id": PROJECT,
        "client_email": f"launcher@{PROJECT}.iam.gserviceaccount.com",
        "private_key_id": "1",
        "private_key": pem.decode(),
        "token_uri": token,
    }
