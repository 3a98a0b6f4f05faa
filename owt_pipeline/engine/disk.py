"""A folder on a local disk, as Storage uses it."""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import shutil
import time
from collections.abc import Iterator, Sequence

import pyarrow as pa
import pyarrow.fs

from owt_pipeline.engine.errors import UserError
from owt_pipeline.engine.spool import HashingFile, open_in, spool_file

SPOOL_FOLDER = ".tmp"
"""Folder, below the one that is written to, for files that are being written; no part of any dataset."""


class Disk:
    """The files below a local folder; names are relative to it."""

    def __init__(self, folder: str):
        self.folder = os.path.abspath(folder)
        self.spool_folder = os.path.join(self.folder, SPOOL_FOLDER)
        try:
            self.folder.encode()
        except UnicodeEncodeError:  # Arrow takes UTF-8 only
            raise UserError(f"the path {os.fsencode(self.folder)!r} is not UTF-8: rename it") from None

    def open(self, name: str) -> pa.NativeFile:
        try:
            return pa.fs.LocalFileSystem().open_input_file(self._at(name))
        except FileNotFoundError as error:  # Arrow's does not say which in `filename`
            raise FileNotFoundError(errno.ENOENT, "No such file or directory", self._at(name)) from error

    def read_range(self, name: str, start: int, length: int) -> bytes:
        with open(self._at(name), "rb") as file:
            file.seek(start)
            return file.read(length)

    def exists(self, name: str) -> bool:
        return os.path.exists(self._at(name))

    def size(self, name: str) -> int:
        return os.stat(self._at(name)).st_size

    def list(self, prefix: str) -> Iterator[tuple[str, int, str]]:
        """Name, bytes and version of each file; those that are being written left out."""
        below = prefix.rpartition("/")[0]
        stack = [f"{below}/" if below else ""]
        while stack:
            folder = stack.pop()
            # A folder or file that goes while it is listed is as good as gone before.
            with contextlib.suppress(FileNotFoundError, NotADirectoryError), os.scandir(self._at(folder)) as entries:
                for entry in entries:
                    name = folder + entry.name
                    if entry.is_dir():
                        if entry.name != SPOOL_FOLDER:
                            stack.append(f"{name}/")
                    elif name.startswith(prefix) and not name.endswith(".tmp"):
                        with contextlib.suppress(FileNotFoundError):
                            status = entry.stat()
                            yield name, status.st_size, _version(status)

    def put_file(self, path: str, name: str) -> None:
        """Rename the file at `path`, which lies in the spool folder."""
        target = self._at(name)
        try:
            os.replace(path, target)
        except FileNotFoundError:
            os.makedirs(os.path.dirname(target), exist_ok=True)
            os.replace(path, target)

    def put(self, name: str, content: bytes) -> None:
        with self._spool(content) as file:
            file.publish(name)

    def create(self, name: str, content: bytes) -> bool:
        target = self._at(name)
        if os.path.exists(target):
            return False
        os.makedirs(os.path.dirname(target), exist_ok=True)
        with self._spool(content) as file:
            file.sync()
            try:
                os.link(file.path, target)  # unlike a rename, fails where the name is taken
            except FileExistsError:
                return False
            except OSError as error:
                if error.errno not in (errno.EPERM, errno.EOPNOTSUPP):
                    raise
                raise UserError(f"{self.folder}: its file system has no hard links; use a folder on another") from error
        return True

    def read_version(self, name: str) -> tuple[bytes, str] | None:
        try:
            with open(self._at(name), "rb") as file:
                return file.read(), _version(os.fstat(file.fileno()))
        except FileNotFoundError:
            return None

    def swap(self, name: str, content: bytes, version: str) -> str | None:
        target = self._at(name)
        with self._locked(), self._spool(content) as file:
            try:
                before = os.stat(target)
            except FileNotFoundError:
                return None
            if _version(before) != version:
                return None
            file.sync()
            # The kernel's clock may tick every 4 ms only, and inodes are used again: without this, a version could be.
            after = max(time.time_ns(), before.st_mtime_ns + 1)
            os.utime(file.path, ns=(after, after))
            swapped = _version(os.stat(file.path))
            os.replace(file.path, target)
            return swapped

    def delete(self, names: Sequence[str]) -> None:
        for name in names:
            with contextlib.suppress(FileNotFoundError):
                os.unlink(self._at(name))

    def delete_all(self) -> None:
        with contextlib.suppress(FileNotFoundError):
            shutil.rmtree(self.folder)

    @contextlib.contextmanager
    def _spool(self, content: bytes) -> Iterator[HashingFile]:
        with spool_file(self.spool_folder, self.put_file) as file:
            file.write(content)
            yield file

    @contextlib.contextmanager
    def _locked(self) -> Iterator[None]:
        """One process at a time swaps files of this folder; a killed one's lock goes with it."""
        path = os.path.join(self.spool_folder, "lock")
        while True:
            with open_in(self.spool_folder, "lock", "wb") as lock:
                fcntl.flock(lock, fcntl.LOCK_EX)
                if not _is_at(path, lock.fileno()):
                    continue  # its last holder has removed it
                try:
                    yield
                finally:
                    os.unlink(path)
                return

    def _at(self, name: str) -> str:
        return os.path.join(self.folder, name) if name else self.folder


def _is_at(path: str, descriptor: int) -> bool:
    try:
        return os.path.samestat(os.fstat(descriptor), os.stat(path))
    except FileNotFoundError:
        return False


def _version(status: os.stat_result) -> str:
    return f"{status.st_mtime_ns}-{status.st_ino}-{status.st_size}"
