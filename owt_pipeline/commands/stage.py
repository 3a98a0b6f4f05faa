"""The command line of a stage, `owt STAGE` or `python -m owt_pipeline.STAGE.stage`, and what all commands share."""

from __future__ import annotations

import argparse
import logging
import os
import select
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

from owt_pipeline import config
from owt_pipeline.command_line import CommandParser, complain, configure_output, interruptible
from owt_pipeline.engine import runner, submission
from owt_pipeline.engine.bases import end_revision, pin
from owt_pipeline.engine.errors import LedgerError, UsageError, UserError, explain_os_error
from owt_pipeline.engine.lease import hold
from owt_pipeline.engine.phases import Result
from owt_pipeline.engine.plan import usable_manifest
from owt_pipeline.engine.runner import check_beam_flags
from owt_pipeline.engine.stage import Runtime, Stage
from owt_pipeline.engine.storage import Storage
from owt_pipeline.engine.workers import WorkerError
from schemas.settings import ExitCode, add_flags, flags_given

logger = logging.getLogger("owt")


def main(stage: Stage, argv: Sequence[str] | None = None) -> int:
    """Run one stage with the flags of `argv`; returns the exit code."""
    return reporting_errors(lambda: _run(stage, argv))


def reporting_errors(command: Callable[[], int]) -> int:
    """Run `command`; print what a user can fix as one line. Returns one of the exit codes of `owt --help`."""
    logging.basicConfig(level=logging.ERROR, format="%(message)s", stream=sys.stderr)
    logger.setLevel(logging.WARNING)  # until configure_output: not every command has flags that say how much to say
    try:
        code = interruptible(command)
        sys.stdout.flush()
        return code
    except UserError as error:
        return _complain(str(error), error.exit_code)
    except OSError as error:
        if isinstance(error, BrokenPipeError) and _output_is_closed():
            return ExitCode.NO_READER
        return _complain(explain_os_error(error))
    except WorkerError as error:
        return _complain(f"a worker process failed:\n{error}")
    except LedgerError as error:
        return _complain(f"{error}. This is a bug of the stage: please report it with the input that shows it")


def run_stages(
    stages: Sequence[tuple[Stage, Any]], runtime: Runtime, take_over: bool = False, bases: Sequence[str] = ()
) -> list[Result]:
    """Run stages with their options, in order, holding the lease on the working directory, which builds on `bases`.

    Text that was imported takes the place of what collect, fetch and extract would make: they are left out.
    """
    with hold(runtime.workdir, take_over, partial(submission.job_runs, runtime.beam_flags)) as lease:
        imported = usable_manifest(runtime.workdir, "documents")
        if imported is not None and imported.stage == "import":
            stages = [planned for planned in stages if planned[0].name not in ("collect", "fetch", "extract")]
        pin(runtime.workdir, bases, stages)
        for stage, options in stages[1:]:
            stage.sources(options)  # what cannot be read is an error now, not when the stage's turn comes
        results = runner.run_stages(stages, replace(runtime, owner=lease.owner), _build)
        end_revision(runtime.workdir)
        return results


def _build(pipeline: Any, stages: Sequence[tuple[Stage, Any]], runtime: Runtime) -> None:
    from owt_pipeline.pipeline import Run, build  # which imports Beam: not for a run with nothing to do

    build(pipeline, Run({stage.name: (stage, options) for stage, options in stages}, runtime))


def runtime_of(arguments: argparse.Namespace, rest: list[str], tables: Mapping[str, Any]) -> Runtime:
    """How to run, from the flags, Beam's `rest`, and the tables `[run]` and `[beam]`; raises UsageError."""
    table = tables.get("run", {})
    workdir = config.workdir_of(tables, arguments.workdir)
    beam = config.beam_flags(tables, rest)
    given = arguments.workers if arguments.workers is not None else table.get("workers", os.cpu_count() or 1)
    workers = checked_workers(given)
    configure_output(arguments)
    return Runtime(Storage(workdir), workers, beam, allow_version_skew=arguments.allow_version_skew)


def checked_workers(workers: Any) -> int:
    """The number of processes that was asked for; raises UsageError where it is none."""
    if type(workers) is not int or workers < 1:
        raise UsageError(f"workers: {workers!r} is not a whole number of at least 1")
    return workers


def check_flags(parser: argparse.ArgumentParser, rest: Sequence[str]) -> None:
    """Raise UsageError for a flag in `rest`, which `parser` did not know, that is not Beam's either."""
    check_beam_flags(rest, [name for action in parser._actions for name in action.option_strings])


def build_parser(stage: Stage) -> CommandParser:
    """The flags of `owt STAGE`: its options, and those that say how to run."""
    parser = CommandParser(
        prog=f"owt {stage.name}",
        description=stage.help,
        epilog=f"example:\n  {stage.example}\n\nFlags of Apache Beam (--runner, --project, ...) pass through.",
    )
    add_flags(parser.add_argument_group("options"), stage.options)
    config.add_run_flags(parser)
    parser.add_argument("--config", metavar="CONFIG.toml", help=f"read the tables [{stage.name}], [run] and [beam]")
    if stage.positional:
        parser.add_argument("positional", nargs="*", metavar="FILE", help=f"the same as --{stage.positional}")
    return parser


def _run(stage: Stage, argv: Sequence[str] | None) -> int:
    parser = build_parser(stage)
    arguments, files, rest = parser.parse_with_files(argv)
    given = flags_given(stage.options, arguments)
    if files and not stage.positional:
        parser.error(f"unexpected {files[0]!r}")
    if files and stage.positional:
        given[stage.positional] = [*files, *given.get(stage.positional, [])]
    check_flags(parser, rest)
    tables = config.read_config(arguments.config)
    runtime = runtime_of(arguments, rest, tables)
    options = config.stage_options(stage, arguments.config, tables, given)
    run_stages([(stage, options)], runtime, arguments.take_over, config.bases_of(tables, arguments.base))
    return 0


def _output_is_closed() -> bool:
    """Whether standard output is a pipe whose other end is closed; if so, what is left goes nowhere."""
    poll = select.poll()
    poll.register(sys.stdout, 0)
    if not any(event & (select.POLLERR | select.POLLHUP) for _, event in poll.poll(0)):
        return False
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    return True


def _complain(message: str, code: int = ExitCode.ERROR) -> int:
    complain(message)
    return code
