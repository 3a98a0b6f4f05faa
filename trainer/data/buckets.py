"""Buckets (`s3://`, `gs://`), opened by pyarrow with the credentials of each vendor's clients."""

from __future__ import annotations

import os
from datetime import datetime, timedelta, timezone

import pyarrow.fs

# Google's client would retry for 15 minutes, also where there are no credentials.
_MAX_RETRYING = timedelta(seconds=45)
_MAX_CHARACTERS = 240  # of a client's error


def why_not(error: Exception) -> str:
    """Return the error of a bucket's client in one line, and what to check."""
    message = " ".join(str(error).split())[:_MAX_CHARACTERS]
    return f"{message}; check the bucket's name, the network and the credentials"


def open_bucket(uri: str) -> tuple[pyarrow.fs.FileSystem, str]:
    """Return the file system of a `gs://` or `s3://` URI, and the path in it.

    One request shows that it can be reached. `s3://anonymous@BUCKET` and `gs://anonymous@BUCKET`
    need no credentials. `GOOGLE_BASE_URL` names another server for `gs://`, with
    `GOOGLE_BEARER_TOKEN` as its token, and `AWS_ENDPOINT_URL` one for `s3://`, as for the pipeline.
    Raises pyarrow.ArrowInvalid for an invalid URI; OSError if access is refused, or if there is no
    response within two minutes.
    """
    scheme, _, path = uri.partition("://")
    bucket_path = path.removeprefix("anonymous@")
    is_anonymous = bucket_path != path
    if scheme == "gs":
        filesystem = _open_google(is_anonymous)
    elif is_anonymous:
        # Arrow's URIs cannot express this one.
        endpoint = os.environ.get("AWS_ENDPOINT_URL_S3") or os.environ.get("AWS_ENDPOINT_URL")
        region = None
        if not endpoint:
            region = pyarrow.fs.resolve_s3_region(bucket_path.partition("/")[0])
        filesystem = pyarrow.fs.S3FileSystem(
            anonymous=True, endpoint_override=endpoint, region=region
        )
    else:
        filesystem, bucket_path = pyarrow.fs.FileSystem.from_uri(uri)
    filesystem.get_file_info(bucket_path)
    return filesystem, bucket_path


def _open_google(is_anonymous: bool) -> pyarrow.fs.GcsFileSystem:
    """Return Google's file system, or that of the server that the environment names."""
    scheme, _, host = os.environ.get("GOOGLE_BASE_URL", "").rpartition("://")
    token = None
    expiration = None
    if host and not is_anonymous:
        token = os.environ.get("GOOGLE_BEARER_TOKEN")
    if token:
        # pyarrow asks when the token expires; the server decides.
        expiration = datetime.now(timezone.utc) + timedelta(days=365)
    return pyarrow.fs.GcsFileSystem(
        anonymous=is_anonymous,
        access_token=token,
        credential_token_expiration=expiration,
        scheme=(scheme or "http") if host else None,
        endpoint_override=host.strip("/") or None,
        retry_time_limit=_MAX_RETRYING,
    )
