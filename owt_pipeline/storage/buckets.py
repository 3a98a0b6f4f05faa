"""The clients of object stores: obstore for S3 and Azure, Google's own client for Google Cloud Storage.

For Google, obstore uses the XML API, which emulators of Google's storage lack. Both clients find credentials where the
services' other tools do.
"""

from __future__ import annotations

import configparser
import contextlib
import email
import functools
import os
import re
import time
import uuid
import warnings
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, Literal, TypeAlias, TypeVar

import pyarrow.fs

from owt_pipeline.errors import UserError

T = TypeVar("T")

PIECE_BYTES = 32 << 20
"""Size of an upload's pieces; each is one request, and two are in memory at once."""

REQUESTS_AT_ONCE = 16
_DELETED_TOGETHER = 100
"""The most objects that Google's storage deletes in one request."""


_NO_CREDENTIALS = ("//169.254.", "/meta-data/", "/latest/api/token", "Account must be specified")
"""Parts of error messages that mean: no credentials are set, and this machine gets none from a cloud."""


@dataclass(frozen=True)
class Failure:
    """The meaning of a client's exception."""

    kind: Literal["missing", "no bucket", "credentials", "refused", "network"]
    detail: str


class ObstoreBucket:
    """A bucket of S3, or a container of Azure. Versions of objects are etags.

    Methods raise the client's exceptions; `failure` gives their meaning.
    """

    def __init__(self, scheme: str, name: str, anonymous: bool, seconds: float):
        """The bucket; failing requests are retried for `seconds`."""
        try:
            from obstore.store import AzureStore, S3Store
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
        self._seconds = seconds
        if anonymous:
            options["skip_signature"] = True
        if scheme == "az":
            self._store: Any = AzureStore(name, **options)
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
        return int(self._insist(lambda: self._store.head(key))["size"])

    def read(self, key: str) -> tuple[bytes, str]:
        def get() -> tuple[bytes, str]:
            found = self._store.get(key)
            return bytes(found.bytes()), _etag(found.meta)

        return self._insist(get)

    def read_range(self, key: str, start: int, length: int) -> bytes:
        return bytes(self._insist(lambda: self._store.get_range(key, start=start, length=length)))

    def list(self, prefix: str, limit: int | None = None) -> Iterator[tuple[str, int, str]]:
        """Key, bytes and version of the objects whose keys begin with `prefix`."""
        folder, last = prefix.rpartition("/")[0], ""  # obstore lists folders only
        pages: Any = None

        def next_page() -> Sequence[Any]:
            nonlocal pages
            if pages is None:
                pages = iter(self._store.list(folder or None, offset=last or None, chunk_size=limit or 1000))
            try:
                return next(pages, [])
            except Exception:
                pages = None  # begins again after `last`
                raise

        while page := self._insist(next_page):
            for entry in page:
                if entry["path"].startswith(prefix):
                    yield entry["path"], entry["size"], _etag(entry)
            last = page[-1]["path"]

    def put(self, key: str, content: bytes) -> None:
        self._insist(lambda: self._store.put(key, content, use_multipart=False))

    def put_file(self, key: str, path: str) -> None:
        piece = max(PIECE_BYTES, os.path.getsize(path) // 9000)  # S3 allows 10,000 pieces

        def upload() -> None:
            with open(path, "rb") as file:
                self._store.put(key, file, chunk_size=piece, max_concurrency=2)

        self._insist(upload)

    def put_if(self, key: str, content: bytes, version: str | None, sync: bool = True) -> str | None:
        """Write if the object has this version (None: does not exist). Returns the new version, or None if not
        written."""
        from obstore import exceptions

        mode: Any = "create" if version is None else {"e_tag": f'"{version}"'}
        try:
            return self._insist(lambda: _etag(self._store.put(key, content, mode=mode, use_multipart=False)))
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
                self._insist(lambda: self._store.delete([*keys]))
        except FileNotFoundError as error:  # on Azure: one is missing, and the others may not be deleted yet
            if len(keys) == 1 or (failure := self.failure(error)) is None or failure.kind != "missing":
                raise
            for key in keys:
                with contextlib.suppress(FileNotFoundError):
                    self.delete([key])

    def _insist(self, request: Callable[[], T]) -> T:
        """Retry a request if the connection breaks. obstore does so for some requests and kinds of errors only, because
        the server may have carried it out. That does no harm here: a conditional write is then refused, as documented
        at `Storage.create`."""
        from obstore import exceptions

        end, wait = time.monotonic() + self._seconds, 0.1
        while True:
            try:
                return request()
            except exceptions.BaseError as error:  # "HTTP error" means that there was no answer
                if "HTTP error:" not in str(error) or time.monotonic() + wait > end:
                    raise
            time.sleep(wait)
            wait = min(2 * wait, 5.0, self._seconds / 4)


def _etag(answer: Any) -> str:
    """The etag without quotes, as in Azure's listings."""
    return str(answer["e_tag"]).strip('"')


def _s3_settings(bucket: str, anonymous: bool) -> dict[str, Any]:
    """The settings that obstore does not find by itself: S3's own endpoint, shared credential files, the region."""
    settings: dict[str, Any] = {}
    endpoint = os.environ.get("AWS_ENDPOINT_URL_S3") or os.environ.get("AWS_ENDPOINT_URL")
    if endpoint:
        settings["endpoint"] = endpoint
    profile = _aws_profile()
    region = os.environ.get("AWS_REGION") or os.environ.get("AWS_DEFAULT_REGION") or profile.get("region")
    if region is None and not endpoint:
        region = _region_of(bucket)
    if region:
        settings["region"] = region
    if not anonymous and "AWS_ACCESS_KEY_ID" not in os.environ and "aws_access_key_id" in profile:
        settings["access_key_id"] = profile["aws_access_key_id"]
        settings["secret_access_key"] = profile["aws_secret_access_key"]
        if "aws_session_token" in profile:
            settings["session_token"] = profile["aws_session_token"]
    return settings


@functools.cache
def _region_of(bucket: str) -> str | None:
    try:
        return str(pyarrow.fs.resolve_s3_region(bucket))
    except OSError:  # the first request will raise a clear error
        return None


def _aws_profile() -> dict[str, str]:
    """The settings of `AWS_PROFILE`, or of the default profile, in `~/.aws`."""
    profile = os.environ.get("AWS_PROFILE", "default")
    found: dict[str, str] = {}
    for variable, name, section in (
        ("AWS_CONFIG_FILE", "config", profile if profile == "default" else f"profile {profile}"),
        ("AWS_SHARED_CREDENTIALS_FILE", "credentials", profile),
    ):
        path = os.environ.get(variable) or os.path.expanduser(f"~/.aws/{name}")
        parser = configparser.RawConfigParser()
        with contextlib.suppress(configparser.Error):
            parser.read(path)
        if parser.has_section(section):
            found.update(parser[section])
    return found


class GoogleBucket:
    """A bucket of Google Cloud Storage, with the methods of `ObstoreBucket`. Versions of objects are generations."""

    def __init__(self, scheme: str, name: str, anonymous: bool, seconds: float):
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore", FutureWarning)  # about the end of support for Python 3.10
                import google.auth
                import google.cloud.storage as storage
                from google.auth.credentials import AnonymousCredentials
                from google.cloud.storage.retry import DEFAULT_RETRY
                from requests.adapters import HTTPAdapter
        except ImportError as error:
            raise UserError("gs:// needs Google's client: pip install google-cloud-storage requests") from error

        options: dict[str, Any] = {}
        if emulator := os.environ.get("STORAGE_EMULATOR_HOST"):
            anonymous = True
            address = emulator.rstrip("/")
            options["client_options"] = {"api_endpoint": address if "://" in address else f"http://{address}"}
        scopes = ["https://www.googleapis.com/auth/devstorage.read_write"]
        credentials: Any = AnonymousCredentials() if anonymous else google.auth.default(scopes)[0]
        # Otherwise the client asks for the bucket's location in a thread, even without tracing. That needs more
        # permissions than reading and writing objects.
        os.environ.setdefault("DISABLE_GCS_PYTHON_CLIENT_OTEL_BUCKET_METADATA", "true")
        client = storage.Client(project="none", credentials=credentials, **options)  # used to create buckets only
        for scheme_of_url in ("https://", "http://"):  # ten connections are kept by default
            client._http.mount(scheme_of_url, HTTPAdapter(pool_maxsize=REQUESTS_AT_ONCE))
        self._bucket = client.bucket(name)
        self._limits: dict[str, Any] = {
            "timeout": (min(10.0, seconds / 2), seconds),
            "retry": DEFAULT_RETRY.with_timeout(seconds),
        }

    @classmethod
    def failure(cls, error: Exception) -> Failure | None:
        try:
            from google.api_core import exceptions
            from google.auth import exceptions as auth
            from google.cloud.storage.exceptions import DataCorruption, InvalidResponse
            from requests import RequestException
        except ImportError:
            return None
        detail = str(error).partition("\n")[0]
        if isinstance(error, exceptions.NotFound):
            return Failure("no bucket" if "bucket does not exist" in str(error) else "missing", detail)
        if isinstance(error, exceptions.Forbidden | exceptions.Unauthorized | auth.RefreshError):
            return Failure("refused", detail)
        if isinstance(error, auth.DefaultCredentialsError):
            return Failure("credentials", "and this machine has none of its own")
        network = (exceptions.GoogleAPIError, auth.GoogleAuthError, DataCorruption, InvalidResponse, RequestException)
        return Failure("network", detail) if isinstance(error, network) else None

    def size(self, key: str) -> int:
        blob = self._bucket.blob(key)
        blob.reload(**self._limits)
        return int(blob.size)

    def read(self, key: str) -> tuple[bytes, str]:
        blob = self._bucket.blob(key)
        content = blob.download_as_bytes(raw_download=True, **self._limits)
        return content, str(blob.generation)

    def read_range(self, key: str, start: int, length: int) -> bytes:
        blob = self._bucket.blob(key)
        return bytes(blob.download_as_bytes(start=start, end=start + length - 1, raw_download=True, **self._limits))

    def list(self, prefix: str, limit: int | None = None) -> Iterator[tuple[str, int, str]]:
        fields = "items(name,size,generation),nextPageToken"
        for blob in self._bucket.list_blobs(prefix=prefix or None, max_results=limit, fields=fields, **self._limits):
            yield blob.name, int(blob.size), str(blob.generation)

    def put(self, key: str, content: bytes) -> None:
        self._bucket.blob(key).upload_from_string(content, "application/octet-stream", **self._limits)

    def put_file(self, key: str, path: str) -> None:
        self._bucket.blob(key, chunk_size=PIECE_BYTES).upload_from_filename(
            path, content_type="application/octet-stream", **self._limits
        )

    def put_if(self, key: str, content: bytes, version: str | None, sync: bool = True) -> str | None:
        from google.api_core.exceptions import PreconditionFailed

        blob = self._bucket.blob(key)
        try:
            blob.upload_from_string(
                content, "application/octet-stream", if_generation_match=int(version or 0), **self._limits
            )
        except PreconditionFailed:
            return None
        return str(blob.generation)

    def delete(self, keys: Sequence[str]) -> None:
        together = [keys[start : start + _DELETED_TOGETHER] for start in range(0, len(keys), _DELETED_TOGETHER)]
        with ThreadPoolExecutor(REQUESTS_AT_ONCE) as pool:
            left = [key for rest in pool.map(self._delete_together, together) for key in rest]
            list(pool.map(self._delete, left))

    def _delete_together(self, keys: Sequence[str]) -> Sequence[str]:
        """Delete objects with one request (https://cloud.google.com/storage/docs/batch; the client's own batches lack
        ids that the emulator needs). Returns the keys of objects that may not be deleted."""
        from requests import RequestException

        if len(keys) == 1:
            return keys
        client, boundary = self._bucket.client, uuid.uuid4().hex
        parts = (
            f"--{boundary}\r\nContent-Type: application/http\r\nContent-ID: <{number}>\r\n\r\n"
            f"DELETE /storage/v1{self._bucket.blob(key).path} HTTP/1.1\r\n\r\n\r\n"
            for number, key in enumerate(keys)
        )
        try:
            answer = client._http.post(
                f"{client._connection.API_BASE_URL}/batch/storage/v1",
                f"{''.join(parts)}--{boundary}--\r\n",
                headers={"Content-Type": f"multipart/mixed; boundary={boundary}"},
                timeout=self._limits["timeout"],
            )
        except RequestException:
            return keys
        head = f"Content-Type: {answer.headers.get('Content-Type', '')}\r\n\r\n".encode()
        deleted = set()
        for part in email.message_from_bytes(head + answer.content).walk():
            number = re.fullmatch(r"<response-(\d+)>", part.get("Content-ID", ""))
            if number and re.match(r"HTTP/[\d.]+ (2\d\d|404) ", str(part.get_payload())):
                deleted.add(int(number[1]))
        return [key for number, key in enumerate(keys) if number not in deleted]

    def _delete(self, key: str) -> None:
        from google.api_core.exceptions import NotFound

        with contextlib.suppress(NotFound):
            self._bucket.blob(key).delete(**self._limits)


Bucket: TypeAlias = ObstoreBucket | GoogleBucket
