"""`owt`: every stage of a run, one stage, or a question about a run."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Sequence

from owt_pipeline.stages import ORDER

_COMMANDS = {
    "run": ("owt_pipeline.run", "every stage in order, skipping what stands"),
    "demo": ("owt_pipeline.demo.command", "the whole job, offline, from a small web it serves itself"),
    "init": ("owt_pipeline.presets.command", "write a commented CONFIG.toml to start from"),
    "verify": ("owt_pipeline.ledger.verify", "check every sum, every checksum, and that every id is accounted for"),
    "why": ("owt_pipeline.ledger.why", "one URL's whole story"),
}

_STAGES = {
    "collect": "URLs from Reddit dumps, Reddit's API or lists",
    "fetch": "pages from the web, or from WARC files",
    "extract": "main text and metadata from pages",
    "import": "your own text (JSONL, Parquet, plain text), in place of the three stages above",
    "clean": "repair text; reject what is not fit",
    "dedupe": "decide which documents repeat which",
    "export": "the corpus: clean documents without the duplicates",
    "tokenize": "token shards for training",
    "report": "statistics of the run as one HTML page and stats.json",
}


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command that `argv` names; returns the exit code."""
    arguments = list(sys.argv[1:] if argv is None else argv)
    if not arguments or arguments[0] in ("-h", "--help", "help"):
        print(_usage())
        return 0
    if arguments[0] == "--version":
        from owt_pipeline import __version__

        print(f"owt {__version__}")
        return 0
    name, rest = arguments[0], arguments[1:]
    if name in _STAGES:
        from owt_pipeline.stages import load
        from owt_pipeline.stages.command import main as stage_main

        return stage_main(load(name), rest)
    if name in _COMMANDS:
        code: int = importlib.import_module(_COMMANDS[name][0]).main(rest)
        return code
    from schemas.settings import did_you_mean

    print(f"owt: error: unknown command {name!r}{did_you_mean(name, [*_COMMANDS, *_STAGES])}", file=sys.stderr)
    return 2


def _usage() -> str:
    commands = "\n".join(f"  {name:<10}{text}" for name, (_, text) in _COMMANDS.items())
    stages = "\n".join(f"  {name:<10}{text}" for name, text in _STAGES.items())
    return f"""\
usage: owt COMMAND [--help] ...

Rebuild OpenWebText: from Reddit submissions to token shards for training.

commands:
{commands}

stages, each by itself ({", ".join(ORDER)}, in this order):
{stages}

`owt COMMAND --help` explains a command with an example. Exit codes: 0 done, 1 an error, 2 wrong usage."""


if __name__ == "__main__":
    sys.exit(main())
