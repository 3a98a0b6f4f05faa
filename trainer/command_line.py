"""How the trainer's commands are parsed and run. A user's mistake is reported in one line."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, TypeVar

import tomllib

from schemas import SettingsError
from schemas.command_line import CommandParser
from schemas.settings import ExitCode, add_flags, flags_given, from_table

Options = TypeVar("Options")


def command_parser(
    prog: str, arguments: str, description: str | None, epilog: str | None = None
) -> CommandParser:
    """Return the parser of a command of the trainer; `arguments` are those without a flag."""
    return CommandParser(
        prog=f"python -m {prog}",
        # The names of the flags are in the list below it.
        usage=f"python -m {prog} {arguments} [FLAGS]",
        description=description,
        epilog=epilog,
    )


def read_settings(path: Path) -> tuple[dict[str, Any], str]:
    """Return the table `[train]` of a TOML file, or all of a file without tables.

    Also return its name for errors. Raises SettingsError if the file cannot be read.
    """
    if path.suffix != ".toml" and not path.exists():
        raise SettingsError(
            f"unexpected '{path}': no CONFIG.toml; flags such as --compile take no value"
        )
    try:
        # Editors on Windows begin a file with a byte-order mark, which TOML has no rule for.
        table = tomllib.loads(path.read_text(encoding="utf-8-sig"))
    except OSError as error:
        raise SettingsError(f"{path} cannot be read: {error.strerror}") from error
    except ValueError as error:
        raise SettingsError(f"{path} is not TOML: {error}") from error
    if "train" not in table:
        tables = [key for key, value in table.items() if isinstance(value, dict)]
        if tables:
            raise SettingsError(f"{path} has tables ({', '.join(tables)}) but no [train]; add it")
    return dict(table.get("train", table)), f"{path}: [train]"


def read_text(path: str, option_name: str) -> str:
    """Return the text of a file that the user gave as an option.

    Raises SettingsError, which names both.
    """
    check_local(path, option_name, "file")
    try:
        # Not read_text, which changes the ends of lines.
        return Path(path).read_bytes().decode("utf-8")
    except UnicodeDecodeError as error:
        raise SettingsError(
            f"{option_name}: {path} is not UTF-8 at byte {error.start}; convert it first (iconv)"
        ) from error
    except OSError as error:
        raise SettingsError(f"{option_name}: {path} cannot be read: {error.strerror}") from error


def note(message: str) -> None:
    """Print a message to the error stream, apart from the command's output; on rank 0 only."""
    if os.environ.get("RANK", "0") == "0":
        print(message, file=sys.stderr, flush=True)


def first_line(error: Exception) -> str:
    """Return the first line of the message of another package's error."""
    return (str(error).strip() or repr(error)).partition("\n")[0]


def check_local(path: str, option_name: str, kind: str = "folder") -> None:
    """Raise SettingsError if the user gave a URI where a local `kind` is needed."""
    if "://" in path:
        raise SettingsError(f"{option_name}: {path} is not a local {kind}; copy it here first")


def run_command(
    prog: str,
    description: str | None,
    positional: dict[str, str],
    options: type[Options],
    work: Callable[..., None],
    arguments: Sequence[str] | None = None,
) -> int:
    """Call `work` with a command's positional arguments and its options; return an exit code.

    `positional` has the help of each, which is a path. The one called `runs` is a list.
    """
    parser = command_parser(prog, " ".join(positional).upper(), description)
    for name, help_text in positional.items():
        nargs = "+" if name == "runs" else None
        # All are paths. A shell leaves a quoted `~` as it is.
        parser.add_argument(
            name, metavar=name.upper(), help=help_text, nargs=nargs, type=os.path.expanduser
        )
    add_flags(parser, options)

    def parse_and_work() -> None:
        parsed = parser.parse_args(arguments)
        values = [getattr(parsed, name) for name in positional]
        work(*values, from_table(options, {}, "flags", flags_given(options, parsed)))

    return run_reporting(prog, parse_and_work)


def is_out_of_memory(error: BaseException) -> bool:
    """Return whether memory is used up: by Python's error, a GPU's, or torch's on a CPU.

    The last is a RuntimeError. It works without torch.
    """
    names = [cls.__name__ for cls in type(error).__mro__]
    if "MemoryError" in names or "OutOfMemoryError" in names:
        return True
    return "RuntimeError" in names and "DefaultCPUAllocator" in str(error)


def run_reporting(prog: str, work: Callable[[], object], *expected: type[Exception]) -> int:
    """Call `work` and return an exit code.

    An `expected` error, ValueError, OSError, Ctrl-C or a lack of memory is one line on the error
    stream. The end of the output's reader is silent, as in `... | head`.
    """
    try:
        work()
        sys.stdout.flush()
        return ExitCode.DONE
    except KeyboardInterrupt:
        print(f"{prog}: interrupted", file=sys.stderr, flush=True)
        return ExitCode.INTERRUPTED
    except BrokenPipeError:
        # As Python ends, it would try to write the rest.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return ExitCode.NO_READER
    except Exception as error:
        is_known = isinstance(error, (ValueError, OSError, MemoryError, *expected))
        if not is_known and not is_out_of_memory(error):
            raise
        message = str(error)
        if not is_known or not message:
            message = f"out of memory ({first_line(error)})"
        print(f"{prog}: {message}", file=sys.stderr, flush=True)
        return ExitCode.USAGE if isinstance(error, SettingsError) else ExitCode.ERROR
