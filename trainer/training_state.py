"""Optimizers and random numbers, saved in the background by torch's distributed checkpoints.

Each rank writes what it holds, and any number of ranks reads it again.
"""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any

import torch
import torch.distributed.checkpoint as dcp
from torch.distributed.checkpoint import FileSystemReader, FileSystemWriter
from torch.distributed.checkpoint.api import CheckpointException
from torch.distributed.checkpoint.metadata import TensorStorageMetadata
from torch.distributed.checkpoint.staging import DefaultStager, StagingOptions
from torch.distributed.tensor import DTensor

from trainer.distributed import Ranks

Optimizers = list[torch.optim.Optimizer]


class BackgroundSaver:
    """Saves while training goes on: the loop waits for a copy to host memory (pinned, on CUDA), not for the disk."""

    def __init__(self, ranks: Ranks) -> None:
        cuda = ranks.device.type == "cuda"
        options = StagingOptions(
            use_pinned_memory=cuda, use_shared_memory=False, use_async_staging=False, use_non_blocking_copy=cuda
        )
        self._ranks = ranks
        self._state_stager, self._weights_stager = DefaultStager(options), DefaultStager(options)
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="checkpoint")
        self._saving: Future[Any] | None = None

    def start(
        self,
        folder: Path,
        state: dict[str, torch.Tensor],
        weights: dict[str, torch.Tensor],
        finish: Callable[[dict[str, torch.Tensor]], None] | None,
    ) -> None:
        """Write `state` to `folder`, then call `finish` with a copy of `weights`; every rank calls it.

        Waits for what is being saved already, and raises what that raised.

        Args:
          state: this rank's tensors; one that is spread over the ranks is written by all.
          weights: copied on the ranks that have a `finish`.
        """
        self.wait()
        written = dcp.async_save(
            state,
            storage_writer=FileSystemWriter(folder),
            process_group=self._ranks.saving,
            async_stager=self._state_stager,
            no_dist=self._ranks.saving is None,
        )
        assert isinstance(written, Future)
        copy = self._weights_stager.stage(weights) if finish else {}

        def complete() -> None:
            try:
                written.result()
            except CheckpointException as error:  # which is not even an Exception
                first = next((wrapped[0] for wrapped in error.failures.values()), error)
                raise OSError(f"{folder} could not be written: {first}") from None
            if finish:
                finish(copy)  # type: ignore[arg-type]

        self._saving = self._thread.submit(complete)

    def wait(self) -> None:
        """Until nothing is being saved; raises OSError where that failed, as on a full disk."""
        saving, self._saving = self._saving, None
        if saving:
            saving.result()


def training_state(optimizers: Optimizers, ranks: Ranks) -> dict[str, torch.Tensor]:
    """The optimizers' state and this rank's random numbers, each tensor under a name of its own."""
    state = {}
    for number, optimizer in enumerate(optimizers):
        for index, p in enumerate(_parameters(optimizer)):
            for key, value in optimizer.state[p].items():
                state[f"optimizers.{number}.{index}.{key}"] = value.cpu() if value.device.type == "xla" else value
    state[f"rng.{ranks.rank}.cpu"] = torch.get_rng_state()
    if ranks.device.type == "cuda":
        state[f"rng.{ranks.rank}.cuda"] = torch.cuda.get_rng_state(ranks.device)
    return state


def load_training_state(folder: Path, optimizers: Optimizers, ranks: Ranks, world_size: int) -> None:
    """Set optimizers and random numbers to what `training_state` gave; every rank calls it.

    What belongs to a parameter that is spread over the ranks is spread alike. The settings of the
    optimizers stay as they are.

    Args:
      world_size: ranks that wrote it. With another number there are no random numbers to continue with.
    """
    reader = FileSystemReader(folder)
    state: dict[str, torch.Tensor] = {}
    for name, entry in reader.read_metadata().state_dict_metadata.items():
        assert isinstance(entry, TensorStorageMetadata)
        kind, number, *rest = name.split(".")
        if kind == "optimizers":
            p = _parameters(optimizers[int(number)])[int(rest[0])]
            if isinstance(p, DTensor) and p.shape == entry.size:
                state[name] = torch.empty_like(p, dtype=entry.properties.dtype)
                continue
        elif int(number) != ranks.rank or world_size != ranks.world_size:
            continue
        state[name] = torch.empty(entry.size, dtype=entry.properties.dtype)
    dcp.load(state, storage_reader=reader, process_group=ranks.saving, no_dist=ranks.saving is None)
    own: list[dict[int, dict[str, torch.Tensor]]] = [{} for _ in optimizers]
    for name, value in state.items():
        kind, number, *rest = name.split(".")
        if kind == "optimizers":
            own[int(number)].setdefault(int(rest[0]), {})[rest[1]] = value
        elif rest == ["cpu"]:
            torch.set_rng_state(value)
        elif ranks.device.type == "cuda":
            torch.cuda.set_rng_state(value, ranks.device)
    for optimizer, entries in zip(optimizers, own, strict=True):
        optimizer.load_state_dict({"state": entries, "param_groups": optimizer.state_dict()["param_groups"]})


def _parameters(optimizer: torch.optim.Optimizer) -> list[torch.Tensor]:
    return [p for group in optimizer.param_groups for p in group["params"]]
