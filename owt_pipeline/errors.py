"""Errors that a user can do something about; the command line prints them without a traceback."""

from __future__ import annotations

import errno
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


class LostRun(UserError):
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
    """`text`, but of a traceback in it its last line: the error."""
    before, found, traceback = text.partition("Traceback (most recent call last)")
    return before + traceback.rstrip().rpartition("\n")[2] if found else text


def explain_os_error(error: OSError) -> str:
    """One line for an operating-system error: what failed, on which file, and what to do."""
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
        return f"there is a file where a folder should be:{where}"
    if error.errno == errno.EMFILE:
        return "too many open files: raise the limit (ulimit -n) and run the same command again"
    return f"{error.strerror or error}{where and ':'}{where}"
