"""Beam pipelines: which runner, which flags, and errors that come out as they went in."""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from owt_pipeline.runtime.errors import UserError
from schemas.settings import did_you_mean

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


def run_pipeline(build: Callable[[Any], None], beam_flags: Sequence[str]) -> None:
    """Build a pipeline with `build(pipeline)`, run it, and wait for its end.

    The local default is the FnApiRunner, named outright: `DirectRunner` picks one of three by the pipeline's
    shape. Raises what a DoFn raised, as it raised it, where it ran in this process.
    """
    with _no_warnings():  # importing Beam warns, through the root logger, of clients we do not use
        import apache_beam as beam
        from apache_beam.options.pipeline_options import PipelineOptions, StandardOptions
        from apache_beam.runners.portability.fn_api_runner import FnApiRunner

    from owt_pipeline.runtime import coders

    coders.register()
    check_beam_flags(beam_flags)
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
        pipeline.run().wait_until_finish()
    except Exception:
        if _failures:
            raise _failures[0] from None
        raise


@contextlib.contextmanager
def _no_warnings() -> Iterator[None]:
    root = logging.getLogger()
    level = root.level
    root.setLevel(logging.ERROR)
    try:
        yield
    finally:
        root.setLevel(level)


def runs_locally(beam_flags: Sequence[str]) -> bool:
    """Whether these flags leave the pipelines to this process' own runner, which holds what it groups in memory."""
    from apache_beam.options.pipeline_options import PipelineOptions, StandardOptions

    return (PipelineOptions(list(beam_flags)).view_as(StandardOptions).runner or "") in _LOCAL_RUNNERS


def check_beam_flags(flags: Sequence[str]) -> None:
    """Raise UserError for a flag that neither a stage nor Beam knows: Beam itself would ignore it."""
    if not flags:
        return
    import argparse

    from apache_beam.options.pipeline_options import PipelineOptions

    parser = argparse.ArgumentParser(add_help=False, allow_abbrev=False)
    for cls in PipelineOptions.__subclasses__():
        cls._add_argparse_args(parser)  # type: ignore[arg-type]
    known = {name for action in parser._actions for name in action.option_strings}
    for flag in flags:
        name = flag.split("=", 1)[0]
        if name.startswith("--") and name not in known:
            raise UserError(f"unknown flag {name}{did_you_mean(name, known) if _near(name, known) else ''}")


def _near(name: str, known: set[str]) -> bool:
    import difflib

    return bool(difflib.get_close_matches(name, known, n=1, cutoff=0.6))
