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

from owt_pipeline.engine.own_code import load_own, try_own
from owt_pipeline.errors import UsageError, UserError
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


_ORDINARY_TEXT = "\n".join(
    [
        "The river has frozen for the first time in eleven years.",
        "On Tuesday morning 40 people walked across it, from the old mill to the harbour; by noon "
        'there were hundreds. "I had never seen it white," said Maria Lind, who is 9.',
        "The city asks everybody to stay off the ice after dark (it is 12 cm thick at the bridge).",
    ]
)
"""A document with which each function is tried before a run."""


def try_signals(signals: Sequence[OwnSignal]) -> None:
    """Raise UserError for a function that is missing, or that fails with an ordinary document."""
    for signal in signals:
        value = try_own(_loaded(signal.name, "signals"), _ORDINARY_TEXT, signal.name, "signals")
        if not _is_finite_number(value):
            raise UserError(
                f"signals: {signal.name} returns {value!r} for an ordinary document, and has to "
                f"return a finite number"
            )


def _is_finite_number(value: Any) -> bool:
    """Return whether a user's function returned a number that is neither NaN nor infinite."""
    if isinstance(value, (str, bytes)):
        return False
    try:
        return math.isfinite(float(value))
    except (TypeError, ValueError):
        return False


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
