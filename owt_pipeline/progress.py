"""Progress of the step at work: a bar of tqdm's on a terminal or in a notebook, else log lines.

Worker processes report to the process that started them, which shows their progress. Those of a
distributed runner show none.
"""

from __future__ import annotations

import contextlib
import functools
import logging
import sys
import threading
import time
import warnings
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

logger = logging.getLogger("owt")

LOG_INTERVAL_SECONDS = 60.0
"""Seconds between two lines of progress in a log."""

_LIVE_INTERVAL_SECONDS = 0.1
_MAX_REASONS = 3

ERASE = "\r\x1b[K"
"""Removes the terminal's current line: what is logged takes the place of the bar, which is drawn
anew below."""

_BAR = "{desc}: {percentage:.0f}%|{bar}| {text}"
_LINE = "{desc}: {text}"


@dataclass(frozen=True)
class Advance:
    """Rows that are done, as a worker process reports them; `rejected` has numbers by reason."""

    rows: int
    rejected: Mapping[str, int] = field(default_factory=dict)


class Step:
    """The progress of one step, and its bar; None if progress is not shown."""

    def __init__(self, name: str, shards: int, rows: int | None, unit: str) -> None:
        self.name = name
        self.shards = shards
        self.rows = rows
        self.unit = unit
        self.shards_done = 0
        self.rows_done = 0
        self.rejected: Counter[str] = Counter()
        # Without a number of rows, the bar is one of shards.
        total = self.rows or shards
        self._bar = None if _mode == "quiet" else _bar_class(_mode)(self, total)

    def advance(self, rows: int, rejected: Mapping[str, int]) -> None:
        """Count rows, and those of them that are rejected, by reason."""
        self.rows_done += rows
        self.rejected.update(rejected)
        if self._bar is not None:
            self._bar.update(rows if self.rows else 0)

    def finish_shard(self) -> None:
        """Count one more finished shard."""
        self.shards_done += 1
        if self._bar is not None:
            self._bar.update(0 if self.rows else 1)

    def describe(self, rate: float, seconds_left: float | None) -> str:
        """Return the text of the bar; `rate` is rows or shards per second."""
        files = "shards" if self.unit == "rows" else "files"
        parts = [f"{self.shards_done}/{self.shards} {files}", f"{self.rows_done:,} {self.unit}"]
        if self.rows:
            parts.append(f"{rate:,.0f}/s")
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
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{rest:02}"


@functools.cache  # on demand: the import of tqdm takes as long as `owt --version`
def _bar_class(mode: str) -> Any:
    """Return the bar for `live` progress, or the one that writes a `log`."""
    with warnings.catch_warnings():
        # A notebook without ipywidgets gets the bar of a terminal; tqdm warns that it has none.
        warnings.simplefilter("ignore")
        from tqdm.auto import tqdm
        from tqdm.std import tqdm as plain_tqdm

    # Its own lock is one of processes, which would start a process to track it.
    plain_tqdm.set_lock(threading.RLock())
    is_live = mode == "live"

    class Bar(tqdm if is_live else plain_tqdm):  # type: ignore[misc, valid-type]
        """A step's bar. It is drawn when the step advances, and by no thread of its own."""

        monitor_interval = 0

        def __init__(self, step: Step, total: int) -> None:
            self._step = step
            interval = _LIVE_INTERVAL_SECONDS if is_live else LOG_INTERVAL_SECONDS
            super().__init__(
                total=total,
                desc=_numbered(step.name),
                leave=False,
                file=sys.stderr,
                dynamic_ncols=is_live,
                bar_format=_BAR if is_live else _LINE,
                # Also without new rows: a line shows that the run is alive.
                miniters=0,
                mininterval=interval,
                delay=0 if is_live else interval,
            )

        @property
        def format_dict(self) -> dict[str, Any]:
            values = super().format_dict
            rate = values["rate"] or self.n / max(values["elapsed"], 1e-9)
            left = (self.total - self.n) / rate if rate else None
            text = self._step.describe(rate, left if self.n < self.total else None)
            return {**values, "text": text}

        if not is_live:

            def display(self, msg: str | None = None, pos: int | None = None) -> None:
                """Log the line; `msg` is empty when the bar is removed."""
                if msg is None:
                    logger.info("%s", self)

    return Bar


_stages: Sequence[str] = ()
_current: Step | None = None  # the runner calls `advance` from deep within; one step runs at a time
_mode = "log"
_report: Callable[[Advance], None] | None = None
_lock = threading.Lock()


def configure(*, quiet: bool, live: bool) -> None:
    """Show no progress, a bar, or a log line every LOG_INTERVAL_SECONDS."""
    global _mode
    _mode = "quiet" if quiet else "live" if live or _is_notebook() else "log"


def _is_notebook() -> bool:
    """Return whether this is a notebook, whose output is no terminal but shows bars."""
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

    A step that reads files instead of rows counts another `unit`, such as bytes.
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
