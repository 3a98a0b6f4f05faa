"""Signals of the user's own: functions from a text to a number, with an optional threshold
(docs/how-to/new-filter.md).

A function is called in each worker process with the repaired text of a document that nothing else
rejects. If it raises an error or returns anything but a finite number, the document is rejected. It
must keep no state between texts.
"""

from __future__ import annotations

import functools
import math
import re
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from owt_pipeline.engine.own_code import load_own
from owt_pipeline.errors import UsageError
from schemas import Reason

_SIGNAL = re.compile(
    r"\s*([\w.]+:\w+)\s*(?:(>=|<=)\s*([-+]?(?:\d+\.?\d*|\.\d+)(?:[eE][-+]?\d+)?)\s*)?"
)


class OwnSignal(NamedTuple):
    """`module:function`, and the numbers of a document to keep, both limits included."""

    name: str
    least: float = -math.inf
    most: float = math.inf


@functools.lru_cache(maxsize=8)  # for each document
def parse_signals(signals: tuple[str, ...]) -> tuple[OwnSignal, ...]:
    """The signals of the option; raises UsageError."""
    found: dict[str, OwnSignal] = {}
    for given in signals:
        if (match := _SIGNAL.fullmatch(given)) is None:
            raise UsageError(
                f"signals: {given!r} is none of module:function, module:function>=X, "
                f"module:function<=X"
            )
        name, side, limit = match.groups()
        if name in found:
            raise UsageError(f"signals: {name} is given twice")
        found[name] = OwnSignal(
            name, **({"least" if side == ">=" else "most": float(limit)} if side else {})
        )
    return tuple(found.values())


_loaded: Callable[[str, str], Callable[[str], Any]] = functools.cache(
    load_own
)  # a process finds a function once


def measure_own(
    text: str, signals: Sequence[OwnSignal]
) -> tuple[dict[str, float], tuple[Reason, str] | None]:
    """The text's signals by name; and, if it is rejected, the reason and what was found. The
    first reason ends it."""
    found: dict[str, float] = {}
    for signal in signals:
        name = signal.name
        try:
            answer = _loaded(name, "signals")(text)
            value = math.nan if isinstance(answer, (str, bytes)) else float(answer)
        except Exception as error:
            return found, (Reason.SIGNAL_FAILED, f"{name}: {type(error).__name__}: {error}"[:500])
        if not math.isfinite(value):
            return found, (Reason.SIGNAL_FAILED, f"{name}: {answer!r} is no finite number"[:500])
        found[name] = value
        if not signal.least <= value <= signal.most:
            side, limit = ("less", signal.least) if value < signal.least else ("more", signal.most)
            return found, (Reason.OWN_SIGNAL, f"{name} is {value:,.6g}, {side} than {limit:,g}")
    return found, None
