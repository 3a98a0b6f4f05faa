"""Errors that a user can fix. The command line prints them as one line, without a traceback."""

from __future__ import annotations

import errno
import os
import shlex
from contextvars import ContextVar

from schemas.settings import ExitCode


class UserError(Exception):
    """A problem that a user can fix: its message names the problem and the remedy."""

    exit_code = ExitCode.ERROR


class UsageError(UserError):
    """An unknown command, flag or setting, or a value that it does not take."""

    exit_code = ExitCode.USAGE


class NotFound(UserError):
    """The thing that a command looks up does not exist; nothing is wrong."""

    exit_code = ExitCode.NOT_FOUND


class JobRuns(UserError):
    """A job is running on a cluster, and this command does not wait for it."""

    exit_code = ExitCode.RUNNING


class RunSuperseded(UserError):
    """Another run has taken over the run's folder."""


class WorkerError(RuntimeError):
    """A function raised an error in a worker (the message holds the traceback), or the worker
    process died."""


class LedgerError(Exception):
    """A stage lost or invented a row: always a bug of ours, never of the input."""


# The path of the settings file that the command line names besides RUN; None without one.
settings_argument: ContextVar[str | None] = ContextVar("settings_argument", default=None)


def command(*words: object) -> str:
    """Return a command line that can be pasted into a shell, in backticks for a message.

    `owt run RUN` and `owt import RUN` get the settings file that this command was given.
    """
    parts = list(map(str, words))
    path = settings_argument.get()
    if path is not None and parts[:2] in (["owt", "run"], ["owt", "import"]):
        parts.insert(3, path)
    return f"`{shlex.join(parts)}`"


def without_traceback(text: str) -> str:
    """Return `text` with a traceback replaced by its last line, which is the error."""
    message, is_present, traceback = text.partition("Traceback (most recent call last)")
    if not is_present:
        return text
    _, _, error = traceback.rstrip().rpartition("\n")
    return message + error


def is_out_of_memory(error: BaseException) -> bool:
    """Return whether Python, NumPy, Arrow or DuckDB found no more memory."""
    if isinstance(error, OSError):
        return error.errno == errno.ENOMEM
    # DuckDB's OutOfMemoryException is not a MemoryError. It is matched by its name, since the
    # library works without DuckDB.
    return isinstance(error, MemoryError) or type(error).__name__ == "OutOfMemoryException"


OUT_OF_MEMORY = (
    "memory is used up: use fewer --workers, or a machine with more memory, and run the same "
    "command again"
)


# Errors of the operating system that a missing or truncated file causes. A decoder that meets wrong
# bytes raises an OSError without a number.
_ERRNOS_OF_DAMAGE = (None, errno.ENOENT, errno.EINVAL, errno.EISDIR, errno.ENOTDIR)


def raise_unless_damage(error: Exception, path: str = "") -> None:
    """Raise the error of a reader again, unless it says that the file is missing or damaged.

    Too little memory, too many open files, a quota or a permission is no fault of the file. Advice
    to rebuild it or to download it again would not help. An error without a path gets `path`,
    if the reader knows it.
    """
    if is_out_of_memory(error):
        raise error
    if not isinstance(error, OSError) or error.errno in _ERRNOS_OF_DAMAGE:
        return
    if error.filename:
        raise error
    raise OSError(error.errno, os.strerror(error.errno), path) from error


def explain_os_error(error: OSError) -> str:
    """Return one line for an operating-system error: what failed, on which file, what to do."""
    if is_out_of_memory(error):
        return OUT_OF_MEMORY
    file = ""
    # OSError.filename is None for errors of file descriptors.
    if error.filename:
        file = f" {error.filename}"
    target = file or " a shard"
    if error.errno in (errno.ENOSPC, errno.EDQUOT):
        problem = "the disk is full"
        if error.errno == errno.EDQUOT:
            problem = "the quota is used up"
        return f"{problem}, writing{target}: free some space and run the same command again"
    if error.errno == errno.EROFS:
        return f"the disk is read-only, writing{target}: mount it writable"
    if error.errno in (errno.EACCES, errno.EPERM):
        return f"no permission to open{file}: check its owner and mode"
    if error.errno == errno.ENOENT:
        return f"no such file or folder:{file}"
    if error.errno in (errno.EEXIST, errno.ENOTDIR):
        return (
            f"{_file_within(error.filename)} is a file, where a folder is needed: name another path"
        )
    if error.errno in (errno.EMFILE, errno.ENFILE):
        return "too many open files: raise the limit (ulimit -n) and run the same command again"
    if not file:
        return error.strerror or str(error)
    return f"{error.strerror or error}:{file}"


def _file_within(path: object) -> object:
    """Return the file that a path treats as a folder; the path itself if there is none."""
    if not isinstance(path, (str, bytes)):
        return path or "what the path names"
    part = os.fsdecode(path)
    while not os.path.isfile(part):
        parent = os.path.dirname(part)
        if parent == part:
            return path
        part = parent
    return part
