"""The parser of all commands of the pipeline and the trainer."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from typing import Any, ClassVar, NoReturn

from schemas.settings import FlagFormatter, SettingsError, did_you_mean, shortened


class CommandParser(argparse.ArgumentParser):
    """Shows help as it was written, accepts no abbreviated flags, and raises for a mistake.

    Attributes:
      error_class: what it raises; its message is one line, with the command for help.
    """

    error_class: ClassVar[type[Exception]] = SettingsError

    def __init__(self, **arguments: Any) -> None:
        super().__init__(formatter_class=FlagFormatter, allow_abbrev=False, **arguments)

    def parse_args(self, args: Sequence[str] | None = None, namespace: Any = None) -> Any:  # type: ignore[override]
        """Return the arguments; an unknown one is an error that names the nearest flag."""
        parsed, unknown = self.parse_known_args(args, namespace)
        if unknown:
            flag = unknown[0].partition("=")[0]
            answer = self.foreign_answer(flag)
            if answer:
                self.error(f"{flag} is not a flag of {self.prog}; {answer}")
            suggestion = did_you_mean(flag, self._option_string_actions).replace("'", "")
            # A list of all flags is too long for a message.
            is_near = suggestion.startswith("; did you mean")
            self.error(f"unknown argument {unknown[0]}{suggestion if is_near else ''}")
        return parsed

    def foreign_answer(self, flag: str) -> str | None:
        """Return what another tool's flag is called here, or None."""
        return None

    def error(self, message: str) -> NoReturn:
        """Raise the error of a mistake, with the command that explains the flags."""
        message = shortened(message)
        if not message.endswith("?"):
            message += f"; see {self.prog} --help"
        raise self.error_class(message)
