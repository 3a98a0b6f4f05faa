"""How the trainer's commands are parsed and run. A user's mistake is reported in one line."""

from __future__ import annotations

import argparse
import difflib
import os
import re
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NoReturn, TypeVar

from schemas import SettingsError
from schemas.settings import ExitCode, FlagFormatter, add_flags, flags_given, from_table, shortened

Options = TypeVar("Options")


class CommandParser(argparse.ArgumentParser):
    """Shows help as it was written, accepts no abbreviated flags, and raises SettingsError for a mistake."""

    def __init__(self, **arguments: Any) -> None:
        super().__init__(formatter_class=FlagFormatter, allow_abbrev=False, **arguments)

    def parse_args(self, args: Sequence[str] | None = None, namespace: Any = None) -> Any:  # type: ignore[override]
        found, unknown = self.parse_known_args(args, namespace)
        if unknown:
            near = _nearest_flag(unknown[0].partition("=")[0], list(self._option_string_actions))
            self.error(f"unknown argument {unknown[0]}" + (f"; did you mean {near}?" if near else ""))
        return found

    def format_help(self) -> str:
        """The help, whose first line leaves the names of the flags to the list below it."""
        named = [action for action in self._actions if not action.option_strings]
        words = [f"[{action.metavar}]" if action.nargs == "?" else str(action.metavar) for action in named]
        self.usage = " ".join([self.prog, *words, "[FLAGS]"])
        return super().format_help()

    def error(self, message: str) -> NoReturn:
        message = shortened(message)
        raise SettingsError(message if message.endswith("?") else f"{message}; see {self.prog} --help")


def _nearest_flag(given: str, known: list[str]) -> str:
    """The flag that `given` abbreviates by initials, as --lr does --learning_rate, or resembles; "" for none."""
    initials = [name for name in known if "".join(word[:1] for word in name[2:].split("_")) == given[2:]]
    return (initials or difflib.get_close_matches(given, known, n=1) or [""])[0]


def read_text(path: str, what: str) -> str:
    """The text of a file that the user named as `what`; raises SettingsError naming both."""
    check_local(path, what, "file")
    try:
        return Path(path).read_bytes().decode("utf-8")  # not read_text, which changes the ends of lines
    except UnicodeDecodeError as error:
        raise SettingsError(f"{what}: {path} is not UTF-8 at byte {error.start}; convert it first (iconv)") from error
    except OSError as error:
        raise SettingsError(f"{what}: {path} cannot be read: {error.strerror}") from error


def read_lines(path: str, what: str) -> list[str]:
    """The lines of a file as of `read_text`; only a line feed, with or without a carriage return, ends one."""
    lines = re.split("\r?\n", read_text(path, what))
    return lines if lines[-1] else lines[:-1]


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
    parser: CommandParser,
    options: type[Options],
    work: Callable[[argparse.Namespace, Options], int | None],
    arguments: Sequence[str] | None,
) -> int:
    """Parse the parser's own arguments and the flags of the dataclass `options`, and do the command's `work`.

    Returns the exit code of `run_reporting`.
    """
    add_flags(parser, options)

    def parse_and_work() -> int | None:
        namespace = parser.parse_args(arguments)
        return work(namespace, from_table(options, flags_given(options, namespace), "flags"))

    return run_reporting(parser.prog.removeprefix("python -m "), parse_and_work)


def run_reporting(prog: str, work: Callable[[], int | None], *expected: type[Exception]) -> int:
    """Do `work` and return its exit code, or that of an error, which is reported in one line on the error stream.

    Such errors are those `expected`, ValueError, OSError, and what a damaged cache of torch.compile causes.
    """
    try:
        return work() or 0
    except Exception as error:
        damage = damaged_compile_cache(error)
        if not (damage or isinstance(error, (ValueError, OSError, *expected))):
            raise
        reported = damage or error
    print(f"{prog}: {reported}", file=sys.stderr, flush=True)
    return ExitCode.USAGE if isinstance(reported, SettingsError) else ExitCode.ERROR


def damaged_compile_cache(error: BaseException | None) -> str:
    """What to do if `error` comes from a library in torch.compile's cache that cannot be loaded; else "".

    A process that is killed while it compiles can leave an empty library there, which torch loads unchecked.
    """
    while error is not None:
        found = re.match(r"(/.+\.so): (.+)", str(error)) if isinstance(error, (ImportError, OSError)) else None
        if found and (library := Path(found[1])).parent.name == library.name[1:3]:  # the cache names its folders so
            return (
                f"torch.compile left a damaged file ({library}: {found[2]}), as when it is killed while it compiles; "
                f"delete its cache, {library.parents[1]}, and run the same command again"
            )
        error = error.__cause__ or error.__context__  # which torch suppresses
    return ""
