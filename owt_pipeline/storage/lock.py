"""The lock of a run's folder: one run at a time. It saves double work; the ledger is right
without it.

In a folder on a disk it is `flock` on a file, `.lock`, which the kernel frees with the process. In
a bucket, or where a job on a cluster does the work, it is an object, `.job`: created only if
absent, and renewed by whoever works (the process that waits for the job, and each worker before a
part). An object that has not changed for ten minutes, by the clock of the process that watches it,
can be taken over: clocks of two machines are never compared. That of a single process of this
machine which has ended can be taken over at once.
"""

from __future__ import annotations

import contextlib
import fcntl
import logging
import os
import socket
import sys
import threading
import time
from collections.abc import Iterator
from typing import BinaryIO

import msgspec

from owt_pipeline.errors import JobRuns, RunSuperseded, UserError
from owt_pipeline.storage.folder import Storage

logger = logging.getLogger("owt")

FILE, OBJECT = ".lock", ".job"
TERM_SECONDS = 600.0
"""An object that was not renewed for so long can be taken over."""
RENEW_SECONDS = 60.0


class Holder(msgspec.Struct, frozen=True):
    """Content of the lock: the run's id, its command, process and host, and whether this process
    is `alone`, without a job whose workers renew the object, too; `renewals` makes each content
    unique."""

    run: str
    command: str
    pid: int = 0
    host: str = ""
    alone: bool = False
    renewals: int = 0

    def __str__(self) -> str:
        return f"`{self.command}`" + (
            f" (process {self.pid} on {self.host.partition('.')[0]})" if self.pid else ""
        )


class InUse(UserError):
    """Another run is at work in the folder."""


@contextlib.contextmanager
def hold(workdir: Storage, run: str, *, as_object: bool = False) -> Iterator[float]:
    """Hold the lock on a run's folder, which is created if missing, until the block ends; with
    JobRuns, the object is left to the job. Gives since when it is held, by the clock of the
    storage, in seconds since 1970.

    Arguments and errors are those of `take`.
    """
    since = take(workdir, run, as_object=as_object)
    try:
        with contextlib.ExitStack() as stack:
            if as_object or not workdir.is_local:
                stack.enter_context(_renewing(workdir, run))
            yield since
    except JobRuns:
        raise
    except BaseException:
        release(workdir, run)
        raise
    release(workdir, run)


def take(workdir: Storage, run: str, *, as_object: bool = False) -> float:
    """Take the lock for a run; a repeated call has no effect. Returns since when it is held, by
    the clock of the storage.

    With `as_object`, and always in a bucket, it is the object, which the job's workers renew
    (`renew`). Raises InUse, which names the holder, if another run is at work.
    """
    is_object = as_object or not workdir.is_local
    if is_object and (since := _held_since(workdir, run)) is not None:
        return since  # perhaps by another process of the job, which alone can lock the file
    since = _flock(workdir, run) if workdir.is_local else 0.0
    try:
        if not is_object:
            _wait_for_end(workdir)
            return since
        me = msgspec.json.encode(_me(run, alone=not as_object))
        while not workdir.create(OBJECT, me):
            holder, version = _read(workdir)
            if holder is not None and holder.run == run:
                break
            if version is not None and _wait_for_end(workdir):
                workdir.swap(OBJECT, me, version)
                holder, _ = _read(workdir)
                if holder is not None and holder.run == run:
                    break
    except BaseException:
        _unlock(workdir, run)
        raise
    return _held_since(workdir, run) or 0.0


def is_held(workdir: Storage, run: str) -> bool:
    """Return whether the object is a run's."""
    return _held_since(workdir, run) is not None


def _held_since(workdir: Storage, run: str) -> float | None:
    """Return when the object of a run was written last; None if it is not this run's."""
    holder, _ = _read(workdir)
    if holder is None or holder.run != run:
        return None
    return next((entry.modified for entry in workdir.walk(OBJECT) if entry.name == OBJECT), None)


def release(workdir: Storage, run: str) -> None:
    """Release what this process holds, and delete the object unless another run has taken it
    over."""
    _unlock(workdir, run)
    with contextlib.suppress(OSError, UserError):  # without a network, it ends by itself
        holder, _ = _read(workdir)
        if holder is not None and holder.run == run:
            workdir.delete(OBJECT)


_flocked: dict[tuple[str, str], BinaryIO] = {}
"""The files that this process has locked, by absolute path and run.

A path relative to the current folder becomes absolute when Beam pickles it, and is the same file.
"""


def _flock(workdir: Storage, run: str) -> float:
    """Lock the file, which is never removed, as another process may have opened it; returns
    since when it is locked."""
    if (file := _flocked.get(_place(workdir, run))) is None:
        os.makedirs(workdir.uri, exist_ok=True)
        # Closed by `release`. With a buffer, a full disk would be reported a second time then.
        file = open(workdir.path(FILE), "a+b", buffering=0)  # noqa: SIM115
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            holder = _content(file)
            file.close()
            raise _in_use(workdir, holder) from None
        try:
            file.truncate(0)
            file.write(msgspec.json.encode(_me(run)))
        except OSError:
            file.close()
            raise
        _flocked[_place(workdir, run)] = file
    return os.fstat(file.fileno()).st_mtime


def _place(workdir: Storage, run: str) -> tuple[str, str]:
    """Return the key of a run's locks in this process.

    A transform's copy of the folder has an absolute path, where `owt run` may have a relative one.
    """
    return os.path.abspath(workdir.uri) if workdir.is_local else workdir.uri, run


def _unlock(workdir: Storage, run: str) -> None:
    if (file := _flocked.pop(_place(workdir, run), None)) is not None:
        file.truncate(0)
        file.close()


def renew(workdir: Storage, run: str, *, look: bool = False) -> None:
    """Renew the object, at most once a minute per process.

    Within that minute it is only read, with `look`, or nothing is done. Raises RunSuperseded if it
    is not this run's: another run has taken it over, and may have ended since.
    """
    now = time.monotonic()
    is_due = now >= _renewed.get((workdir.uri, run), -RENEW_SECONDS) + RENEW_SECONDS
    if not (is_due or look):
        return
    holder, version = _read(workdir)
    if holder is None or holder.run != run:
        raise RunSuperseded(
            f"{workdir} was taken over by {holder or 'another run'}; this run stops"
        )
    if is_due:  # tried once: of many processes, one renews it
        _renewed[workdir.uri, run] = now
        renewed = msgspec.structs.replace(holder, renewals=holder.renewals + 1)
        workdir.swap(OBJECT, msgspec.json.encode(renewed), version)


_renewed: dict[
    tuple[str, str], float
] = {}  # when this process last renewed an object, by folder and run


@contextlib.contextmanager
def _renewing(workdir: Storage, run: str) -> Iterator[None]:
    ended = threading.Event()

    def keep() -> None:
        while not ended.wait(RENEW_SECONDS / 4):
            try:
                renew(workdir, run)
            except RunSuperseded:  # the parts notice it themselves
                return
            except (OSError, UserError) as error:
                logger.warning(
                    "the lock on %s could not be renewed, trying again: %s", workdir, error
                )

    threading.Thread(target=keep, name="lock", daemon=True).start()
    try:
        yield
    finally:
        ended.set()


def _wait_for_end(workdir: Storage) -> bool:
    """Wait until the object was not renewed for TERM_SECONDS, or its process has ended; False if
    it is gone. InUse if it is renewed."""
    holder, version = _read(workdir)
    if version is None:
        return False
    if holder is not None and _has_ended(holder):
        return True
    logger.warning(
        "%s is in use by %s: waiting %.0f s for a sign of life; if that job has ended, delete %s",
        workdir, holder, TERM_SECONDS, workdir.path(OBJECT),
    )  # fmt: skip
    end = time.monotonic() + TERM_SECONDS
    while time.monotonic() < end:
        time.sleep(min(5.0, TERM_SECONDS / 10))
        seen, now = _read(workdir)
        if now is None:
            return False
        if now != version:
            raise _in_use(workdir, seen)
    return True


def running(workdir: Storage) -> Holder | None:
    """Who works on the run, as far as one look can tell; None for nobody."""
    if workdir.is_local and workdir.exists(FILE):
        with open(workdir.path(FILE), "rb") as file:
            try:
                fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
            except BlockingIOError:
                return _content(file) or Holder("", "another command")
    holder, _ = _read(workdir)
    return None if holder is not None and _has_ended(holder) else holder


def _has_ended(holder: Holder) -> bool:
    """Whether the object is that of a single process, which ran on this machine and has ended."""
    if not holder.alone or holder.host != socket.gethostname():
        return False
    try:
        os.kill(holder.pid, 0)
    except ProcessLookupError:
        return True
    except PermissionError:  # of another user
        pass
    return False


def mention_running(workdir: Storage) -> None:
    """Log a warning if a run is at work, for commands that read its folder."""
    if holder := running(workdir):
        logger.warning(
            "%s is in use by %s: what it has not finished is not there yet", workdir, holder
        )


def _in_use(workdir: Storage, holder: Holder | None) -> InUse:
    return InUse(
        f"{workdir} is in use by {holder or 'another command'}: wait for it to end, or stop it"
    )


def _read(workdir: Storage) -> tuple[Holder | None, str | None]:
    found = workdir.read_version(OBJECT)
    return (_decoded(found[0]), found[1]) if found else (None, None)


def _content(file: BinaryIO) -> Holder | None:
    """Who has locked the file; it writes its name just after it has locked it, so that is waited
    for, for a second."""
    for _ in range(20):
        file.seek(0)
        if holder := _decoded(file.read()):
            return holder
        time.sleep(0.05)
    return None


def _decoded(content: bytes) -> Holder | None:
    with contextlib.suppress(msgspec.MsgspecError, UnicodeDecodeError):
        return msgspec.json.decode(content, type=Holder)
    return None


def _me(run: str, *, alone: bool = False) -> Holder:
    return Holder(run, _command(), os.getpid(), socket.gethostname(), alone)


def _command() -> str:
    """The command without its flags, which may contain secrets."""
    program = os.path.basename(sys.argv[0])
    words = ["owt" if program == "__main__.py" else program, *sys.argv[1:2]]
    return " ".join(word for word in words if not word.startswith("-"))
