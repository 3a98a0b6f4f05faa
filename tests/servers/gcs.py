"""fake-gcs-server: Google Cloud Storage on loopback."""

from __future__ import annotations

import contextlib
import json
import urllib.request
from collections.abc import Iterator

import pytest

from tests.servers.process import free_port, program, serving


@contextlib.contextmanager
def gcs_bucket(name: str = "bucket") -> Iterator[str]:
    """The URI of an empty bucket, which every client of this process finds; skips without fake-gcs-server."""
    port = free_port()
    url = f"http://127.0.0.1:{port}"
    flags = ["-scheme=http", "-host=127.0.0.1", f"-port={port}", "-backend=memory", "-log-level=error"]
    addresses = [f"-external-url={url}", f"-public-host=127.0.0.1:{port}"]
    with (
        serving([program("fake-gcs-server"), *flags, *addresses], f"{url}/storage/v1/b"),
        pytest.MonkeyPatch.context() as patch,
    ):
        patch.setenv("STORAGE_EMULATOR_HOST", url)
        make = urllib.request.Request(
            f"{url}/storage/v1/b?project=test",
            json.dumps({"name": name}).encode(),
            {"Content-Type": "application/json"},
        )
        urllib.request.urlopen(make).close()
        yield f"gs://{name}"
