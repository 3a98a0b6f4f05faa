"""Read and write a folder on a local disk or in a bucket (`gs://`, `s3://`, `az://`).

Files appear in it complete or not at all.

In a bucket, requests that fail because of the network or the server are retried for two minutes.
Only a process's first request fails after seven seconds, so that a run without credentials or with
a wrong address ends at once.
"""

from __future__ import annotations

import builtins
import concurrent.futures
import contextlib
import errno
import hashlib
import logging
import math
import os
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import AbstractContextManager
from typing import Any, NamedTuple, TypeVar
from urllib.parse import unquote, urlsplit

import pyarrow as pa

from owt_pipeline.errors import UserError
from owt_pipeline.storage.buckets import REQUESTS_AT_ONCE, Bucket
from owt_pipeline.storage.disk import (
    SPOOL_FOLDER,
    Disk,
    HashingFile,
    remove_dead_spools,
    spool_file,
)

logger = logging.getLogger("owt")

_SCHEMES = ("gs", "s3", "az")

_Item = TypeVar("_Item")
_Answer = TypeVar("_Answer")


class Entry(NamedTuple):
    """A file of a listing.

    Attributes:
      name: its name relative to the listed folder.
      bytes: its size.
      modified: when it was written, in seconds since 1970 by the clock of the storage.
    """

    name: str
    bytes: int
    modified: float


class Storage:
    """A folder; `storage / "name"` is a folder in it. Picklable, so that a Beam worker can open it.

    Methods raise FileNotFoundError for a missing file, UserError for a missing or forbidden bucket,
    and OSError for a disk, network or server that fails. Requests to a bucket are retried for two
    minutes first.
    """

    def __init__(self, uri: str, proven: bool = False):
        """Open the folder at a local path (`~` is the home) or a `gs://`, `s3://` or `az://` URI.

        With `proven`, another process has reached the bucket, so even the first request is retried
        for two minutes. Raises UserError for another scheme.
        """
        scheme, uri = _split(uri)
        self.uri = uri.rstrip("/") or "/"
        self._files: Disk | Bucket = Bucket(self.uri, proven) if scheme else Disk(self.uri)

    @property
    def is_local(self) -> bool:
        return isinstance(self._files, Disk)

    def __truediv__(self, name: str) -> Storage:
        return Storage(f"{self.uri.rstrip('/')}/{name}")

    def __reduce__(self) -> Any:
        # A relative path would be another folder in a process with another working directory.
        uri = self._files.folder if isinstance(self._files, Disk) else self.uri
        return Storage, (uri, True)

    def __str__(self) -> str:
        return self.uri

    def __repr__(self) -> str:
        return f"Storage({self.uri!r})"

    def path(self, name: str) -> str:
        """Return the path or URI of a file in the folder, for messages and other programs."""
        if not name:
            return self.uri
        return f"{self.uri.rstrip('/')}/{name}"

    def open(self, name: str) -> pa.NativeFile:
        """Open a file for reading at any offset."""
        return self._files.open(name)

    def read(self, name: str) -> bytes:
        """Return the content of a file."""
        versioned = self.read_version(name)
        if versioned is None:
            raise FileNotFoundError(errno.ENOENT, "No such file or directory", self.path(name))
        return versioned[0]

    def read_range(self, name: str, start: int, length: int) -> bytes:
        """Return `length` bytes of a file from `start` on; fewer if the file is shorter."""
        return self._files.read_range(name, start, length) if length > 0 else b""

    def read_version(self, name: str) -> tuple[bytes, str] | None:
        """Return a file's content and its version, for `swap`; None if there is no such file."""
        with contextlib.suppress(FileNotFoundError):
            return self._files.read(name)
        return None

    def list(self, prefix: str = "") -> builtins.list[Entry]:
        """Return all files in the folder and below whose names begin with `prefix`, sorted.

        Files that are being written are left out.
        """
        return sorted(self.walk(prefix))

    def walk(self, prefix: str = "") -> Iterator[Entry]:
        """Yield the entries of `list` as they are found.

        So the first entries of a large folder cost little.
        """
        yield from map(Entry._make, self._files.list(prefix))

    def names(self) -> builtins.list[str]:
        """Return the names of all files in the folder and below, sorted."""
        return [entry.name for entry in self.list()]

    def size(self, name: str) -> int:
        """Return the bytes of a file."""
        return self._files.size(name)

    def exists(self, name: str = "") -> bool:
        """Return whether a file or folder exists. In a bucket, a folder exists if it has a file."""
        return self._files.exists(name)

    def sha256(self, name: str) -> str:
        """Return the hex SHA-256 of a file, which is read in pieces."""
        digest = hashlib.sha256()
        with self.open(name) as file:
            while chunk := file.read(1 << 20):
                digest.update(chunk)
        return digest.hexdigest()

    def write(self, name: str, content: bytes) -> None:
        """Write a complete file, replacing an existing one."""
        self._files.put(name, content)

    def create(self, name: str, content: bytes) -> bool:
        """Write a file unless it exists; of several writers, one gets True.

        If a bucket's response is lost and the request is retried, even the writer that succeeded
        gets False. A caller that has to know reads the file.
        """
        return self.swap(name, content, None) is not None

    def swap(self, name: str, content: bytes, version: str | None) -> str | None:
        """Replace a file if it still has this version. With None, write it if it is missing.

        Returns the new version, or None if the file has another one. On S3, files of equal content
        have equal versions, so never write the same content twice. As with `create`, a lost
        response may lead to None.
        """
        return self._files.put_if(name, content, version)

    def spool(self) -> AbstractContextManager[HashingFile]:
        """Open a temporary file on the local disk, which its `publish(name)` puts into this folder.

        It is in `.tmp` of a local folder, or in the system's folder for temporary files, and is
        removed when the block ends. Raises UserError if the disk is full.
        """
        return spool_file(self._files.spool_folder, self._files.put_file)

    def clock(self) -> float:
        """Return the time in seconds since 1970 by the clock that dates a local folder's files.

        Returns infinity for a bucket, whose files are never from the future, and on a full disk.
        """
        if not self.is_local:
            return math.inf
        with contextlib.suppress(OSError, UserError), self.spool() as file:
            return os.stat(file.path).st_mtime
        return math.inf

    def remove_dead_spools(self) -> None:
        """Remove spooled files that killed processes have left behind."""
        remove_dead_spools(self._files.spool_folder)

    def delete(self, *names: str) -> None:
        """Delete files, in a bucket with as few requests as possible.

        A missing file is not an error.
        """
        if names:
            self._files.delete(names)

    def tidy(self, folder: str) -> None:
        """Remove the empty folders in a folder, and the spooled files of killed processes there.

        A bucket has neither.
        """
        if not self.is_local:
            return
        # Backwards, so that a folder comes after its subfolders.
        for path, _, _ in sorted(os.walk(self.path(folder)), reverse=True):
            if os.path.basename(path) == SPOOL_FOLDER:
                remove_dead_spools(path)
            with contextlib.suppress(OSError):
                os.rmdir(path)


def at_once(call: Callable[[_Item], _Answer], items: Iterable[_Item]) -> list[_Answer]:
    """Return the result of `call` for each item, in order.

    Use it for calls that wait for a bucket: 16 run at once.
    """
    with concurrent.futures.ThreadPoolExecutor(REQUESTS_AT_ONCE) as threads:
        return list(threads.map(call, items))


def _split(uri: str) -> tuple[str, str]:
    """Return the scheme and the URI, or an empty scheme and a local path."""
    match = re.match(r"([A-Za-z][A-Za-z0-9+.-]*)://", uri) or re.match(r"(gs|s3|az|file):/", uri)
    if match is None:
        return "", os.path.expanduser(uri)
    scheme = match[1]
    if scheme == "file":
        return "", unquote(urlsplit(uri).path)
    if scheme not in _SCHEMES or not match[0].endswith("://"):
        raise UserError(
            f"{uri}: unknown scheme {match[0]}; use a local path, gs://, s3:// or az://"
        )
    return scheme, uri


def folder_of(uri: str) -> tuple[Storage, str]:
    """Return the folder of a file (path or URI), and the file's name there."""
    folder, _, name = uri.rpartition("/")
    if not folder:
        folder = "/" if uri.startswith("/") else "."
    return Storage(folder), name


def open_source(uri: str) -> pa.NativeFile:
    """Open a file from outside the run (path or URI) for reading.

    Raises UserError if that fails.
    """
    try:
        folder, name = folder_of(uri)
        return folder.open(name)
    except OSError as error:
        raise UserError(f"cannot read {uri}: {error.strerror or error}") from error


# The first bytes of compressed files.
_GZIP = b"\x1f\x8b"
_BZIP2 = b"BZh"
_XZ = b"\xfd7zXZ\x00"
_ZSTD = b"\x28\xb5\x2f\xfd"

# The bit of a Zstandard frame's descriptor, the fifth byte, that announces a checksum.
_ZSTD_HAS_CHECKSUM = 0x04

# A file that takes more than about a second to hash is logged.
_MIN_LOGGED_BYTES = 1 << 30

# Digests that this process has computed, by path, size, mtime and inode.
_sha256_by_file: dict[tuple[str, int, int, int], str] = {}


def describe_source(uri: str, recorded: Mapping[str, Any] | None = None) -> dict[str, Any]:
    """Return what identifies a source file in a key: its name, length and a digest.

    A local file is identified by the SHA-256 of its content (`sha256`). A compressed file that ends
    in a checksum is identified by its first and last MiB (`ends_sha256`), and so is a file in a
    bucket. To read hundreds of gigabytes only to find that nothing has changed would cost too much.
    If a file has at most 2 MiB, these are all of its content. `seen`, which is not part of the key,
    has the mtime and inode of a local file that was hashed. `recorded` is the result of an earlier
    call: the file is hashed again only if its size, mtime or inode has changed.
    """
    recorded = recorded or {}
    folder, name = folder_of(uri)
    with open_source(uri) as file:
        try:
            # Before anything is read: a later change has a later mtime.
            status = os.stat(folder.path(name)) if folder.is_local else None
            length = file.size()
            head = file.read(1 << 20)
            digest = hashlib.sha256(head)
            if length > 1 << 21:
                file.seek(length - (1 << 20))
            digest.update(file.read())
        except OSError as error:
            raise UserError(f"cannot read {uri}: {error}") from error
    description = {"name": name, "bytes": length}
    # The ends of a small file are all of it, on a disk and in a bucket.
    if status is None or length <= 1 << 21 or _ends_in_checksum(head):
        return {**description, "ends_sha256": digest.hexdigest()}
    seen = {"mtime_ns": status.st_mtime_ns, "inode": status.st_ino}
    if recorded.get("bytes") == length and recorded.get("seen") == seen:
        sha256 = recorded["sha256"]
    else:
        sha256 = _sha256_of_local(uri, status)
    return {**description, "sha256": sha256, "seen": seen}


def find_recorded(
    recorded: Iterable[Mapping[str, Any]], uri: str, name: str
) -> Mapping[str, Any] | None:
    """Return the recorded source with this path or URI, else the one with this name; or None."""
    same_name = None
    for source in recorded:
        if source.get("uri") == uri:
            return source
        if source.get("name") == name:
            same_name = source
    return same_name


def _ends_in_checksum(head: bytes) -> bool:
    """Return whether a file that begins with `head` is compressed and ends in a checksum."""
    if head.startswith(_ZSTD):
        return len(head) > len(_ZSTD) and bool(head[len(_ZSTD)] & _ZSTD_HAS_CHECKSUM)
    return head.startswith((_GZIP, _BZIP2, _XZ))


def _sha256_of_local(uri: str, status: os.stat_result) -> str:
    """Return the hex SHA-256 of a local file, which a process computes once."""
    folder, name = folder_of(uri)
    path = os.path.abspath(folder.path(name))
    file = (path, status.st_size, status.st_mtime_ns, status.st_ino)
    if file not in _sha256_by_file:
        if status.st_size >= _MIN_LOGGED_BYTES:
            logger.info("hashing %s (%.1f GB)", uri, status.st_size / 1e9)
        try:
            _sha256_by_file[file] = folder.sha256(name)
        except OSError as error:
            raise UserError(f"cannot read {uri}: {error}") from error
    return _sha256_by_file[file]


def is_gone(uri: str) -> bool:
    """Return whether there is no file at a path or URI."""
    folder, name = folder_of(uri)
    return not folder.exists(name)
