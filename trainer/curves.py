"""A quantity over the steps of a run, in bounded memory, and its chart as SVG."""

from __future__ import annotations

import html
import math
from dataclasses import dataclass

_MOST = 512  # spans kept: more would not be seen on a chart of 700 pixels
_WIDTH, _HEIGHT, _LEFT, _BOTTOM, _TOP = 720, 240, 80, 24, 8


@dataclass
class Span:
    """Steps that follow one another: the sum, count, least and greatest of their values."""

    sum: float
    count: int
    low: float
    high: float

    @property
    def mean(self) -> float:
        return self.sum / self.count

    def add(self, other: Span) -> Span:
        return Span(
            self.sum + other.sum, self.count + other.count, min(self.low, other.low), max(self.high, other.high)
        )


class Curve:
    """Values by step. Steps share a span where there are many: spans double in width when 512 are exceeded."""

    def __init__(self) -> None:
        self.width = 1
        self.spans: dict[int, Span] = {}

    def add(self, step: int, value: float) -> None:
        """Add the value of `step` (from 1 on); values that are not finite are left out."""
        if not math.isfinite(value):
            return
        self._merge((step - 1) // self.width, Span(value, 1, value, value))
        while len(self.spans) > _MOST:
            spans, self.spans, self.width = self.spans, {}, 2 * self.width
            for number, span in spans.items():
                self._merge(number // 2, span)

    def _merge(self, number: int, span: Span) -> None:
        before = self.spans.get(number)
        self.spans[number] = before.add(span) if before else span

    def points(self) -> list[tuple[float, Span]]:
        """(step in the middle of the span, the span), in order."""
        return [((number + 0.5) * self.width + 0.5, span) for number, span in sorted(self.spans.items())]


def chart(title: str, curves: dict[str, Curve], steps: int) -> str:
    """An SVG of curves over steps 0 … `steps`: each one's mean as a line, its least and greatest as a band.

    Curves are drawn in the classes `c0`, `c1`, …, which the page's style sheet gives colours; each has its last value
    in the legend.
    """
    drawn = {name: curve.points() for name, curve in curves.items() if curve.spans}
    low, high, ticks = _scale(*_range(list(drawn.values()), steps))
    right, bottom = _WIDTH - 8, _HEIGHT - _BOTTOM

    def x(step: float) -> str:
        return f"{_LEFT + (right - _LEFT) * step / max(1, steps):.1f}"

    def y(value: float) -> str:
        value = min(max(value, low), high)
        return f"{bottom - (bottom - _TOP) * (value - low) / (high - low):.1f}"

    parts = [f'<svg viewBox="0 0 {_WIDTH} {_HEIGHT}" role="img" aria-label="{html.escape(title)} by step">']
    for tick in ticks:
        parts.append(f'<line class="grid" x1="{_LEFT}" x2="{right}" y1="{y(tick)}" y2="{y(tick)}"/>')
        parts.append(f'<text x="{_LEFT - 8}" y="{y(tick)}" dy="4" text-anchor="end">{_number(tick)}</text>')
    for tick in _scale(0, max(1, steps))[2]:
        if tick <= steps:
            anchor = "end" if tick > 0.97 * steps else "middle"
            parts.append(f'<text x="{x(tick)}" y="{_HEIGHT - 6}" text-anchor="{anchor}">{tick:,.0f}</text>')
    for number, (_, points) in enumerate(drawn.items()):
        if len(points) > 1 and any(span.count > 1 for _, span in points):
            edge = [f"{x(step)},{y(span.high)}" for step, span in points]
            edge += [f"{x(step)},{y(span.low)}" for step, span in reversed(points)]
            parts.append(f'<polygon class="band c{number}" points="{" ".join(edge)}"/>')
        line = " ".join(f"{x(step)},{y(span.mean)}" for step, span in points)
        parts.append(f'<polyline class="c{number}" points="{line}"/>')
        if len(points) < 60:
            parts += [f'<circle class="c{number}" cx="{x(s)}" cy="{y(span.mean)}" r="2.5"/>' for s, span in points]
    legend = "".join(
        f'<span class="c{number}">{html.escape(name)}</span> {_number(points[-1][1].mean)} '
        for number, (name, points) in enumerate(drawn.items())
    )
    caption = f"<figcaption>{html.escape(title)}: {legend or 'no value yet'}</figcaption>"
    return f"<figure>{caption}{''.join(parts)}</svg></figure>"


def _range(drawn: list[list[tuple[float, Span]]], steps: int) -> tuple[float, float]:
    """The least and greatest mean. A start far above the rest runs off the chart, which would else be flat after it."""
    means = [span.mean for points in drawn for _, span in points] or [0.0, 1.0]
    later = [span.mean for points in drawn for step, span in points if step > steps / 10]
    high = max(means)
    if len(later) > 20 and high > 1.5 * max(later):
        high = max(later)
    return min(means), high


def _number(value: float) -> str:
    return f"{value:,.0f}" if abs(value) >= 10_000 else f"{value:.4g}"


def _scale(low: float, high: float) -> tuple[float, float, list[float]]:
    """(least, greatest, ticks) of an axis that shows low … high, its ticks at 1, 2 or 5 times a power of ten."""
    if high <= low:
        low, high = low - (abs(low) or 1) / 2, high + (abs(high) or 1) / 2
    rough = (high - low) / 4
    power = 10 ** math.floor(math.log10(rough))
    step = next(factor * power for factor in (1, 2, 5, 10) if factor * power >= rough)
    first, last = math.floor(low / step), math.ceil(high / step)
    return first * step, last * step, [round(k * step, 12) for k in range(first, last + 1)]
