"""Progress of the step at work: a bar of tqdm's on a terminal or in a notebook, else log lines.

Worker processes report to the process that started them, which shows their progress. The workers of
a distributed runner show none.
"""

from __future__ import annotations

import contextlib
import functools
import logging
import os
import sys
import threading
import time
import warnings
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from schemas.quantities import format_bytes

logger = logging.getLogger("owt")

LOG_INTERVAL_SECONDS = 60.0
"""Seconds between two lines of progress in a log."""

_LIVE_INTERVAL_SECONDS = 0.1
_MAX_REASONS = 3

ERASE = "\r\x1b[K"
"""Removes the terminal's current line. A log line takes the place of the bar, which is drawn again
below it."""

_BAR = "{desc}: {percentage:.0f}%|{bar}| {text}"
_LINE = "{desc}: {text}"


@dataclass(frozen=True)
class Advance:
    """Rows that are done, as a worker process reports them; `rejected` has numbers by reason."""

    rows: int
    rejected: Mapping[str, int] = field(default_factory=dict)


class Step:
    """The progress of one step, and its bar if progress is shown."""

    def __init__(self, name: str, shards: int, rows: int | None, unit: str) -> None:
        self.name = name
        self.shards = shards
        self.rows = rows
        self.unit = unit
        self.shards_done = 0
        self.rows_done = 0
        self.rejected: Counter[str] = Counter()
        self._bar: Any = None
        if _mode != "quiet":
            # The bar counts rows, or shards if the number of rows is unknown.
            self._bar = _bar_class(_mode)(self, total=rows or shards)

    def advance(self, rows: int, rejected: Mapping[str, int]) -> None:
        """Count rows, and those of them that are rejected, by reason."""
        self.rows_done += rows
        self.rejected.update(rejected)
        self._update_bar(rows=rows)

    def finish_shard(self) -> None:
        """Count one more finished shard."""
        self.shards_done += 1
        self._update_bar(shards=1)

    def _update_bar(self, *, rows: int = 0, shards: int = 0) -> None:
        """Advance the bar by `rows`, or by `shards` if it counts shards; redraw its text."""
        if self._bar is not None:
            self._bar.update(rows if self.rows else shards)

    def describe(self, rate: float, seconds_left: float | None) -> str:
        """Return the text of the bar; `rate` is rows, bytes or shards per second."""
        if self.unit == "bytes":
            parts = [f"{self.shards_done}/{self.shards} files", format_bytes(self.rows_done)]
            shown_rate = format_bytes(rate)
        else:
            parts = [f"{self.shards_done}/{self.shards} shards", f"{self.rows_done:,} rows"]
            shown_rate = f"{rate:,.0f}"
        if self.rows:
            parts.append(f"{shown_rate}/s")
        if seconds_left is not None:
            parts.append(f"{clock(seconds_left)} left")
        most_frequent = self.rejected.most_common(_MAX_REASONS)
        parts += [f"{reason} {count:,}" for reason, count in most_frequent]
        return ", ".join(parts)

    def close(self) -> None:
        """Remove the bar."""
        if self._bar is not None:
            self._bar.close()


def clock(seconds: float) -> str:
    """Return a time as h:mm:ss."""
    minutes, seconds_of_minute = divmod(round(seconds), 60)
    hours, minutes_of_hour = divmod(minutes, 60)
    return f"{hours}:{minutes_of_hour:02}:{seconds_of_minute:02}"


# tqdm is imported only for the first bar: the import takes as long as `owt --version`.
@functools.cache
def _bar_class(mode: str) -> Any:
    """Return the bar for `live` progress, or the one that writes a `log`."""
    with warnings.catch_warnings():
        # A notebook without ipywidgets gets the bar of a terminal; tqdm warns that it has none.
        warnings.simplefilter("ignore")
        from tqdm.auto import tqdm
        from tqdm.std import tqdm as plain_tqdm

    # tqdm's own lock is shared by processes, and would start a process to track it.
    plain_tqdm.set_lock(threading.RLock())
    is_live = mode == "live"

    class Bar(tqdm if is_live else plain_tqdm):  # type: ignore[misc, valid-type]
        """A step's bar. It is drawn when the step advances, and by no thread of its own."""

        monitor_interval = 0

        def __init__(self, step: Step, total: int) -> None:
            self._step = step
            if is_live:
                bar_format = _BAR
                interval = _LIVE_INTERVAL_SECONDS
                delay = 0.0
            else:
                bar_format = _LINE
                interval = LOG_INTERVAL_SECONDS
                # A step that is shorter than this has no line.
                delay = interval
            super().__init__(
                total=total,
                desc=_numbered(step.name),
                leave=False,
                file=sys.stderr,
                dynamic_ncols=is_live,
                bar_format=bar_format,
                # A line is written even without new rows, to show that the run is alive.
                miniters=0,
                mininterval=interval,
                delay=delay,
            )

        @property
        def format_dict(self) -> dict[str, Any]:
            """Return the values for the bar's format, with the step's description as `text`."""
            values = super().format_dict
            rate = values["rate"] or self.n / max(values["elapsed"], 1e-9)
            seconds_left = None
            # The rate of the first rows says nothing about the time that is left.
            if rate and self.total / 100 <= self.n < self.total:
                seconds_left = (self.total - self.n) / rate
            return {**values, "text": self._step.describe(rate, seconds_left)}

        if not is_live:

            def display(self, msg: str | None = None, pos: int | None = None) -> None:
                """Log the line; `msg` is empty when the bar is removed."""
                if msg is None:
                    logger.info("%s", self)

    return Bar


_stages: Sequence[str] = ()
# One step runs at a time. Functions deep in a stage call `advance`, so it is not passed to them.
_current: Step | None = None
_mode = "log"
_report: Callable[[Advance], None] | None = None
_lock = threading.Lock()


def configure(*, quiet: bool, live: bool) -> None:
    """Show no progress, a bar, or a log line every LOG_INTERVAL_SECONDS."""
    global _mode
    if quiet:
        _mode = "quiet"
    elif live or _is_notebook():
        _mode = "live"
    else:
        _mode = "log"


def show_start() -> None:
    """Show on a terminal that the command has started: imports and plans take seconds.

    The next line takes the place of this one, and none is shorter.
    """
    if sys.stderr.isatty() and os.environ.get("TERM") != "dumb":
        print("owt ...", end="\r", file=sys.stderr, flush=True)


def _is_notebook() -> bool:
    """Return whether this is a notebook, which shows bars although it is not a terminal."""
    return "ipykernel" in sys.modules


def name_stages(names: Sequence[str]) -> None:
    """Number the steps by these stages: `fetch (stage 2 of 8)`."""
    global _stages
    _stages = tuple(names)


def _numbered(name: str) -> str:
    """Return a step's name with the number of its stage."""
    stage = name.partition(" ")[0]
    if stage not in _stages:
        return name
    return f"stage {_stages.index(stage) + 1} of {len(_stages)}, {name}"


@contextlib.contextmanager
def step(name: str, *, shards: int, rows: int | None = None, unit: str = "rows") -> Iterator[None]:
    """Show the progress of a step over `shards` shards and, if known, `rows` rows, while the
    block runs.

    A step that reads files counts the `unit` bytes in place of rows.
    """
    global _current
    started = time.monotonic()
    current = _current = Step(name, shards, rows, unit)
    try:
        yield
    finally:
        current.close()
        _current = None
    logger.debug("%s: done in %.1f s", name, time.monotonic() - started)


def advance(rows: int, rejected: Mapping[str, int] | None = None) -> None:
    """Count `rows` more input rows, some of them `rejected`; any thread may call this."""
    if _current is not None:
        with _lock:
            _current.advance(rows, rejected or {})
    elif _report is not None:
        _report(Advance(rows, rejected or {}))


def report_by(report: Callable[[Advance], None]) -> None:
    """Let `advance` call `report`, which passes rows to the process that shows progress."""
    global _report
    _report = report


def shard_done() -> None:
    """Count one more finished shard."""
    if _current is not None:
        with _lock:
            _current.finish_shard()
