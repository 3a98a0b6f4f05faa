"""Progress of the stage at work: a live line on a terminal, log lines otherwise.

Worker processes report to the display of the process that started them; those of a distributed runner have none.
"""

from __future__ import annotations

import contextlib
import logging
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator

logger = logging.getLogger("owt")

LOG_INTERVAL_SECONDS = 10.0
RATE_SECONDS = 30.0


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
        line = (
            f"{self.name}: {self.shards_done}/{self.shards} {files}, {self.rows_done:,} {self.unit}, {self.rate:,.0f}/s"
        )
        doing = self.doing() if self.doing is not None else ""
        return f"{line}, {doing}" if doing else line


class _LogDisplay(_Display):
    _next = LOG_INTERVAL_SECONDS

    def update(self) -> None:
        seconds = time.monotonic() - self.started
        if seconds >= self._next:
            self._next = seconds + LOG_INTERVAL_SECONDS
            left = (self.rows or 0) - self.rows_done
            line = self.line() + (f", {left / self.rate:,.0f} s left" if left > 0 and self.rate else "")
            logger.info("%s", line)


class _TerminalDisplay(_Display):
    """One line, cut to the terminal's current width, and removed when the step is done."""

    def __init__(self, name: str, shards: int, rows: int | None, unit: str):
        super().__init__(name, shards, rows, unit)
        from rich.console import Console

        self._console = Console(stderr=True)
        self._start()

    def _start(self) -> None:
        from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn
        from rich.table import Column

        self._size = self._console.size
        text = TextColumn(
            "{task.fields[line]}", markup=False, table_column=Column(no_wrap=True, overflow="ellipsis", ratio=1)
        )
        wide = [BarColumn(20), TimeRemainingColumn()] if self._size.width >= 80 and self.rows else []
        self._progress = Progress(text, *wide, console=self._console, transient=True, expand=True)
        self._task = self._progress.add_task(self.name, total=self.rows, line=self.line())
        self._progress.start()

    def update(self) -> None:
        if self._console.size != self._size:  # the old line may have been wrapped: begin again on a line of its own
            self._progress.stop()
            self._start()
        self._progress.update(self._task, completed=self.rows_done, line=self.line())

    def close(self) -> None:
        self._progress.stop()


_current: _Display | None = None  # the runner calls `advance` from deep within; one step runs at a time
_display: type[_Display] = _LogDisplay
_report: Callable[[int], None] | None = None
_lock = threading.Lock()


def configure(*, quiet: bool, live: bool) -> None:
    """Show no progress, a live line, or a log line every LOG_INTERVAL_SECONDS."""
    global _display
    _display = _Display if quiet else _TerminalDisplay if live else _LogDisplay


@contextlib.contextmanager
def step(name: str, *, shards: int, rows: int | None = None, unit: str = "rows") -> Iterator[None]:
    """Show the progress of a step over `shards` shards and, if known, `rows` rows, while the block runs.

    A step that reads files instead of rows counts another `unit`, such as bytes.
    """
    global _current
    display = _current = _display(name, shards, rows, unit)
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
    """In a process without a display: `advance` calls `report`, which passes the rows to the process that has one."""
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
