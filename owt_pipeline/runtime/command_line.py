"""The parser that every owt command has: what a user mistypes is one line and exit code 2, as any other error."""

from __future__ import annotations

import argparse
from typing import Any, NoReturn

from owt_pipeline.runtime.errors import UsageError


class CommandParser(argparse.ArgumentParser):
    """Help is shown as it was written, flags are not abbreviated, and a mistake raises UsageError."""

    def __init__(self, **arguments: Any):
        super().__init__(formatter_class=argparse.RawDescriptionHelpFormatter, allow_abbrev=False, **arguments)

    def error(self, message: str) -> NoReturn:
        raise UsageError(f"{message}; see {self.prog} --help")
