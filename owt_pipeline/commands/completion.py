"""`owt completion`: a script that lets a shell complete owt's commands and flags, made by shtab."""

from __future__ import annotations

import argparse
import importlib
from collections.abc import Sequence
from typing import Any

from owt_pipeline.cli import COMMANDS, STAGES
from owt_pipeline.command_line import CommandParser
from owt_pipeline.commands.stage import build_parser as stage_parser
from owt_pipeline.commands.stage import reporting_errors
from owt_pipeline.stages import load

SHELLS = ("bash", "zsh", "fish")

# Which flags take a file or a folder, by the names that their help gives the value.
_FOLDERS = ("DIR",)
_FILES = ("CONFIG.toml", "DATASET", "FILE", "GLOB", "TOKENIZER", "URLS.txt")


def build_parser() -> argparse.ArgumentParser:
    """The flags of `owt completion`."""
    parser = CommandParser(
        prog="owt completion",
        description="Print a script that lets your shell complete owt's commands, flags and files.",
        epilog="examples:\n"
        "  bash:  owt completion bash > ~/.local/share/bash-completion/completions/owt\n"
        "  zsh:   owt completion zsh > ~/.zfunc/_owt     (with fpath+=~/.zfunc before compinit in ~/.zshrc)\n"
        "  fish:  owt completion fish > ~/.config/fish/completions/owt.fish",
    )
    parser.add_argument("shell", choices=SHELLS, help="bash, zsh or fish")
    return parser


def main(argv: Sequence[str] | None = None) -> int:
    """`owt completion` with the flags of `argv`; returns the exit code."""
    return reporting_errors(lambda: _print(build_parser().parse_args(argv)))


def full_parser() -> argparse.ArgumentParser:
    """All commands as one parser: what `owt` itself takes apart to start quickly."""
    parser = argparse.ArgumentParser(prog="owt", description="from Reddit submissions to token shards for training")
    parser.add_argument("--version", action="store_true", help="print the version")
    commands = parser.add_subparsers(dest="command")
    for name, (module, text) in COMMANDS.items():
        own = build_parser() if name == "completion" else importlib.import_module(module).build_parser()
        _add(commands, name, text, own)
    for name, text in STAGES.items():
        _add(commands, name, text, stage_parser(load(name)))
    return parser


def _add(commands: Any, name: str, text: str, parser: argparse.ArgumentParser) -> None:
    import shtab

    added = commands.add_parser(name, help=text, parents=[parser], add_help=False, conflict_handler="resolve")
    for action in added._actions:
        if action.metavar in _FOLDERS:
            action.complete = shtab.DIRECTORY
        elif action.metavar in _FILES:
            action.complete = shtab.FILE


def _print(arguments: argparse.Namespace) -> int:
    import shtab

    print(shtab.complete(full_parser(), shell=arguments.shell))
    return 0
