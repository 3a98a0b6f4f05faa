"""Read and write folders on a local disk, for `Storage`.

Files are written under temporary names, and get their final names when they are complete.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import hashlib
import os
import shutil
import time
import uuid
from collections.abc import Callable, Iterator, Sequence
from typing import BinaryIO, cast

import pyarrow as pa
import pyarrow.fs

from owt_pipeline.errors import UserError

SPOOL_FOLDER = ".tmp"
"""Subfolder for files that are being written. It is not part of any dataset."""

# Seconds that a process waits for another process's lock. The lock is held for microseconds, unless
# its holder was stopped.
_LOCK_SECONDS = 30.0


class Disk:
    """The files below a local folder, with the methods of `Bucket`; names are relative to it."""

    def __init__(self, folder: str):
        self.folder = os.path.abspath(folder)
        self.spool_folder = os.path.join(self.folder, SPOOL_FOLDER)
        check_utf8(self.folder)

    def open(self, name: str) -> pa.NativeFile:
        try:
            return pa.fs.LocalFileSystem().open_input_file(self._at(name))
        except FileNotFoundError as error:
            # Arrow's error has no `filename`.
            problem = "No such file or directory"
            raise FileNotFoundError(errno.ENOENT, problem, self._at(name)) from error

    def read_range(self, name: str, start: int, length: int) -> bytes:
        # With a buffer, a few bytes would cost 8 KiB.
        with open(self._at(name), "rb", buffering=0) as file:
            file.seek(start)
            content = file.read(length)
            # A read may return fewer bytes than there are.
            while len(content) < length:
                more = file.read(length - len(content))
                if not more:
                    break
                content += more
            return content

    def exists(self, name: str) -> bool:
        return os.path.exists(self._at(name))

    def size(self, name: str) -> int:
        return os.stat(self._at(name)).st_size

    def list(self, prefix: str) -> Iterator[tuple[str, int, float]]:
        """Yield name, bytes and time of each file, without files that are being written.

        A linked folder is listed once, so a link to a folder above it leads to no loop.
        """
        parent, _, _ = prefix.rpartition("/")
        first_folder = f"{parent}/" if parent else ""
        stack = [first_folder]
        linked_folders = {os.path.realpath(self._at(first_folder))}
        while stack:
            folder = stack.pop()
            # A folder or file that disappears during the listing is left out.
            with (
                contextlib.suppress(FileNotFoundError, NotADirectoryError),
                os.scandir(self._at(folder)) as entries,
            ):
                for entry in entries:
                    name = folder + entry.name
                    with _missing_suppressed():
                        if entry.is_dir():
                            if entry.name != SPOOL_FOLDER and _is_new(entry, linked_folders):
                                stack.append(f"{name}/")
                        elif name.startswith(prefix) and not name.endswith(".tmp"):
                            status = entry.stat()
                            yield name, status.st_size, status.st_mtime

    def put_file(self, name: str, path: str) -> None:
        """Move the file at `path`, in the spool folder, to its name."""
        target = self._at(name)
        try:
            _move(path, target)
        except FileNotFoundError:
            os.makedirs(os.path.dirname(target), exist_ok=True)
            _move(path, target)

    def put(self, name: str, content: bytes) -> None:
        with self._spool(content) as file:
            file.publish(name)

    def put_if(self, name: str, content: bytes, version: str | None) -> str | None:
        """Write the file if it has this version; with None, if it does not exist.

        Returns the new version; None if nothing was written.
        """
        if version is None:
            return self._create(name, content)
        return self._swap(name, content, version)

    def _create(self, name: str, content: bytes) -> str | None:
        target = self._at(name)
        if os.path.exists(target):
            return None
        os.makedirs(os.path.dirname(target), exist_ok=True)
        with self._spool(content) as file:
            file.sync()
            try:
                # Unlike a rename, a link fails if the name is taken.
                os.link(file.path, target)
            except FileExistsError:
                return None
            except OSError as error:
                if error.errno not in (errno.EPERM, errno.EOPNOTSUPP):
                    raise
                raise UserError(
                    f"{self.folder}: its file system has no hard links; use a folder on another"
                ) from error
            return _version(os.stat(file.path))

    def read(self, name: str) -> tuple[bytes, str]:
        with open(self._at(name), "rb") as file:
            return file.read(), _version(os.fstat(file.fileno()))

    def _swap(self, name: str, content: bytes, version: str) -> str | None:
        target = self._at(name)
        with self._spool(content) as file:
            # A sync may take seconds, and the process could be stopped, so it holds no lock yet.
            file.sync()
            # Without a new time, a version could repeat: the kernel's clock may tick every 4 ms,
            # and inodes are reused.
            after = max(time.time_ns(), int(version.partition("-")[0]) + 1)
            os.utime(file.path, ns=(after, after))
            swapped = _version(os.stat(file.path))
            with self._locked():
                try:
                    if _version(os.stat(target)) != version:
                        return None
                except FileNotFoundError:
                    return None
                os.replace(file.path, target)
                return swapped

    def delete(self, names: Sequence[str]) -> None:
        for name in names:
            with contextlib.suppress(FileNotFoundError):
                os.unlink(self._at(name))

    @contextlib.contextmanager
    def _spool(self, content: bytes) -> Iterator[HashingFile]:
        with spool_file(self.spool_folder, self.put_file) as file:
            file.write(content)
            yield file

    @contextlib.contextmanager
    def _locked(self) -> Iterator[None]:
        """Let one process at a time swap files of this folder.

        A killed process loses the lock. A stopped process keeps it.
        """
        path = os.path.join(self.spool_folder, "lock")
        until = time.monotonic() + _LOCK_SECONDS
        while True:
            with _open_in(self.spool_folder, "lock", "wb") as lock:
                try:
                    fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                except BlockingIOError:
                    if time.monotonic() > until:
                        raise TimeoutError(
                            f"{path} has been locked for {_LOCK_SECONDS:g} s: continue or kill the "
                            "process that holds it (`fuser` names it)"
                        ) from None
                    time.sleep(0.001)
                    continue
                if not _is_at(path, lock.fileno()):
                    # The last holder has removed the file.
                    continue
                try:
                    yield
                finally:
                    os.unlink(path)
                return

    def _at(self, name: str) -> str:
        return os.path.join(self.folder, name) if name else self.folder


@contextlib.contextmanager
def _missing_suppressed() -> Iterator[None]:
    """Leave out a file that is missing, or a link that leads to itself."""
    try:
        yield
    except OSError as error:
        if error.errno not in (errno.ENOENT, errno.ELOOP):
            raise


def _is_new(entry: os.DirEntry[str], linked_folders: set[str]) -> bool:
    """Return whether a folder is not a link to one of `linked_folders`; add it to them if it is
    a link."""
    if not entry.is_symlink():
        return True
    target = os.path.realpath(entry.path)
    is_new = target not in linked_folders
    linked_folders.add(target)
    return is_new


def check_utf8(path: str) -> None:
    """Raise UserError for a path that is not UTF-8, which Arrow does not take."""
    try:
        path.encode()
    except UnicodeEncodeError:
        raise UserError(f"the path {os.fsencode(path)!r} is not UTF-8: rename it") from None


def _move(path: str, target: str) -> None:
    """Rename a file. If the target's folder is a link to another disk, copy and sync the file."""
    try:
        os.replace(path, target)
    except OSError as error:
        if error.errno != errno.EXDEV:
            raise
        spool = os.path.join(os.path.dirname(target), SPOOL_FOLDER)
        with (
            open(path, "rb") as source,
            spool_file(spool, lambda name, copy: os.replace(copy, name)) as file,
        ):
            while piece := source.read(1 << 20):
                file.write(piece)
            file.publish(target)
        remove_dead_spools(spool)


def _is_at(path: str, descriptor: int) -> bool:
    """Return whether an open file still has this path."""
    try:
        return os.path.samestat(os.fstat(descriptor), os.stat(path))
    except FileNotFoundError:
        return False


def _version(status: os.stat_result) -> str:
    return f"{status.st_mtime_ns}-{status.st_ino}-{status.st_size}"


class HashingFile:
    """Writes a binary file, counts its bytes and computes its SHA-256. pyarrow's writers can
    write to it.

    Attributes:
      bytes: bytes written so far.
      rows: rows written so far, as counted by the writer.
      path: its path on the local disk.
    """

    # pyarrow's writers read this field. The caller that opened the file closes it.
    closed = False

    def __init__(self, raw: BinaryIO, path: str, publish: Callable[[str, str], None]):
        self.bytes = 0
        self.rows = 0
        self.path = path
        self._raw = raw
        self._publish = publish
        self._digest = hashlib.sha256()
        self._abandoned = False

    def write(self, data: bytes | memoryview) -> int:
        """Append `data`; raises UserError if the disk is full."""
        if not self._abandoned:
            with _full_disk_explained(self.path):
                self._raw.write(data)
            self._digest.update(data)
            self.bytes += len(data)
        return len(data)

    def publish(self, name: str) -> None:
        """Let the complete file appear under `name` in its storage, replacing an existing one."""
        self.sync()
        self._publish(name, self.path)

    def sync(self) -> None:
        """Force everything written onto the disk."""
        self.flush()
        os.fsync(self._raw.fileno())

    def abandon(self) -> None:
        """Discard further writes. pyarrow's writers complete their file even after an error."""
        self._abandoned = True

    def tell(self) -> int:
        return self.bytes

    def flush(self) -> None:
        with _full_disk_explained(self.path):
            self._raw.flush()

    def close(self) -> None:
        """Do nothing: only whoever opened the file knows when it is complete."""

    @property
    def sha256(self) -> str:
        """Return the hex SHA-256 of the bytes written until now."""
        return self._digest.hexdigest()


@contextlib.contextmanager
def spool_file(folder: str, publish: Callable[[str, str], None]) -> Iterator[HashingFile]:
    """Yield a new file in `folder`, which is created if missing.

    The file is removed when the block ends, unless it was published: its `publish(name)` calls
    `publish(name, path)`. Until then it is locked, so that others see that its process is alive.
    Raises UserError if the disk is full.
    """
    path = os.path.join(folder, f"{uuid.uuid4().hex}.tmp")
    with _full_disk_explained(path):
        raw = _open_in(folder, os.path.basename(path), "xb")
    fcntl.flock(raw, fcntl.LOCK_EX)
    if not _is_at(path, raw.fileno()):
        # Another process has removed it before it was locked.
        raw.close()
        with spool_file(folder, publish) as again:
            yield again
        return
    file = HashingFile(raw, path, publish)
    try:
        yield file
    except BaseException:
        file.abandon()
        raise
    finally:
        with contextlib.suppress(FileNotFoundError):
            os.unlink(path)
        # The buffer of an abandoned file may not fit on the disk.
        with contextlib.suppress(OSError):
            raw.close()


def _open_in(folder: str, name: str, mode: str) -> BinaryIO:
    """Open a file for writing in a folder that is created if missing.

    Another process may remove the folder meanwhile.
    """
    while True:
        with contextlib.suppress(FileNotFoundError):
            return cast(BinaryIO, open(os.path.join(folder, name), mode))
        os.makedirs(os.path.dirname(folder), exist_ok=True)
        with contextlib.suppress(FileExistsError):
            os.mkdir(folder)


def remove_dead_spools(folder: str) -> None:
    """Remove the spool files that no process has locked, and folders of the same names.

    Removes `folder` itself if it is then empty.
    """
    if not os.path.isdir(folder):
        return
    # Sorted, a file comes before its folders.
    for name in sorted(os.listdir(folder)):
        path = os.path.join(folder, name)
        # A file may be locked, or belong to another user.
        with contextlib.suppress(OSError):
            if not os.path.isdir(path):
                with open(path, "r+b") as file:
                    fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                    os.unlink(path)
            elif not os.path.exists(os.path.join(folder, f"{name.partition('.')[0]}.tmp")):
                shutil.rmtree(path)
    with contextlib.suppress(OSError):
        os.rmdir(folder)


@contextlib.contextmanager
def _full_disk_explained(path: str) -> Iterator[None]:
    """Turn the error of a full disk into a UserError that advises to free space."""
    try:
        yield
    except OSError as error:
        if error.errno not in (errno.ENOSPC, errno.EDQUOT):
            raise
        raise UserError(
            f"the disk is full, writing in {os.path.dirname(path)}: free some space and run the "
            f"same command again"
        ) from error
