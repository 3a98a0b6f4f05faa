"""What every owt command has: the parser, and how it ends when it is interrupted."""

from __future__ import annotations

import argparse
import os
import signal
import sys
import threading
from collections.abc import Callable, Sequence
from typing import Any, NoReturn

from owt_pipeline.engine.errors import UsageError
from schemas.exit_codes import ExitCode
from schemas.settings import FlagFormatter, shortened


class CommandParser(argparse.ArgumentParser):
    """Help is shown as it was written, flags are not abbreviated, and a mistake raises UsageError."""

    def __init__(self, **arguments: Any):
        super().__init__(formatter_class=FlagFormatter, allow_abbrev=False, **arguments)

    def error(self, message: str) -> NoReturn:
        raise UsageError(f"{shortened(message)}; see {self.prog} --help")

    def parse_with_files(self, argv: Sequence[str] | None) -> tuple[argparse.Namespace, list[str], list[str]]:
        """The flags that this parser knows, the words that are files, and the flags that are Beam's.

        A word after a flag of Beam's is its value (`--runner DataflowRunner`), unless it ends in `.toml`; any other
        word is a file. The positional arguments, declared for the help alone, get nothing. Raises UsageError.
        """
        for action in self._get_positional_actions():
            action.nargs, action.default = argparse.SUPPRESS, argparse.SUPPRESS
        namespace, rest = self.parse_known_args(argv)
        files: list[str] = []
        flags: list[str] = []
        for word in rest:
            if word == "--":
                continue
            follows_flag = bool(flags) and flags[-1].startswith("-") and "=" not in flags[-1]
            is_file = not word.startswith("-") and (word.endswith(".toml") or not follows_flag)
            (files if is_file else flags).append(word)
        return namespace, files, flags


def interruptible(command: Callable[[], int]) -> int:
    """Run `command`. Ctrl-C and SIGTERM end this process with one line on stderr, and code 130 or 143.

    They raise, so that `finally` and `with` do their work; threads, which may wait for a page, are not waited for.
    """
    if threading.current_thread() is not threading.main_thread():
        return command()
    before = signal.signal(signal.SIGTERM, _terminate)
    try:
        return command()
    except KeyboardInterrupt as error:
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        from owt_pipeline.engine.console import complain

        what, code = (
            ("terminated", ExitCode.TERMINATED)
            if isinstance(error, _Terminated)
            else ("interrupted", ExitCode.INTERRUPTED)
        )
        complain(f"{what}; run the same command again to continue")
        sys.stderr.flush()
        os._exit(code)
    finally:
        signal.signal(signal.SIGTERM, before)


class _Terminated(KeyboardInterrupt):
    """SIGTERM; libraries let it through where they know of Ctrl-C."""


def _terminate(*_: object) -> NoReturn:
    raise _Terminated
