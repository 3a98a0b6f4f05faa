"""Files on the local disk while they are being written, before they are published under their name."""

from __future__ import annotations

import contextlib
import errno
import hashlib
import itertools
import os
import time
from collections.abc import Callable, Iterator
from typing import BinaryIO, cast

from owt_pipeline.engine.errors import UserError
from owt_pipeline.engine.processes import Process, this_process

_FOREIGN_SECONDS = 24 * 3600
"""Age from which another host's spool file counts as left over: whether its process runs cannot be seen from here."""

_numbers = itertools.count()


class HashingFile:
    """A binary file being written that knows its length and SHA-256; what pyarrow's writers write into.

    Attributes:
      bytes: the bytes written so far.
      path: where it lies on the local disk.
    """

    closed = False  # pyarrow asks; the file is closed by what opened it, not by a writer

    def __init__(self, raw: BinaryIO, path: str, publish: Callable[[str, str], None]):
        self.bytes = 0
        self.path = path
        self._raw = raw
        self._publish = publish
        self._digest = hashlib.sha256()
        self._abandoned = False

    def write(self, data: bytes | memoryview) -> int:
        """Append `data`; raises UserError where the disk is full."""
        if not self._abandoned:
            with _full_disk_explained(self.path):
                self._raw.write(data)
            self._digest.update(data)
            self.bytes += len(data)
        return len(data)

    def publish(self, name: str, sync: bool = True) -> None:
        """Make the file appear under `name` in its storage, complete, in place of one that was there.

        Locally without `sync` a power failure may leave anything; a killed process leaves it complete or not at all.
        """
        self.flush()
        if sync:
            self.sync()
        self._publish(self.path, name)

    def sync(self) -> None:
        """Have the disk hold what was written."""
        self.flush()
        os.fsync(self._raw.fileno())

    def abandon(self) -> None:
        """Take and drop what is still written: pyarrow's writers finish their file even after an error."""
        self._abandoned = True

    def tell(self) -> int:
        return self.bytes

    def flush(self) -> None:
        with _full_disk_explained(self.path):
            self._raw.flush()

    def close(self) -> None:
        """Nothing: only what opened the file knows when it is complete."""

    def writable(self) -> bool:
        return True

    def readable(self) -> bool:
        return False

    def seekable(self) -> bool:
        return False

    @property
    def sha256(self) -> str:
        return self._digest.hexdigest()


@contextlib.contextmanager
def spool_file(folder: str, publish: Callable[[str, str], None]) -> Iterator[HashingFile]:
    """A new file in `folder`, which is made where it is missing; gone when the block ends, unless published.

    `publish(path, name)` is what the file's own `publish` calls. Raises UserError where the disk is full.
    """
    path = os.path.join(folder, f"{this_process()}-{next(_numbers)}.tmp")
    with _opened(path) as raw:
        file = HashingFile(raw, path, publish)
        try:
            yield file
        except BaseException:
            file.abandon()
            raise
        finally:
            with contextlib.suppress(FileNotFoundError):
                os.unlink(path)


def open_in(folder: str, name: str, mode: str) -> BinaryIO:
    """Open a file for writing in a folder that is made where it is missing, and that another process may remove."""
    while True:
        with contextlib.suppress(FileNotFoundError):
            return cast(BinaryIO, open(os.path.join(folder, name), mode))
        os.makedirs(os.path.dirname(folder), exist_ok=True)
        with contextlib.suppress(FileExistsError):
            os.mkdir(folder)


def remove_dead_spools(folder: str) -> None:
    """Remove the spool files of processes that no longer run, and the folder where nothing is left in it.

    Files of other hosts, which may share the disk, are removed when they are older than a day.
    """
    with contextlib.suppress(FileNotFoundError, NotADirectoryError):
        for entry in os.scandir(folder):
            process = Process.parse(entry.name.rpartition("-")[0])
            with contextlib.suppress(FileNotFoundError):
                if process is not None and process.is_here:
                    dead = not process.runs()
                else:
                    dead = entry.stat().st_mtime < time.time() - _FOREIGN_SECONDS
                if dead:
                    os.unlink(entry.path)
    with contextlib.suppress(OSError):
        os.rmdir(folder)


@contextlib.contextmanager
def _opened(path: str) -> Iterator[BinaryIO]:
    with _full_disk_explained(path):
        raw = open_in(*os.path.split(path), "xb")
    try:
        yield raw
    finally:
        # What an abandoned file still has buffered may not fit on the disk.
        with contextlib.suppress(OSError):
            raw.close()


@contextlib.contextmanager
def _full_disk_explained(path: str) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        if error.errno not in (errno.ENOSPC, errno.EDQUOT):
            raise
        raise UserError(
            f"the disk is full, writing in {os.path.dirname(path)}: free some space and run the same command again"
        ) from error
