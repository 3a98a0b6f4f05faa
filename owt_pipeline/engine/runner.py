"""Running stages: which are finished, the graph of the others, the runner, and what came of it.

The launcher looks at the stages in order; those that are finished are left out of the graph, and where all are, Beam
is not even imported.
"""

from __future__ import annotations

import argparse
import contextlib
import difflib
import logging
import traceback
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import msgspec

from owt_pipeline.engine.dataset import require_manifest
from owt_pipeline.engine.errors import UsageError, UserError, explain_os_error
from owt_pipeline.engine.lease import Job, name_job
from owt_pipeline.engine.parts import interruptibly
from owt_pipeline.engine.stage import Runtime, Stage, finished_output
from owt_pipeline.engine.storage import Storage
from owt_pipeline.engine.workers import WorkerError, close_shared_pool
from schemas.manifest import Manifest

logger = logging.getLogger("owt")

LOCAL_RUNNERS = {"", "FnApiRunner", "DirectRunner"}
_OUTCOME_NAME = ".outcome"

failures: list[BaseException] = []
"""What was raised in this process, before Beam wrapped it."""

_seconds: dict[str, float] = {}  # of each stage that was published in this process


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


def run_stages(stages: Sequence[tuple[Stage, Any]], runtime: Runtime) -> list[Result]:
    """Run stages with their options, in order, as one job; finished ones are skipped.

    Raises UserError for what the user can mend, LedgerError where a stage's sum does not hold.
    """
    results: list[Result] = []
    for number, (stage, options) in enumerate(stages):
        if (manifest := finished_output(stage, options, runtime.workdir)) is None:
            return results + _run_graph(stages[number:], runtime)
        results.append(Result(stage, manifest, None))
        results[-1].log()
    return results


def run_stage(stage: Stage, options: Any, runtime: Runtime) -> tuple[Manifest, bool]:
    """Run one stage unless its output is finished; returns its manifest and whether it ran."""
    (result,) = run_stages([(stage, options)], runtime)
    return result.manifest, result.seconds is not None


def published(stage: Stage, manifest: Manifest, seconds: float) -> None:
    """Note that a stage's output was published, in the process that did it: locally, the run's own."""
    _seconds[stage.name] = seconds
    Result(stage, manifest, seconds).log()


def write_outcome(workdir: Storage, outcome: Outcome) -> None:
    """Leave the outcome for the launcher; what cannot be written is lost, and the runner's own words have to do."""
    with contextlib.suppress(OSError, UserError):
        workdir.write(_OUTCOME_NAME, msgspec.json.encode(outcome))


def runs_on_cluster(beam_flags: Sequence[str]) -> bool:
    """Whether these flags name a runner other than this machine's own."""
    if not beam_flags:
        return False  # without Beam, which takes half a second to import and may not be needed at all
    from apache_beam.options.pipeline_options import PipelineOptions, StandardOptions

    return (PipelineOptions(list(beam_flags)).view_as(StandardOptions).runner or "") not in LOCAL_RUNNERS


def _run_graph(stages: Sequence[tuple[Stage, Any]], runtime: Runtime) -> list[Result]:
    runtime = replace(runtime, on_cluster=runs_on_cluster(runtime.beam_flags))
    if runtime.on_cluster:
        return _run_on_cluster(stages, runtime)
    failures.clear()
    _seconds.clear()
    try:
        interruptibly(lambda: _run_locally(stages, runtime))
    except KeyboardInterrupt:
        close_shared_pool()
        raise
    except Exception:
        if failures:
            raise failures[0] from None
        raise
    results = []
    for stage, _ in stages:
        result = Result(stage, require_manifest(runtime.workdir, stage.output), _seconds.get(stage.name))
        if result.seconds is None:
            result.log()
        results.append(result)
    return results


def _run_locally(stages: Sequence[tuple[Stage, Any]], runtime: Runtime) -> None:
    """On the FnApiRunner, named outright: `DirectRunner` picks one of three by the pipeline's shape."""
    import apache_beam as beam
    from apache_beam.options.pipeline_options import PipelineOptions, StandardOptions
    from apache_beam.runners.portability.fn_api_runner import FnApiRunner

    for name in ("apache_beam", "root"):  # its errors are raised below, once
        logging.getLogger(name).setLevel(logging.CRITICAL)
    options = PipelineOptions(list(runtime.beam_flags))
    options.view_as(StandardOptions).runner = None
    pipeline = beam.Pipeline(FnApiRunner(), options=options)
    _build(pipeline, stages, runtime)
    pipeline.run().wait_until_finish()


def _build(pipeline: Any, stages: Sequence[tuple[Stage, Any]], runtime: Runtime) -> None:
    from owt_pipeline.engine.graph import End, RunStage, Start

    dataset = pipeline | Start(runtime.workdir)
    for stage, options in stages:
        dataset |= RunStage(stage, options, runtime)
    _ = dataset | End(runtime)


def _run_on_cluster(stages: Sequence[tuple[Stage, Any]], runtime: Runtime) -> list[Result]:
    import apache_beam as beam
    from apache_beam.options.pipeline_options import PipelineOptions, StandardOptions

    workdir = runtime.workdir
    before = {stage.name: _content(stage, workdir) for stage, _ in stages}
    workdir.delete(_OUTCOME_NAME)
    options = PipelineOptions(list(runtime.beam_flags))
    pipeline = beam.Pipeline(options=options)
    _build(pipeline, stages, replace(runtime, workers=1))
    result = pipeline.run()
    try:
        if runtime.owner:
            runner = str(options.view_as(StandardOptions).runner)
            found = getattr(result, "job_id", None) or getattr(result, "_job_id", None) or "without an id"
            name_job(workdir, runtime.owner, Job(runner, str(found() if callable(found) else found)))
        result.wait_until_finish()
    except Exception:
        if runtime.owner:
            name_job(workdir, runtime.owner, None)
        outcome = _read_outcome(workdir)
        if outcome is None or not outcome.message:
            raise
        raise WorkerError(f"{outcome.message}\n{outcome.failure}") from None
    if runtime.owner:
        name_job(workdir, runtime.owner, None)
    outcome = _read_outcome(workdir)
    workdir.delete(_OUTCOME_NAME)
    if outcome is not None and outcome.message:
        raise UsageError(outcome.message) if outcome.exit_code == UsageError.exit_code else UserError(outcome.message)
    results = []
    for stage, _ in stages:
        ran = _content(stage, workdir) != before[stage.name]
        results.append(Result(stage, require_manifest(workdir, stage.output), 0.0 if ran else None))
        results[-1].log()
    return results


def _content(stage: Stage, workdir: Storage) -> tuple[bytes, str] | None:
    from schemas.manifest import MANIFEST_NAME, ledger_of

    return workdir.read_version(f"{ledger_of(stage.output)}/{MANIFEST_NAME}")


def _read_outcome(workdir: Storage) -> Outcome | None:
    try:
        return msgspec.json.decode(workdir.read(_OUTCOME_NAME), type=Outcome)
    except (FileNotFoundError, msgspec.MsgspecError):
        return None


def check_beam_flags(flags: Sequence[str], own: Sequence[str]) -> None:
    """Raise UsageError for a flag that neither a stage (its `own`) nor Beam knows: Beam itself would ignore it."""
    if not flags:
        return
    from apache_beam.options.pipeline_options import PipelineOptions

    parser = argparse.ArgumentParser(add_help=False, allow_abbrev=False)
    for cls in PipelineOptions.__subclasses__():
        cls._add_argparse_args(parser)  # type: ignore[arg-type]
    known = {name for action in parser._actions for name in action.option_strings}
    for flag in flags:
        name = flag.split("=", 1)[0]
        if name.startswith("-") and name not in known:
            # Beam's are hundreds, of which one is always somewhat like it.
            near = difflib.get_close_matches(name, own, n=1) or difflib.get_close_matches(name, known, n=1, cutoff=0.8)
            raise UsageError(f"unknown flag {name}" + (f"; did you mean {near[0]}?" if near else "; see --help"))
