"""`owt run`: run every stage in order, up to the one that `--until` names."""

from __future__ import annotations

import argparse
import contextlib
import dataclasses
import logging
import os
import re
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import pairwise
from typing import Any

from owt_pipeline import config
from owt_pipeline.command_line import CommandParser, configure_output, reporting_errors
from owt_pipeline.commands.ignored_settings import mention_num_shards
from owt_pipeline.commands.ls import plan_run, rows_of, table
from owt_pipeline.commands.results import (
    funnel_table,
    outputs_text,
    reasons_text,
    stages_of_documents,
)
from owt_pipeline.commands.setup import remember
from owt_pipeline.engine.generations import is_last_generation_published
from owt_pipeline.engine.publish import RUN_LOG
from owt_pipeline.engine.runner import Result, check_beam_flags, run_stages
from owt_pipeline.engine.stage import Runtime, Stage
from owt_pipeline.errors import JobRuns, UserError, command, settings_argument
from owt_pipeline.ledger.dataset import DatasetReader
from owt_pipeline.ledger.root import read_manifest, read_root, require_run
from owt_pipeline.pipeline import LAST, STAGES
from owt_pipeline.storage.folder import Storage
from schemas import SettingsError
from schemas.datasets import LEDGER
from schemas.quantities import pluralize
from schemas.settings import ExitCode, add_flags, flags_given, from_table

logger = logging.getLogger("owt")

# What import notes of a record without the field of its text.
_NO_TEXT_FIELD = re.compile(r": no field '")
# What fetch notes of an address that is refused.
_NOT_PUBLIC = "is not public"

EXPLAINED = (
    "dumps", "links", "subreddits", "num_shards", "min_score",
    "pages_from", "sources", "user_agent", "host_delay",
    "favor", "text_format",
    "languages", "min_tokens", "filters", "decontaminate",
    "threshold", "survivor", "against",
    "rules", "tokenizer", "val_fraction",
)  # fmt: skip
"""Options of stages that `owt run --help` explains; with `--until STAGE`, it explains all of
that stage."""

REMADE = ("export", "tokenize", "report")
"""Stages that a takedown reruns, with the options that they had."""


def main(argv: Sequence[str] | None = None) -> int:
    """Run `owt run` with the flags of `argv`; returns the exit code."""
    return reporting_errors(lambda: _run(argv))


def build_parser() -> argparse.ArgumentParser:
    """Return the parser of `owt run`, in which the options of all stages are explained."""
    return _parser(*STAGES)


def _run(argv: Sequence[str] | None) -> int:
    """Parse the flags, run the stages, and print what came out."""
    words = list(sys.argv[1:] if argv is None else argv)
    # The help depends on `--until`, so this flag is looked up before the parser exists.
    parser = _parser(_until_in(words))
    arguments, files, beam_flags = parser.parse_with_files(words)
    folder, path, other_words = places(parser, files)
    for word in other_words:
        parser.error(f"unexpected {word!r}: {config.problem_of_word(word)}")
    check_flags(parser, beam_flags)
    tables = config.read_config(path)
    runtime = runtime_of(folder, arguments, beam_flags, tables)
    stages = list(STAGES.values())
    flags_by_stage = {stage.name: flags_given(stage.options, arguments) for stage in stages}
    # A flag replaces its setting. With `--add`, new sources follow the sources in the settings.
    if arguments.add:
        flags_by_stage = {
            name: config.added(tables, name, flags) for name, flags in flags_by_stage.items()
        }
    # Options of all stages are checked, so that a mistake in a later one is reported at once.
    options = config.options_of(stages, path, tables, flags_by_stage)
    num_chosen = list(STAGES).index(arguments.until) + 1
    planned = list(zip(stages, options, strict=True))[:num_chosen]
    check_folder(runtime.workdir)
    mention_num_shards(options[0].num_shards, runtime)
    if arguments.dry_run:
        plans = plan_run(planned, runtime)
        datasets = {plan.stage.output for plan in plans}
        rows = rows_of(runtime.workdir, plans)
        print(table(row for row in rows if row.dataset in datasets))
        return ExitCode.DONE
    keeping = keeping_first_flags(runtime.workdir, path, flags_by_stage, is_adding=arguments.add)
    with keeping as keep_first_flags:
        results = run_stages(planned, runtime, keep_first_flags)
    # A job that another program submits later has no results yet.
    if not results:
        return ExitCode.DONE
    _mention_forgotten(results, runtime.workdir)
    # No stage has failed, so the next run may use these flags as settings.
    keep_flags(runtime.workdir, path, flags_by_stage)
    if not arguments.quiet:
        print(funnel_table(results))
        print(outputs_text(results, runtime.workdir))
    may_collect_nothing = runtime.add or arguments.until == "collect"
    return exit_code(results, runtime.workdir, may_collect_nothing)


def _until_in(words: Sequence[str]) -> str:
    """Return the stage that `--until` names; "" without the flag.

    The help explains all options of this stage.
    """
    for flag, value in pairwise(words):
        if flag == "--until":
            return value
    return ""


_WITH_TEXT = ("pages", "documents", "clean")


def _mention_forgotten(results: Sequence[Result], workdir: Storage) -> None:
    """Log which folders a run with takedowns has filled with texts again."""
    # A stage that was finished before has no seconds.
    rebuilt = [result.stage.output for result in results if result.seconds is not None]
    folders = [f"{name}/" for name in _WITH_TEXT if name in rebuilt]
    if folders and require_run(workdir).takedowns:
        logger.warning(
            "this run has rebuilt %s from the sources. They may contain texts that were taken "
            "down; corpus/ and tokens/ do not. See `owt forget --help`",
            ", ".join(folders),
        )


def keep_flags(
    workdir: Storage, path: str | None, flags_by_stage: Mapping[str, Mapping[str, Any]]
) -> None:
    """Write the flags of a run into the folder's own settings, unless it has used another file."""
    if path not in (None, config.settings_of(workdir)):
        return
    lasting_flags = {}
    for stage, flags in flags_by_stage.items():
        lasting_flags[stage] = {flag: flags[flag] for flag in flags if flag not in config.ONCE}
    remember(workdir, lasting_flags)


@contextlib.contextmanager
def keeping_first_flags(
    workdir: Storage,
    path: str | None,
    flags_by_stage: Mapping[str, Mapping[str, Any]],
    *,
    is_adding: bool = False,
) -> Iterator[Callable[[], None]]:
    """Yield a function that writes the flags of a run into its settings when the run starts.

    Then `owt run RUN` continues a run that was killed. If the run fails, its flags may be wrong, so
    the settings get their earlier content back, unless they were edited since.

    If a stage is finished, only flags of runs that succeed are kept. The sources of a run with
    `--add` (`is_adding`) are an exception: once a stage has published their generation, every later
    command needs them, such as the one that an error of this run advises.
    """
    earlier_settings = _read_settings(workdir)
    settings_with_flags = earlier_settings

    def keep() -> None:
        nonlocal settings_with_flags
        if not read_root(workdir)[0].datasets:
            keep_flags(workdir, path, flags_by_stage)
            settings_with_flags = _read_settings(workdir)
        elif is_adding and earlier_settings is not None:
            # New settings with only the sources would have the defaults of all other options.
            keep_flags(workdir, path, _sources_in(flags_by_stage))
            settings_with_flags = _read_settings(workdir)

    try:
        yield keep
    except JobRuns:
        # The job still works with these flags.
        raise
    except Exception:
        # If a stage has finished with these flags, its output was built with them, so they stay.
        is_edited = _read_settings(workdir) != settings_with_flags
        if not is_edited and not is_last_generation_published(read_root(workdir)[0]):
            _restore_settings(workdir, earlier_settings)
        raise


def _sources_in(flags_by_stage: Mapping[str, Mapping[str, Any]]) -> dict[str, dict[str, Any]]:
    """Return the flags that name sources, by stage."""
    sources_by_stage = {}
    for stage, flags in flags_by_stage.items():
        sources_by_stage[stage] = {flag: flags[flag] for flag in flags if flag in config.ADDED}
    return sources_by_stage


def _read_settings(workdir: Storage) -> bytes | None:
    """Return the content of the run's own settings; None if it has none."""
    versioned = workdir.read_version(config.SETTINGS)
    return None if versioned is None else versioned[0]


def _restore_settings(workdir: Storage, earlier_settings: bytes | None) -> None:
    """Write a run's earlier settings, or delete the settings if there were none."""
    if earlier_settings == _read_settings(workdir):
        return
    if earlier_settings is None:
        workdir.delete(config.SETTINGS)
    else:
        workdir.write(config.SETTINGS, earlier_settings)


def exit_code(
    results: Sequence[Result], workdir: Storage, may_collect_nothing: bool = False
) -> int:
    """Return 1, and log why, if no document came out; else 0.

    With `may_collect_nothing`, collect may reject all rows: added sources may have no new URL, and
    a subreddit may have none.
    """
    empty = _without_output(results)
    if empty is None or (may_collect_nothing and empty.stage.name == "collect"):
        return ExitCode.DONE
    counts = empty.manifest.counts
    logger.error(
        "the run has no document: %s rejected %s, all that entered it (%s)%s",
        empty.stage.name,
        pluralize(counts.entered, "row"),
        reasons_text(counts.rejected),
        _first_detail(DatasetReader(workdir, empty.manifest)),
    )
    return ExitCode.ERROR


def _first_detail(rejects: DatasetReader) -> str:
    """Return the detail of the first reject for the end of a message; "" if it has none."""
    for batch in rejects.batches(kind="rejects", columns=["detail"], rows=1):
        detail = batch["detail"][0].as_py() or ""
        if _NO_TEXT_FIELD.search(detail):
            detail += "; give the name of the field with the text as --text_field"
        elif detail.endswith(_NOT_PUBLIC):
            detail += "; for pages of your own network, add --allow_private_hosts"
        return f"; the first: {detail}" if detail else ""
    return ""


def _without_output(results: Sequence[Result]) -> Result | None:
    """Return the first stage that rejected all rows; None if every stage kept some."""
    for result in stages_of_documents(results):
        counts = result.manifest.counts
        if counts.entered and not counts.left:
            return result
    return None


def places(
    parser: argparse.ArgumentParser, words: Sequence[str]
) -> tuple[str, str | None, list[str]]:
    """Return the run's folder, its settings file, and the other words.

    The settings are a word that ends in `.toml`, or the folder's own `settings.toml`.
    """
    if not words or words[0].endswith(".toml"):
        parser.error(
            "RUN is required: the folder of the run (a local path, gs://, s3:// or az://); write "
            "it first, as in `owt run RUN --dumps FILE`, because a flag takes the words after it"
        )
    run, *other_words = words
    paths = [word for word in other_words if word.endswith(".toml")]
    if len(paths) > 1:
        parser.error(f"unexpected {paths[1]!r}: the settings are in {paths[0]}")
    # Advice to run the command again has to name these settings too.
    settings_argument.set(paths[0] if paths else None)
    path = paths[0] if paths else config.settings_of(Storage(run))
    files = [word for word in other_words if word not in paths]
    return run, path, files


def _parser(*complete: str) -> CommandParser:
    """Return the parser, in which all options of the stages in `complete` are explained.

    A flag sets the option of its name in each stage that has one.
    """
    stages = STAGES.values()
    examples = [f"  {stage.example}\n" for stage in stages if stage.name in complete]
    parser = CommandParser(
        prog="owt run",
        usage="owt run RUN [SETTINGS.toml] [--until STAGE] [--workers N] [FLAGS]",
        description="Run every stage in order. The command skips finished stages, and continues an "
        "interrupted stage at the shard where it stopped. If you change an option, its stage and "
        "the stages after it run again.",
        epilog="examples:\n  owt run runs/2013 config.toml --dumps RS_2013-*.zst --workers 8\n"
        f"{''.join(examples)}"
        "  owt run runs/2013 config.toml --min_tokens 64 --dry_run\n\n"
        "A flag overrides the settings file. Flags of Apache Beam (--runner, --project, ...) pass "
        "through.",
    )
    config.add_places(parser)
    parser.add_argument(
        "--until",
        choices=STAGES,
        default=LAST,
        metavar="STAGE",
        help="last stage to run (default: %(default)s)",
    )
    parser.add_argument(
        "--dry_run", action="store_true", help="print which stages would run and why; run nothing"
    )
    config.add_run_flags(parser)
    added_flags: set[str] = set()
    for stage in stages:
        if stage.name in complete:
            group = parser.add_argument_group(stage.name, stage.help)
            explained = None
        else:
            about_help = f"all options: owt run --until {stage.name} --help"
            group = parser.add_argument_group(stage.name, about_help)
            explained = EXPLAINED
        # Stages may share an option, and argparse refuses to add a flag a second time.
        add_flags(group, stage.options, without=added_flags, explained=explained)
        added_flags.update(field.name for field in dataclasses.fields(stage.options))
    return parser


def check_folder(workdir: Storage) -> None:
    """Raise UserError if a new run would begin in a folder with other files than settings."""
    if workdir.exists(LEDGER):
        return
    for name, *_ in workdir.walk():
        is_settings = "/" not in name and name.endswith(".toml")
        if not is_settings and not name.startswith(".") and name != RUN_LOG:
            raise UserError(
                f"{workdir} is not a run, and it is not empty: it contains {name}; give a new "
                "folder"
            )


def recorded_options(stage: Stage, workdir: Storage) -> Any | None:
    """Return the options with which a stage's output was made; None if there is no output.

    Raises UserError if they are not options of this version of the stage.
    """
    manifest = read_manifest(workdir, stage.output)
    if manifest is None:
        return None
    try:
        return from_table(
            stage.options, manifest.options, f"the manifest of {workdir}/{stage.output}"
        )
    except SettingsError as error:
        raise UserError(
            f"{error}: another version of the stage wrote it; run "
            f"{command('owt', 'run', workdir)} with your settings"
        ) from error


def recorded_stages(names: Sequence[str], workdir: Storage) -> list[tuple[Stage, Any]]:
    """Return the stages of these names that have an output, each with `recorded_options`."""
    recorded = []
    for name in names:
        options = recorded_options(STAGES[name], workdir)
        if options is not None:
            recorded.append((STAGES[name], options))
    return recorded


def runtime_of(
    folder: str, arguments: argparse.Namespace, beam_flags: list[str], tables: Mapping[str, Any]
) -> Runtime:
    """Return the runtime of the given flags and of the tables `[run]` and `[beam]`.

    Sets up logging and progress. Raises UsageError.
    """
    beam = config.beam_flags(tables, beam_flags)
    workers = config.workers_of(tables, arguments.workers, os.cpu_count() or 1)
    configure_output(arguments)
    return Runtime(Storage(folder), workers, beam, add=arguments.add)


def check_flags(parser: argparse.ArgumentParser, beam_flags: Sequence[str]) -> None:
    """Raise UsageError for one of the flags unknown to `parser` that is not Beam's either."""
    # A misspelled flag arrives as one of Beam's. With owt's own flags, the error can suggest one.
    flags_of_owt: list[str] = []
    for action in parser._actions:
        flags_of_owt += action.option_strings
    check_beam_flags(beam_flags, flags_of_owt, f"{parser.prog} --help")
