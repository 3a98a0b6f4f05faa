"""What a filter finds in a text: its signals, each a number, and the first that is beyond its limit."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from owt_pipeline.clean.text_view import TextView
from schemas import Reason


@dataclass(frozen=True)
class Limit:
    """The least and the most that a signal of a text that passes may be, both included."""

    minimum: float = -math.inf
    maximum: float = math.inf


@dataclass(frozen=True)
class Judgement:
    """What a filter found in one text.

    Attributes:
      signals: what was measured, by name.
      broken: None for a text that passes; else what was found and what is allowed.
      kept: what remains of a text that passes; None where all of it does.
    """

    signals: Mapping[str, float]
    broken: str | None
    kept: str | None = None


@dataclass(frozen=True)
class Filter:
    """A published rule, or set of rules.

    Attributes:
      judge: a pure function of the text.
      limits: those of its signals.
      reason: why a text that breaks one is rejected.
    """

    judge: Callable[[TextView], Judgement]
    limits: Mapping[str, Limit]
    reason: Reason


def by_limits(signals: Mapping[str, float], limits: Mapping[str, Limit]) -> Judgement:
    """Judge by the limits, in their order."""
    for name, limit in limits.items():
        value = signals[name]
        if value < limit.minimum:
            return Judgement(signals, f"{name} is {_shown(value)}, less than {limit.minimum:,}")
        if value > limit.maximum:
            return Judgement(signals, f"{name} is {_shown(value)}, more than {limit.maximum:,}")
    return Judgement(signals, None)


def _shown(value: float) -> str:
    return f"{value:,}" if isinstance(value, int) else f"{value:.4f}"
