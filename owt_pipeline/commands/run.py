"""`owt run`: every stage in order, up to the one that is asked for."""

from __future__ import annotations

import argparse
import contextlib
import dataclasses
import logging
import os
import shlex
import sys
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Any

from owt_pipeline import config
from owt_pipeline.command_line import CommandParser, aligned, configure_output, reporting_errors
from owt_pipeline.commands.setup import remember
from owt_pipeline.engine.generations import record_generations
from owt_pipeline.engine.plan import StagePlan, plan_stages
from owt_pipeline.engine.publish import RUN_LOG
from owt_pipeline.engine.runner import Result, check_beam_flags, run_stages, without_imported
from owt_pipeline.engine.stage import Runtime, Stage
from owt_pipeline.errors import JobRuns, UserError, command
from owt_pipeline.ledger.root import read_manifest, read_root, require_run
from owt_pipeline.pipeline import LAST, STAGES
from owt_pipeline.storage.folder import Storage
from schemas import SettingsError
from schemas.datasets import LEDGER
from schemas.settings import add_flags, flags_given, from_table

logger = logging.getLogger("owt")

_NO_FILE = "it is neither a settings file nor the value of a flag"

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
    """`owt run` with the flags of `argv`; returns the exit code."""
    return reporting_errors(lambda: _run(argv))


def build_parser() -> argparse.ArgumentParser:
    """The flags of `owt run`: its own, and those of every stage, each explained."""
    return _parser(*STAGES)


def funnel_table(results: Sequence[Result]) -> str:
    """The funnel of a run as text: what entered each stage, what left it, and why the rest did
    not."""
    rows = [("stage", "in", "out", "seconds", "rejected")]
    for result in results:
        counts, seconds = result.manifest.counts, result.seconds
        taken = "finished" if seconds is None else f"{seconds:.1f}"
        rows.append(
            (
                result.stage.name,
                f"{counts.entered:,}",
                f"{counts.left:,}",
                taken,
                _reasons(counts.rejected),
            )
        )
    return "\n".join(aligned(rows, left=(0, 4)))


def _run(argv: Sequence[str] | None) -> int:
    stages = list(STAGES.values())
    words = list(sys.argv[1:] if argv is None else argv)
    parser = _parser(next((until for flag, until in pairwise(words) if flag == "--until"), ""))
    arguments, files, rest = parser.parse_with_files(words)
    where, path, others = places(parser, files)
    for word in others:
        is_file = "the name of a settings file ends in .toml"
        parser.error(f"unexpected {word!r}: {is_file if os.path.exists(word) else _NO_FILE}")
    check_flags(parser, rest)
    tables = config.read_config(path)
    runtime = runtime_of(where, arguments, rest, tables)
    runtime = replace(runtime, is_complete=arguments.until == LAST)
    chosen = stages[: list(STAGES).index(arguments.until) + 1]
    # Of all stages: a mistake in any is reported before the first runs.
    given = {stage.name: flags_given(stage.options, arguments) for stage in stages}
    if arguments.add:
        given = {name: config.added(tables, name, flags) for name, flags in given.items()}
    options = config.options_of(stages, path, tables, given)
    planned = list(zip(chosen, options, strict=False))
    check_folder(runtime.workdir)
    if arguments.dry_run:
        print(dry_run_table(dry_run(planned, runtime)))
        return 0
    with keeping_first_flags(runtime.workdir, path, given) as begun:
        results = run_stages(planned, runtime, begun)
    _mention_forgotten(results, runtime.workdir)
    if results:
        keep_flags(runtime.workdir, path, given)
    if results and not arguments.quiet:  # the log has said it all
        print(funnel_table(results))
        print(_outputs(results, runtime.workdir))
    return exit_code(results, runtime.add or arguments.until == "collect")


_WITH_TEXT = ("pages", "documents", "clean")


def _mention_forgotten(results: Sequence[Result], workdir: Storage) -> None:
    """Log which folders that hold texts were made in a run with takedowns."""
    made = [result.stage.output for result in results if result.seconds is not None]
    folders = [f"{name}/" for name in _WITH_TEXT if name in made]
    if folders and require_run(workdir).takedowns:
        logger.warning(
            "%s may hold texts that were taken down, made again from the sources; corpus/ and "
            "tokens/ leave them out. See `owt forget --help`",
            ", ".join(folders),
        )


@dataclass(frozen=True)
class Step:
    """What would happen to one stage.

    Attributes:
      stage: its name.
      verdict: `finished`, `runs`, or `continues` after an interruption.
      shards: how many of its shards would be made.
      of: how many it has.
      rows: rows that enter these shards; None if they are made from shards that are yet to be made.
      why: what differs, if it runs.
    """

    stage: str
    verdict: str
    shards: int
    of: int
    rows: int | None
    why: str = ""


def dry_run(stages: Sequence[tuple[Stage, Any]], runtime: Runtime) -> list[Step]:
    """What would happen to each stage, in order; raises UserError where `owt run` would, before
    it writes anything."""
    stages = without_imported(stages, runtime.workdir, read_root(runtime.workdir)[0])
    root, _ = record_generations(stages, runtime, write=False)
    plans = plan_stages(stages, runtime.workdir, root)
    return [_step(plan, plans[:number]) for number, plan in enumerate(plans)]


def _step(plan: StagePlan, before: Sequence[StagePlan]) -> Step:
    if plan.finished:
        return Step(plan.stage.name, "finished", 0, len(plan.keys), 0)
    inputs = [other for other in before if other.stage.output in plan.stage.inputs]
    why = plan.cause or next(
        (f"{other.stage.output}/ changes" for other in inputs if other.pending), ""
    )
    rows: int | None = None
    if len(inputs) == 1 and plan.stage.reads == "shard":
        known = [inputs[0].records[shard] for shard in plan.pending]
        if all(row is not None and row.shard not in inputs[0].pending for row in known):
            rows = sum(
                file.rows for row in known if row for file in row.files if file.kind == "data"
            )
    verdict = "continues" if plan.is_resumed else "runs"
    return Step(plan.stage.name, verdict, len(plan.pending), len(plan.keys), rows, why)


def dry_run_table(found: Sequence[Step]) -> str:
    """The steps as text."""
    cells = [("stage", "", "shards", "rows", "why")]
    for step in found:
        shards = f"{step.shards} of {step.of}" if step.shards else str(step.of)
        rows = "?" if step.rows is None else f"{step.rows:,}" if step.rows else ""
        cells.append((step.stage, step.verdict, shards, rows, step.why))
    return "\n".join(aligned(cells, left=(0, 1, 4)))


def keep_flags(workdir: Storage, path: str | None, given: Mapping[str, Mapping[str, Any]]) -> None:
    """Write the flags of a run by the folder's own settings into these."""
    if path not in (None, config.settings_of(workdir)):
        return
    kept = {
        name: {flag: flags[flag] for flag in flags if flag not in config.ONCE}
        for name, flags in given.items()
    }
    remember(workdir, kept)


@contextlib.contextmanager
def keeping_first_flags(
    workdir: Storage, path: str | None, given: Mapping[str, Mapping[str, Any]]
) -> Iterator[Callable[[], None]]:
    """Give a function that writes the flags of a run into its settings when the run starts.

    So `owt run RUN` goes on with a run that was killed. The function does nothing if a stage is
    finished: then only flags of runs that succeed are kept. If the run fails, its flags may be
    wrong, and the settings are again as they were.
    """
    changed = False
    before = workdir.read(config.SETTINGS) if workdir.exists(config.SETTINGS) else None

    def keep() -> None:
        nonlocal changed
        if not read_root(workdir)[0].datasets:
            changed = True
            keep_flags(workdir, path, given)

    try:
        yield keep
    except JobRuns:
        raise
    except Exception:
        has_finished = changed and read_root(workdir)[0].datasets
        if changed and not has_finished and before is None:
            workdir.delete(config.SETTINGS)
        elif changed and not has_finished and before is not None:
            workdir.write(config.SETTINGS, before)
        raise


def exit_code(results: Sequence[Result], may_collect_nothing: bool = False) -> int:
    """1 if no document came out, with a line that says why. What is added may have no new URL, a
    subreddit none."""
    if (empty := _without_output(results)) is None or (
        may_collect_nothing and empty.stage.name == "collect"
    ):
        return 0
    counts = empty.manifest.counts
    logger.error("no document came out: %s let none of %s through "
    "(%s)", empty.stage.name, f"{counts.entered:,}",
                 _reasons(counts.rejected))  # fmt: skip
    return 1


def _without_output(results: Sequence[Result]) -> Result | None:
    """The first stage that let nothing through, of those whose rows are documents or become
    such."""
    stages = [result for result in results if result.stage.name not in ("dedupe", "report")]
    return next(
        (each for each in stages if each.manifest.counts.entered and not each.manifest.counts.left),
        None,
    )


def _reasons(rejected: Mapping[str, int]) -> str:
    return ", ".join(f"{reason} {count:,}" for reason, count in Counter(rejected).most_common())


def _outputs(results: Sequence[Result], workdir: Storage) -> str:
    """Where what the run made is, and what to do next: the last lines of `owt run`."""
    lines = [""]
    finished = {result.stage.name: result.manifest for result in results}
    if corpus := finished.get("export"):
        lines.append(f"corpus  {workdir.path('corpus')}  {corpus.counts.left:,} documents, Parquet")
    if tokens := finished.get("tokenize"):
        total = sum(tokens.stats.get(f"tokens_{split}", 0) for split in ("train", "val"))
        lines.append(f"tokens  {workdir.path('tokens')}  {total:,} tokens, Arrow IPC")
    if "report" in finished:
        lines.append(f"report  {workdir.path('report/index.html')}")
    if _without_output(results) is not None:
        return "\n".join(lines)
    if "tokenize" in finished:
        lines.append(
            "next:   python -m trainer.train "
            f"{shlex.join(['--data', workdir.path('tokens'), '--out', 'gpt2', '--preset', '124M'])}"
        )
    else:
        names = list(STAGES)
        following = names[names.index(results[-1].stage.name) + 1]
        words = ["owt", "run", str(workdir), "--until", following]
        lines.append(f"next:   {shlex.join(words)}")
    return "\n".join(lines)


def places(
    parser: argparse.ArgumentParser, words: Sequence[str]
) -> tuple[str, str | None, list[str]]:
    """(the run's folder, its settings file, the other words): the settings are a word that ends
    in `.toml`, or the folder's own `settings.toml`."""
    if not words or words[0].endswith(".toml"):
        parser.error("RUN is required: the folder of the run (a local path, gs://, s3:// or az://)")
    run, *others = words
    found = [word for word in others if word.endswith(".toml")]
    if len(found) > 1:
        parser.error(f"unexpected {found[1]!r}: the settings are in {found[0]}")
    path = found[0] if found else config.settings_of(Storage(run))
    return run, path, [word for word in others if not word.endswith(".toml")]


def _parser(*complete: str) -> CommandParser:
    """The parser. All options of the stages in `complete` are explained; a flag is that of each
    stage which has it."""
    stages = STAGES.values()
    parser = CommandParser(
        prog="owt run",
        usage="owt run RUN [SETTINGS.toml] [--until STAGE] [--workers N] [FLAGS]",
        description="Run every stage in order. A finished stage is skipped; an interrupted one\n"
        "continues at the shard where it stopped; a changed option reruns its stage and those "
        "after it.",
        epilog="examples:\n  owt run runs/2013 config.toml --dumps RS_2013-*.zst --workers 8\n"
        f"{''.join(f'  {stage.example}{chr(10)}' for stage in stages if stage.name in complete)}"
        "  owt run runs/2013 config.toml --min_tokens 64 --dry_run\n\n"
        "A flag overrides the settings file. Flags of Apache Beam (--runner, --project, ...) pass "
        "through.",
    )
    config.add_places(parser)
    parser.add_argument(
        "--until", choices=STAGES, default=LAST, metavar="STAGE", help="the last stage to run"
    )
    parser.add_argument(
        "--dry_run", action="store_true", help="print what would run, and why; run nothing"
    )
    config.add_run_flags(parser)
    known: set[str] = set()
    for stage in stages:
        is_complete = stage.name in complete
        more = stage.help if is_complete else f"more: owt run --until {stage.name} --help"
        group = parser.add_argument_group(f"{stage.name}", more)
        explained = None if is_complete else EXPLAINED
        add_flags(group, stage.options, without=known, explained=explained)
        known.update(field.name for field in dataclasses.fields(stage.options))
    return parser


def check_folder(workdir: Storage) -> None:
    """Raise UserError if a new run would begin in a folder with other files than settings."""
    if workdir.exists(LEDGER):
        return
    for name, *_ in workdir.walk():
        if not (
            name.startswith(".") or name == RUN_LOG or ("/" not in name and name.endswith(".toml"))
        ):
            raise UserError(
                f"{workdir} is no run and not empty: it holds {name}; give a new folder"
            )


def recorded_options(stage: Stage, workdir: Storage) -> Any | None:
    """The options with which a stage's finished output was made; None if there is no output.

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
            f"{error}: it was made by another version; run "
            f"{command('owt', 'run', workdir)} with your settings"
        ) from error


def recorded_stages(names: Sequence[str], workdir: Storage) -> list[tuple[Stage, Any]]:
    """Those of some stages that have an output, with `recorded_options`."""
    stages = [STAGES[name] for name in names]
    recorded = [(stage, recorded_options(stage, workdir)) for stage in stages]
    return [(stage, options) for stage, options in recorded if options is not None]


def lacks_takedowns(workdir: Storage) -> bool:
    """Whether the corpus was made before the list of takedowns changed."""
    plans = plan_stages(recorded_stages(("export",), workdir), workdir, require_run(workdir))
    return not all(plan.finished for plan in plans)


def runtime_of(
    where: str, arguments: argparse.Namespace, rest: list[str], tables: Mapping[str, Any]
) -> Runtime:
    """How to run, from the flags, Beam's `rest`, and the tables `[run]` and `[beam]`; raises
    UsageError."""
    beam = config.beam_flags(tables, rest)
    workers = config.workers_of(tables, arguments.workers, os.cpu_count() or 1)
    configure_output(arguments)
    return Runtime(Storage(where), workers, beam, add=arguments.add)


def check_flags(parser: argparse.ArgumentParser, rest: Sequence[str]) -> None:
    """Raise UsageError for a flag in `rest`, which `parser` did not know, that is not Beam's
    either."""
    own = [name for action in parser._actions for name in action.option_strings]
    check_beam_flags(rest, own, f"{parser.prog} --help")
