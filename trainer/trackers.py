"""Trackers of experiments: TensorBoard's files, Trackio, or Weights & Biases."""

from __future__ import annotations

import hashlib
import importlib
from collections.abc import Callable
from pathlib import Path
from typing import Any, Protocol

from schemas import SettingsError

TRACKERS = ("tensorboard", "trackio", "wandb", "none")


class Tracker(Protocol):
    """Where the figures of steps go."""

    def log(self, step: int, values: dict[str, float]) -> None: ...

    def flush(self) -> None: ...

    def close(self) -> None: ...


def open_tracker(
    name: str, folder: Path, step: int, settings: dict[str, Any], say: Callable[[str], None]
) -> Tracker | None:
    """The tracker `name` for the run in `folder`, from which it takes the run's name; None for `none`.

    Args:
      step: steps done already; what a tracker has of later ones, from a run that was killed, is replaced.
      say: is called where TensorBoard, the default, is not installed; the run continues without it.

    Raises:
      SettingsError: trackio or wandb is asked for and is not installed.
    """
    if name == "none":
        return None
    if name == "tensorboard":
        try:
            return _TensorBoard(folder, step)
        except ImportError:
            say("no TensorBoard events: the package tensorboard is not installed (pip install tensorboard)")
            return None
    try:
        return _Hosted(importlib.import_module(name), folder, settings)
    except ImportError as error:
        raise SettingsError(
            f"tracker {name} needs the package {name}, which is not installed: pip install {name}"
        ) from error


class _TensorBoard:
    def __init__(self, folder: Path, step: int) -> None:
        from torch.utils.tensorboard import SummaryWriter

        self._writer = SummaryWriter(str(folder / "tensorboard"), purge_step=step + 1)

    def log(self, step: int, values: dict[str, float]) -> None:
        for name, value in values.items():
            self._writer.add_scalar(name, value, step)

    def flush(self) -> None:
        self._writer.flush()

    def close(self) -> None:
        self._writer.close()


class _Hosted:
    """Trackio and Weights & Biases, which share their interface; where they send figures is their own settings'."""

    def __init__(self, package: Any, folder: Path, settings: dict[str, Any]) -> None:
        place = folder.resolve()
        own: dict[str, Any] = {"name": place.name, "resume": "allow"}
        if package.__name__ == "wandb":  # its runs are distinguished by id, Trackio's by name
            own |= {"id": hashlib.sha256(str(place).encode()).hexdigest()[:16], "dir": str(folder)}
        self._package = package
        package.init(project="owt", config=settings, **own)

    def log(self, step: int, values: dict[str, float]) -> None:
        self._package.log(dict(values), step=step)

    def flush(self) -> None:
        pass

    def close(self) -> None:
        self._package.finish()
