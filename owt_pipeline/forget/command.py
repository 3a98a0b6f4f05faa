"""`owt forget`: take documents out of the corpus and the tokens, for good."""

from __future__ import annotations

import argparse
import logging
import os
from collections.abc import Sequence
from typing import Any

from owt_pipeline.engine import console
from owt_pipeline.engine.command_line import CommandParser
from owt_pipeline.engine.dataset import is_discarded, read_manifest
from owt_pipeline.engine.errors import UserError
from owt_pipeline.engine.lease import hold
from owt_pipeline.engine.plan import recorded_plan
from owt_pipeline.engine.stage import Runtime, Stage
from owt_pipeline.engine.storage import Storage
from owt_pipeline.forget.request import Resolved, parse_request, resolve
from owt_pipeline.forget.takedowns import FORGOTTEN, read_takedowns, write_takedowns
from owt_pipeline.ledger.story import readers_of
from owt_pipeline.stage_command import checked_workers, reporting_errors
from owt_pipeline.stages import load
from schemas import SettingsError
from schemas.settings import from_table

logger = logging.getLogger("owt")

_REWRITTEN = ("export", "tokenize", "report")
_WITH_TEXT = ("pages", "documents", "clean")


def build_parser() -> argparse.ArgumentParser:
    """The flags of `owt forget`."""
    parser = CommandParser(
        prog="owt forget",
        description="Take documents out of corpus/ and tokens/ (a takedown). What is named goes on the run's list,\n"
        f"{FORGOTTEN}, and stays out whatever runs again; only the shards it is in are rewritten, and the\n"
        "report is made anew. Duplicates of a document that goes, go with it: their text is the same.\n"
        "Killed at any moment, it goes on when run again (as does owt run).\n\n"
        "pages/, documents/ and clean/ still hold the text: they are what the corpus was made from. Discard them once\n"
        "the corpus is final (owt discard fetch extract clean), or build the next corpus without the URLs (collect\n"
        "--deny_domains).",
        epilog="example:\n  owt forget takedown.txt --workdir runs/2013 --reason 'request of 2026-11-20'\n\n"
        "takedown.txt has one URL, id or domain (example.org, with all hosts below it) a line; # begins a comment.\n"
        "What is not in the corpus goes on the list too: it will not come in. To bring a document back, take its\n"
        f"line out of {FORGOTTEN} and run owt run again.",
    )
    parser.add_argument("urls", metavar="URLS.txt", help="URLs, ids and domains, one a line; - reads them from stdin")
    parser.add_argument("--workdir", metavar="DIR", required=True, help="folder of the run")
    parser.add_argument(
        "--reason", default="on request", metavar="TEXT", help="what the ledger says (default: %(default)s)"
    )
    parser.add_argument("--dry_run", action="store_true", help="say what would go, and change nothing")
    parser.add_argument(
        "--workers", type=int, default=os.cpu_count() or 1, metavar="N", help="processes to tokenize with"
    )
    console.add_flags(parser)
    return parser


def main(argv: Sequence[str] | None = None) -> int:
    """`owt forget` with the flags of `argv`; returns the exit code."""
    return reporting_errors(lambda: _forget(build_parser().parse_args(argv)))


def recorded_options(stage: Stage, workdir: Storage) -> Any | None:
    """The options with which a stage's output was made, or was being made; None where there is no output.

    Raises UserError where they are not options of this version of the stage.
    """
    plan = recorded_plan(workdir, stage.output)
    if plan is None:
        return None
    try:
        return from_table(stage.options, plan.options, f"the manifest of {workdir}/{stage.output}")
    except SettingsError as error:
        raise UserError(f"{error}: it was made by another version; run `owt run` with your settings") from error


def _forget(arguments: argparse.Namespace) -> int:
    from owt_pipeline.run import run_stages

    console.configure(arguments)
    workdir, workers = Storage(arguments.workdir), checked_workers(arguments.workers)
    readers = readers_of(workdir)
    with hold(workdir):
        before = read_takedowns(workdir)
        request = parse_request(_lines(arguments.urls), arguments.urls, arguments.reason)
        if not request.ids and not request.domains:
            raise UserError(f"{arguments.urls} names no URL, id or domain: nothing to forget")
        resolved = resolve(request, readers)
        if not arguments.dry_run and (after := before | resolved.takedowns) != before:
            write_takedowns(workdir, after)
    _warn_of_unknown(resolved, workdir)
    say = _silent if arguments.quiet else print
    copies = f"; {resolved.copies:,} duplicates of them stay out with them" if resolved.copies else ""
    say(f"{resolved.in_corpus:,} documents {'would leave' if arguments.dry_run else 'leave'} the corpus{copies}")
    if arguments.dry_run:
        return 0
    stages = []
    for name in _REWRITTEN:
        stage = load(name)
        if (options := recorded_options(stage, workdir)) is not None:
            stages.append((stage, options))
    results = run_stages(stages, Runtime(workdir, workers))
    for result in results:
        finished = "" if result.seconds is not None else " (finished)"
        say(f"{result.stage.output}/: {result.manifest.counts.left:,} documents{finished}")
    holding = [
        f"{name}/"
        for name in _WITH_TEXT
        if read_manifest(workdir, name) is not None and not is_discarded(workdir, name)
    ]
    if holding:
        say(f"{', '.join(holding)} still hold what was collected: see owt forget --help")
    return 0


def _silent(message: str) -> None: ...


def _warn_of_unknown(resolved: Resolved, workdir: Storage) -> None:
    if resolved.unknown:
        shown = ", ".join(resolved.unknown[:3]) + (", ..." if len(resolved.unknown) > 3 else "")
        logger.warning("%d of what is named is no document of %s: %s", len(resolved.unknown), workdir, shown)


def _lines(path: str) -> list[str]:
    import sys

    try:
        if path == "-":
            return sys.stdin.read().splitlines()
        with open(path, encoding="utf-8") as file:
            return file.read().splitlines()
    except OSError as error:
        raise UserError(f"cannot read {path}: {error.strerror}; it should hold one URL, id or domain a line") from error
    except UnicodeDecodeError as error:
        raise UserError(f"{path} is not UTF-8 text: {error}") from error
