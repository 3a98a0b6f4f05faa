"""moto: S3 on loopback."""

from __future__ import annotations

import contextlib
import os
import urllib.request
from collections.abc import Iterator

import pytest

from tests.servers.process import free_port, program, serving


@contextlib.contextmanager
def s3_bucket(name: str = "bucket", checks_keys: bool = False) -> Iterator[str]:
    """Serve an empty bucket, which each S3 client of this process finds; yields its URI.

    With `checks_keys`, the server refuses keys that it has not issued, such as the ones set here.
    Skips the test where moto is not installed.
    """
    port = free_port()
    url = f"http://127.0.0.1:{port}"
    environment = {
        "AWS_ENDPOINT_URL": url,
        "AWS_ACCESS_KEY_ID": "test",
        "AWS_SECRET_ACCESS_KEY": "test",
        "AWS_DEFAULT_REGION": "us-east-1",
        "AWS_EC2_METADATA_DISABLED": "true",
    }
    server = [program("moto_server"), "-H", "127.0.0.1", "-p", str(port)]
    settings = {"INITIAL_NO_AUTH_ACTION_COUNT": "1"} if checks_keys else {}
    with (
        serving(server, f"{url}/moto-api/", {**os.environ, **settings}),
        pytest.MonkeyPatch.context() as patch,
    ):
        for key, value in environment.items():
            patch.setenv(key, value)
        urllib.request.urlopen(urllib.request.Request(f"{url}/{name}", method="PUT")).close()
        yield f"s3://{name}"
