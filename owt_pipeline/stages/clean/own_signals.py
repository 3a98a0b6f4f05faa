"""Signals of the user's own: a function from a text to a number, with an optional threshold.

`signals` takes `module:function`, `module:function>=0.5` or `module:function<=0.5`. `function(text)` is called in each
worker process with the repaired text of a document that nothing else rejects. If it raises an error or returns anything
but a finite number, the document is rejected. It must not keep state from one text to the next.

    # my_signals.py
    def capitals(text: str) -> float:
        return sum(map(str.isupper, text)) / len(text)

    PYTHONPATH=. owt clean run --signals "my_signals:capitals<=0.3"
"""

from __future__ import annotations

import functools
import math
import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from owt_pipeline.engine.own_code import load_own
from owt_pipeline.errors import UsageError
from schemas import Reason

_SIGNAL = re.compile(r"\s*(?P<name>[\w.]+:\w+)\s*(?:(?P<side>>=|<=)\s*(?P<limit>[-+]?[\d.]+(?:[eE][-+]?\d+)?)\s*)?")


@dataclass(frozen=True)
class OwnSignal:
    """A signal of the user's own.

    Attributes:
      name: `module:function`.
      side: ">=" or "<=", how the number of a document to keep compares with `limit`; "" without a threshold.
      limit: the threshold.
    """

    name: str
    side: str = ""
    limit: float = 0.0

    def broken_by(self, value: float) -> str | None:
        """What was found and what is allowed, if `value` breaks the threshold; else None."""
        if not self.side or (value >= self.limit if self.side == ">=" else value <= self.limit):
            return None
        return f"{self.name} is {value:,.6g}, {'less' if self.side == '>=' else 'more'} than {self.limit:,g}"


@functools.lru_cache(maxsize=8)  # for each document
def parse_signals(signals: tuple[str, ...]) -> tuple[OwnSignal, ...]:
    """The signals of the option; raises UsageError."""
    return tuple(_parsed(signals))


def _parsed(signals: Sequence[str]) -> Iterator[OwnSignal]:
    known = set()
    for given in signals:
        found = _SIGNAL.fullmatch(given)
        try:
            limit = float(found["limit"] or 0) if found else math.nan
        except ValueError:
            found = None
        if not found:
            raise UsageError(f"signals: {given!r} is none of module:function, module:function>=X, module:function<=X")
        if found["name"] in known:
            raise UsageError(f"signals: {found['name']} is given twice")
        known.add(found["name"])
        yield OwnSignal(found["name"], found["side"] or "", limit)


_loaded: Callable[[str, str], Callable[[str], Any]] = functools.cache(load_own)  # a process finds a function once


def measure_own(text: str, signals: Sequence[OwnSignal]) -> tuple[dict[str, float], Reason | None, str]:
    """(the text's signals by name, why it is rejected or None, what was found); the first reason ends it."""
    found: dict[str, float] = {}
    for signal in signals:
        try:
            answer = _loaded(signal.name, "signals")(text)
            value = math.nan if isinstance(answer, (str, bytes)) else float(answer)
        except Exception as error:
            return found, Reason.SIGNAL_FAILED, f"{signal.name}: {type(error).__name__}: {error}"[:500]
        if not math.isfinite(value):
            return found, Reason.SIGNAL_FAILED, f"{signal.name}: {answer!r} is no finite number"[:500]
        found[signal.name] = value
        if (broken := signal.broken_by(value)) is not None:
            return found, Reason.OWN_SIGNAL, broken
    return found, None, ""
