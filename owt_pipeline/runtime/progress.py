"""Progress of the stage at work: a live line on a terminal, log lines otherwise.

The display is this process' own: on a distributed runner, workers have none and `advance` does nothing.
"""

from __future__ import annotations

import contextlib
import logging
import sys
import time
from collections.abc import Iterator
from typing import Any

logger = logging.getLogger("owt")

LOG_INTERVAL_SECONDS = 10.0


class _Display:
    """What is done of a step, and how it is shown; subclasses show it."""

    def __init__(self, name: str, shards: int, rows: int | None):
        self.name, self.shards, self.rows = name, shards, rows
        self.shards_done, self.rows_done = 0, 0
        self.started = time.monotonic()

    def update(self) -> None: ...

    def close(self) -> None: ...

    def line(self) -> str:
        seconds = max(time.monotonic() - self.started, 1e-9)
        rate = self.rows_done / seconds
        text = f"{self.name}: {self.shards_done}/{self.shards} shards, {self.rows_done:,} rows, {rate:,.0f}/s"
        if self.rows and rate and self.rows_done < self.rows:
            text += f", {(self.rows - self.rows_done) / rate:,.0f} s left"
        return text


class _LogDisplay(_Display):
    _next = LOG_INTERVAL_SECONDS

    def update(self) -> None:
        seconds = time.monotonic() - self.started
        if seconds >= self._next:
            self._next = seconds + LOG_INTERVAL_SECONDS
            logger.info("%s", self.line())


class _TerminalDisplay(_Display):
    def __init__(self, name: str, shards: int, rows: int | None):
        super().__init__(name, shards, rows)
        from rich.console import Console
        from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn

        self._progress = Progress(
            TextColumn("{task.fields[line]}"), BarColumn(), TimeRemainingColumn(), console=Console(stderr=True)
        )
        self._task = self._progress.add_task(name, total=rows, line=self.line())
        self._progress.start()

    def update(self) -> None:
        self._progress.update(self._task, completed=self.rows_done, line=self.line())

    def line(self) -> str:
        return super().line().rsplit(", ", 1)[0] if self.rows_done < (self.rows or 0) else super().line()

    def close(self) -> None:
        self._progress.stop()


_current: _Display | None = None  # the runner calls `advance` from deep within; one step runs at a time
_quiet = False


def configure(*, quiet: bool) -> None:
    """Show no progress at all, or show it."""
    global _quiet
    _quiet = quiet


@contextlib.contextmanager
def step(name: str, *, shards: int, rows: int | None = None) -> Iterator[None]:
    """Show the progress of a step over `shards` shards and, if known, `rows` rows, while the block runs."""
    global _current
    display: Any = _Display if _quiet else _TerminalDisplay if sys.stderr.isatty() else _LogDisplay
    _current = display(name, shards, rows)
    try:
        yield
    finally:
        _current.close()
        _current = None


def advance(rows: int) -> None:
    """`rows` more rows went in."""
    if _current is not None:
        _current.rows_done += rows
        _current.update()


def shard_done() -> None:
    """One more shard is whole."""
    if _current is not None:
        _current.shards_done += 1
        _current.update()
