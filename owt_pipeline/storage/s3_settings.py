"""Settings of S3 buckets that their client, obstore, does not find by itself."""

from __future__ import annotations

import functools
import os
from typing import Any

import pyarrow.fs

from owt_pipeline.errors import UserError


def s3_settings(bucket: str, anonymous: bool) -> dict[str, Any]:
    """Return the settings that obstore does not find: an endpoint, the region, a profile's keys."""
    settings: dict[str, Any] = {}
    endpoint = os.environ.get("AWS_ENDPOINT_URL_S3") or os.environ.get("AWS_ENDPOINT_URL")
    region = os.environ.get("AWS_REGION") or os.environ.get("AWS_DEFAULT_REGION")
    if endpoint:
        settings["endpoint"] = endpoint
    if os.environ.get("AWS_PROFILE") and not anonymous:
        try:
            from obstore.auth.boto3 import Boto3CredentialProvider
        except ImportError as error:
            raise UserError(
                "AWS_PROFILE needs boto3, which reads ~/.aws: pip install boto3"
            ) from error
        settings["credential_provider"] = Boto3CredentialProvider()
        region = region or settings["credential_provider"].config.get("region")
    if region is None and not endpoint:
        region = _region_of(bucket)
    if region:
        settings["region"] = region
    return settings


@functools.cache
def _region_of(bucket: str) -> str | None:
    """Return the region of a bucket of S3; None if it cannot be found."""
    try:
        return str(pyarrow.fs.resolve_s3_region(bucket))
    except OSError:
        # The first request will raise a clear error.
        return None
