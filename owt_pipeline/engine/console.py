"""What a command says while it works: for a person, for a log file, or for another program.

Answers go to stdout, everything else to stderr. Where stderr is a terminal, progress is one live line; where it is
not, a line with its time now and then; with --log_json, each line is a JSON object.
"""

from __future__ import annotations

import argparse
import datetime
import json
import logging
import os
import sys
from typing import Any, TextIO

from owt_pipeline.engine import progress

logger = logging.getLogger("owt")


def add_flags(parser: argparse.ArgumentParser) -> None:
    """The flags that say how much to say."""
    group = parser.add_argument_group("output")
    loudness = group.add_mutually_exclusive_group()
    loudness.add_argument("--quiet", action="store_true", help="say nothing but warnings and errors")
    loudness.add_argument(
        "--verbose", action="store_true", help="say more: options, times of each step, Beam's own log"
    )
    group.add_argument("--log_json", action="store_true", help="log JSON, one object a line, on stderr")


def configure(arguments: argparse.Namespace) -> None:
    """Set up logging and progress as the flags of `add_flags` say."""
    handler = _Handler()
    if arguments.log_json:
        handler.setFormatter(_JsonFormatter())
    elif not sys.stderr.isatty():
        handler.setFormatter(logging.Formatter("%(asctime)s %(message)s", "%H:%M:%S"))
    root = logging.getLogger()
    root.handlers[:] = [*(h for h in root.handlers if type(h) not in (logging.StreamHandler, _Handler)), handler]
    # Libraries' warnings are not for the user: Beam's import alone gives one, of clients we do not use.
    root.setLevel(logging.INFO if arguments.verbose else logging.ERROR)
    logger.setLevel(logging.WARNING if arguments.quiet else logging.DEBUG if arguments.verbose else logging.INFO)
    live = sys.stderr.isatty() and os.environ.get("TERM") != "dumb"  # NO_COLOR is left to the library that draws
    progress.configure(quiet=arguments.quiet, live=live and not arguments.log_json)


def complain(message: str) -> None:
    """Say an error: as a line for a person, or as the log says everything."""
    if any(isinstance(handler.formatter, _JsonFormatter) for handler in logging.getLogger().handlers):
        logger.error(message)
    else:
        print(f"owt: error: {message}", file=sys.stderr)


class _Handler(logging.StreamHandler):  # type: ignore[type-arg]
    """Writes to what sys.stderr is at that moment: a live line of progress puts itself below what it is given."""

    @property
    def stream(self) -> TextIO:
        return sys.stderr

    @stream.setter
    def stream(self, stream: TextIO) -> None: ...


class _JsonFormatter(logging.Formatter):
    def format(self, record: logging.LogRecord) -> str:
        moment = datetime.datetime.fromtimestamp(record.created, datetime.timezone.utc)
        entry: dict[str, Any] = {
            "time": moment.isoformat(timespec="milliseconds"),
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": record.getMessage(),
            **getattr(record, "fields", {}),
        }
        if record.exc_info:
            entry["traceback"] = self.formatException(record.exc_info)
        return json.dumps(entry, ensure_ascii=False, default=str)
