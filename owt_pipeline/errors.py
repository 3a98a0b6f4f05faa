"""Errors that a user can do something about; the command line prints them without a traceback."""

from __future__ import annotations

import errno
import os
import shlex

from schemas.settings import ExitCode


class UserError(Exception):
    """Something a user can fix: the message names it, what was expected, and what to do."""

    exit_code = ExitCode.ERROR


class UsageError(UserError):
    """An unknown command, flag or setting, or a value that it does not take."""

    exit_code = ExitCode.USAGE


class NotFound(UserError):
    """What the user asked for does not exist; nothing is wrong."""

    exit_code = ExitCode.NOT_FOUND


class JobRuns(UserError):
    """A job is running on a cluster, and this command does not wait for it."""

    exit_code = ExitCode.RUNNING


class RunSuperseded(UserError):
    """Another run has taken this one's place in the run's folder."""


class WorkerError(RuntimeError):
    """A function raised an error in a worker (the message holds the traceback), or the worker
    process died."""


class LedgerError(Exception):
    """A stage lost or invented a row: always a bug of ours, never of the input."""


def command(*words: object) -> str:
    """Return a command line that can be pasted into a shell, in backticks for a message."""
    return f"`{shlex.join(map(str, words))}`"


def without_traceback(text: str) -> str:
    """Return `text` with the last line of a traceback, which is the error, in its place."""
    before, is_found, traceback = text.partition("Traceback (most recent call last)")
    if not is_found:
        return text
    error = traceback.rstrip().rpartition("\n")[2]
    return before + error


def is_out_of_memory(error: BaseException) -> bool:
    """Return whether memory was used up: Python's, NumPy's, Arrow's or DuckDB's."""
    if isinstance(error, OSError):
        return error.errno == errno.ENOMEM
    return isinstance(error, MemoryError) or type(error).__name__ == "OutOfMemoryException"


OUT_OF_MEMORY = (
    "memory is used up: use fewer --workers, or a machine with more memory, and run the same "
    "command again"
)


def explain_os_error(error: OSError) -> str:
    """Return one line for an operating-system error: what failed, on which file, what to do."""
    if is_out_of_memory(error):
        return OUT_OF_MEMORY
    where = f" {error.filename}" if error.filename else ""
    if error.errno in (errno.ENOSPC, errno.EDQUOT):
        problem = "the disk is full" if error.errno == errno.ENOSPC else "the quota is used up"
        return (
            f"{problem}, writing{where or ' a shard'}: free some space and run the same "
            f"command again"
        )
    if error.errno == errno.EROFS:
        return f"the disk is read-only, writing{where or ' a shard'}: mount it so that it is not"
    if error.errno in (errno.EACCES, errno.EPERM):
        return f"no permission to open{where}: check its owner and mode"
    if error.errno == errno.ENOENT:
        return f"no such file or folder:{where}"
    if error.errno in (errno.EEXIST, errno.ENOTDIR):
        return (
            f"{_file_within(error.filename)} is a file, where a folder is needed: name another path"
        )
    if error.errno == errno.EMFILE:
        return "too many open files: raise the limit (ulimit -n) and run the same command again"
    return f"{error.strerror or error}{where and ':'}{where}"


def _file_within(path: object) -> object:
    """Return the file that a path goes through as if it were a folder; the path if none is."""
    if not isinstance(path, (str, bytes)):
        return path or "what the path names"
    part = os.fsdecode(path)
    while not os.path.isfile(part):
        parent = os.path.dirname(part)
        if parent == part:
            return path
        part = parent
    return part
