"""`owt import`: make documents of the user's own text."""

from __future__ import annotations

import logging
import os
from collections.abc import Sequence

from owt_pipeline import config
from owt_pipeline.command_line import CommandParser, reporting_errors
from owt_pipeline.commands.ignored_settings import mention_num_shards
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
from owt_pipeline.errors import UsageError, UserError, command
from owt_pipeline.ledger.root import read_root
from owt_pipeline.stages.import_text.stage import STAGE
from schemas.settings import ExitCode, add_flags, flags_given

logger = logging.getLogger("owt")


def parser() -> CommandParser:
    """Return the parser of `owt import`."""
    parser = CommandParser(
        prog="owt import",
        usage="owt import RUN [SETTINGS.toml] [FILE ...] [FLAGS]",
        description=STAGE.help,
        epilog=f"example:\n  {STAGE.example}\n\nFlags of Apache Beam (--runner, --project, ...) "
        f"pass through.",
    )
    add_flags(parser.add_argument_group("settings of [import]"), STAGE.options)
    config.add_run_flags(parser)
    config.add_places(parser)
    # It is declared for the help only: `parse_with_files` returns the words that are files.
    parser.add_argument(
        "positional", nargs="*", metavar="FILE", help="file to import, the same as --files"
    )
    return parser


def main(argv: Sequence[str] | None = None) -> int:
    """Run `owt import` with the flags of `argv`; returns the exit code."""
    return reporting_errors(lambda: _import(argv))


def _import(argv: Sequence[str] | None) -> int:
    """Import the files that the arguments name, and print the next command."""
    import_parser = parser()
    arguments, words, beam_flags = import_parser.parse_with_files(argv)
    flags = flags_given(STAGE.options, arguments)
    folder, path, files = places(import_parser, words)
    # Files may be named by words and by `--files` in one command.
    if files:
        flags["files"] = [*files, *flags.get("files", [])]
    check_flags(import_parser, beam_flags)
    tables = config.read_config(path)
    runtime = runtime_of(folder, arguments, beam_flags, tables)
    if arguments.add:
        flags = config.added(tables, STAGE.name, flags)
    options = config.stage_options(STAGE, path, tables, flags)
    if not options.files and os.path.isfile(folder):
        example = command("owt", "import", "run", folder)
        raise UsageError(
            f"{folder} is a file: name a folder for the run before it, as in {example}"
        )
    if not options.files:
        example = command("owt", "import", folder, "texts.jsonl")
        raise UsageError(f"import: the command has no files to import: name them, as in {example}")
    check_folder(runtime.workdir)
    if arguments.add and path is None and read_root(runtime.workdir)[0].datasets:
        raise UserError(
            f"{runtime.workdir.path(config.SETTINGS)} is missing, and without its options the "
            f"earlier files would be imported again in another way: restore it, or run "
            f"{command('owt', 'init', folder)} and set your options in it"
        )
    mention_num_shards(options.num_shards, runtime)
    flags_by_stage = {STAGE.name: flags}
    with keeping_first_flags(runtime.workdir, path, flags_by_stage) as keep_first_flags:
        results = run_stages([(STAGE, options)], runtime, keep_first_flags)
    code = exit_code(results, runtime.workdir)
    # A job that another program submits later has no results yet.
    if not results:
        return code
    keep_flags(runtime.workdir, path, flags_by_stage)
    counts = results[-1].manifest.counts
    if not counts.entered:
        logger.error("import: the files have no texts")
        return ExitCode.ERROR
    if counts.left and not arguments.quiet:
        print(f"next:   {command('owt', 'run', runtime.workdir).strip('`')}")
    return code
