"""How a job ended: one file in the run's folder, `.outcome`, which its last transform writes and the launcher reads."""

from __future__ import annotations

import contextlib
import traceback

import msgspec

from owt_pipeline.errors import LedgerError, UsageError, UserError, WorkerError, explain_os_error
from owt_pipeline.storage.folder import Storage

_NAME = ".outcome"


class JobOutcome(msgspec.Struct, frozen=True):
    """How a job ended.

    Attributes:
      message: why it stopped or failed; empty if it did not.
      exit_code: the command's exit code.
      failure: the traceback, if the error is a bug.
      is_ledger: whether rows were lost or invented.
    """

    message: str = ""
    exit_code: int = 0
    failure: str = ""
    is_ledger: bool = False

    @classmethod
    def of(cls, where: str, error: Exception) -> JobOutcome:
        """The outcome of an error; `where` names the stage and part, for a bug."""
        if isinstance(error, UserError):
            return cls(str(error), error.exit_code)
        if isinstance(error, OSError):
            return cls(f"{where}: {explain_os_error(error)}", 1)
        failure = "".join(traceback.format_exception(error))
        return cls(f"{where}: {error or type(error).__name__}", 1, failure, isinstance(error, LedgerError))

    def check(self) -> None:
        """Raise the error for which the job stopped or failed."""
        if self.is_ledger:
            raise LedgerError(self.message) from None
        if self.failure:
            raise WorkerError(f"{self.message}\n{self.failure}") from None
        if self.message:
            kind = UsageError if self.exit_code == UsageError.exit_code else UserError
            raise kind(self.message) from None


def write_outcome(workdir: Storage, outcome: JobOutcome) -> None:
    """Store the outcome for the launcher. If that fails, the launcher shows the runner's own message."""
    with contextlib.suppress(OSError, UserError):
        workdir.write(_NAME, msgspec.json.encode(outcome))


def has_outcome(workdir: Storage) -> bool:
    """Whether a job has ended whose outcome nobody has read."""
    return workdir.exists(_NAME)


def take_outcome(workdir: Storage) -> JobOutcome | None:
    """The outcome that the job stored, which is then removed; None if there is none, or none that can be read."""
    try:
        found = msgspec.json.decode(workdir.read(_NAME), type=JobOutcome)
    except (FileNotFoundError, msgspec.MsgspecError, UnicodeDecodeError):
        found = None
    workdir.delete(_NAME)
    return found
