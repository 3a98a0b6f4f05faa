"""The reports of a run: a JSON line for each step, TensorBoard events, progress lines."""

from __future__ import annotations

import json
import math
import os
import time
from collections.abc import Callable
from contextlib import suppress
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch

from trainer.checkpoint import METRICS, naming_path, read_metrics, replace_text
from trainer.device import memory_gb, mfu
from trainer.distributed import Ranks


class Diverged(RuntimeError):
    """A loss or a gradient is not finite, at `step`."""

    def __init__(self, message: str, step: int) -> None:
        super().__init__(message)
        self.step = step


class StepLog:
    """The records of a run's steps, whose losses stay on the device until `flush`.

    On rank 0 they go to the run's folder: metrics.jsonl, and TensorBoard's events if it is
    installed. Records after the step `start`, of a killed run, are removed. `step_tokens` and
    `step_flops` are over all ranks.
    """

    def __init__(
        self,
        *,
        folder: Path,
        start: int,
        settings: dict[str, Any],
        ranks: Ranks,
        step_tokens: int,
        step_flops: float,
        say: Callable[[str], None],
    ) -> None:
        self._ranks = ranks
        self._say = say
        self._step_tokens = step_tokens
        self._step_flops = step_flops
        self._max_steps = settings["max_steps"]
        self.last_loss = math.nan
        self.last_val_loss: float | None = None  # of the step that the run continues from
        # Steps, learning rates, this rank's losses and gradient norms.
        self._pending: list[tuple[int, float, torch.Tensor, torch.Tensor]] = []
        self._last: dict[str, Any] = {}  # the record that was written last, on rank 0
        self._events: Any = None
        self.restart_clock()
        if not ranks.is_main:
            return
        self._path = folder / METRICS
        for record in _keep_until(folder, start):
            if record["step"] == start:
                # Its validation may be owed.
                self._last = record
                self.last_loss = record.get("loss", math.nan)
                self.last_val_loss = record.get("val_loss")
        # Not for appending: an amended record is written over the one that it replaces.
        self._file = self._path.open("r+b")
        self._file.seek(0, os.SEEK_END)
        self._start_of_last = self._file.tell() - len(_line_of(self._last))
        try:
            from torch.utils.tensorboard import SummaryWriter

            self._events = SummaryWriter(str(folder / "tensorboard"), purge_step=start + 1)
        except ImportError:
            say(
                "no TensorBoard events: the package tensorboard is not installed (pip install "
                "tensorboard)"
            )

    def add(self, step: int, learning_rate: float, loss: torch.Tensor, norm: torch.Tensor) -> None:
        """Note a step, without a wait for the device. The loss is this rank's."""
        self._pending.append((step, learning_rate, loss, norm))

    def flush(self, saved: int) -> None:
        """Wait for the device, and write the steps since the last time.

        `saved` is the step of the newest complete checkpoint. Raises Diverged, which names a step.
        """
        ranks = self._ranks
        pending = self._pending
        if not pending:
            return
        losses = ranks.sum([loss.item() / ranks.world_size for _, _, loss, _ in pending])
        seconds = (time.perf_counter() - self._clock) / len(pending)
        of_all_steps = {
            "tokens_per_s": round(self._step_tokens / seconds, 1),
            "mfu": mfu(self._step_flops / seconds / ranks.world_size, ranks.device),
            "memory_gb": memory_gb(ranks.device),
            "world_size": ranks.world_size,
            "saved": saved,
            "time": round(time.time(), 3),
        }
        records = []
        for (step, learning_rate, _, norm), loss in zip(pending, losses, strict=True):
            record: dict[str, Any] = {
                "step": step,
                "lr": learning_rate,
                "tokens": self._step_tokens,
                "loss": loss,
                "grad_norm": norm.item(),
                **of_all_steps,
            }
            if not (math.isfinite(loss) and math.isfinite(record["grad_norm"])):
                raise Diverged(
                    f"step {step}: loss {loss:.4g}, gradient norm {record['grad_norm']:.4g}", step
                )
            records.append(record)
        pending.clear()
        self.last_loss = losses[-1]
        if not ranks.is_main:
            return
        for record in records:
            self._last = record
            self._start_of_last = self._file.tell()
            self._write_last()
        self._show(records)

    def amend(self, **values: float) -> None:
        """Add `values` to the record of the last step that was written, if there is one."""
        if not self._last:
            return
        self._last |= values
        # The new line is never shorter. One write: a kill leaves the old line or the new one.
        self._file.seek(self._start_of_last)
        self._write_last()
        self._show([{"step": self._last["step"], **values}])

    def print_progress(self) -> None:
        """Print the progress line of the last step that was written."""
        if self._last:
            self._say(progress_line(self._last, self._max_steps, self._ranks.device))

    def _write_last(self) -> None:
        with naming_path(self._path):
            self._file.write(_line_of(self._last))
            self._file.flush()

    def _show(self, records: list[dict[str, Any]]) -> None:
        """Add records to the events."""
        if not self._events:
            return
        for record in records:
            for name, value in record.items():
                if isinstance(value, (int, float)) and name not in ("step", "saved"):
                    self._events.add_scalar(name, value, record["step"])
        with naming_path(self._path.with_name("tensorboard")):
            self._events.flush()

    def restart_clock(self) -> None:
        """Leave the time since the last step, of a validation or a checkpoint, out of the rates."""
        self._clock = time.perf_counter()

    def close(self) -> None:
        """Close the files. Those that cannot be written have raised before."""
        if self._ranks.is_main:
            with suppress(OSError):
                self._file.close()
        if self._events:
            with suppress(OSError):
                self._events.close()


def progress_line(record: dict[str, Any], max_steps: int, device: torch.device) -> str:
    """Return the progress line of a step."""
    step = record["step"]
    rate = record["tokens_per_s"]
    parts = [f"step {step}/{max_steps}", f"loss {record['loss']:.4f}"]
    if "val_loss" in record:
        parts.append(f"val {record['val_loss']:.4f}")
    if "val_bits_per_byte" in record:
        parts[-1] += f" ({record['val_bits_per_byte']:.4f} bits/byte)"
    parts.append(f"lr {record['lr']:.2e}")
    parts.append(f"norm {record['grad_norm']:.2f}")
    parts.append(f"{rate:,.0f} tokens/s")
    if record["mfu"] is not None:
        parts.append(f"MFU {record['mfu']:.1%}")
    elif device.type == "cuda":
        parts.append("MFU unknown")
    parts.append(f"{record['memory_gb']:.1f} GB")
    tokens_left = (max_steps - step) * record["tokens"]
    parts.append(f"{timedelta(seconds=round(tokens_left / max(rate, 0.1)))} left")
    return "  ".join(parts)


def _line_of(record: dict[str, Any]) -> bytes:
    return json.dumps(record).encode() + b"\n"


def _keep_until(run: Path, step: int) -> list[dict[str, Any]]:
    """Drop the records of a run after `step`; return the others."""
    records = [record for record in read_metrics(run) if record["step"] <= step]
    lines = [_line_of(record).decode() for record in records]
    replace_text(run / METRICS, "".join(lines))
    return records
