"""Azurite: Azure's blob storage on loopback."""

from __future__ import annotations

import base64
import contextlib
import hashlib
import hmac
import urllib.request
from collections.abc import Iterator
from email.utils import formatdate

import pytest

from tests.servers.process import free_port, program, serving

ACCOUNT = "devstoreaccount1"
# Azurite has the same account and key everywhere.
KEY = "Eby8vdM02xNOcqFlqUwJPLlmEtlCDXJ1OUzFT50uSRZ6IFsuFq2UVErCz4I6tq/K1SZFPTOtr/KBHBeksoGMGw=="


@contextlib.contextmanager
def az_bucket(name: str = "bucket") -> Iterator[str]:
    """Serve an empty container, which obstore finds in this process; yields its URI.

    Skips the test without Azurite.
    """
    azurite = program("azurite-blob", "node_modules/.bin")
    port = free_port()
    flags = ["--blobHost=127.0.0.1", f"--blobPort={port}", "--inMemoryPersistence", "--silent"]
    flags += ["--skipApiVersionCheck", "--disableTelemetry"]
    url = f"http://127.0.0.1:{port}/{ACCOUNT}"
    with serving([azurite, *flags], url), pytest.MonkeyPatch.context() as patch:
        patch.setenv("AZURE_STORAGE_ACCOUNT_NAME", ACCOUNT)
        patch.setenv("AZURE_STORAGE_ACCOUNT_KEY", KEY)
        patch.setenv("AZURE_STORAGE_ENDPOINT", url)
        _make_container(url, name)
        yield f"az://{name}"


def _make_container(url: str, name: str) -> None:
    date = formatdate(usegmt=True)
    version = "2021-08-06"
    resource = [
        f"x-ms-date:{date}",
        f"x-ms-version:{version}",
        f"/{ACCOUNT}/{ACCOUNT}/{name}",
        "restype:container",
    ]
    signed = "\n".join(["PUT", *[""] * 11, *resource])
    signature = base64.b64encode(
        hmac.digest(base64.b64decode(KEY), signed.encode(), hashlib.sha256)
    ).decode()
    headers = {
        "x-ms-date": date,
        "x-ms-version": version,
        "Authorization": f"SharedKey {ACCOUNT}:{signature}",
    }
    address = f"{url}/{name}?restype=container"
    urllib.request.urlopen(urllib.request.Request(address, None, headers, method="PUT")).close()
