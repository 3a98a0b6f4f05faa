"""Signals of the user's own: functions from a text to a number, with an optional threshold
(docs/how-to/new-filter.md). A package can add functions by entry points.

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

from owt_pipeline.errors import UsageError, UserError
from owt_pipeline.formats.own_code import load_own, try_own
from schemas import Reason

_SIGNAL = re.compile(
    r"\s*([\w.]+(?::\w+)?)\s*(?:(>=|<=)\s*([-+]?(?:\d+\.?\d*|\.\d+)(?:[eE][-+]?\d+)?)\s*)?"
)


class OwnSignal(NamedTuple):
    """The name of a function, and the numbers of a document to keep, both limits included."""

    name: str
    minimum: float = -math.inf
    maximum: float = math.inf


@functools.lru_cache(maxsize=8)  # it is called for each document
def parse_signals(signals: tuple[str, ...]) -> tuple[OwnSignal, ...]:
    """Return the signals that the option names; raise UsageError for a wrong one."""
    signal_by_name: dict[str, OwnSignal] = {}
    for text in signals:
        match = _SIGNAL.fullmatch(text)
        if match is None:
            raise UsageError(
                f"signals: {text!r} is not module:function, module:function>=X or "
                f"module:function<=X"
            )
        name, side, limit = match.groups()
        if name in signal_by_name:
            raise UsageError(f"signals: {name} is given twice")
        if side == ">=":
            signal_by_name[name] = OwnSignal(name, minimum=float(limit))
        elif side == "<=":
            signal_by_name[name] = OwnSignal(name, maximum=float(limit))
        else:
            signal_by_name[name] = OwnSignal(name)
    return tuple(signal_by_name.values())


# A process finds a function once.
_loaded: Callable[[str, str], Callable[[str], Any]] = functools.cache(load_own)


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
    """Return whether a user's function returned a finite number."""
    if isinstance(value, (str, bytes)):
        return False
    try:
        return math.isfinite(float(value))
    except (TypeError, ValueError):
        return False


def measure_own(
    text: str, signals: Sequence[OwnSignal]
) -> tuple[dict[str, float], tuple[Reason, str] | None]:
    """Return the text's signals by name, and (reason, detail) if the text is rejected.

    Signals after the first that rejects the text are not measured.
    """
    value_by_name: dict[str, float] = {}
    for signal in signals:
        name = signal.name
        try:
            result = _loaded(name, "signals")(text)
            value = math.nan if isinstance(result, (str, bytes)) else float(result)
        except Exception as error:
            return value_by_name, _failed(f"{name}: {type(error).__name__}: {error}")
        if not math.isfinite(value):
            return value_by_name, _failed(f"{name}: {result!r} is no finite number")
        value_by_name[name] = value
        if value < signal.minimum:
            detail = f"{name} is {value:,.6g}, less than {signal.minimum:,g}"
            return value_by_name, (Reason.OWN_SIGNAL, detail)
        if value > signal.maximum:
            detail = f"{name} is {value:,.6g}, more than {signal.maximum:,g}"
            return value_by_name, (Reason.OWN_SIGNAL, detail)
    return value_by_name, None


_MAX_DETAIL_CHARS = 500


def _failed(detail: str) -> tuple[Reason, str]:
    return Reason.SIGNAL_FAILED, detail[:_MAX_DETAIL_CHARS]
