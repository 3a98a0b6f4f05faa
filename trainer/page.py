"""The page of a run, training.html: curves, figures, settings, the commit of the code."""

from __future__ import annotations

import html
import json
import math
import os
import subprocess
import time
from array import array
from collections import defaultdict
from pathlib import Path
from string import Template
from typing import Any, NamedTuple

import numpy as np

from trainer.checkpoint import replace_text

# The chart of a record's value, and the name of its curve there.
_CURVES = {
    "loss": ("Loss", "training"),
    "val_loss": ("Loss", "validation"),
    "lr": ("Learning rate", ""),
    "grad_norm": ("Gradient norm", ""),
    "tokens_per_s": ("Tokens per second", ""),
}
# The label and format of a record's value. The page shows the last value that there is.
_FIGURES = {
    "loss": ("loss", ".4f"),
    "val_loss": ("validation loss", ".4f"),
    "tokens_per_s": ("tokens/s", ",.0f"),
    "val_bits_per_byte": ("validation bits per byte", ".4f"),
    "mfu": ("MFU", ".1%"),
    "memory_gb": ("GB of memory", ".1f"),
    "world_size": ("processes", ",d"),
}
# A chart of 700 pixels shows no more.
_MAX_POINTS = 512
# A chart's size and the edges of its plot, in pixels.
_WIDTH = 720
_HEIGHT = 240
_LEFT = 80
_RIGHT = 712
_TOP = 8
_BOTTOM = 216
_COLOURS = ("#2f81f7", "#d9730d")  # readable on white and on black
_TEMPLATE = Template(Path(__file__).with_name("training.html").read_text(encoding="utf-8"))


class Page:
    """The page of a run of `max_steps`. It loads nothing else."""

    def __init__(self, path: Path, max_steps: int, settings: dict[str, Any]) -> None:
        self._path = path
        self._max_steps = max_steps
        # By chart and curve: step, value, step, value, …
        self._charts: dict[str, dict[str, array[float]]] = defaultdict(dict)
        self._last: dict[str, Any] = {}
        self._tokens = 0
        self._settings = {"code": _commit()}
        for name, value in settings.items():
            self._settings[name] = json.dumps(value)

    def add(self, record: dict[str, Any]) -> None:
        """Add the record of a step, as in `metrics.jsonl`."""
        for key, (chart_name, curve) in _CURVES.items():
            value = record.get(key)
            if isinstance(value, (int, float)) and math.isfinite(value):
                values = self._charts[chart_name].setdefault(curve, array("d"))
                values.extend((record["step"], value))
        self._tokens += record.get("tokens", 0)
        self._last |= {key: value for key, value in record.items() if value is not None}

    def write(self) -> None:
        """Replace the file. Until the last step, a browser reloads it."""
        step = self._last.get("step", 0)
        is_finished = step >= self._max_steps
        parts = {
            "title": html.escape(f"Training of {self._path.resolve().parent.name}"),
            "reload": "" if is_finished else '<meta http-equiv="refresh" content="30">',
            "state": "Finished" if is_finished else "Training",
            "now": time.strftime("%Y-%m-%d %H:%M UTC", time.gmtime()),
            "facts": self._figures(step),
            "charts": "".join(chart(name, curves, step) for name, curves in self._charts.items()),
            "settings": "".join(
                f"<tr><td>{name}</td><td>{html.escape(value)}</td></tr>"
                for name, value in self._settings.items()
            ),
        }
        replace_text(self._path, _TEMPLATE.substitute(parts))

    def _figures(self, step: int) -> str:
        figures = {"step": f"{step:,} of {self._max_steps:,}", "tokens seen": f"{self._tokens:,}"}
        for key, (label, form) in _FIGURES.items():
            if key in self._last:
                figures[label] = format(self._last[key], form)
        return "".join(f"<div><b>{value}</b>{label}</div>" for label, value in figures.items())


def points(values: array[float]) -> np.ndarray:
    """Return a curve (step, value, step, value, …) as (n, 2), n being 512 at most.

    A point is the mean of a span; spans have the same number of values.
    """
    pairs = np.frombuffer(values).reshape(-1, 2)
    span = -(-len(pairs) // _MAX_POINTS)
    starts = np.arange(0, len(pairs), span)
    return np.add.reduceat(pairs, starts) / np.diff(starts, append=len(pairs))[:, None]


class _Scale(NamedTuple):
    """Maps steps 0 … `last` and values `low` … `high` to a chart's pixels."""

    last: float
    low: float
    high: float

    def x(self, step: float) -> str:
        return f"{_LEFT + (_RIGHT - _LEFT) * step / self.last:.1f}"

    def y(self, value: float) -> str:
        height = (min(max(value, self.low), self.high) - self.low) / (self.high - self.low)
        return f"{_BOTTOM - (_BOTTOM - _TOP) * height:.1f}"


def chart(title: str, curves: dict[str, array[float]], last: int) -> str:
    """Return an SVG of curves, as in `points`, over steps 0 … `last`.

    The legend has the last value of each.
    """
    curve_points = {name: points(values) for name, values in curves.items()}
    scale = _scale_of(np.concatenate([*curve_points.values()]), last)
    label = html.escape(title)
    parts = [f'<svg viewBox="0 0 {_WIDTH} {_HEIGHT}" role="img" aria-label="{label} by step">']
    for fraction in (0, 0.5, 1):
        parts.append(_tick(scale, fraction))
    legend = ""
    for colour, (name, pairs) in zip(_COLOURS, curve_points.items(), strict=False):
        # The last point twice, so that a single one is a dot.
        line = " ".join(f"{scale.x(step)},{scale.y(value)}" for step, value in [*pairs, pairs[-1]])
        parts.append(f'<polyline stroke="{colour}" points="{line}"/>')
        last_value = _shown(pairs[-1, 1])
        legend += f'<span style="color:{colour}">{html.escape(name)}</span> {last_value} '
    return f"<figure><figcaption>{label}: {legend}</figcaption>{''.join(parts)}</svg></figure>"


def _scale_of(pairs: np.ndarray, last: int) -> _Scale:
    steps, values = pairs.T
    low = values.min()
    high = values.max()
    # A start far above the rest is cut off: the chart would be flat after it.
    later_values = values[steps > last / 10]
    if len(later_values) > 20 and high > 1.5 * later_values.max():
        high = later_values.max()
    if high <= low:
        high = low + (abs(low) or 1)
    return _Scale(last, low, high)


def _tick(scale: _Scale, fraction: float) -> str:
    """Return a line across the chart with its value, and the step below, at a part of each axis."""
    value = scale.low + fraction * (scale.high - scale.low)
    y = scale.y(value)
    step = fraction * scale.last
    return (
        f'<line x1="{_LEFT}" x2="{_RIGHT}" y1="{y}" y2="{y}"/>'
        f'<text x="{_LEFT - 8}" y="{y}" dy="4" text-anchor="end">{_shown(value)}</text>'
        f'<text x="{scale.x(step)}" y="{_HEIGHT - 6}" text-anchor="middle">{step:,.0f}</text>'
    )


def _shown(value: float) -> str:
    return f"{value:,.0f}" if abs(value) >= 10_000 else f"{value:.4g}"


def _commit() -> str:
    """Return the commit of this code, with `-dirty` if it was changed; unknown outside of git."""
    checkout = Path(__file__).resolve().parents[1]
    describe = ["describe", "--always", "--dirty", "--abbrev=12", "--exclude=*"]
    # Not the commit of a repository around an installed package.
    environment = {**os.environ, "GIT_CEILING_DIRECTORIES": str(checkout.parent)}
    try:
        return subprocess.check_output(
            ["git", "-C", str(checkout), *describe],
            text=True,
            timeout=10,
            env=environment,
            stderr=subprocess.DEVNULL,
        ).strip()
    except (OSError, subprocess.SubprocessError):
        return "unknown"
