"""What a run reports: a JSON line per step, a page, TensorBoard events, progress lines."""

from __future__ import annotations

import html
import json
import math
import os
import subprocess
import time
from array import array
from collections import defaultdict
from collections.abc import Callable
from contextlib import suppress
from datetime import timedelta
from pathlib import Path
from string import Template
from typing import Any

import numpy as np
import torch

from trainer.checkpoint import writing
from trainer.device import memory_gb, mfu
from trainer.distributed import Ranks

_CURVES = {  # of a run: the chart and the curve of a record's values
    "loss": ("Loss", "training"), "val_loss": ("Loss", "validation"), "lr": ("Learning rate", ""),
    "grad_norm": ("Gradient norm", ""), "tokens_per_s": ("Tokens per second", ""),
}  # fmt: skip
_FACTS = {  # of the last step that has them: label and format
    "loss": ("loss", ".4f"), "val_loss": ("validation "
    "loss", ".4f"), "tokens_per_s": ("tokens/s", ",.0f"),
    "val_bits_per_byte": ("validation bits per byte", ".4f"),
    "mfu": ("MFU", ".1%"), "memory_gb": ("GB of memory", ".1f"), "world_size": ("processes", ",d"),
}  # fmt: skip
_MOST = 512  # points of a curve: a chart of 700 pixels shows no more
_WIDTH, _HEIGHT, _LEFT, _RIGHT, _TOP, _BOTTOM = 720, 240, 80, 712, 8, 216
_COLOURS = ("#2f81f7", "#d9730d")  # readable on white and on black
_TEMPLATE = Template(Path(__file__).with_name("training.html").read_text(encoding="utf-8"))


class Diverged(RuntimeError):
    """A loss or a gradient is not finite, at `step`."""

    def __init__(self, message: str, step: int) -> None:
        super().__init__(message)
        self.step = step


class StepLog:
    """The records of a run's steps, whose losses stay on the device until `collect`.

    On rank 0 they go to the run's folder: metrics.jsonl, training.html, and TensorBoard's events if
    it is installed. Records after `step`, of a killed run, are removed. `tokens` and `flops` are of
    one step, over all ranks.
    """

    def __init__(
        self,
        folder: Path,
        step: int,
        settings: dict[str, Any],
        ranks: Ranks,
        tokens: int,
        flops: float,
        say: Callable[[str], None],
    ) -> None:
        self._ranks, self._say, self._tokens, self._flops = ranks, say, tokens, flops
        self._max_steps, self.last_loss = settings["max_steps"], math.nan
        self._events: Any = None
        self._pending: list[tuple[dict[str, Any], torch.Tensor, torch.Tensor]] = []
        self._records: list[dict[str, Any]] = []
        self._last: dict[str, Any] = {}
        self.restart_clock()
        if not ranks.main:
            return
        path = self._path = folder / "metrics.jsonl"
        self._page = Page(folder / "training.html", self._max_steps, settings)
        for record in _kept_until(path, step):
            self._page.add(record)
        self._file = path.open("ab")
        try:
            from torch.utils.tensorboard import SummaryWriter

            self._events = SummaryWriter(str(folder / "tensorboard"), purge_step=step + 1)
        except ImportError:
            say(
                "no TensorBoard events: the package tensorboard is not installed (pip install "
                "tensorboard)"
            )

    def add(self, step: int, rate: float, loss: torch.Tensor, norm: torch.Tensor) -> None:
        """Note a step: its learning rate, this rank's loss and the gradient's norm, both still
        on the device."""
        self._pending.append(({"step": step, "lr": rate, "tokens": self._tokens}, loss, norm))

    def collect(self) -> None:
        """Wait for the device, once for all the steps since the last time; raises Diverged,
        which names the step."""
        ranks, pending = self._ranks, self._pending
        losses = ranks.sum([loss.item() / ranks.world_size for _, loss, _ in pending])
        seconds = (time.perf_counter() - self._clock) / len(pending)
        used, memory = (
            mfu(self._flops / seconds / ranks.world_size, ranks.device),
            memory_gb(ranks.device),
        )
        for (record, _, norm), loss in zip(pending, losses, strict=True):
            record |= {
                "loss": loss,
                "grad_norm": norm.item(),
                "tokens_per_s": round(self._tokens / seconds, 1),
            }
            record |= {"mfu": used, "memory_gb": memory, "world_size": ranks.world_size}
            if not (math.isfinite(loss) and math.isfinite(record["grad_norm"])):
                raise Diverged(
                    f"step {record['step']}: loss {loss:.4g}, gradient norm "
                    f"{record['grad_norm']:.4g}",
                    record["step"],
                )
            self._records.append(record)
        pending.clear()
        self.last_loss = self._records[-1]["loss"]

    def write(self, saved: int) -> None:
        """Write the collected records; `saved` is the step of the newest complete checkpoint."""
        records, self._records = self._records, []
        if not self._ranks.main:
            return
        for record in records:
            self._last = record | {"saved": saved, "time": round(time.time(), 3)}
            self._start_of_last = self._file.tell()
            self._write_last()
        self._show(records)

    def amend(self, **values: float) -> None:
        """Add `values` to the record of the last step that was written."""
        if not self._ranks.main:
            return
        self._last |= values
        self._file.truncate(self._start_of_last)
        self._write_last()
        self._show([{"step": self._last["step"], **values}])

    def print_progress(self) -> None:
        """Print the progress line of the last step that was written."""
        if self._ranks.main:
            self._say(progress_line(self._last, self._max_steps, self._ranks.device))

    def _write_last(self) -> None:
        with writing(self._path):
            self._file.write(json.dumps(self._last).encode() + b"\n")
            self._file.flush()

    def _show(self, records: list[dict[str, Any]]) -> None:
        for record in records:
            self._page.add(record)
        # Before the events: on a full disk, their thread prints a traceback.
        self._page.write()
        if not self._events:
            return
        for record in records:
            for name, value in record.items():
                if isinstance(value, (int, float)) and name not in ("step", "saved"):
                    self._events.add_scalar(name, value, record["step"])
        with writing(self._path.with_name("tensorboard")):
            self._events.flush()

    def restart_clock(self) -> None:
        """Leave the time until now, spent on validation or a checkpoint, out of the steps'
        rates."""
        self._clock = time.perf_counter()

    def close(self) -> None:
        """Close the files; those that cannot be written have raised before."""
        if self._ranks.main:
            with suppress(OSError):
                self._file.close()
        if self._events:
            with suppress(OSError):
                self._events.close()


def progress_line(record: dict[str, Any], max_steps: int, device: torch.device) -> str:
    """The progress line of a step."""
    step, rate = record["step"], record["tokens_per_s"]
    parts = [f"step {step}/{max_steps}", f"loss {record['loss']:.4f}"]
    if "val_loss" in record:
        parts.append(f"val {record['val_loss']:.4f}")
    if "val_bits_per_byte" in record:
        parts[-1] += f" ({record['val_bits_per_byte']:.4f} bits/byte)"
    parts += [f"lr {record['lr']:.2e}", f"norm {record['grad_norm']:.2f}", f"{rate:,.0f} tokens/s"]
    if device.type == "cuda":
        parts.append("MFU unknown" if record["mfu"] is None else f"MFU {record['mfu']:.1%}")
    left = timedelta(seconds=round((max_steps - step) * record["tokens"] / max(rate, 0.1)))
    return "  ".join([*parts, f"{record['memory_gb']:.1f} GB", f"{left} left"])


def has_saved(path: Path) -> bool:
    """Return whether the run that wrote this metrics.jsonl has saved a checkpoint.

    Records of earlier versions do not contain it; of those it is assumed.
    """
    lines = path.read_text(encoding="utf-8").splitlines() if path.exists() else []
    for line in lines:
        with suppress(ValueError):
            if json.loads(line).get("saved", 1):
                return True
    return False


def _kept_until(path: Path, step: int) -> list[dict[str, Any]]:
    """The records of a file up to `step`; those of later steps, and lines that a crash damaged,
    are dropped."""
    records = []
    for line in path.read_text(encoding="utf-8").split("\n")[:-1] if path.exists() else ():
        with suppress(ValueError):
            records.append(json.loads(line))
    records = [record for record in records if record["step"] <= step]
    replace_text(path, "".join(json.dumps(record) + "\n" for record in records))
    return records


class Page:
    """The page of a run of `max_steps`: curves, figures, settings, the commit of the code. It
    loads nothing else."""

    def __init__(self, path: Path, max_steps: int, settings: dict[str, Any]) -> None:
        self._path, self._max_steps = path, max_steps
        self._charts: dict[str, dict[str, array[float]]] = defaultdict(
            lambda: defaultdict(lambda: array("d"))
        )
        self._last: dict[str, Any] = {}
        self._tokens = 0
        self._settings = [
            ["code", _commit()],
            *([key, json.dumps(own)] for key, own in settings.items()),
        ]

    def add(self, record: dict[str, Any]) -> None:
        """Add the record of a step, as in `metrics.jsonl`."""
        for key, (name, curve) in _CURVES.items():
            if isinstance(record.get(key), (int, float)) and math.isfinite(record[key]):
                self._charts[name][curve].extend((record["step"], record[key]))
        self._tokens += record.get("tokens", 0)
        self._last |= {key: value for key, value in record.items() if value is not None}

    def write(self) -> None:
        """Replace the file. Until the last step a browser reloads it."""
        step = self._last.get("step", 0)
        finished = step >= self._max_steps
        facts = {"step": f"{step:,} of {self._max_steps:,}", "tokens seen": f"{self._tokens:,}"}
        facts |= {
            label: format(self._last[key], own)
            for key, (label, own) in _FACTS.items()
            if key in self._last
        }
        parts = {
            "title": html.escape(f"Training of {self._path.resolve().parent.name}"),
            "reload": "" if finished else '<meta http-equiv="refresh" content="30">',
            "state": "Finished" if finished else "Training",
            "now": time.strftime("%Y-%m-%d %H:%M UTC", time.gmtime()),
            "facts": "".join(f"<div><b>{value}</b>{label}</div>" for label, value in facts.items()),
            "charts": "".join(chart(title, curves, step) for title, curves in self._charts.items()),
            "settings": "".join(
                f"<tr><td>{key}</td><td>{html.escape(own)}</td></tr>" for key, own in self._settings
            ),
        }
        replace_text(self._path, _TEMPLATE.substitute(parts))


def points(values: array[float]) -> np.ndarray:
    """`values` (step, value, step, value, …) as (n, 2); n is at most 512, by the means of spans
    of as many values."""
    pairs = np.frombuffer(values).reshape(-1, 2)
    starts = np.arange(0, len(pairs), -(-len(pairs) // _MOST))
    return np.add.reduceat(pairs, starts) / np.diff(starts, append=len(pairs))[:, None]


def chart(title: str, curves: dict[str, array[float]], last: int) -> str:
    """An SVG of curves, as in `points`, over steps 0 … `last`; the legend has each one's last
    value."""
    drawn = {name: points(values) for name, values in curves.items()}
    steps, values = np.concatenate([*drawn.values()]).T
    later = values[steps > last / 10]
    # A start far above the rest is cut off: the chart would be flat after it.
    high = (later if len(later) > 20 and values.max() > 1.5 * later.max() else values).max()
    low = values.min()
    high = high if high > low else low + (abs(low) or 1)

    def x(step: float) -> str:
        return f"{_LEFT + (_RIGHT - _LEFT) * step / last:.1f}"

    def y(value: float) -> str:
        return (
            f"{_BOTTOM - (_BOTTOM - _TOP) * (min(max(value, low), high) - low) / (high - low):.1f}"
        )

    parts = [
        f'<svg viewBox="0 0 {_WIDTH} {_HEIGHT}" role="img" aria-label="{html.escape(title)} by '
        f'step">'
    ]
    for part in (0, 0.5, 1):
        tick = low + part * (high - low)
        parts.append(f'<line x1="{_LEFT}" x2="{_RIGHT}" y1="{y(tick)}" y2="{y(tick)}"/>')
        parts.append(
            f'<text x="{_LEFT - 8}" y="{y(tick)}" dy="4" text-anchor="end">{_shown(tick)}</text>'
        )
        place = f'x="{x(part * last)}" y="{_HEIGHT - 6}" text-anchor="middle"'
        parts.append(f"<text {place}>{part * last:,.0f}</text>")
    legend = ""
    for colour, (name, own) in zip(_COLOURS, drawn.items(), strict=False):
        line = " ".join(
            f"{x(step)},{y(value)}" for step, value in [*own, own[-1]]
        )  # so that a single one is a dot
        parts.append(f'<polyline stroke="{colour}" points="{line}"/>')
        legend += f'<span style="color:{colour}">{html.escape(name)}</span> {_shown(own[-1, 1])} '
    return (
        f"<figure><figcaption>{html.escape(title)}: "
        f"{legend}</figcaption>{''.join(parts)}</svg></figure>"
    )


def _shown(value: float) -> str:
    return f"{value:,.0f}" if abs(value) >= 10_000 else f"{value:.4g}"


def _commit() -> str:
    """The commit of this code, with `-dirty` if it was changed; unknown outside its repository."""
    here = Path(__file__).resolve().parents[1]
    outside = {
        **os.environ,
        "GIT_CEILING_DIRECTORIES": str(here.parent),
    }  # not of a repository around it
    command = [
        "git",
        "-C",
        str(here),
        "describe",
        "--always",
        "--dirty",
        "--abbrev=12",
        "--exclude=*",
    ]
    try:
        return subprocess.check_output(
            command, text=True, timeout=10, env=outside, stderr=subprocess.DEVNULL
        ).strip()
    except (OSError, subprocess.SubprocessError):
        return "unknown"


def replace_text(path: Path, text: str) -> None:
    """Write the file atomically."""
    part = path.with_name(path.name + ".part")
    with writing(part):
        part.write_text(text, encoding="utf-8")
    os.replace(part, path)
