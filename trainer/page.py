"""training.html: a run's curves, samples and settings on one page, readable while it trains and without an account."""

from __future__ import annotations

import datetime
import html
import importlib.metadata
import json
import os
import subprocess
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from trainer.curves import Curve, chart

NAME = "training.html"
_EVALUATIONS, _CHARACTERS = 20, 1500  # samples shown: of so many evaluations, each cut at so many characters

_STYLE = """
:root{color-scheme:light dark;--text:#1f2328;--mute:#59636e;--grid:#d8dee4;--back:#fff;
--card:#f6f8fa;--c0:#0969da;--c1:#bc4c00}
@media(prefers-color-scheme:dark){:root{--text:#e6edf3;--mute:#9198a1;--grid:#30363d;--back:#0d1117;--card:#151b23;
--c0:#4493f8;--c1:#f0883e}}
body{font:15px/1.5 system-ui,sans-serif;color:var(--text);background:var(--back)}
body{max-width:76rem;margin:1.5rem auto;padding:0 1rem}
h1{font-size:1.4rem;margin:0}h2{font-size:1.1rem;margin:2rem 0 .5rem}p{margin:.2rem 0;color:var(--mute)}
.facts{display:flex;flex-wrap:wrap;gap:.5rem;margin:1rem 0}
.facts div{background:var(--card);border-radius:6px;padding:.5rem .9rem}.facts b{display:block;font-size:1.2rem}
.charts{display:grid;grid-template-columns:repeat(auto-fit,minmax(min(30rem,100%),1fr));gap:1rem}
figure{margin:0}figcaption{font-weight:600}svg{width:100%;height:auto;font-size:12px}svg text{fill:var(--mute)}
.grid{stroke:var(--grid)}polyline{fill:none;stroke-width:1.6}.band{opacity:.2}
polyline.c0,circle.c0{stroke:var(--c0)}polyline.c1,circle.c1{stroke:var(--c1)}
.band.c0,circle.c0{fill:var(--c0)}.band.c1,circle.c1{fill:var(--c1)}span.c0{color:var(--c0)}span.c1{color:var(--c1)}
pre{white-space:pre-wrap;overflow-wrap:anywhere;background:var(--card);border-radius:6px}
pre{padding:.6rem .9rem;margin:.4rem 0}
table{border-collapse:collapse}td,th{padding:.1rem 1rem .1rem 0;text-align:left;vertical-align:top;font-weight:400}
th{color:var(--mute)}td{overflow-wrap:anywhere}
"""


class Page:
    """The page of the run in `folder`; `write` replaces it atomically.

    Args:
      folder: the run's folder.
      settings: of the run.
      max_steps: of the run.
      records, samples: those of the steps done already, from `metrics.jsonl` and `samples.jsonl`.
    """

    def __init__(
        self,
        folder: Path,
        settings: dict[str, Any],
        max_steps: int,
        records: Iterable[dict[str, Any]] = (),
        samples: Iterable[dict[str, Any]] = (),
    ) -> None:
        self._path, self._settings, self._max_steps = folder / NAME, settings, max_steps
        self._commit = commit()
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
        part = self._path.with_suffix(".html.part")
        part.write_text(self._html(), encoding="utf-8")
        os.replace(part, self._path)

    def _html(self) -> str:
        last, curves = self._last, self._curves
        step = last.get("step", 0)
        title = f"Training of {self._path.parent.resolve().name}"
        # A page read from a disk or bucket renews itself while the run goes on.
        refresh = '<meta http-equiv="refresh" content="30">' if step < self._max_steps else ""
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
        charts = [
            chart("Loss", {"training": curves["loss"], "validation": curves["val_loss"]}, step),
            chart("Learning rate", {"": curves["lr"]}, step),
            chart("Gradient norm", {"": curves["grad_norm"]}, step),
            chart("Tokens per second", {"": curves["tokens_per_s"]}, step),
        ]
        return "\n".join(
            [
                f'<!DOCTYPE html><html lang="en"><head><meta charset="utf-8">{refresh}'
                f"<title>{html.escape(title)}</title>"
                '<meta name="viewport" content="width=device-width,initial-scale=1">'
                f"<style>{_STYLE}</style></head><body>",
                f"<h1>{html.escape(title)}</h1>",
                f"<p>{'Finished' if step >= self._max_steps else 'Training'}; page written {_moment(_now())}.</p>",
                '<div class="facts">',
                *(f"<div><b>{html.escape(value)}</b>{html.escape(name)}</div>" for name, value in facts.items()),
                '</div><div class="charts">',
                *charts,
                "</div><h2>Processes</h2><table>",
                *(
                    f"<tr><td>{size:,}</td><th>since step {first:,}{f', {_moment(when)}' if when else ''}</th></tr>"
                    for size, first, when in self._spans[-20:]
                ),
                "</table><h2>Samples</h2>",
                *(self._sample_blocks() or ["<p>None yet: they are written at each validation.</p>"]),
                "<h2>Settings</h2>",
                f"<p>Code: {html.escape(self._commit)}</p><table>",
                *(
                    f"<tr><th>{html.escape(key)}</th><td>{html.escape(json.dumps(value, ensure_ascii=False))}</td></tr>"
                    for key, value in self._settings.items()
                ),
                "</table></body></html>",
            ]
        )

    def _sample_blocks(self) -> list[str]:
        blocks = []
        for entry in reversed(self._samples[-_EVALUATIONS:]):
            blocks.append(f"<p>Step {entry['step']:,}</p>")
            blocks += [f"<pre>{html.escape(text[:_CHARACTERS])}</pre>" for text in entry["texts"]]
        return blocks


def commit() -> str:
    """The commit of this code with `-dirty` where it was changed, or the package's version outside its repository."""
    here = Path(__file__).resolve().parents[1]
    try:
        if Path(_git(here, "rev-parse", "--show-toplevel")).resolve() == here:  # no repository of someone else's
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


def _now() -> float:
    return datetime.datetime.now(datetime.timezone.utc).timestamp()


def _moment(seconds: float) -> str:
    return datetime.datetime.fromtimestamp(seconds, datetime.timezone.utc).strftime("%Y-%m-%d %H:%M UTC")
