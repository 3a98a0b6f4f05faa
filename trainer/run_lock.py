"""One run at a time writes a folder."""

from __future__ import annotations

import errno
import fcntl
import os
import socket
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from schemas import SettingsError

_UNSUPPORTED = {errno.ENOLCK, errno.ENOSYS, errno.EOPNOTSUPP, errno.EINVAL}


@contextmanager
def sole_writer(folder: Path, say: Callable[[str], None], patience: float = 10) -> Iterator[None]:
    """Hold the run's `folder`, by a lock on its file `.lock` that goes with the process, however that ends.

    On a network file system it holds between machines where the file system's locks do (NFS 4, Lustre with
    `-o flock`); where there are none, `say` is told and the run goes on without.

    Args:
      patience: seconds to wait: where nodes leave and join, the writer before may be about to end.

    Raises:
      SettingsError: another process holds it; it says which.
    """
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / ".lock").open("a+", encoding="utf-8") as file:
        end = time.monotonic() + patience
        while not _locked(file.fileno(), folder, say):
            if time.monotonic() > end:
                file.seek(0)
                raise SettingsError(
                    f"{folder} is being written by another run ({file.read().strip() or 'process unknown'}); "
                    "stop that one first, or give another --out"
                )
            time.sleep(0.2)
        file.truncate(0)
        file.write(f"process {os.getpid()} on {socket.gethostname()}\n")
        file.flush()
        yield


def _locked(descriptor: int, folder: Path, say: Callable[[str], None]) -> bool:
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    except OSError as error:
        if error.errno not in _UNSUPPORTED:
            raise
        say(f"{folder} cannot be locked ({error.strerror}): see to it that no other run writes there")
    return True
