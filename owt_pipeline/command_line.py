"""The parser of all commands of `owt`, their logging, their errors as one line, and a clean end.

Results go to stdout, everything else to stderr. On a terminal, progress is one live line;
elsewhere, a line with the time every minute.
"""

from __future__ import annotations

import argparse
import inspect
import logging
import os
import select
import signal
import sys
import threading
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from typing import NoReturn, TextIO

import schemas.command_line
from owt_pipeline import progress
from owt_pipeline.errors import (
    OUT_OF_MEMORY,
    LedgerError,
    UsageError,
    UserError,
    explain_os_error,
    is_out_of_memory,
    settings_argument,
    without_traceback,
)
from owt_pipeline.foreign_words import flag_answer
from schemas.settings import ExitCode


class CommandParser(schemas.command_line.CommandParser):
    """The parser of a command of `owt`. A mistake raises UsageError."""

    error_class = UsageError

    def foreign_answer(self, flag: str) -> str | None:
        """Return what another tool's flag is called here, or None."""
        return flag_answer(flag, self._option_string_actions)

    def parse_with_files(
        self, argv: Sequence[str] | None
    ) -> tuple[argparse.Namespace, list[str], list[str]]:
        """Return the flags that this parser knows, the words that are files, and Beam's flags.

        A word after a flag of Beam's is its value (`--runner DataflowRunner`), unless it ends in
        `.toml`. Any other word is a file. Raises UsageError.
        """
        # Positional arguments are declared for the help only: argparse would take the values of
        # Beam's flags for them.
        for action in self._get_positional_actions():
            action.nargs = argparse.SUPPRESS
            action.default = argparse.SUPPRESS
        namespace, other_words = self.parse_known_args(argv)
        files: list[str] = []
        flags: list[str] = []
        for word in other_words:
            if word == "--":
                continue
            follows_flag = bool(flags) and flags[-1].startswith("-") and "=" not in flags[-1]
            is_file = not word.startswith("-") and (word.endswith(".toml") or not follows_flag)
            if is_file:
                # A shell leaves a quoted `~` as it is.
                files.append(os.path.expanduser(word))
            else:
                flags.append(word)
        return namespace, files, flags


def interruptible(command: Callable[[], int]) -> int:
    """Run `command`; Ctrl-C and SIGTERM end this process with one line and code 130 or 143.

    Both raise, so that `finally` and `with` blocks run. Threads are not joined: one may be waiting
    for a page.
    """
    if threading.current_thread() is not threading.main_thread():
        return command()
    earlier_handler = signal.signal(signal.SIGTERM, _terminate)
    try:
        return command()
    except KeyboardInterrupt as error:
        # A second signal changes nothing from here on.
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        code = ExitCode.INTERRUPTED
        if isinstance(error, _Terminated):
            code = ExitCode.TERMINATED
        complain(f"{code.name.lower()}; run the same command again to continue")
        sys.stderr.flush()
        # sys.exit() would join the threads.
        os._exit(code)
    finally:
        signal.signal(signal.SIGTERM, earlier_handler)


def at_least(minimum: int) -> Callable[[str], int]:
    """Return the `type` of a flag that takes a whole number of at least `minimum`."""

    def convert(text: str) -> int:
        """Return the number; raise ArgumentTypeError for other text."""
        if not text.removeprefix("-").isdecimal() or int(text) < minimum:
            raise argparse.ArgumentTypeError(
                f"{text!r} is not a whole number of at least {minimum}"
            )
        return int(text)

    return convert


@dataclass(frozen=True)
class Command:
    """A command: called with its arguments, it returns the exit code.

    Attributes:
      name: as the user types it.
      flags: adds the flags to a parser; its docstring is the command's help and ends with examples.
      work: does the work with the parsed arguments.
    """

    name: str
    flags: Callable[[CommandParser], None]
    work: Callable[[argparse.Namespace], int]

    def parser(self) -> CommandParser:
        """Return the parser of the command's arguments."""
        help_text = inspect.cleandoc(self.flags.__doc__ or "")
        description, example, examples = help_text.partition("\n\nexample")
        epilog = f"{example.strip()}{examples}"
        parser = CommandParser(prog=self.name, description=description, epilog=epilog)
        self.flags(parser)
        return parser

    def __call__(self, argv: Sequence[str] | None = None) -> int:
        return reporting_errors(lambda: self.work(self.parser().parse_args(argv)))


def reporting_errors(command: Callable[[], int]) -> int:
    """Run `command`; print an error that a user can fix as one line. Returns the exit code."""
    # Slow to import, and some commands need no workers.
    from owt_pipeline.engine.workers import WorkerError

    logging.basicConfig(level=logging.ERROR, format="%(message)s", stream=sys.stderr)
    # `configure_output` may change this. Not every command has its flags.
    logger.setLevel(logging.WARNING)
    settings_argument.set(None)
    try:
        code = interruptible(command)
        sys.stdout.flush()
        return code
    except UserError as error:
        return complain(str(error), error.exit_code)
    except OSError as error:
        if isinstance(error, BrokenPipeError) and _output_is_closed():
            return ExitCode.NO_READER
        return complain(explain_os_error(error))
    except WorkerError as error:
        return complain(f"a worker process failed:\n{error}")
    except LedgerError as error:
        return complain(
            f"{error}. This is a bug in the stage: please report it with the input that causes it"
        )
    except Exception as error:
        if not is_out_of_memory(error):
            raise
        return complain(OUT_OF_MEMORY)


def aligned(rows: Sequence[Sequence[str]], left: Collection[int] = (0,)) -> list[str]:
    """Return the lines of a table. The columns in `left` are aligned left, the others right."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    lines = []
    for row in rows:
        cells = []
        for number, cell in enumerate(row):
            width = widths[number]
            cells.append(cell.ljust(width) if number in left else cell.rjust(width))
        lines.append("  ".join(cells).rstrip())
    return lines


def _output_is_closed() -> bool:
    """Return whether standard output is a pipe whose other end is closed.

    If so, discard the remaining output.
    """
    poll = select.poll()
    poll.register(sys.stdout, 0)
    if not any(event & (select.POLLERR | select.POLLHUP) for _, event in poll.poll(0)):
        return False
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    return True


class _Terminated(KeyboardInterrupt):
    """SIGTERM, raised as a kind of Ctrl-C, which libraries let through."""


def _terminate(*_: object) -> NoReturn:
    """Handle SIGTERM."""
    raise _Terminated


logger = logging.getLogger("owt")


def add_output_flags(parser: argparse.ArgumentParser) -> None:
    """Add the flags for logging."""
    group = parser.add_argument_group("output")
    loudness = group.add_mutually_exclusive_group()
    loudness.add_argument("--quiet", action="store_true", help="log only warnings and errors")
    loudness.add_argument(
        "--verbose",
        action="store_true",
        help="also log options, the time of each step and Beam's log",
    )


def configure_output(arguments: argparse.Namespace) -> None:
    """Set up logging and progress by the flags of `add_output_flags`."""
    handler = _Handler()
    is_live = sys.stderr.isatty() and os.environ.get("TERM") != "dumb"
    if is_live:
        handler.setFormatter(logging.Formatter(f"{progress.ERASE}%(message)s"))
    elif not sys.stderr.isatty():
        handler.setFormatter(logging.Formatter("%(asctime)s %(message)s", "%H:%M:%S"))
    if arguments.quiet:
        level = logging.WARNING
    elif arguments.verbose:
        level = logging.DEBUG
    else:
        level = logging.INFO
    logger.setLevel(level)

    root = logging.getLogger()
    for earlier_handler in list(root.handlers):
        if type(earlier_handler) in (logging.StreamHandler, _Handler):
            root.removeHandler(earlier_handler)
    root.addHandler(handler)
    # Libraries' warnings are not for the user: importing Beam is enough to log one, about clients
    # that we do not use.
    root.setLevel(logging.INFO if arguments.verbose else logging.ERROR)
    # The Hub's client has a level of its own, and announces each of its retries.
    logging.getLogger("huggingface_hub").setLevel(root.level)
    progress.configure(quiet=arguments.quiet, live=is_live)


def complain(message: str, code: int = ExitCode.ERROR) -> int:
    """Print an error as a line; return the exit code."""
    print(f"owt: error: {message}", file=sys.stderr)
    return code


class _Handler(logging.StreamHandler):  # type: ignore[type-arg]
    """Writes to the current sys.stderr, which tests and notebooks replace."""

    @property
    def stream(self) -> TextIO:
        """Return the current sys.stderr."""
        return sys.stderr

    @stream.setter
    def stream(self, stream: TextIO) -> None: ...

    def format(self, record: logging.LogRecord) -> str:
        """Return the text of a record, with the last line of a traceback only.

        Runners log a traceback for a user's mistake, too. `--verbose` shows it completely.
        """
        text = super().format(record)
        if logger.isEnabledFor(logging.DEBUG):
            return text
        return without_traceback(text)
