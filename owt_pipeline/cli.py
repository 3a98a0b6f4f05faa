"""`owt`: find the command that the arguments name, and run it."""

from __future__ import annotations

import importlib
import sys
import textwrap
from collections.abc import Sequence
from typing import Any

from owt_pipeline import progress
from owt_pipeline.command_line import complain, interruptible
from owt_pipeline.errors import command
from owt_pipeline.foreign_words import command_answer
from owt_pipeline.version import __version__
from schemas.settings import ExitCode, did_you_mean

COMMANDS = {
    "run": (
        "commands.run",
        "run every stage in order, skipping finished ones; --dry_run only prints the plan",
    ),
    "demo": ("demo.command", "run the complete job offline, on a small web that it serves itself"),
    "init": ("commands.setup", "write the settings of a run, with comments"),
    "import": (
        "commands.import_text",
        "import your own text (JSONL, Parquet, plain text) instead of fetching web pages",
    ),
    "train-tokenizer": ("commands.train_tokenizer", "learn a byte-level BPE from the corpus"),
    "verify": (
        "commands.verify",
        "check that files are undamaged, counts add up, and every id is accounted for",
    ),
    "ls": ("commands.ls", "list the stages of a run: state, rows, bytes, time"),
    "why": ("commands.why", "show what happened to a URL at every stage"),
    "forget": ("commands.forget", "remove documents from the corpus and the tokens"),
    "publish": (
        "commands.publish",
        "publish the corpus, or its URLs, as a dataset on the Hugging Face Hub",
    ),
    "page": ("commands.page", "print the main text of a page: a file, or standard input"),
    "near-duplicates": (
        "commands.near_duplicates",
        "find the records of your files that repeat another record; each pair is verified",
    ),
}
"""The module of each command, and its line in the usage."""


def command_of(name: str) -> Any:
    """Return `main` of a command's module: a `Command`, or a function that takes the arguments."""
    module, _ = COMMANDS[name]
    return importlib.import_module(f"owt_pipeline.{module}").main


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command that `argv` names; returns the exit code."""
    # Importing a command takes a while, in which Ctrl-C ends it with one line, too.
    return interruptible(lambda: _main(argv))


def _main(argv: Sequence[str] | None) -> int:
    """Print the usage or the version, or run the command."""
    arguments = list(sys.argv[1:] if argv is None else argv)
    if arguments[:1] == ["help"]:
        # As git does: the help of the command that follows.
        arguments = [*arguments[1:2], "--help"]
    if not arguments or arguments[0] in ("-h", "--help"):
        print(_usage())
        return ExitCode.DONE
    if arguments[0] in ("--version", "-V"):
        print(f"owt {__version__}")
        return ExitCode.DONE
    name, *words = arguments
    if name in COMMANDS:
        # A page can be shorter than this line, which would then show behind it.
        if name != "page" and "--quiet" not in words:
            progress.show_start()
        return int(command_of(name)(words))
    # Slow to import, and not needed for a command.
    from owt_pipeline.pipeline import STAGES

    if name in STAGES:
        run, *flags = words or ["RUN"]
        return complain(
            f"{name} is a stage: run {command('owt', 'run', run, '--until', name, *flags)}",
            ExitCode.USAGE,
        )
    answer = command_answer(name)
    if answer:
        return complain(f"{name!r} is not a command; {answer}", ExitCode.USAGE)
    return complain(f"unknown command {name!r}{did_you_mean(name, COMMANDS)}", ExitCode.USAGE)


def _entry(name: str, text: str) -> str:
    """Return an entry of the usage, wrapped to 80 columns."""
    return textwrap.fill(
        text, 80, initial_indent=f"  {name:<18}", subsequent_indent=" " * 20, break_on_hyphens=False
    )


def _usage() -> str:
    """Return the help of `owt`: its commands, stages and exit codes."""
    command_entries = [_entry(name, text) for name, (_, text) in COMMANDS.items()]
    code_entries = [_entry(str(code.value), code.meaning) for code in ExitCode]
    commands = "\n".join(command_entries)
    codes = "\n".join(code_entries)
    return f"""\
usage: owt COMMAND [--help] ...

Rebuild OpenWebText: from links, pages or your own text to tokens for training.

commands:
{commands}

the stages of a run, in order; `owt run RUN --until STAGE` stops after one:
  collect, fetch, extract, clean, dedupe, export, tokenize, report

exit codes:
{codes}

examples:
  owt demo                                   try the whole pipeline offline
  owt init run --preset openwebtext          write run/settings.toml, to edit
  owt run run --dumps RS_*.zst               build tokens from a Reddit dump
  owt run run --links links.csv              build tokens from a list of links
  owt run run --warcs crawl.warc.gz          build tokens from pages on disk
  owt import run articles.jsonl              build tokens from your own text
  owt why run https://example.org/article    show what happened to a page

`owt COMMAND --help` explains a command and shows an example."""


if __name__ == "__main__":
    sys.exit(main())
