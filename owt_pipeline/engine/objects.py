"""A folder in a bucket, as Storage uses it.

Every write makes a complete object or none. Requests that fail because of the network or the server are made again for
two minutes; only the first one that a process makes to a bucket has seven seconds in all, so that a run without
credentials or with a wrong address ends at once.
"""

from __future__ import annotations

import contextlib
import errno
import io
import os
import tempfile
import threading
from collections.abc import Callable, Iterator, Sequence
from typing import Any
from urllib.parse import urlsplit

import pyarrow as pa

from owt_pipeline.engine.bucket_clients import Bucket, Failure, GoogleBucket, ObstoreBucket
from owt_pipeline.engine.errors import UserError

_FIRST_SECONDS = 7.0
_RETRY_SECONDS = 120.0
_READ_AHEAD_BYTES = 1 << 20

_ENVIRONMENT = ("AWS_", "AZURE_", "GOOGLE_", "CLOUDSDK_", "STORAGE_EMULATOR_HOST", "HOME")
"""Beginnings of the variables that a client depends on: when one changes, a bucket gets a new client."""

_buckets: dict[tuple[Any, ...], Bucket] = {}  # of this process, so that connections are used again
_connecting = threading.Lock()

_CREDENTIALS = {
    "s3": "set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, or AWS_PROFILE",
    "gs": "run `gcloud auth application-default login`, or set GOOGLE_APPLICATION_CREDENTIALS",
    "az": "set AZURE_STORAGE_ACCOUNT_NAME and AZURE_STORAGE_ACCOUNT_KEY",
}
_ADDRESS = {"s3": "AWS_ENDPOINT_URL", "gs": "STORAGE_EMULATOR_HOST", "az": "AZURE_STORAGE_ENDPOINT"}


class Objects:
    """The objects below a folder of a bucket (`gs://`, `s3://`, `az://`); names are relative to it."""

    def __init__(self, uri: str, proven: bool = False):
        """The folder at `uri`; `proven` where another process has reached the bucket already."""
        parts = urlsplit(uri)
        self.uri = uri
        self.spool_folder = os.path.join(tempfile.gettempdir(), f"owt-{os.getuid()}")
        self._scheme, self._place, self._proven = parts.scheme, parts.netloc, proven
        self._kind: type[Bucket] = GoogleBucket if parts.scheme == "gs" else ObstoreBucket
        self._prefix = f"{parts.path.strip('/')}/" if parts.path.strip("/") else ""
        if not parts.netloc.rpartition("@")[2]:
            raise UserError(f"{uri} names no bucket: write {parts.scheme}://BUCKET/FOLDER")

    def open(self, name: str) -> pa.NativeFile:
        size = self.size(name)
        return pa.PythonFile(io.BufferedReader(_Ranges(self, name, size), _READ_AHEAD_BYTES), mode="r")

    def read_range(self, name: str, start: int, length: int) -> bytes:
        with self._request(name) as (bucket, key):
            return bucket.read_range(key, start, length) if length > 0 else b""

    def read_version(self, name: str) -> tuple[bytes, str] | None:
        with contextlib.suppress(FileNotFoundError), self._request(name) as (bucket, key):
            return bucket.read(key)
        return None

    def exists(self, name: str) -> bool:
        if name and not name.endswith("/"):
            with contextlib.suppress(FileNotFoundError):
                self.size(name)
                return True
        with self._request(name) as (bucket, key):
            return next(bucket.list(f"{key.rstrip('/')}/" if key else "", 1), None) is not None

    def size(self, name: str) -> int:
        with self._request(name) as (bucket, key):
            return bucket.size(key)

    def list(self, prefix: str) -> Iterator[tuple[str, int, str]]:
        """Name, bytes and version of each object."""
        with self._request(prefix) as (bucket, key):
            for found, size, version in bucket.list(key):
                if not found.endswith("/"):  # an empty object by which a console shows a folder
                    yield found[len(self._prefix) :], size, version

    def put_file(self, path: str, name: str) -> None:
        with self._request(name) as (bucket, key):
            bucket.put_file(key, path)

    def put(self, name: str, content: bytes) -> None:
        with self._request(name) as (bucket, key):
            bucket.put(key, content)

    def create(self, name: str, content: bytes) -> bool:
        with self._request(name) as (bucket, key):
            return bucket.put_if(key, content, None) is not None

    def swap(self, name: str, content: bytes, version: str) -> str | None:
        with self._request(name) as (bucket, key):
            return bucket.put_if(key, content, version)

    def delete(self, names: Sequence[str]) -> None:
        if names:
            with contextlib.suppress(FileNotFoundError), self._request(names[0]) as (bucket, _):
                bucket.delete([self._prefix + name for name in names])

    def delete_all(self) -> None:
        with self._request("") as (bucket, _):
            bucket.delete([key for key, _, _ in bucket.list(self._prefix)])

    @contextlib.contextmanager
    def _request(self, name: str) -> Iterator[tuple[Bucket, str]]:
        """The bucket's client and the object's key; what the client raises becomes an error of ours."""
        key = self._prefix + name
        bucket = self._connected(key)
        try:
            yield bucket, key
        except Exception as error:
            if (failure := bucket.failure(error)) is None:
                raise
            raise _explained(f"{self._scheme}://{self._place}/{key}", failure, first=False) from error

    def _connected(self, key: str) -> Bucket:
        environment = tuple(sorted(item for item in os.environ.items() if item[0].startswith(_ENVIRONMENT)))
        identity = (os.getpid(), self._scheme, self._place, environment)
        with _connecting:
            if identity not in _buckets:
                if not self._proven:
                    self._prove(key)
                _buckets[identity] = self._client(_RETRY_SECONDS)
            return _buckets[identity]

    def _client(self, seconds: float) -> Bucket:
        user, _, name = self._place.rpartition("@")
        return self._kind(self._scheme, name, user == "anonymous", seconds)

    def _prove(self, key: str) -> None:
        """Make one small request to the bucket; raises UserError where that fails or takes over seven seconds."""
        try:
            _within_limit(lambda: _ask(self._client(_FIRST_SECONDS * 0.6), key))
        except Exception as error:
            slow = (
                Failure("network", f"no answer in {_FIRST_SECONDS:.0f} s") if isinstance(error, TimeoutError) else None
            )
            if (failure := slow or self._kind.failure(error)) is None:
                raise
            if failure.kind == "missing":  # a listing's; that the object is missing is no failure
                failure = Failure("no bucket", failure.detail)
            raise _explained(f"{self._scheme}://{self._place}", failure, first=True) from error


def _ask(bucket: Bucket, key: str) -> None:
    if key and not key.endswith("/"):
        try:
            bucket.size(key)
            return
        except Exception as error:
            failure = bucket.failure(error)
            if failure is None or failure.kind != "missing":
                raise
    # Is the object missing or the bucket? Only a listing shows which.
    next(bucket.list(key.rpartition("/")[0], 1), None)


def _within_limit(call: Callable[[], None]) -> None:
    """Call in a thread: neither a name server nor a metadata server may hold the user up for longer."""
    failures: list[Exception] = []

    def run() -> None:
        try:
            call()
        except Exception as error:
            failures.append(error)

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    thread.join(_FIRST_SECONDS)
    if thread.is_alive():
        raise TimeoutError
    for error in failures:
        raise error


def _explained(uri: str, failure: Failure, first: bool) -> Exception:
    scheme = urlsplit(uri).scheme
    match failure.kind:
        case "missing":
            return FileNotFoundError(errno.ENOENT, "No such file or directory", uri)
        case "no bucket":
            return UserError(f"{uri}: there is no such bucket: check its name, or make it")
        case "credentials":
            return UserError(f"{uri}: no credentials found: {_CREDENTIALS[scheme]} ({failure.detail})")
        case "refused":
            return UserError(f"{uri}: the credentials do not give access: {failure.detail}")
    if first:
        return UserError(f"{uri}: no connection: {failure.detail}; check the network and {_ADDRESS[scheme]}")
    return OSError(errno.EIO, f"no answer from the bucket: {failure.detail}", uri)


class _Ranges(io.RawIOBase):
    """An object as a file; each read is a request."""

    def __init__(self, objects: Objects, name: str, size: int):
        self._objects, self._name, self._size, self._position = objects, name, size, 0

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        self._position = offset + {io.SEEK_SET: 0, io.SEEK_CUR: self._position, io.SEEK_END: self._size}[whence]
        return self._position

    def readinto(self, buffer: Any) -> int:
        length = max(0, min(len(buffer), self._size - self._position))
        buffer[:length] = self._objects.read_range(self._name, self._position, length)
        self._position += length
        return length
