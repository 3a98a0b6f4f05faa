"""Lock a run's folder, so that one run works on it at a time.

The lock saves double work. The ledger is right without it.

On a disk it is `flock` on a file, `.lock`, which the kernel frees with the process. In a bucket, or
where a job on a cluster does the work, it is an object, `.job`. It is created only if absent, and
renewed by the process that waits for the job, and by each worker before a part. An object that has
not changed for ten minutes can be taken over. The process that watches the object measures them by
its own clock, so the clocks of two machines are never compared.
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

FILE = ".lock"
OBJECT = ".job"

TERM_SECONDS = 600.0
"""An object that was not renewed for this time can be taken over."""

RENEW_SECONDS = 60.0
"""A process renews an object at most once in this time."""


class Holder(msgspec.Struct, frozen=True):
    """Content of the lock.

    Attributes:
      run: the run's id.
      command: its command, without flags.
      pid: its process.
      host: the process's machine.
      renewals: number of renewals. On S3, equal contents would have equal versions.
    """

    run: str
    command: str
    pid: int = 0
    host: str = ""
    renewals: int = 0

    def __str__(self) -> str:
        if not self.pid:
            return f"`{self.command}`"
        return f"`{self.command}` (process {self.pid} on {self.host.partition('.')[0]})"


class InUse(UserError):
    """Another run is at work in the folder."""


@contextlib.contextmanager
def hold(workdir: Storage, run: str, *, as_object: bool = False) -> Iterator[float]:
    """Hold the lock on a run's folder, which is created if missing, until the block ends.

    If the block raises JobRuns, the object is left to the job. Yields since when the lock is held,
    in seconds since 1970 by the clock of the storage. `take` describes the arguments and errors.
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
    """Take the lock for a run. A repeated call has no effect.

    With `as_object`, and always in a bucket, it is the object, which the job's workers renew
    (`renew`). Returns since when it is held, in seconds since 1970 by the clock of the storage.
    Raises InUse, which names the holder, if another run is at work.
    """
    is_object = as_object or not workdir.is_local
    if is_object and (since := _held_since(workdir, run)) is not None:
        # Another process of the job may have taken it. Then this process could not lock the file.
        return since
    since = _flock(workdir, run) if workdir.is_local else 0.0
    try:
        if not is_object:
            _wait_for_end(workdir)
            return since
        me = msgspec.json.encode(_me(run))
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
    """Return whether the object belongs to a run."""
    return _held_since(workdir, run) is not None


def _held_since(workdir: Storage, run: str) -> float | None:
    """Return when the object was written last, or None if it does not belong to the run."""
    holder, _ = _read(workdir)
    if holder is None or holder.run != run:
        return None
    return next((entry.modified for entry in workdir.walk(OBJECT) if entry.name == OBJECT), None)


def release(workdir: Storage, run: str) -> None:
    """Release what this process holds, and delete the object unless another run has it."""
    _unlock(workdir, run)
    # Without a network, the object ends by itself after ten minutes.
    with contextlib.suppress(OSError, UserError):
        holder, _ = _read(workdir)
        if holder is not None and holder.run == run:
            workdir.delete(OBJECT)


# The files that this process has locked, by absolute path and run.
_flocked: dict[tuple[str, str], BinaryIO] = {}


def _flock(workdir: Storage, run: str) -> float:
    """Lock the file, and return since when it is locked.

    It is never removed, as another process may have opened it.
    """
    file = _flocked.get(_place(workdir, run))
    if file is None:
        os.makedirs(workdir.uri, exist_ok=True)
        # Closed by `release`. With a buffer, a full disk would be reported a second time then.
        file = open(workdir.path(FILE), "a+b", buffering=0)  # noqa: SIM115
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            holder = _content(file)
            since = os.fstat(file.fileno()).st_mtime
            file.close()
            if holder is not None and holder.run == run:
                # Another process of this run has locked it: `owt run`, where Beam's worker
                # processes begin the run once more.
                return since
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
    file = _flocked.pop(_place(workdir, run), None)
    if file is not None:
        file.truncate(0)
        file.close()


def renew(workdir: Storage, run: str, *, look: bool = False) -> None:
    """Renew the object, at most once a minute per process.

    Within that minute, `look` only reads the object, and without `look` nothing is done. Raises
    RunSuperseded if the object does not belong to this run. Then another run has taken it over, and
    may have ended since.
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
    if is_due:
        # Tried once, because it is enough if one of many processes renews the object.
        _renewed[workdir.uri, run] = now
        renewed = msgspec.structs.replace(holder, renewals=holder.renewals + 1)
        workdir.swap(OBJECT, msgspec.json.encode(renewed), version)


# When this process last renewed an object, by folder and run.
_renewed: dict[tuple[str, str], float] = {}


@contextlib.contextmanager
def _renewing(workdir: Storage, run: str) -> Iterator[None]:
    """Renew the object in a thread until the block ends."""
    ended = threading.Event()

    def keep() -> None:
        while not ended.wait(RENEW_SECONDS / 4):
            try:
                renew(workdir, run)
            except RunSuperseded:
                # The parts notice it themselves.
                return
            except (OSError, UserError) as error:
                logger.warning("could not renew the lock on %s; trying again: %s", workdir, error)

    threading.Thread(target=keep, name="lock", daemon=True).start()
    try:
        yield
    finally:
        ended.set()


def _wait_for_end(workdir: Storage) -> bool:
    """Wait until the object can be taken over.

    That is when it was not renewed for TERM_SECONDS. Returns False if there is no object. Raises
    InUse if it is renewed.
    """
    holder, version = _read(workdir)
    if version is None:
        return False
    logger.warning(
        "%s is in use by %s: waiting %.0f s to see whether it is alive; if that job has ended, "
        "delete %s",
        workdir, holder, TERM_SECONDS, workdir.path(OBJECT),
    )  # fmt: skip
    end = time.monotonic() + TERM_SECONDS
    while time.monotonic() < end:
        time.sleep(min(5.0, TERM_SECONDS / 10))
        current_holder, current_version = _read(workdir)
        if current_version is None:
            return False
        if current_version != version:
            raise _in_use(workdir, current_holder)
    return True


def check_free(workdir: Storage) -> None:
    """Raise InUse if a run holds the lock, as far as one read shows."""
    holder = running(workdir)
    if holder is not None:
        raise _in_use(workdir, holder)


def running(workdir: Storage) -> Holder | None:
    """Return the holder of the run's lock, as far as one read shows; None without a holder."""
    if workdir.is_local and workdir.exists(FILE):
        with open(workdir.path(FILE), "rb") as file:
            try:
                fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
            except BlockingIOError:
                return _content(file) or Holder("", "another command")
    return _read(workdir)[0]


def mention_running(workdir: Storage) -> None:
    """Log a warning if a run is at work, for commands that read its folder."""
    if holder := running(workdir):
        logger.warning(
            "%s is in use by %s: outputs that it has not finished are not included", workdir, holder
        )


def _in_use(workdir: Storage, holder: Holder | None) -> InUse:
    return InUse(
        f"{workdir} is in use by {holder or 'another command'}: wait for it to end, or stop it"
    )


def _read(workdir: Storage) -> tuple[Holder | None, str | None]:
    """Return the content of the object, None if it is damaged; and its version, None without it."""
    versioned = workdir.read_version(OBJECT)
    if versioned is None:
        return None, None
    content, version = versioned
    return _decode(content), version


def _content(file: BinaryIO) -> Holder | None:
    """Return who has locked the file.

    A process writes its name just after it has locked the file, so this waits for it for a second.
    """
    for _ in range(20):
        file.seek(0)
        holder = _decode(file.read())
        if holder is not None:
            return holder
        time.sleep(0.05)
    return None


def _decode(content: bytes) -> Holder | None:
    with contextlib.suppress(msgspec.MsgspecError, UnicodeDecodeError):
        return msgspec.json.decode(content, type=Holder)
    return None


def _me(run: str) -> Holder:
    return Holder(run, _command(), os.getpid(), socket.gethostname())


def _command() -> str:
    """Return this process's command without its flags, which may contain secrets."""
    program = os.path.basename(sys.argv[0])
    words = ["owt" if program == "__main__.py" else program, *sys.argv[1:2]]
    return " ".join(word for word in words if not word.startswith("-"))
