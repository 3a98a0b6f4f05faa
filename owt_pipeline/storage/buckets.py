"""Read and write folders in buckets, for `Storage`, and explain the errors of their client.

The client is obstore, for S3, Google Cloud Storage and Azure. It finds credentials where the
services' other tools do, and retries requests by itself. A folder on a web server is read the same
way, by requests for ranges of bytes.
"""

from __future__ import annotations

import concurrent.futures
import contextlib
import errno
import importlib.util
import io
import os
import re
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, Literal, TypeVar
from urllib.parse import urlsplit

import pyarrow as pa

from owt_pipeline.errors import UserError
from owt_pipeline.storage.s3_settings import s3_settings

_Answer = TypeVar("_Answer")

PIECE_BYTES = 32 << 20
"""Size of an upload's pieces. Each is one request, and two are in memory at once."""

REQUESTS_AT_ONCE = 16
_READ_AHEAD_BYTES = 1 << 20

# Parts of error messages for a machine without credentials, neither set nor given by a cloud.
_NO_CREDENTIALS = (
    "//169.254.",
    "//metadata",
    "/meta-data/",
    "/latest/api/token",
    "Account must be specified",
)

# Seconds for which a process's first request is tried, and each later request.
_FIRST_SECONDS = 7.0
_RETRY_SECONDS = 120.0

# Seconds for which a request that a web server refuses is tried. Common Crawl's server answers 403
# if requests come too fast.
_REFUSED_SECONDS = 300.0

# Prefixes of the variables that a client depends on. If one changes, a bucket gets a new client.
_ENVIRONMENT = ("AWS_", "AZURE_", "GOOGLE_", "CLOUDSDK_", "HOME")

# One client per bucket and process, so that connections are reused.
_stores: dict[tuple[Any, ...], Any] = {}
_connecting = threading.Lock()

_CREDENTIALS = {
    "s3": "set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, or AWS_PROFILE",
    "gs": "run `gcloud auth application-default login`, or set GOOGLE_APPLICATION_CREDENTIALS",
    "az": "set AZURE_STORAGE_ACCOUNT_NAME and AZURE_STORAGE_ACCOUNT_KEY",
}
_ADDRESS = {"s3": "AWS_ENDPOINT_URL", "gs": "GOOGLE_BASE_URL", "az": "AZURE_STORAGE_ENDPOINT"}


class Bucket:
    """The objects below a folder (`gs://`, `s3://`, `az://`), with the methods of `Disk`.

    Names are relative to the folder. Objects on a web server (`http://`, `https://`) can be read,
    but not listed or written. Versions of objects are etags, or generations on Google. Errors of
    obstore are turned into the errors that `Storage` raises.

    Attributes:
      spool_folder: local folder of files that are to be uploaded.
    """

    def __init__(self, uri: str, proven: bool = False):
        """Open the folder at `uri`; `proven` if another process has reached its bucket already."""
        parts = urlsplit(uri)
        self.spool_folder = os.path.join(tempfile.gettempdir(), f"owt-{os.getuid()}")
        self._scheme = parts.scheme
        self._place = parts.netloc
        self._proven = proven
        folder = parts.path.strip("/")
        self._prefix = f"{folder}/" if folder else ""
        self._of_version = "version" if parts.scheme == "gs" else "e_tag"
        if not parts.netloc.rpartition("@")[2]:
            raise UserError(f"{uri} names no bucket: write {parts.scheme}://BUCKET/FOLDER")
        if importlib.util.find_spec("obstore") is None:
            raise UserError(f"{parts.scheme}:// needs obstore: pip install obstore")

    def open(self, name: str) -> pa.NativeFile:
        return pa.PythonFile(
            io.BufferedReader(_Ranges(self, name, self.size(name)), _READ_AHEAD_BYTES), mode="r"
        )

    def exists(self, name: str) -> bool:
        if name and not name.endswith("/"):
            with contextlib.suppress(FileNotFoundError):
                self.size(name)
                return True
        return next(self.list(f"{name.rstrip('/')}/" if name else "", 1), None) is not None

    def size(self, name: str) -> int:
        with self._request(name) as (store, key):
            return int(self._asked(lambda: store.head(key))["size"])

    def read(self, name: str) -> tuple[bytes, str]:
        with self._request(name) as (store, key):
            found = self._asked(lambda: store.get(key))
            return bytes(found.bytes()), self._version(found.meta)

    def read_range(self, name: str, start: int, length: int) -> bytes:
        with self._request(name) as (store, key):
            return bytes(self._asked(lambda: store.get_range(key, start=start, length=length)))

    def list(self, prefix: str, limit: int = 1000) -> Iterator[tuple[str, int, float]]:
        """Yield name, bytes and time of the objects whose names begin with `prefix`."""
        with self._request(prefix) as (store, key):
            # obstore lists only folders.
            folder = key.rpartition("/")[0]
            for page in store.list(folder or None, chunk_size=limit):
                for entry in page:
                    name = entry["path"]
                    # A console shows an empty folder by an object with this name.
                    if name.startswith(key) and not name.endswith("/"):
                        yield (
                            name[len(self._prefix) :],
                            entry["size"],
                            entry["last_modified"].timestamp(),
                        )

    def put(self, name: str, content: bytes) -> None:
        with self._request(name) as (store, key):
            store.put(key, content, use_multipart=False)

    def put_file(self, name: str, path: str) -> None:
        piece = max(PIECE_BYTES, os.path.getsize(path) // 9000)  # S3 allows 10,000 pieces
        with self._request(name) as (store, key), open(path, "rb") as file:
            store.put(key, file, chunk_size=piece, max_concurrency=2)

    def put_if(self, name: str, content: bytes, version: str | None) -> str | None:
        """Write if the object has this version, or with None if it is missing.

        Returns the new version, or None if nothing was written. S3 also refuses a write while
        another one of the object is under way, and that one may fail. So the write is repeated for
        as long as the object is as it was.
        """
        end = time.monotonic() + _RETRY_SECONDS
        wait = 0.1
        while (new_version := self._try_put_if(name, content, version)) is None:
            if self._current_version(name) != version or time.monotonic() + wait > end:
                return None
            time.sleep(wait)
            wait = min(2 * wait, 5.0)
        return new_version

    def _try_put_if(self, name: str, content: bytes, version: str | None) -> str | None:
        from obstore import exceptions

        known = {"version": version} if self._of_version == "version" else {"e_tag": f'"{version}"'}
        mode: Any = "create" if version is None else known
        try:
            with self._request(name) as (store, key):
                try:
                    return self._version(
                        _retried(lambda: store.put(key, content, mode=mode, use_multipart=False))
                    )
                except (exceptions.AlreadyExistsError, exceptions.PreconditionError):
                    return None
        except FileNotFoundError:
            if version is None:
                raise
            return None

    def _current_version(self, name: str) -> str | None:
        """Return the version of an object; None if it is missing."""
        with contextlib.suppress(FileNotFoundError), self._request(name) as (store, key):
            return self._version(store.head(key))
        return None

    def delete(self, names: Sequence[str]) -> None:
        """Delete objects. Missing objects are ignored."""
        try:
            with self._request("") as (store, folder):
                _retried(lambda: store.delete([folder + name for name in names]))
        except FileNotFoundError:
            # On Azure and Google, one object is missing, and others may not be deleted yet.
            for name in names if len(names) > 1 else ():
                self.delete([name])

    def _asked(self, request: Callable[[], _Answer]) -> _Answer:
        """Return the answer to a request for reading."""
        if self._scheme in _CREDENTIALS:
            return request()
        return _retried(request, "403 Forbidden", _REFUSED_SECONDS)

    def _version(self, answer: Any) -> str:
        # In Azure's listings, an etag has no quotes.
        return str(answer[self._of_version]).strip('"')

    @contextlib.contextmanager
    def _request(self, name: str) -> Iterator[tuple[Any, str]]:
        """Yield the bucket's client and the object's key, and raise the errors of `Storage`."""
        key = self._prefix + name
        store = self._connected(key)
        try:
            yield store, key
        except Exception as error:
            if (failure := _failure(error)) is None:
                raise
            raise _explained(
                f"{self._scheme}://{self._place}/{key}", failure, first=False
            ) from error

    def _connected(self, key: str) -> Any:
        """Return the store of the bucket.

        A process opens one store for each bucket and set of environment variables. Before it opens
        the first, it checks with the object `key` that the bucket can be reached.
        """
        environment = tuple(
            sorted(item for item in os.environ.items() if item[0].startswith(_ENVIRONMENT))
        )
        identity = (os.getpid(), self._scheme, self._place, environment)
        with _connecting:
            if identity not in _stores:
                if not self._proven:
                    self._prove(key)
                _stores[identity] = _store(self._scheme, self._place, _RETRY_SECONDS)
            return _stores[identity]

    def _prove(self, key: str) -> None:
        """Make one small request. Raise UserError if it fails or takes over seven seconds."""
        try:
            # In a thread, because a name server or a metadata server may not answer for longer.
            store = _store(self._scheme, self._place, _FIRST_SECONDS * 0.6)
            asking = in_thread(lambda: _ask(store, key, lists=self._scheme in _CREDENTIALS))
            asking.result(_FIRST_SECONDS)
        except Exception as error:
            # These are one class from Python 3.11 on.
            late = isinstance(error, (TimeoutError, concurrent.futures.TimeoutError))
            slow = Failure("network", f"no answer in {_FIRST_SECONDS:.0f} s") if late else None
            if (failure := slow or _failure(error)) is None:
                raise
            if failure.kind == "refused" and self._scheme not in _CREDENTIALS:
                # The web server has answered. The request itself shows what it refuses.
                return
            # The listing was missing: `_ask` does not raise for a missing object.
            if failure.kind == "missing":
                failure = Failure("no bucket", failure.detail)
            raise _explained(f"{self._scheme}://{self._place}", failure, first=True) from error


def _ask(store: Any, key: str, lists: bool) -> None:
    if key and not key.endswith("/"):
        try:
            store.head(key)
            return
        except Exception as error:
            failure = _failure(error)
            if failure is None or failure.kind != "missing":
                raise
    # Only a listing shows whether the object or the bucket is missing.
    if lists:
        next(iter(store.list(key.rpartition("/")[0] or None, chunk_size=1)), None)


class _Ranges(io.RawIOBase):
    """Reads an object as a file; each read is one request."""

    def __init__(self, bucket: Bucket, name: str, size: int):
        self._bucket = bucket
        self._name = name
        self._size = size
        self._position = 0

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        self._position = (
            offset + {io.SEEK_SET: 0, io.SEEK_CUR: self._position, io.SEEK_END: self._size}[whence]
        )
        return self._position

    def readinto(self, buffer: Any) -> int:
        length = max(0, min(len(buffer), self._size - self._position))
        if length:
            buffer[:length] = self._bucket.read_range(self._name, self._position, length)
            self._position += length
        return length


def _explained(uri: str, failure: Failure, first: bool) -> Exception:
    """Return the error for a failure. `first` means that a process's first request failed."""
    scheme = urlsplit(uri).scheme
    is_bucket = scheme in _CREDENTIALS
    match failure.kind:
        case "missing":
            return FileNotFoundError(errno.ENOENT, "No such file or directory", uri)
        case "no bucket":
            return UserError(f"{uri}: there is no such bucket: check its name, or make it")
        case "credentials":
            return UserError(
                f"{uri}: no credentials found: {_CREDENTIALS[scheme]} ({failure.detail})"
            )
        case "refused":
            return UserError(
                f"{uri}: {'the credentials do not give access' if is_bucket else 'refused'}: "
                f"{failure.detail}"
            )
    if first:
        where = _ADDRESS[scheme] if is_bucket else "the address"
        return UserError(f"{uri}: no connection: {failure.detail}; check the network and {where}")
    return OSError(errno.EIO, f"no answer from the bucket: {failure.detail}", uri)


def in_thread(call: Callable[[], _Answer]) -> concurrent.futures.Future[_Answer]:
    """Call a function in a thread that does not keep this process from ending."""
    future: concurrent.futures.Future[_Answer] = concurrent.futures.Future()

    def run() -> None:
        try:
            future.set_result(call())
        except BaseException as error:
            future.set_exception(error)

    threading.Thread(target=run, daemon=True).start()
    return future


@dataclass(frozen=True)
class Failure:
    """The meaning of a client's exception."""

    kind: Literal["missing", "no bucket", "credentials", "refused", "network"]
    detail: str


def _store(scheme: str, place: str, seconds: float) -> Any:
    """Return obstore's client of a bucket or web server, which retries requests for `seconds`."""
    from obstore.store import AzureStore, GCSStore, HTTPStore, S3Store

    user, _, name = place.rpartition("@")
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
    if user == "anonymous":
        options["skip_signature"] = True
    if scheme == "az":
        return AzureStore(name, **options)
    if scheme in ("http", "https"):
        return HTTPStore.from_url(f"{scheme}://{place}", **options)
    if scheme == "gs":
        return GCSStore(name, **options)
    return S3Store(name, **s3_settings(name, user == "anonymous"), **options)


def _failure(error: Exception) -> Failure | None:
    """Return the meaning of an exception, or None if it is not the client's."""
    from obstore import exceptions

    if not isinstance(error, exceptions.BaseError | FileNotFoundError):
        return None
    text = str(error)
    # XML has the message in an element. Other answers have it at the end of the first line.
    message = re.search(r"<Message>([^<]*)", text)
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


def _retried(
    request: Callable[[], _Answer], problem: str = "HTTP error:", seconds: float | None = None
) -> _Answer:
    """Make a request that obstore does not retry, for `seconds`, after errors with this `problem`.

    By default, these are conditional writes and deletions without a response, which the server may
    have carried out. A second write is then refused, as documented at `Storage.create`.
    """
    from obstore import exceptions

    end = time.monotonic() + (_RETRY_SECONDS if seconds is None else seconds)
    wait = 0.1
    while True:
        try:
            return request()
        except exceptions.BaseError as error:
            if problem not in str(error) or time.monotonic() + wait > end:
                raise
        time.sleep(wait)
        wait = min(2 * wait, 5.0)
