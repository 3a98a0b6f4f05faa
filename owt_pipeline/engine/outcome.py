"""Report to a job's launcher why the job failed.

A runner shows the launcher the end of a traceback at best. On a cluster, a worker writes the
outcome to a file in the run's folder, `.outcome`. A job of this process keeps it in memory: a full
or read-only disk must not hide why the run stopped.
"""

from __future__ import annotations

import contextlib
import traceback

import msgspec

from owt_pipeline.errors import (
    OUT_OF_MEMORY,
    UserError,
    WorkerError,
    explain_os_error,
    is_out_of_memory,
)
from owt_pipeline.storage.folder import Storage
from schemas.settings import ExitCode

_NAME = ".outcome"


class JobOutcome(msgspec.Struct, frozen=True):
    """Why a job failed.

    Attributes:
      message: one line.
      run: id of the run.
      exit_code: the command's exit code.
      bug: the traceback, unless the error is the user's.
    """

    message: str
    run: str = ""
    exit_code: ExitCode = ExitCode.ERROR
    bug: str = ""

    @classmethod
    def of(cls, place: str, error: Exception, run: str = "") -> JobOutcome:
        """Return the outcome of an error of a run; `place` names the stage and part."""
        if isinstance(error, UserError):
            return cls(str(error), run, error.exit_code)
        if is_out_of_memory(error):
            return cls(f"{place}: {OUT_OF_MEMORY}", run)
        if isinstance(error, OSError):
            return cls(f"{place}: {explain_os_error(error)}", run)
        return cls(
            f"{place}: {error or type(error).__name__}",
            run,
            bug="".join(traceback.format_exception(error)),
        )

    def error(self) -> Exception:
        """Return the error for which the job failed."""
        if self.bug:
            return WorkerError(f"{self.message}\n{self.bug}")
        error = UserError(self.message)
        error.exit_code = self.exit_code
        return error


# The outcomes of runs of this process.
_outcome_by_run: dict[str, JobOutcome] = {}


def keep_outcome(outcome: JobOutcome) -> None:
    """Keep the outcome of a run of this process; the first failure counts."""
    _outcome_by_run.setdefault(outcome.run, outcome)


def take_kept_outcome(run: str) -> JobOutcome | None:
    """Return the outcome that this process has kept for a run, and forget it; None for none."""
    return _outcome_by_run.pop(run, None)


def write_outcome(workdir: Storage, outcome: JobOutcome) -> None:
    """Store the outcome for the launcher.

    If that fails, the launcher shows the runner's own message.
    """
    with contextlib.suppress(OSError, UserError):
        workdir.write(_NAME, msgspec.json.encode(outcome))


def take_outcome(workdir: Storage, run: str | None = None) -> JobOutcome | None:
    """Return the outcome that a job stored, and remove it; None if there is none, or none that
    can be read.

    With `run`, that of another run stays, and None is returned.
    """
    try:
        outcome = msgspec.json.decode(workdir.read(_NAME), type=JobOutcome)
    except FileNotFoundError:
        return None
    except (msgspec.MsgspecError, UnicodeDecodeError):
        outcome = None
    if run is not None and (outcome is None or outcome.run != run):
        return None
    workdir.delete(_NAME)
    return outcome
