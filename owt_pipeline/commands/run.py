"""`owt run`: every stage in order; finished stages are skipped."""

from __future__ import annotations

import argparse
import logging
import os
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

from owt_pipeline import config
from owt_pipeline.command_line import CommandParser
from owt_pipeline.commands import dry_run
from owt_pipeline.commands.stage import check_flags, reporting_errors, run_stages, runtime_of
from owt_pipeline.engine.bases import pin
from owt_pipeline.engine.errors import UsageError
from owt_pipeline.engine.phases import Result
from owt_pipeline.engine.stage import Stage
from owt_pipeline.engine.storage import Storage
from owt_pipeline.engine.submission import Prices
from owt_pipeline.stages import ORDER, load
from schemas.settings import add_flags, flags_given

logger = logging.getLogger("owt")


def main(argv: Sequence[str] | None = None) -> int:
    """`owt run` with the flags of `argv`; returns the exit code."""
    return reporting_errors(lambda: _run(argv))


def build_parser() -> argparse.ArgumentParser:
    """The flags of `owt run`: its own, and those of every stage."""
    return _parser([load(name) for name in ORDER])[0]


def funnel_table(results: Sequence[Result]) -> str:
    """The funnel of a run as text: what entered each stage, what left it, and why the rest did not."""
    rows = [("stage", "in", "out", "seconds", "rejected")]
    for result in results:
        counts, seconds = result.manifest.counts, result.seconds
        reasons = ", ".join(f"{reason} {count:,}" for reason, count in Counter(counts.rejected).most_common())
        taken = "finished" if seconds is None else f"{seconds:.1f}"
        rows.append((result.stage.name, f"{counts.entered:,}", f"{counts.left:,}", taken, reasons))
    widths = [max(len(row[column]) for row in rows) for column in range(4)]
    lines = [
        "  ".join([row[0].ljust(widths[0]), *(row[i].rjust(widths[i]) for i in (1, 2, 3)), row[4]]).rstrip()
        for row in rows
    ]
    return "\n".join(lines)


def _run(argv: Sequence[str] | None) -> int:
    stages = [load(name) for name in ORDER]
    parser, shared = _parser(stages)
    arguments, files, rest = parser.parse_with_files(argv)
    path = _config_of(parser, files)
    for flag in rest:
        name = flag.removeprefix("--").split("=", 1)[0]
        if name in shared:
            choices = " or ".join(f"--{stage}.{name}" for stage in shared[name])
            raise UsageError(f"--{name} belongs to several stages: say {choices}")
    check_flags(parser, rest)
    tables = config.read_config(path)
    runtime = runtime_of(arguments, rest, tables)
    chosen = stages[: ORDER.index(arguments.until) + 1]
    options = [_options(stage, arguments, path, tables) for stage in stages]  # all: an error should not wait its turn
    planned = list(zip(chosen, options, strict=False))
    prices = Prices.from_flags(arguments.prices)
    bases = config.bases_of(tables, arguments.base)
    if arguments.dry_run:
        pin(runtime.workdir, bases, planned, write=False)
        found = dry_run.steps(planned, runtime)
        if arguments.log_json:
            print(dry_run.as_json(found))
        else:
            print(dry_run.table(found, runtime) + dry_run.on_cluster(found, runtime, prices))
        return 0
    results = run_stages(planned, runtime, arguments.take_over, bases)
    if results and not arguments.quiet and not arguments.log_json:  # the log has said it all
        print(funnel_table(results))
        print(_outputs(results, runtime.workdir))
    return 0


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
    if "tokenize" in finished:
        lines.append(f"next:   python -m trainer.train --data {workdir.path('tokens')} --out gpt2 --preset 124M")
    else:
        following = ORDER[ORDER.index(results[-1].stage.name) + 1] if results[-1].stage.name != ORDER[-1] else "verify"
        lines.append(f"next:   owt {following} --workdir {workdir}")
    return "\n".join(lines)


def _config_of(parser: argparse.ArgumentParser, files: Sequence[str]) -> str | None:
    """The one CONFIG.toml among the words of the command line; raises UsageError."""
    if len(files) > 1:
        parser.error(f"unexpected {files[1]!r}: there is one CONFIG.toml, and it is {files[0]}")
    for path in files:
        if not path.endswith(".toml") and "://" not in path and not os.path.exists(path):
            parser.error(f"unexpected {path!r}: it is no file, and no value of a flag")
        return path
    return None


def _options(stage: Stage, arguments: argparse.Namespace, path: str | None, tables: Mapping[str, Any]) -> Any:
    flags = flags_given(stage.options, arguments, prefix=f"{stage.name}.")
    return config.stage_options(stage, path, tables, flags)


def _parser(stages: Sequence[Stage]) -> tuple[CommandParser, dict[str, list[str]]]:
    """The parser, and the names of options that several stages have: those need the stage's name in the flag."""
    import dataclasses

    owners: dict[str, list[str]] = {}
    for stage in stages:
        for field in dataclasses.fields(stage.options):
            owners.setdefault(field.name, []).append(stage.name)
    parser = CommandParser(
        prog="owt run",
        usage="owt run [CONFIG.toml] [--workdir DIR] [--until STAGE] [--workers N] [FLAGS]",
        description="Run every stage in order. A finished stage is skipped; an interrupted one\n"
        "continues at the shard where it stopped; a changed option reruns its stage and those after it.",
        epilog="examples:\n  owt run config.toml --workdir runs/2013 --dumps RS_2013-*.zst --workers 8\n"
        "  owt run config.toml --workdir runs/2013 --min_tokens 64 --dry_run\n\n"
        "Flags override the file. Flags of Apache Beam (--runner, --project, ...) pass through.",
    )
    parser.add_argument(
        "config", nargs="?", metavar="CONFIG.toml", help="settings; `owt init` writes one to start from"
    )
    parser.add_argument("--until", choices=ORDER, default=ORDER[-1], metavar="STAGE", help="the last stage to run")
    parser.add_argument(
        "--dry_run", action="store_true", help="say what would run, why, and about how long it takes; do nothing"
    )
    parser.add_argument(
        "--prices",
        nargs="+",
        default=[],
        metavar="NAME=DOLLARS",
        help="prices for --dry_run on Dataflow, other than the list's: "
        + ", ".join(field.name for field in dataclasses.fields(Prices)),
    )
    config.add_run_flags(parser)
    unique = {name for name, stages_of in owners.items() if len(stages_of) == 1}
    for stage in stages:
        add_flags(parser.add_argument_group(stage.name), stage.options, prefix=f"{stage.name}.", bare=unique)
    return parser, {name: stages_of for name, stages_of in owners.items() if len(stages_of) > 1}
