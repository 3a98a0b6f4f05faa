"""What a run reports: a JSON line per step, a page, TensorBoard events, progress lines."""

from __future__ import annotations

import json
import math
import time
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch

from trainer.device import memory_gb, mfu
from trainer.distributed import Ranks
from trainer.page import Page, replace_text


class Diverged(RuntimeError):
    """A loss or a gradient is not finite."""


class StepLog:
    """The records of a run's steps, whose losses stay on the device until `collect`.

    On rank 0 they go to the run's folder: metrics.jsonl, training.html, and TensorBoard's events if it is installed.
    Records of steps after `step`, left by a killed run, are removed. `tokens` and `flops` are of one step, over all
    ranks.
    """

    def __init__(
        self, folder: Path, step: int, settings: dict[str, Any], ranks: Ranks, tokens: int, flops: float,
        say: Callable[[str], None],
    ) -> None:  # fmt: skip
        self._ranks, self._say, self._tokens, self._flops = ranks, say, tokens, flops
        self._max_steps, self.last_loss = settings["max_steps"], math.nan
        self._events: Any = None
        self._pending: list[tuple[dict[str, Any], torch.Tensor, torch.Tensor]] = []
        self._records: list[dict[str, Any]] = []
        self.restart_clock()
        if not ranks.main:
            return
        path, title = folder / "metrics.jsonl", f"Training of {folder.resolve().name}"
        self._page = Page(folder / "training.html", title, self._max_steps, settings)
        for record in _kept_until(path, step):
            self._page.add(record)
        self._file = path.open("a", encoding="utf-8")
        try:
            from torch.utils.tensorboard import SummaryWriter

            self._events = SummaryWriter(str(folder / "tensorboard"), purge_step=step + 1)
        except ImportError:
            say("no TensorBoard events: the package tensorboard is not installed (pip install tensorboard)")

    def add(self, step: int, rate: float, loss: torch.Tensor, norm: torch.Tensor) -> None:
        """Note a step: its learning rate, this rank's loss and the gradient's norm, both still on the device."""
        self._pending.append(({"step": step, "lr": rate, "tokens": self._tokens}, loss, norm))

    def collect(self) -> None:
        """Wait for the device, once for all the steps since the last time; raises Diverged, which names the step."""
        ranks, pending = self._ranks, self._pending
        losses = ranks.sum([loss.item() / ranks.world_size for _, loss, _ in pending])
        seconds = (time.perf_counter() - self._clock) / len(pending)
        used, memory = mfu(self._flops / seconds / ranks.world_size, ranks.device), memory_gb(ranks.device)
        for (record, _, norm), loss in zip(pending, losses, strict=True):
            record |= {"loss": loss, "grad_norm": norm.item(), "tokens_per_s": round(self._tokens / seconds, 1)}
            record |= {"mfu": used, "memory_gb": memory, "world_size": ranks.world_size}
            if not (math.isfinite(loss) and math.isfinite(record["grad_norm"])):
                raise Diverged(f"step {record['step']}: loss {loss:.4g}, gradient norm {record['grad_norm']:.4g}")
            self._records.append(record)
        pending.clear()
        self.last_loss = self._records[-1]["loss"]

    def note(self, **values: float) -> None:
        """Add to the record of the last step collected."""
        self._records[-1] |= values

    def write(self) -> None:
        """Write the collected records, and print the progress line of the last."""
        records, self._records = self._records, []
        if not self._ranks.main:
            return
        for record in records:
            self._file.write(json.dumps(record | {"time": round(time.time(), 3)}) + "\n")
            self._page.add(record)
            for name, value in record.items() if self._events else ():
                if isinstance(value, (int, float)) and name != "step":
                    self._events.add_scalar(name, value, record["step"])
        self._file.flush()
        self._page.write()
        if self._events:
            self._events.flush()
        self._say(progress_line(records[-1], self._max_steps, self._ranks.device))

    def restart_clock(self) -> None:
        """Leave the time until now, spent on validation or a checkpoint, out of the steps' rates."""
        self._clock = time.perf_counter()

    def close(self) -> None:
        if self._ranks.main:
            self._file.close()
        if self._events:
            self._events.close()


def progress_line(record: dict[str, Any], max_steps: int, device: torch.device) -> str:
    """The progress line of a step."""
    step, rate = record["step"], record["tokens_per_s"]
    parts = [f"step {step}/{max_steps}", f"loss {record['loss']:.4f}"]
    if "val_loss" in record:
        parts.append(f"val {record['val_loss']:.4f}")
    parts += [f"lr {record['lr']:.2e}", f"norm {record['grad_norm']:.2f}", f"{rate:,.0f} tokens/s"]
    if device.type == "cuda":
        parts.append("MFU unknown" if record["mfu"] is None else f"MFU {record['mfu']:.1%}")
    left = timedelta(seconds=round((max_steps - step) * record["tokens"] / max(rate, 0.1)))
    return "  ".join([*parts, f"{record['memory_gb']:.1f} GB", f"{left} left"])


def _kept_until(path: Path, step: int) -> list[dict[str, Any]]:
    """The records of a file up to `step`; lines of later steps, and a last one that a crash cut short, are dropped."""
    if not path.exists():
        return []
    kept, records = [], []
    for line in path.read_text(encoding="utf-8").split("\n")[:-1]:
        try:
            record = json.loads(line)
            if record["step"] <= step:
                kept.append(f"{line}\n")
                records.append(record)
        except ValueError:
            continue
    replace_text(path, "".join(kept))
    return records
