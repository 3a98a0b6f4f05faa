"""What every owt command has: the parser, and how it ends when it is told to."""

from __future__ import annotations

import argparse
import os
import signal
import sys
import threading
from collections.abc import Callable
from typing import Any, NoReturn

from owt_pipeline.engine.errors import UsageError


class CommandParser(argparse.ArgumentParser):
    """Help is shown as it was written, flags are not abbreviated, and a mistake raises UsageError."""

    def __init__(self, **arguments: Any):
        super().__init__(formatter_class=argparse.RawDescriptionHelpFormatter, allow_abbrev=False, **arguments)

    def error(self, message: str) -> NoReturn:
        raise UsageError(f"{message}; see {self.prog} --help")


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

        what, code = ("terminated", 143) if isinstance(error, _Terminated) else ("interrupted", 130)
        complain(f"{what}; run the same command again to go on")
        sys.stderr.flush()
        os._exit(code)
    finally:
        signal.signal(signal.SIGTERM, before)


class _Terminated(KeyboardInterrupt):
    """SIGTERM; libraries let it through where they know of Ctrl-C."""


def _terminate(*_: object) -> NoReturn:
    raise _Terminated
