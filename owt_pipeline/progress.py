"""Progress of the step at work: a bar of tqdm's on a terminal or in a notebook, else log lines.

Worker processes report to the process that started them, which shows their progress. The workers of
a distributed runner show none.
"""

from __future__ import annotations

import contextlib
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

logger = logging.getLogger("owt")

LOG_INTERVAL_SECONDS = 60.0
"""Seconds between two lines of progress in a log."""

_MAX_REASONS = 3
# Rows below this number are written in full, further ones as in 12.3k.
_MIN_SCALED = 10_000

ERASE = "\r\x1b[K"
"""Removes the terminal's current line. A log line takes the place of the bar, which is drawn again
below it."""

_LINE = "{n_fmt}/{total_fmt}{unit}, {rate_noinv_fmt}, {remaining} left{postfix}"


@dataclass(frozen=True)
class Advance:
    """Rows that are done, as a worker process reports them; `rejected` has numbers by reason."""

    rows: int
    rejected: Mapping[str, int] = field(default_factory=dict)


class Step:
    """The progress of one step, and its bar if progress is shown.

    The bar counts rows or bytes, or shards if the number of rows is unknown.
    """

    def __init__(self, name: str, shards: int, rows: int | None, unit: str) -> None:
        self._shards = shards
        self._shards_done = 0
        self._rejected: Counter[str] = Counter()
        self._counts_rows = bool(rows)
        self._bar: Any = None
        if _mode != "quiet":
            self._bar = _bar(_numbered(name), rows or shards, unit if rows else "shards")

    def advance(self, rows: int, rejected: Mapping[str, int], shards: int = 0) -> None:
        """Count rows, those of them that are rejected, by reason, and finished shards."""
        self._shards_done += shards
        self._rejected.update(rejected)
        if self._bar is None:
            return
        parts = [f"{self._shards_done}/{self._shards} shards"]
        most_frequent = self._rejected.most_common(_MAX_REASONS)
        parts += [f"{reason} {count:,}" for reason, count in most_frequent]
        self._bar.set_postfix_str(", ".join(parts), refresh=False)
        self._bar.update(rows if self._counts_rows else shards)

    def close(self) -> None:
        """Remove the bar."""
        if self._bar is not None:
            self._bar.close()


class _Log:
    """Writes the lines of a bar to the log, as its file."""

    def write(self, text: str) -> None:
        line = text.strip()
        # A bar that is removed writes blanks.
        if line:
            logger.info("%s", line)

    def flush(self) -> None:
        """Do nothing: lines of the log are written at once."""


def _bar(description: str, total: int, unit: str) -> Any:
    """Return a bar for live progress, or one that writes to the log."""
    # tqdm is imported only for the first bar: the import takes as long as `owt --version`.
    with warnings.catch_warnings():
        # A notebook without ipywidgets gets the bar of a terminal; tqdm warns that it has none.
        warnings.simplefilter("ignore")
        from tqdm.auto import tqdm
        from tqdm.std import tqdm as plain_tqdm

    # tqdm's own lock is shared by processes, and would start a process to track it.
    plain_tqdm.set_lock(threading.RLock())
    # The bar is drawn when the step advances, and by no thread of its own.
    plain_tqdm.monitor_interval = 0
    options = {
        "desc": description,
        "total": total,
        "unit": "B" if unit == "bytes" else f" {unit}",
        "unit_scale": unit == "bytes" or total >= _MIN_SCALED,
        "leave": False,
        # A line is written even without new rows, to show that the run is alive.
        "miniters": 0,
    }
    if _mode == "live":
        bar_format = "{desc}: {percentage:.0f}%|{bar}| " + _LINE
        return tqdm(bar_format=bar_format, file=sys.stderr, dynamic_ncols=True, **options)
    # A step that is shorter than the interval has no line.
    return plain_tqdm(
        bar_format="{desc}: " + _LINE,
        file=_Log(),
        mininterval=LOG_INTERVAL_SECONDS,
        delay=LOG_INTERVAL_SECONDS,
        **options,
    )


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
            _current.advance(0, {}, shards=1)
