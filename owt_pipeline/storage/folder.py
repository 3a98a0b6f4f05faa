"""A folder on a local disk or in a bucket (`gs://`, `s3://`, `az://`); its files appear complete or not at all.

In a bucket, requests that fail because of the network or the server are made again for two minutes; only the first one
that a process makes has seven seconds in all, so that a run without credentials or with a wrong address ends at once.
"""

from __future__ import annotations

import builtins
import concurrent.futures
import contextlib
import errno
import fnmatch
import glob
import hashlib
import io
import os
import re
import tempfile
import threading
from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager
from typing import Any, NamedTuple, TypeVar
from urllib.parse import unquote, urlsplit

import pyarrow as pa

from owt_pipeline.errors import UserError
from owt_pipeline.storage.buckets import REQUESTS_AT_ONCE, Bucket, Failure, GoogleBucket, ObstoreBucket
from owt_pipeline.storage.disk import Disk, HashingFile, check_utf8, remove_dead_spools, spool_file

_SCHEMES = ("gs", "s3", "az")

_Item = TypeVar("_Item")
_Answer = TypeVar("_Answer")


class Entry(NamedTuple):
    """A file of a listing: its name relative to the folder that was listed, its size, and its version, which is another
    one where the file is replaced: an etag, a generation, or what the disk says of it."""

    name: str
    bytes: int
    version: str


class Storage:
    """A folder; `storage / "name"` is the folder below it. Picklable, so that a Beam worker can open it.

    Methods raise FileNotFoundError for a missing file, UserError for a bucket that there is not or that may not be
    used, OSError for a disk, network or server that fails; a bucket's requests are made again for two minutes before.
    """

    def __init__(self, uri: str, proven: bool = False):
        """The folder at a local path or a `gs://`, `s3://` or `az://` URI; raises UserError for another scheme.

        `proven` where another process has reached the bucket: here, even the first request may take longer.
        """
        scheme, uri = _split(uri)
        self.uri = uri.rstrip("/") or "/"
        self._files: Disk | Remote = Remote(self.uri, proven) if scheme else Disk(self.uri)

    @property
    def is_local(self) -> bool:
        return isinstance(self._files, Disk)

    def __truediv__(self, name: str) -> Storage:
        return Storage(f"{self.uri.rstrip('/')}/{name}")

    def __reduce__(self) -> Any:
        # A relative path is another folder in a process that began elsewhere.
        return Storage, (self._files.folder if isinstance(self._files, Disk) else self.uri, True)

    def __str__(self) -> str:
        return self.uri

    def __repr__(self) -> str:
        return f"Storage({self.uri!r})"

    def path(self, name: str) -> str:
        """Path or URI of a file in the folder, for a message or another program."""
        return f"{self.uri}/{name}" if name else self.uri

    def open(self, name: str) -> pa.NativeFile:
        """The file for reading at any offset."""
        if isinstance(self._files, Disk):
            return self._files.open(name)
        return pa.PythonFile(io.BufferedReader(_Ranges(self, name, self.size(name)), _READ_AHEAD_BYTES), mode="r")

    def read(self, name: str) -> bytes:
        if (found := self.read_version(name)) is None:
            raise FileNotFoundError(errno.ENOENT, "No such file or directory", self.path(name))
        return found[0]

    def read_range(self, name: str, start: int, length: int) -> bytes:
        """Some bytes of a file, fewer where it ends before."""
        with self._files.request(name) as (files, key):
            return files.read_range(key, start, length) if length > 0 else b""

    def read_version(self, name: str) -> tuple[bytes, str] | None:
        """A file's content and its version, for `swap`; None where there is none."""
        with contextlib.suppress(FileNotFoundError), self._files.request(name) as (files, key):
            return files.read(key)
        return None

    def list(self, prefix: str = "") -> builtins.list[Entry]:
        """All files below the folder whose names begin with `prefix`, sorted; those being written left out."""
        return sorted(self.walk(prefix))

    def walk(self, prefix: str = "") -> Iterator[Entry]:
        """The entries of `list` as they are found: the first ones of a large folder cost little."""
        with self._files.request(prefix) as (files, key):
            for name, size, version in files.list(key):
                if not name.endswith("/"):  # by which a console shows a folder
                    yield Entry(name[len(key) - len(prefix) :], size, version)

    def names(self) -> builtins.list[str]:
        """Names of all files below the folder, sorted."""
        return [entry.name for entry in self.list()]

    def size(self, name: str) -> int:
        """Bytes of a file."""
        with self._files.request(name) as (files, key):
            return files.size(key)

    def exists(self, name: str = "") -> bool:
        """Whether there is such a file, or a folder (in a bucket: one with a file in it)."""
        if isinstance(self._files, Disk):
            return self._files.exists(name)
        if name and not name.endswith("/"):
            with contextlib.suppress(FileNotFoundError):
                self.size(name)
                return True
        with self._files.request(name) as (bucket, key):
            return next(bucket.list(f"{key.rstrip('/')}/" if key else "", 1), None) is not None

    def sha256(self, name: str) -> str:
        """Hex SHA-256 of a file, read in pieces."""
        digest = hashlib.sha256()
        with self.open(name) as file:
            while chunk := file.read(1 << 20):
                digest.update(chunk)
        return digest.hexdigest()

    def write(self, name: str, content: bytes) -> None:
        """Write a file at once, in place of one that is there."""
        with self._files.request(name) as (files, key):
            files.put(key, content)

    def create(self, name: str, content: bytes, sync: bool = True) -> bool:
        """Write a file unless there is one; of several writers, one gets True.

        A bucket's answer may be lost and the request made again: then even the one that wrote it gets False. Whoever
        has to know reads the file. Locally without `sync` a power failure may leave anything.
        """
        return self.swap(name, content, None, sync) is not None

    def swap(self, name: str, content: bytes, version: str | None, sync: bool = True) -> str | None:
        """Replace a file that still has this version (None: that is not there); the new version, or None where it has
        another.

        S3 tells versions by content: write nothing twice. As with `create`, None may follow on a lost answer.
        """
        with self._files.request(name) as (files, key):
            return files.put_if(key, content, version, sync)

    def change(self, name: str, change: Callable[[bytes | None], bytes | None]) -> bool:
        """Replace a file by what `change` makes of its content (None where there is none), again where another process
        was first; returns False, and writes nothing, where `change` gives None."""
        while True:
            content, version = self.read_version(name) or (None, None)
            if (changed := change(content)) is None:
                return False
            if self.swap(name, changed, version) is not None:
                return True

    def spool(self) -> AbstractContextManager[HashingFile]:
        """A new file on the local disk, of which `publish(name)` makes a file of this folder; gone when the block ends.

        It lies in `.tmp` of a local folder, or in the system's folder for temporary files. Raises UserError where the
        disk is full.
        """
        return spool_file(self._files.spool_folder, self._publish)

    def _publish(self, name: str, path: str) -> None:
        with self._files.request(name) as (files, key):
            files.put_file(key, path)

    def remove_dead_spools(self) -> None:
        """Remove what killed processes left of their spooled files."""
        remove_dead_spools(self._files.spool_folder)

    def delete(self, *names: str) -> None:
        """Delete files, in a bucket by as few requests as it takes; a missing one is no error."""
        if names:
            with contextlib.suppress(FileNotFoundError), self._files.request(names[0]) as (files, first):
                files.delete([first.removesuffix(names[0]) + name for name in names])

    def delete_all(self) -> None:
        """Delete the folder and all below it; a missing one is no error."""
        with self._files.request("") as (files, folder):
            if isinstance(files, Disk):
                files.delete_all()
            else:
                files.delete([key for key, _, _ in files.list(folder)])


def at_once(call: Callable[[_Item], _Answer], items: Iterable[_Item]) -> list[_Answer]:
    """What `call` gives for each item, in order; 16 are called at once, since each waits for a bucket."""
    with concurrent.futures.ThreadPoolExecutor(REQUESTS_AT_ONCE) as threads:
        return list(threads.map(call, items))


def in_thread(call: Callable[[], _Answer]) -> concurrent.futures.Future[_Answer]:
    """Call in a thread that this process does not wait for when it ends."""
    future: concurrent.futures.Future[_Answer] = concurrent.futures.Future()

    def run() -> None:
        try:
            future.set_result(call())
        except BaseException as error:
            future.set_exception(error)

    threading.Thread(target=run, daemon=True).start()
    return future


def _split(uri: str) -> tuple[str, str]:
    """Scheme and URI, or an empty scheme and a local path."""
    match = re.match(r"([A-Za-z][A-Za-z0-9+.-]*)://", uri) or re.match(r"(gs|s3|az|file):/", uri)
    if match is None:
        return "", uri
    scheme = match[1]
    if scheme == "file":
        return "", unquote(urlsplit(uri).path)
    if scheme not in _SCHEMES or not match[0].endswith("://"):
        raise UserError(f"{uri}: unknown scheme {match[0]}; use a local path, gs://, s3:// or az://")
    return scheme, uri


def folder_of(uri: str) -> tuple[Storage, str]:
    """The folder that a file (path or URI) is in, and the file's name there."""
    folder, _, name = uri.rpartition("/")
    return Storage(folder or ("/" if uri.startswith("/") else ".")), name


def open_source(uri: str) -> pa.NativeFile:
    """A file from outside the working directory (path or URI), for reading; raises UserError if it cannot be."""
    try:
        folder, name = folder_of(uri)
        return folder.open(name)
    except OSError as error:
        raise UserError(f"cannot read {uri}: {error}") from error


def describe_source(uri: str) -> dict[str, Any]:
    """What identifies a source file in a fingerprint: its name, length, and a digest of both its ends.

    The ends are enough: every format we read compressed ends in a checksum or length of its content,
    and reading hundreds of gigabytes of dumps to find that nothing changed would cost more than it tells.
    """
    with open_source(uri) as file:
        try:
            length = file.size()
            digest = hashlib.sha256(file.read(1 << 20))
            if length > 1 << 21:
                file.seek(length - (1 << 20))
            digest.update(file.read())
        except OSError as error:
            raise UserError(f"cannot read {uri}: {error}") from error
    return {"name": uri.rpartition("/")[2], "bytes": length, "ends_sha256": digest.hexdigest()}


def expand_globs(patterns: tuple[str, ...], what: str) -> list[str]:
    """The files that paths, folders and globs (local or in a bucket) name, each once.

    They are sorted by name, then by folder: a run's bytes do not depend on where its inputs lie.

    Raises UserError naming the first pattern that matches no file.
    """
    found: set[str] = set()
    for pattern in patterns:
        matches = _local_matches(pattern) if "://" not in pattern else _bucket_matches(pattern)
        for path in matches:
            check_utf8(path)
        if not matches:
            raise UserError(f"{what}: no file matches {pattern!r}")
        found.update(matches)
    return sorted(found, key=lambda uri: (uri.rpartition("/")[2], uri))


def _local_matches(pattern: str) -> list[str]:
    if os.path.isdir(pattern):
        return [path for path in sorted(glob.glob(os.path.join(pattern, "*"))) if os.path.isfile(path)]
    if os.path.isfile(pattern):
        return [pattern]
    return [path for path in glob.glob(pattern, recursive=True) if os.path.isfile(path)]


def _bucket_matches(pattern: str) -> list[str]:
    plain = pattern.split("*", 1)[0]
    folder = Storage(plain.rpartition("/")[0] if plain.count("/") > 2 else plain)
    paths = (folder.path(entry.name) for entry in folder.list(plain[len(folder.uri) + 1 :]))
    return [path for path in paths if fnmatch.fnmatchcase(path, pattern) or path.startswith(pattern.rstrip("/") + "/")]


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


class Remote:
    """The bucket that a folder (`gs://`, `s3://`, `az://`) is in: its client, and what the client's errors mean.

    Attributes:
      spool_folder: where files lie until they are uploaded.
    """

    def __init__(self, uri: str, proven: bool = False):
        """The bucket of the folder at `uri`; `proven` where another process has reached it already."""
        parts = urlsplit(uri)
        self.spool_folder = os.path.join(tempfile.gettempdir(), f"owt-{os.getuid()}")
        self._scheme, self._place, self._proven = parts.scheme, parts.netloc, proven
        self._kind: type[Bucket] = GoogleBucket if parts.scheme == "gs" else ObstoreBucket
        self._prefix = f"{parts.path.strip('/')}/" if parts.path.strip("/") else ""
        if not parts.netloc.rpartition("@")[2]:
            raise UserError(f"{uri} names no bucket: write {parts.scheme}://BUCKET/FOLDER")

    @contextlib.contextmanager
    def request(self, name: str) -> Iterator[tuple[Bucket, str]]:
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
            # Neither a name server nor a metadata server may hold the user up for longer.
            in_thread(lambda: _ask(self._client(_FIRST_SECONDS * 0.6), key)).result(_FIRST_SECONDS)
        except Exception as error:
            late = isinstance(error, (TimeoutError, concurrent.futures.TimeoutError))  # one class from Python 3.11 on
            slow = Failure("network", f"no answer in {_FIRST_SECONDS:.0f} s") if late else None
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

    def __init__(self, folder: Storage, name: str, size: int):
        self._folder, self._name, self._size, self._position = folder, name, size, 0

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        self._position = offset + {io.SEEK_SET: 0, io.SEEK_CUR: self._position, io.SEEK_END: self._size}[whence]
        return self._position

    def readinto(self, buffer: Any) -> int:
        length = max(0, min(len(buffer), self._size - self._position))
        buffer[:length] = self._folder.read_range(self._name, self._position, length)
        self._position += length
        return length
