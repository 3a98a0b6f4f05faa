"""training.html: a run's curves, samples and settings on one page, readable while it trains and without an account."""

from __future__ import annotations

import datetime
import html
import importlib.metadata
import json
import math
import os
import subprocess
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

NAME = "training.html"
_EVALUATIONS, _CHARACTERS = 20, 1500  # samples are shown of this many evaluations, each cut to this many characters

_COLOURS = ("0969da", "bc4c00", "1a7f37", "8250df", "bf3989", "6e7781")
_COLOURS_ON_DARK = ("4493f8", "f0883e", "3fb950", "ab7df8", "db61a2", "9198a1")
_STYLE = """
:root{color-scheme:light dark;--text:#1f2328;--mute:#59636e;--grid:#d8dee4;--back:#fff;
--card:#f6f8fa}
@media(prefers-color-scheme:dark){:root{--text:#e6edf3;--mute:#9198a1;--grid:#30363d;--back:#0d1117;--card:#151b23}}
body{font:15px/1.5 system-ui,sans-serif;color:var(--text);background:var(--back)}
body{max-width:76rem;margin:1.5rem auto;padding:0 1rem}
h1{font-size:1.4rem;margin:0}h2{font-size:1.1rem;margin:2rem 0 .5rem}p{margin:.2rem 0;color:var(--mute)}
.facts{display:flex;flex-wrap:wrap;gap:.5rem;margin:1rem 0}
.facts div{background:var(--card);border-radius:6px;padding:.5rem .9rem}.facts b{display:block;font-size:1.2rem}
.charts{display:grid;grid-template-columns:repeat(auto-fit,minmax(min(30rem,100%),1fr));gap:1rem}
figure{margin:0}figcaption{font-weight:600}svg{width:100%;height:auto;font-size:12px}svg text{fill:var(--mute)}
.grid{stroke:var(--grid)}polyline{fill:none;stroke-width:1.6}.band{opacity:.2}
pre{white-space:pre-wrap;overflow-wrap:anywhere;background:var(--card);border-radius:6px}
pre{padding:.6rem .9rem;margin:.4rem 0}
table{border-collapse:collapse}td,th{padding:.1rem 1rem .1rem 0;text-align:left;vertical-align:top;font-weight:400}
th{color:var(--mute)}td{overflow-wrap:anywhere}
"""


def page_of(title: str, parts: Iterable[str], *, renewed: bool = False) -> str:
    """A page that loads no other file; one that is `renewed` reloads every 30 seconds."""
    refresh = '<meta http-equiv="refresh" content="30">' if renewed else ""
    colours = []
    for number, pair in enumerate(zip(_COLOURS, _COLOURS_ON_DARK, strict=True)):
        light, dark = (
            f"polyline.c{number}{{stroke:#{c}}}.band.c{number},circle.c{number}{{fill:#{c}}}span.c{number}{{color:#{c}}}"
            for c in pair
        )
        colours.append(f"{light}@media(prefers-color-scheme:dark){{{dark}}}")
    head = (
        f'<!DOCTYPE html><html lang="en"><head><meta charset="utf-8">{refresh}<title>{html.escape(title)}</title>'
        f'<meta name="viewport" content="width=device-width,initial-scale=1"><style>{_STYLE}{"".join(colours)}</style>'
        f"</head><body><h1>{html.escape(title)}</h1>"
    )
    return "\n".join([head, *parts, "</body></html>"])


def table(rows: Iterable[Sequence[str]], head: Sequence[str] = ()) -> str:
    """A table of texts; its first column and `head` are headings."""
    lines = [f"<tr>{''.join(f'<th>{html.escape(text)}</th>' for text in head)}</tr>"] if head else []
    for first, *rest in rows:
        cells = "".join(f"<td>{html.escape(text)}</td>" for text in rest)
        lines.append(f"<tr><th>{html.escape(first)}</th>{cells}</tr>")
    return f"<table>{''.join(lines)}</table>"


def replace_text(path: Path, text: str) -> None:
    """Write the file atomically."""
    part = path.with_name(path.name + ".part")
    part.write_text(text, encoding="utf-8")
    os.replace(part, path)


class Page:
    """The page of the run in `folder`; `write` replaces it atomically.

    Args:
      folder: the run's folder.
      settings: of the run.
      max_steps: of the run.
      data: (step, what the run reads from then on); 0 is the first step.
      records, samples: those of the steps already done, from `metrics.jsonl` and `samples.jsonl`.
    """

    def __init__(
        self,
        folder: Path,
        settings: dict[str, Any],
        max_steps: int,
        data: Sequence[tuple[int, str]] = (),
        records: Iterable[dict[str, Any]] = (),
        samples: Iterable[dict[str, Any]] = (),
    ) -> None:
        self._path, self._settings, self._max_steps = folder / NAME, settings, max_steps
        self._commit, self._data = commit(), data
        self._curves = {name: Curve() for name in ("loss", "val_loss", "lr", "grad_norm", "tokens_per_s")}
        self._spans: list[tuple[int, int, float | None]] = []  # processes, since which step, since when
        self._last: dict[str, Any] = {}
        self._tokens = 0
        self._samples = list(samples)
        for record in records:
            self.add(record)

    def add(self, record: dict[str, Any]) -> None:
        """The record of a step, as in `metrics.jsonl`."""
        for name, curve in self._curves.items():
            if isinstance(record.get(name), (int, float)):
                curve.add(record["step"], record[name])
        size = record.get("world_size", 1)
        if not self._spans or self._spans[-1][0] != size:
            self._spans.append((size, record["step"], record.get("time")))
        self._tokens += record.get("tokens", 0)
        self._last = record

    def add_samples(self, step: int, texts: list[str]) -> None:
        """What the model wrote after `step` steps."""
        self._samples.append({"step": step, "texts": texts})

    def write(self) -> None:
        replace_text(self._path, self._html())

    def _html(self) -> str:
        last, curves = self._last, self._curves
        step = last.get("step", 0)
        facts = {"step": f"{step:,} of {self._max_steps:,}", "tokens seen": f"{self._tokens:,}"}
        for name, label, form in (
            ("loss", "loss", ".4f"), ("val_loss", "validation loss", ".4f"), ("tokens_per_s", "tokens/s", ",.0f"),
            ("mfu", "MFU", ".1%"), ("memory_gb", "GB of memory", ".1f"), ("world_size", "processes", ",d"),
        ):  # fmt: skip
            value = last.get(name)
            if value is None and name in curves and curves[name].spans:
                value = curves[name].points()[-1][1].mean
            if value is not None:
                facts[label] = format(value, form)
        spans = [
            (f"since step {first:,}{f', {_moment(when)}' if when else ''}", f"{size:,}")
            for size, first, when in self._spans[-20:]
        ]
        return page_of(
            f"Training of {self._path.parent.resolve().name}",
            [
                f"<p>{'Finished' if step >= self._max_steps else 'Training'}; {written_now()}</p>",
                '<div class="facts">',
                *(f"<div><b>{html.escape(value)}</b>{html.escape(name)}</div>" for name, value in facts.items()),
                '</div><div class="charts">',
                chart("Loss", {"training": curves["loss"], "validation": curves["val_loss"]}, step),
                chart("Learning rate", {"": curves["lr"]}, step),
                chart("Gradient norm", {"": curves["grad_norm"]}, step),
                chart("Tokens per second", {"": curves["tokens_per_s"]}, step),
                "</div><h2>Processes</h2>",
                table(spans),
                "<h2>Data</h2>",
                table((f"since step {first + 1:,}", what) for first, what in self._data[-20:]),
                "<h2>Samples</h2>",
                *(self._sample_blocks() or ["<p>None yet: they are written at each validation.</p>"]),
                settings_table(self._settings, self._commit),
            ],
            renewed=step < self._max_steps,  # a page opened from a disk or bucket follows the run
        )

    def _sample_blocks(self) -> list[str]:
        blocks = []
        for entry in reversed(self._samples[-_EVALUATIONS:]):
            blocks.append(f"<p>Step {entry['step']:,}</p>")
            blocks += [f"<pre>{html.escape(text[:_CHARACTERS])}</pre>" for text in entry["texts"]]
        return blocks


def settings_table(settings: dict[str, Any], code: str) -> str:
    """The settings of a run and the commit of its code."""
    rows = ((key, json.dumps(value, ensure_ascii=False)) for key, value in settings.items())
    return f"<h2>Settings</h2><p>Code: {html.escape(code)}</p>{table(rows)}"


def written_now() -> str:
    """When the page was written, as a sentence."""
    return f"page written {_moment(datetime.datetime.now(datetime.timezone.utc).timestamp())}."


def commit() -> str:
    """The commit of this code, with `-dirty` if it was changed, or the package's version outside its repository."""
    here = Path(__file__).resolve().parents[1]
    try:
        if Path(_git(here, "rev-parse", "--show-toplevel")).resolve() == here:  # not a repository around it
            return _git(here, "describe", "--always", "--dirty", "--abbrev=12", "--exclude=*")
    except (OSError, subprocess.SubprocessError):
        pass
    try:
        return f"owt-pipeline {importlib.metadata.version('owt-pipeline')}"
    except importlib.metadata.PackageNotFoundError:
        return "unknown"


def _git(folder: Path, *arguments: str) -> str:
    done = subprocess.run(["git", *arguments], cwd=folder, capture_output=True, text=True, timeout=10, check=True)
    return done.stdout.strip()


def _moment(seconds: float) -> str:
    return datetime.datetime.fromtimestamp(seconds, datetime.timezone.utc).strftime("%Y-%m-%d %H:%M UTC")


_MOST = 512  # spans kept: a chart of 700 pixels shows no more
_WIDTH, _HEIGHT, _LEFT, _BOTTOM, _TOP = 720, 240, 80, 24, 8


@dataclass
class Span:
    """Consecutive steps: the sum, count, minimum and maximum of their values."""

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


Point = tuple[float, Span]
"""(Step in the middle of a span, the span)."""


class Curve:
    """Values by step. When there are more than 512 spans of steps, each two are merged."""

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

    def points(self) -> list[Point]:
        """(step in the middle of the span, the span), in order."""
        return [((number + 0.5) * self.width + 0.5, span) for number, span in sorted(self.spans.items())]


def chart(title: str, curves: dict[str, Curve], steps: int) -> str:
    """An SVG of curves over steps 0 … `steps`: each one's mean as a line, its minimum and maximum as a band.

    Curves have the classes `c0`, `c1`, …, which the page's style sheet colours; the legend shows each one's last value.
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
        parts.append(f'<text x="{_LEFT - 8}" y="{y(tick)}" dy="4" text-anchor="end">{_shown(tick)}</text>')
    for tick in _scale(0, max(1, steps))[2]:
        if tick <= steps:
            anchor = "end" if tick > 0.97 * steps else "middle"
            parts.append(f'<text x="{x(tick)}" y="{_HEIGHT - 6}" text-anchor="{anchor}">{tick:,.0f}</text>')
    for number, (_, points) in _coloured(drawn):
        if len(points) > 1 and any(span.count > 1 for _, span in points):
            edge = [f"{x(step)},{y(span.high)}" for step, span in points]
            edge += [f"{x(step)},{y(span.low)}" for step, span in reversed(points)]
            parts.append(f'<polygon class="band c{number}" points="{" ".join(edge)}"/>')
        line = " ".join(f"{x(step)},{y(span.mean)}" for step, span in points)
        parts.append(f'<polyline class="c{number}" points="{line}"/>')
        if len(points) < 60:
            parts += [f'<circle class="c{number}" cx="{x(s)}" cy="{y(span.mean)}" r="2.5"/>' for s, span in points]
    legend = "".join(
        f'<span class="c{number}">{html.escape(name)}</span> {_shown(points[-1][1].mean)} '
        for number, (name, points) in _coloured(drawn)
    )
    caption = f"<figcaption>{html.escape(title)}: {legend or 'no value yet'}</figcaption>"
    return f"<figure>{caption}{''.join(parts)}</svg></figure>"


def _coloured(drawn: dict[str, list[Point]]) -> Iterator[tuple[int, tuple[str, list[Point]]]]:
    return ((number % len(_COLOURS), item) for number, item in enumerate(drawn.items()))


def _range(drawn: list[list[Point]], steps: int) -> tuple[float, float]:
    """The least and greatest mean. A start far above the rest is cut off: the chart would be flat after it."""
    means = [span.mean for points in drawn for _, span in points] or [0.0, 1.0]
    later = [span.mean for points in drawn for step, span in points if step > steps / 10]
    high = max(means)
    if len(later) > 20 and high > 1.5 * max(later):
        high = max(later)
    return min(means), high


def _shown(value: float) -> str:
    return f"{value:,.0f}" if abs(value) >= 10_000 else f"{value:.4g}"


def _scale(low: float, high: float) -> tuple[float, float, list[float]]:
    """(minimum, maximum, ticks) of an axis that shows low … high, with ticks at 1, 2 or 5 times a power of ten."""
    if high <= low:
        low, high = low - (abs(low) or 1) / 2, high + (abs(high) or 1) / 2
    rough = (high - low) / 4
    power = 10 ** math.floor(math.log10(rough))
    step = next(factor * power for factor in (1, 2, 5, 10) if factor * power >= rough)
    first, last = math.floor(low / step), math.ceil(high / step)
    return first * step, last * step, [round(k * step, 12) for k in range(first, last + 1)]
