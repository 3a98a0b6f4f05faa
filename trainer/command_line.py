"""How the trainer's commands are parsed and run. A user's mistake is reported in one line."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NoReturn, TypeVar

import tomllib

from schemas import SettingsError
from schemas.settings import (
    ExitCode,
    FlagFormatter,
    add_flags,
    did_you_mean,
    flags_given,
    from_table,
    shortened,
)

Options = TypeVar("Options")


class CommandParser(argparse.ArgumentParser):
    """Shows help as it was written, accepts no abbreviated flags, and raises SettingsError for a
    mistake."""

    def __init__(
        self, prog: str, named: str, description: str | None, epilog: str | None = None
    ) -> None:
        usage = (
            f"python -m {prog} {named} [FLAGS]"  # the names of the flags are in the list below it
        )
        how: Any = {"formatter_class": FlagFormatter, "allow_abbrev": False}
        super().__init__(f"python -m {prog}", usage, description, epilog, **how)

    def parse_args(self, args: Sequence[str] | None = None, namespace: Any = None) -> Any:  # type: ignore[override]
        found, unknown = self.parse_known_args(args, namespace)
        if unknown:
            near = did_you_mean(unknown[0].partition("=")[0], self._option_string_actions).replace(
                "'", ""
            )
            self.error(f"unknown argument {unknown[0]}" + near * near.startswith("; did"))
        return found

    def error(self, message: str) -> NoReturn:
        message = shortened(message)
        raise SettingsError(
            message if message.endswith("?") else f"{message}; see {self.prog} --help"
        )


def read_settings(path: Path) -> tuple[dict[str, Any], str]:
    """(the table `[train]` of a TOML file, or the complete file if it has no tables; its name
    for errors)."""
    if path.suffix != ".toml" and not path.exists():
        raise SettingsError(
            f"unexpected '{path}': no CONFIG.toml; flags such as --compile take no value"
        )
    try:
        table = tomllib.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise SettingsError(f"{path} cannot be read: {error.strerror}") from error
    except ValueError as error:
        raise SettingsError(f"{path} is not TOML: {error}") from error
    if "train" not in table and (
        tables := [key for key, value in table.items() if isinstance(value, dict)]
    ):
        raise SettingsError(f"{path} has tables ({', '.join(tables)}) but no [train]; add it")
    return dict(table.get("train", table)), f"{path}: [train]"


def read_text(path: str, what: str) -> str:
    """The text of a file that the user named as `what`; raises SettingsError naming both."""
    check_local(path, what, "file")
    try:
        return (
            Path(path).read_bytes().decode("utf-8")
        )  # not read_text, which changes the ends of lines
    except UnicodeDecodeError as error:
        raise SettingsError(
            f"{what}: {path} is not UTF-8 at byte {error.start}; convert it first (iconv)"
        ) from error
    except OSError as error:
        raise SettingsError(f"{what}: {path} cannot be read: {error.strerror}") from error


def note(message: str) -> None:
    """Print a message to the error stream, apart from the command's output; on rank 0 only."""
    if os.environ.get("RANK", "0") == "0":
        print(message, file=sys.stderr, flush=True)


def first_line(error: Exception) -> str:
    """The first line of the message of another package's error."""
    return (str(error).strip() or repr(error)).partition("\n")[0]


def check_local(path: str, what: str, kind: str = "folder") -> None:
    """Raise SettingsError if the user gave a URI as `what`, which has to be a local `kind`."""
    if "://" in path:
        raise SettingsError(f"{what}: {path} is not a local {kind}; copy it here first")


def run_command(
    prog: str,
    description: str | None,
    named: dict[str, str],
    options: type[Options],
    work: Callable[..., None],
    arguments: Sequence[str] | None = None,
) -> int:
    """Do a command's `work` on its arguments `named` (with their help) and its `options`;
    returns an exit code."""
    parser = CommandParser(prog, " ".join(named).upper(), description)
    for name, help in named.items():
        parser.add_argument(
            name, metavar=name.upper(), help=help, nargs="+" if name == "runs" else None
        )
    add_flags(parser, options)

    def parse_and_work() -> None:
        given = parser.parse_args(arguments)
        values = [getattr(given, name) for name in named]
        work(*values, from_table(options, {}, "flags", flags_given(options, given)))

    return run_reporting(prog, parse_and_work)


def is_out_of_memory(error: BaseException) -> bool:
    """Return whether the error says that memory is used up: Python's, a GPU's, or torch's on a
    CPU, which is a RuntimeError."""
    names = [kind.__name__ for kind in type(error).__mro__]
    is_cpus = "RuntimeError" in names and "DefaultCPUAllocator" in str(error)
    return "MemoryError" in names or "OutOfMemoryError" in names or is_cpus


def run_reporting(prog: str, work: Callable[[], object], *expected: type[Exception]) -> int:
    """Do `work` and return an exit code.

    An `expected` error, ValueError, OSError or a lack of memory is one line on the error stream.
    """
    try:
        work()
        return ExitCode.DONE
    except Exception as error:
        is_known = isinstance(error, (ValueError, OSError, MemoryError, *expected))
        if not is_known and not is_out_of_memory(error):
            raise
        message = str(error) if is_known and str(error) else f"out of memory ({first_line(error)})"
        print(f"{prog}: {message}", file=sys.stderr, flush=True)
        return ExitCode.USAGE if isinstance(error, SettingsError) else ExitCode.ERROR
