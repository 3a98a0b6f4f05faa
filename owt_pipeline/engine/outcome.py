"""What came of a run: kept in this process for whoever waits for it, and on a cluster in the working directory."""

from __future__ import annotations

import contextlib
import logging
import traceback
from dataclasses import dataclass

import msgspec

from owt_pipeline.engine.errors import UserError, explain_os_error
from owt_pipeline.engine.stage import Stage
from owt_pipeline.engine.storage import Storage
from schemas.manifest import Manifest

logger = logging.getLogger("owt")

_OUTCOME_NAME = ".outcome"

failures: list[BaseException] = []
"""What was raised in this process, before Beam wrapped it."""

seconds: dict[str, float] = {}
"""That each stage took which was published in this process, by name."""


class Outcome(msgspec.Struct, frozen=True):
    """What came of a run on a cluster, in the working directory.

    Attributes:
      message: why it stopped or failed; "" where it did not.
      exit_code: of the command.
      failure: the traceback, for a failure that is not the user's.
    """

    message: str = ""
    exit_code: int = 0
    failure: str = ""

    @classmethod
    def of_failure(cls, where: str, error: BaseException) -> Outcome:
        what = explain_os_error(error) if isinstance(error, OSError) else str(error) or type(error).__name__
        return cls(f"{where}: {what}", 1, "".join(traceback.format_exception(error)))


@dataclass(frozen=True)
class Result:
    """What came of one stage: its manifest, and how long it took; None where its output was finished."""

    stage: Stage
    manifest: Manifest
    seconds: float | None

    def log(self) -> None:
        taken = "finished" if self.seconds is None else f"{self.seconds:.1f} s"
        fields = {
            "stage": self.stage.name,
            "ran": self.seconds is not None,
            "seconds": round(self.seconds or 0.0, 3),
            **msgspec.structs.asdict(self.manifest.counts),
        }
        logger.info("%s: %s (%s)", self.stage.name, self.manifest.counts, taken, extra={"fields": fields})


def published(stage: Stage, manifest: Manifest, taken: float) -> None:
    """Note that a stage's output was published, in the process that did it: locally, the run's own."""
    seconds[stage.name] = taken
    Result(stage, manifest, taken).log()


def write_outcome(workdir: Storage, outcome: Outcome) -> None:
    """Leave the outcome for the launcher; what cannot be written is lost, and the runner's own words have to do."""
    with contextlib.suppress(OSError, UserError):
        workdir.write(_OUTCOME_NAME, msgspec.json.encode(outcome))


def read_outcome(workdir: Storage) -> Outcome | None:
    """What the job left; None where it left nothing that can be read."""
    try:
        return msgspec.json.decode(workdir.read(_OUTCOME_NAME), type=Outcome)
    except (FileNotFoundError, msgspec.MsgspecError):
        return None


def forget_outcome(workdir: Storage) -> None:
    """Remove what a job left."""
    workdir.delete(_OUTCOME_NAME)
