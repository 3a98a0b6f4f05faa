"""The client of object stores: obstore, for S3, Google Cloud Storage and Azure.

It finds credentials where the services' other tools do, and retries requests by itself.
"""

from __future__ import annotations

import contextlib
import functools
import json
import os
import re
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, Literal

import pyarrow.fs

from owt_pipeline.errors import UserError

PIECE_BYTES = 32 << 20
"""Size of an upload's pieces; each is one request, and two are in memory at once."""

REQUESTS_AT_ONCE = 16

_NO_CREDENTIALS = ("//169.254.", "//metadata", "/meta-data/", "/latest/api/token", "Account must be specified")
"""Parts of error messages that mean: no credentials are set, and this machine gets none from a cloud."""


@dataclass(frozen=True)
class Failure:
    """The meaning of a client's exception."""

    kind: Literal["missing", "no bucket", "credentials", "refused", "network"]
    detail: str


class Bucket:
    """A bucket of S3 or Google, or a container of Azure.

    Versions of objects are etags; on Google, generations, except in listings. Methods raise the client's exceptions;
    `failure` gives their meaning.
    """

    def __init__(self, scheme: str, name: str, anonymous: bool, seconds: float):
        """The bucket; failing requests are retried for `seconds`."""
        try:
            from obstore.store import AzureStore, GCSStore, S3Store
        except ImportError as error:
            raise UserError(f"{scheme}:// needs obstore: pip install obstore") from error

        options: dict[str, Any] = {
            "retry_config": {
                "max_retries": 50,
                "retry_timeout": timedelta(seconds=seconds),
                "backoff": {
                    "init_backoff": timedelta(milliseconds=100),
                    "max_backoff": timedelta(seconds=min(5.0, seconds / 4)),
                    "base": 2,
                },
            },
            "client_options": {
                "connect_timeout": timedelta(seconds=min(10.0, seconds / 2)),
                "timeout": timedelta(seconds=seconds),
                "allow_http": True,
            },
        }
        if anonymous:
            options["skip_signature"] = True
        self._seconds = seconds
        self._of_version = "version" if scheme == "gs" else "e_tag"
        self._store: Any
        if scheme == "az":
            self._store = AzureStore(name, **options)
        elif scheme == "gs":
            self._store = GCSStore(name, **_google_settings(), **options)
        else:
            self._store = S3Store(name, **_s3_settings(name, anonymous), **options)

    @classmethod
    def failure(cls, error: Exception) -> Failure | None:
        """The meaning of an exception, or None if it is not the client's."""
        from obstore import exceptions

        if not isinstance(error, exceptions.BaseError | FileNotFoundError):
            return None
        text = str(error)
        message = re.search(r"<Message>([^<]*)", text)  # of an answer in XML; otherwise at the end of the first line
        detail = message[1] if message else text.partition("\n")[0].rpartition(" - ")[2]
        if "NoSuchBucket" in text or "ContainerNotFound" in text:
            return Failure("no bucket", detail)
        if isinstance(error, FileNotFoundError):
            return Failure("missing", detail)
        if any(sign in text for sign in _NO_CREDENTIALS):
            return Failure("credentials", "and this machine has none of its own")
        if re.search("status code: 40[13]", text):  # a listing raises it as a generic error
            return Failure("refused", detail)
        return Failure("network", detail)

    def size(self, key: str) -> int:
        return int(self._store.head(key)["size"])

    def read(self, key: str) -> tuple[bytes, str]:
        found = self._store.get(key)
        return bytes(found.bytes()), self._version(found.meta)

    def read_range(self, key: str, start: int, length: int) -> bytes:
        return bytes(self._store.get_range(key, start=start, length=length))

    def list(self, prefix: str, limit: int | None = None) -> Iterator[tuple[str, int, str, float]]:
        """Key, bytes, version and time of the objects whose keys begin with `prefix`."""
        folder = prefix.rpartition("/")[0]  # obstore lists folders only
        for page in self._store.list(folder or None, chunk_size=limit or 1000):
            for entry in page:
                if entry["path"].startswith(prefix):
                    etag = str(entry["e_tag"]).strip('"')
                    yield entry["path"], entry["size"], etag, entry["last_modified"].timestamp()

    def put(self, key: str, content: bytes) -> None:
        self._store.put(key, content, use_multipart=False)

    def put_file(self, key: str, path: str) -> None:
        piece = max(PIECE_BYTES, os.path.getsize(path) // 9000)  # S3 allows 10,000 pieces
        with open(path, "rb") as file:
            self._store.put(key, file, chunk_size=piece, max_concurrency=2)

    def put_if(self, key: str, content: bytes, version: str | None, sync: bool = True) -> str | None:
        """Write if the object has this version (None: does not exist). Returns the new version, or None if not
        written."""
        from obstore import exceptions

        known = {"version": version} if self._of_version == "version" else {"e_tag": f'"{version}"'}
        mode: Any = "create" if version is None else known
        try:
            return self._version(self._retried(lambda: self._store.put(key, content, mode=mode, use_multipart=False)))
        except (exceptions.AlreadyExistsError, exceptions.PreconditionError):
            return None
        except FileNotFoundError as error:
            failure = self.failure(error)
            if version is not None and failure and failure.kind == "missing":
                return None
            raise

    def delete(self, keys: Sequence[str]) -> None:
        """Delete objects; a missing one is no error."""
        try:
            if keys:
                self._retried(lambda: self._store.delete([*keys]))
        except FileNotFoundError as error:  # on Azure and Google: one is missing, and the others may not be deleted yet
            if len(keys) == 1 or (failure := self.failure(error)) is None or failure.kind != "missing":
                raise
            for key in keys:
                with contextlib.suppress(FileNotFoundError):
                    self.delete([key])

    def _retried(self, request: Callable[[], Any]) -> Any:
        """The answer to a conditional write or a deletion, which obstore does not retry where there was no answer.

        The server may have carried it out. Here, a second write is then refused, as documented at `Storage.create`.
        """
        from obstore import exceptions

        end, wait = time.monotonic() + self._seconds, 0.1
        while True:
            try:
                return request()
            except exceptions.BaseError as error:
                if "HTTP error:" not in str(error) or time.monotonic() + wait > end:
                    raise
            time.sleep(wait)
            wait = min(2 * wait, 5.0, self._seconds / 4)

    def _version(self, answer: Any) -> str:
        return str(answer[self._of_version]).strip('"')  # in Azure's listings, an etag has no quotes


def _google_settings() -> dict[str, Any]:
    """An emulator's address, which needs no credentials."""
    if not (emulator := os.environ.get("STORAGE_EMULATOR_HOST")):
        return {}
    address = emulator if "://" in emulator else f"http://{emulator}"
    account = dict.fromkeys(("client_email", "private_key", "private_key_id"), "")
    return {"service_account_key": json.dumps({"gcs_base_url": address.rstrip("/"), "disable_oauth": True, **account})}


def _s3_settings(bucket: str, anonymous: bool) -> dict[str, Any]:
    """What obstore does not find by itself: S3's own endpoint, the region, and the keys of a profile."""
    settings: dict[str, Any] = {}
    endpoint = os.environ.get("AWS_ENDPOINT_URL_S3") or os.environ.get("AWS_ENDPOINT_URL")
    region = os.environ.get("AWS_REGION") or os.environ.get("AWS_DEFAULT_REGION")
    if endpoint:
        settings["endpoint"] = endpoint
    if os.environ.get("AWS_PROFILE") and not anonymous:
        try:
            from obstore.auth.boto3 import Boto3CredentialProvider
        except ImportError as error:
            raise UserError("AWS_PROFILE needs boto3, which reads ~/.aws: pip install boto3") from error
        settings["credential_provider"] = Boto3CredentialProvider()
        region = region or settings["credential_provider"].config.get("region")
    if region is None and not endpoint:
        region = _region_of(bucket)
    if region:
        settings["region"] = region
    return settings


@functools.cache
def _region_of(bucket: str) -> str | None:
    try:
        return str(pyarrow.fs.resolve_s3_region(bucket))
    except OSError:  # the first request will raise a clear error
        return None
