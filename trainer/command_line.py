"""The parser of the trainer's commands: a mistake is one line, with the nearest flag that exists."""

from __future__ import annotations

import argparse
import difflib
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NoReturn

from schemas import SettingsError
from schemas.exit_codes import ExitCode
from schemas.settings import FlagFormatter, shortened


class CommandParser(argparse.ArgumentParser):
    """Help is shown as it was written, flags are not abbreviated, and a mistake raises SettingsError."""

    def __init__(self, **arguments: Any) -> None:
        super().__init__(formatter_class=FlagFormatter, allow_abbrev=False, **arguments)

    def parse_args(self, args: Sequence[str] | None = None, namespace: Any = None) -> Any:  # type: ignore[override]
        found, unknown = self.parse_known_args(args, namespace)
        if unknown:
            near = difflib.get_close_matches(unknown[0].partition("=")[0], self._option_string_actions, n=1)
            self.error(f"unknown argument {unknown[0]}" + (f"; did you mean {near[0]}?" if near else ""))
        return found

    def error(self, message: str) -> NoReturn:
        message = shortened(message)
        raise SettingsError(message if message.endswith("?") else f"{message}; see {self.prog} --help")


def read_text(path: str, what: str) -> str:
    """The text of a file that the user named as `what`; raises SettingsError naming both."""
    check_local(path, what, "file")
    try:
        return Path(path).read_text(encoding="utf-8")
    except UnicodeDecodeError as error:
        raise SettingsError(f"{what}: {path} is not UTF-8 at byte {error.start}; convert it first (iconv)") from error
    except OSError as error:
        raise SettingsError(f"{what}: {path} cannot be read: {error.strerror}") from error


def check_local(path: str, what: str, kind: str = "folder") -> None:
    """Raise SettingsError where the user named a URI as `what`, which has to be a local `kind`."""
    if "://" in path:
        raise SettingsError(f"{what}: {path} is no local {kind}; copy it here first")


def report(prog: str, error: Exception) -> ExitCode:
    """Print what ended a command in one line; returns its exit code."""
    print(f"{prog}: {error}", file=sys.stderr, flush=True)
    return ExitCode.USAGE if isinstance(error, SettingsError) else ExitCode.ERROR
