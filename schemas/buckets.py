"""Buckets, as `owt` writes them and the trainer reads them."""

from __future__ import annotations

import os
from datetime import timedelta

import pyarrow.fs

_RETRY = timedelta(seconds=60)
"""How long a request to Google's storage is retried: Arrow's 15 minutes are also those until missing credentials are
an error."""


def open_bucket(uri: str) -> tuple[pyarrow.fs.FileSystem, str]:
    """The file system of a `gs://` or `s3://` URI, and the path in it.

    Credentials and endpoints are found as the clients of either find them. `STORAGE_EMULATOR_HOST` (`host:port`, or a
    URL) names another server for `gs://`, to be used without credentials; `AWS_ENDPOINT_URL` one for `s3://`.

    Raises pyarrow.ArrowInvalid for a URI that is none.
    """
    filesystem, path = pyarrow.fs.FileSystem.from_uri(uri)
    if not uri.startswith("gs://"):
        return filesystem, path
    emulator = os.environ.get("STORAGE_EMULATOR_HOST")
    if emulator:
        scheme, _, host = emulator.rpartition("://")
        filesystem = pyarrow.fs.GcsFileSystem(
            anonymous=True, scheme=scheme or "http", endpoint_override=host.rstrip("/"), retry_time_limit=_RETRY
        )
    elif not uri.startswith("gs://anonymous@"):
        filesystem = pyarrow.fs.GcsFileSystem(retry_time_limit=_RETRY)
    return filesystem, path
