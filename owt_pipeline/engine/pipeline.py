"""Beam pipelines: which runner, which flags, and errors that come out as they went in."""

from __future__ import annotations

import argparse
import contextlib
import difflib
import logging
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from owt_pipeline.engine.errors import UsageError
from owt_pipeline.engine.lease import Job

_LOCAL_RUNNERS = {"", "FnApiRunner", "DirectRunner"}

_failures: list[BaseException] = []  # what a local DoFn raised, before Beam wrapped it


@contextlib.contextmanager
def remembering_failures() -> Iterator[None]:
    """In a DoFn: keep the error as it was raised, for the process that waits for the pipeline."""
    try:
        yield
    except BaseException as error:
        _failures.append(error)
        raise


def run_pipeline(
    build: Callable[[Any], None], beam_flags: Sequence[str], name_job: Callable[[Job | None], None] | None = None
) -> None:
    """Build a pipeline with `build(pipeline)`, run it, and wait for its end.

    `name_job` is called with the job when a cluster has it, and with None when the job has ended; not when the wait is
    interrupted, since the job goes on.

    The local default is the FnApiRunner, named outright: `DirectRunner` picks one of three by the pipeline's
    shape. Raises what a DoFn raised, as it raised it, where it ran in this process.
    """
    import apache_beam as beam
    from apache_beam.options.pipeline_options import PipelineOptions, StandardOptions
    from apache_beam.runners.portability.fn_api_runner import FnApiRunner

    from owt_pipeline.engine import coders

    coders.register()
    options = PipelineOptions(list(beam_flags))
    standard = options.view_as(StandardOptions)
    local = (standard.runner or "") in _LOCAL_RUNNERS
    if local:
        logging.getLogger("apache_beam").setLevel(logging.CRITICAL)  # its errors are raised below, once
        standard.runner = None
    pipeline = beam.Pipeline(FnApiRunner() if local else None, options=options)
    build(pipeline)
    _failures.clear()
    try:
        result = pipeline.run()
        if name_job and not local:
            _wait_by_name(result, str(standard.runner), name_job)
        else:
            result.wait_until_finish()
    except Exception:
        if _failures:
            raise _failures[0] from None
        raise


def _wait_by_name(result: Any, runner: str, name_job: Callable[[Job | None], None]) -> None:
    found = getattr(result, "job_id", None) or getattr(result, "_job_id", None) or "without an id"  # Dataflow, others
    name_job(Job(runner, str(found() if callable(found) else found)))
    try:
        result.wait_until_finish()
    except Exception:
        name_job(None)
        raise
    name_job(None)


def runs_locally(beam_flags: Sequence[str]) -> bool:
    """Whether these flags leave the pipelines to this machine's own runner, which holds what it groups in memory."""
    if not beam_flags:
        return True  # without Beam, which takes half a second to import and may not be needed at all
    from apache_beam.options.pipeline_options import PipelineOptions, StandardOptions

    return (PipelineOptions(list(beam_flags)).view_as(StandardOptions).runner or "") in _LOCAL_RUNNERS


def beam_spreads(beam_flags: Sequence[str]) -> bool:
    """Whether these flags let Beam spread keys over machines, processes or threads of its own."""
    if not beam_flags:
        return False
    from apache_beam.options.pipeline_options import DirectOptions, PipelineOptions

    direct = PipelineOptions(list(beam_flags)).view_as(DirectOptions)
    return not runs_locally(beam_flags) or direct.direct_num_workers != 1


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
