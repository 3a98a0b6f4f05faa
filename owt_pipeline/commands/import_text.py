"""`owt import`: the user's own text as the documents of a run."""

from __future__ import annotations

import shlex
from collections.abc import Sequence

from owt_pipeline import config
from owt_pipeline.command_line import CommandParser, reporting_errors
from owt_pipeline.commands.run import (
    check_flags,
    check_folder,
    exit_code,
    keep_flags,
    keeping_first_flags,
    places,
    runtime_of,
)
from owt_pipeline.engine.runner import run_stages
from owt_pipeline.errors import UsageError, command
from owt_pipeline.stages.import_text.stage import STAGE
from schemas.settings import ExitCode, add_flags, flags_given


def parser() -> CommandParser:
    """The flags of `owt import`."""
    found = CommandParser(
        prog="owt import",
        usage="owt import RUN [SETTINGS.toml] [FILE ...] [FLAGS]",
        description=STAGE.help,
        epilog=f"example:\n  {STAGE.example}\n\nFlags of Apache Beam (--runner, --project, ...) "
        f"pass through.",
    )
    add_flags(found.add_argument_group("settings of [import]"), STAGE.options)
    config.add_run_flags(found)
    config.add_places(found)
    found.add_argument("positional", nargs="*", metavar="FILE", help="the same as --files")
    return found


def main(argv: Sequence[str] | None = None) -> int:
    """`owt import` with the flags of `argv`; returns the exit code."""
    return reporting_errors(lambda: _import(argv))


def _import(argv: Sequence[str] | None) -> int:
    arguments, words, rest = (flags := parser()).parse_with_files(argv)
    given = flags_given(STAGE.options, arguments)
    where, path, files = places(flags, words)
    if files:
        given["files"] = [*files, *given.get("files", [])]
    check_flags(flags, rest)
    tables = config.read_config(path)
    runtime = runtime_of(where, arguments, rest, tables)
    if arguments.add:
        given = config.added(tables, STAGE.name, given)
    options = config.stage_options(STAGE, path, tables, given)
    if not options.files:
        example = command("owt", "import", where, "texts.jsonl")
        raise UsageError(f"import: no files given: name them, as in {example}")
    check_folder(runtime.workdir)
    all_given = {STAGE.name: given}
    with keeping_first_flags(runtime.workdir, path, all_given) as begun:
        results = run_stages([(STAGE, options)], runtime, begun)
    code = exit_code(results)
    if not results:
        return code
    keep_flags(runtime.workdir, path, all_given)
    if code == ExitCode.DONE and not arguments.quiet:
        print(f"next:   {shlex.join(['owt', 'run', str(runtime.workdir)])}")
    return code
