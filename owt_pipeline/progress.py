"""Progress of the stage at work: a live line on a terminal, log lines otherwise.

Worker processes report to the display of the process that started them; those of a distributed
runner have none.
"""

from __future__ import annotations

import contextlib
import logging
import os
import sys
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator

logger = logging.getLogger("owt")

LOG_INTERVAL_SECONDS = 10.0
LIVE_INTERVAL_SECONDS = 0.1
RATE_SECONDS = 30.0
ERASE = "\r\x1b[K"
"""Removes the terminal's current line: what is logged takes the place of the live one, which is
written anew below."""


class _Display:
    """The progress of one step; subclasses display it."""

    def __init__(self, name: str, shards: int, rows: int | None, unit: str):
        self.name, self.shards, self.rows, self.unit = name, shards, rows, unit
        self.shards_done, self.rows_done = 0, 0
        self.started = time.monotonic()
        self._marks = deque([(self.started, 0)])  # (when, rows done), a second apart
        self.doing: Callable[[], str] | None = None

    def update(self) -> None: ...

    def close(self) -> None: ...

    @property
    def rate(self) -> float:
        """Rows per second, over the last RATE_SECONDS."""
        now = time.monotonic()
        if now - self._marks[-1][0] > 1:
            self._marks.append((now, self.rows_done))
            while now - self._marks[0][0] > RATE_SECONDS:
                self._marks.popleft()
        since, rows = self._marks[0]
        return (self.rows_done - rows) / max(now - since, 1e-9)

    def line(self) -> str:
        files = "shards" if self.unit == "rows" else "files"
        rate, left = self.rate, (self.rows or 0) - self.rows_done
        line = (
            f"{self.name}: {self.shards_done}/{self.shards} {files}, {self.rows_done:,} "
            f"{self.unit}, {rate:,.0f}/s"
        )
        if left > 0 and rate:
            line += f", {left / rate:,.0f} s left"
        doing = self.doing() if self.doing is not None else ""
        return f"{line}, {doing}" if doing else line


class _LogDisplay(_Display):
    _next = LOG_INTERVAL_SECONDS

    def update(self) -> None:
        seconds = time.monotonic() - self.started
        if seconds >= self._next:
            self._next = seconds + LOG_INTERVAL_SECONDS
            logger.info("%s", self.line())


class _TerminalDisplay(_Display):
    """One line, cut to the terminal's current width, and removed when the step is done."""

    _next = 0.0

    def update(self) -> None:
        now = time.monotonic()
        if now >= self._next:
            self._next = now + LIVE_INTERVAL_SECONDS
            width = os.get_terminal_size(sys.stderr.fileno()).columns
            print(ERASE + self.line()[: width - 1], end="", file=sys.stderr, flush=True)

    def close(self) -> None:
        print(ERASE, end="", file=sys.stderr, flush=True)


_current: _Display | None = (
    None  # the runner calls `advance` from deep within; one step runs at a time
)
_display: type[_Display] = _LogDisplay
_report: Callable[[int], None] | None = None
_lock = threading.Lock()


def configure(*, quiet: bool, live: bool) -> None:
    """Show no progress, a live line, or a log line every LOG_INTERVAL_SECONDS."""
    global _display
    _display = _Display if quiet else _TerminalDisplay if live else _LogDisplay


@contextlib.contextmanager
def step(name: str, *, shards: int, rows: int | None = None, unit: str = "rows") -> Iterator[None]:
    """Show the progress of a step over `shards` shards and, if known, `rows` rows, while the
    block runs.

    A step that reads files instead of rows counts another `unit`, such as bytes.
    """
    global _current
    display = _current = _display(name, shards, rows, unit)
    display.update()
    try:
        yield
    finally:
        display.close()
        _current = None
    logger.debug("%s: done in %.1f s", name, time.monotonic() - display.started)


def advance(rows: int) -> None:
    """Count `rows` more input rows; any thread may call this."""
    if _current is not None:
        with _lock:
            _current.rows_done += rows
            _current.update()
    elif _report is not None:
        _report(rows)


def report_by(report: Callable[[int], None]) -> None:
    """In a process without a display: `advance` calls `report`, which passes the rows to the
    process that has one."""
    global _report
    _report = report


def doing(report: Callable[[], str]) -> None:
    """Append the few words that `report` returns to the step's line."""
    if _current is not None:
        _current.doing = report


def shard_done() -> None:
    """Count one more finished shard."""
    if _current is not None:
        with _lock:
            _current.shards_done += 1
            _current.update()
