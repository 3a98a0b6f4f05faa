"""The ranks of a run: from torchrun's environment, or one process alone."""

from __future__ import annotations

import gc
import os
import re
import signal
import threading
import time
import traceback
from collections.abc import Iterable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from types import FrameType, TracebackType
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.fsdp import FSDPModule, MixedPrecisionPolicy, fully_shard
from torch.distributed.tensor import DTensor
from torch.nn.parallel import DistributedDataParallel

_LOST = re.compile("gloo.*(?:closed by peer|reset by peer|Timed out|Broken pipe)", re.DOTALL)  # a RuntimeError's text


@dataclass
class Ranks:
    """This process among those of the run: a context manager, which leaves them.

    Attributes:
      rank, world_size: 0 and 1 where there is one process.
      device: this rank's own.
      saving: the group of the threads that save checkpoints, or None where there is one process.
    """

    rank: int
    world_size: int
    device: torch.device
    saving: Any = None
    _control: Any = field(default=None, repr=False)
    _meshes: list[DeviceMesh] = field(default_factory=list, repr=False)

    @classmethod
    def join(cls, device: str) -> Ranks:
        """Join the process group torchrun describes, if it does. `device` is auto, cpu or cuda.

        Raises:
          ValueError: cuda is asked for and there is none.
        """
        place = device_of(device)
        if "RANK" not in os.environ:
            return cls(0, 1, place)
        if place.type == "cuda":
            place = torch.device("cuda", int(os.environ["LOCAL_RANK"]))
            torch.cuda.set_device(place)
            dist.init_process_group("nccl", device_id=place)
        else:
            dist.init_process_group("gloo")
        # Decisions travel on a group of the CPU's: they never make it wait for the device.
        control = dist.new_group(backend="gloo")
        saving = dist.new_group(backend="gloo")
        return cls(dist.get_rank(), dist.get_world_size(), place, saving, control)

    @property
    def main(self) -> bool:
        return self.rank == 0

    @property
    def distributed(self) -> bool:
        return self._control is not None

    def any(self, flag: bool) -> bool:
        """Whether `flag` holds on any rank; every rank gets the same answer."""
        if not self.distributed:
            return flag
        seen = torch.tensor(int(flag))
        dist.all_reduce(seen, dist.ReduceOp.MAX, group=self._control)
        return bool(seen)

    def sum(self, tensor: torch.Tensor) -> torch.Tensor:
        """The sum over ranks, in place."""
        if self.distributed:
            dist.all_reduce(tensor)
        return tensor

    def gather(self, value: Any) -> list[Any]:
        """Every rank's `value`, in order, on every rank."""
        if not self.distributed:
            return [value]
        values = [None] * self.world_size
        dist.all_gather_object(values, value, group=self._control)
        return values

    def from_main(self, value: Any) -> Any:
        """Rank 0's `value`."""
        if not self.distributed:
            return value
        box = [value]
        dist.broadcast_object_list(box, 0, group=self._control)
        return box[0]

    def mesh(self) -> DeviceMesh:
        """All ranks as FSDP wants them, until `leave`."""
        self._meshes.append(init_device_mesh(self.device.type, (self.world_size,)))
        return self._meshes[-1]

    def leave(self) -> None:
        """Leave the group, and end its threads, which takes that nothing refers to the group any more.

        A thread of gloo's that is there when the interpreter ends may abort the process: it drops the last reference
        to a tensor, which needs the interpreter.
        """
        if self.distributed:
            dist.destroy_process_group()
            self.saving = self._control = None
            for mesh in self._meshes:  # which DTensor's caches keep forever
                getattr(mesh, "_pg_registry", {}).clear()
            gc.collect()  # modules are in cycles with their hooks

    def __enter__(self) -> Ranks:
        return self

    def __exit__(self, kind: Any, error: Any, trace: TracebackType | None) -> None:
        traceback.clear_frames(trace)  # where the block failed, these hold the model, and so the group
        self.leave()
        if isinstance(error, dist.DistError) or (isinstance(error, RuntimeError) and _LOST.search(str(error))):
            reason = str(error).partition("\n")[0]
            raise ConnectionError(
                "another rank ended or cannot be reached: its own output says why; the same command continues from "
                f"the last checkpoint, as torchrun itself does with --max-restarts ({reason})"
            ) from error


def device_of(name: str) -> torch.device:
    """The device called `name`: auto, cpu or cuda; raises ValueError where there is no such device."""
    if name == "cuda" and not torch.cuda.is_available():
        raise ValueError("device is cuda, but torch finds no CUDA device; use --device cpu")
    return torch.device("cuda" if name != "cpu" and torch.cuda.is_available() else "cpu")


def shard(model: nn.Module, blocks: Iterable[nn.Module], ranks: Ranks, bfloat16: bool, once: bool = False) -> None:
    """Spread each parameter over the ranks (FSDP2): a block's are gathered while it computes.

    The optimizer's state is spread with them. Every rank holds the complete model on entry, the same. With
    `bfloat16` weights travel and compute in that, and gradients are added up in float32. Compile the
    blocks before, so that the gathering is not part of the compiled code. With `reduced_when`, what the
    first micro-batch of several gathers is kept until the last: a step gathers and casts each weight once.
    """
    mesh = ranks.mesh()
    policy = MixedPrecisionPolicy(torch.bfloat16, torch.float32) if bfloat16 else MixedPrecisionPolicy()
    for block in blocks:
        fully_shard(block, mesh=mesh, mp_policy=policy, reshard_after_forward=once)
    fully_shard(model, mesh=mesh, mp_policy=policy)


def averaging(model: nn.Module, ranks: Ranks) -> nn.Module:
    """`model` as DDP calls it: gradients are averaged over the ranks while earlier blocks' are computed."""
    place = [ranks.device.index] if ranks.device.type == "cuda" else None
    return DistributedDataParallel(model, device_ids=place, gradient_as_bucket_view=True)


def reduced_when(net: nn.Module, last: bool) -> AbstractContextManager[Any]:
    """Around a micro-batch's passes: gradients travel once a step, with the `last`.

    The forward pass belongs inside too, or DDP prepares for it each time.
    """
    if isinstance(net, FSDPModule):
        net.set_requires_gradient_sync(last)
        net.set_reshard_after_backward(last)
    return nullcontext() if last or not isinstance(net, DistributedDataParallel) else net.no_sync()


def clip_gradients(model: nn.Module, largest: float) -> torch.Tensor:
    """Scale the gradients down to the norm `largest` (0 for none); returns the norm they had."""
    norm = nn.utils.clip_grad_norm_(model.parameters(), largest or float("inf"))
    return norm.full_tensor() if isinstance(norm, DTensor) else norm


def autocast_of(dtype: str, device: torch.device) -> torch.autocast:
    """Autocast for `dtype`: float32, bfloat16, or auto, which is bfloat16 on GPUs."""
    return torch.autocast(device.type, torch.bfloat16, enabled=in_bfloat16(dtype, device))


def in_bfloat16(dtype: str, device: torch.device) -> bool:
    return dtype == "bfloat16" or (dtype == "auto" and device.type != "cpu")


class StopSignals:
    """SIGTERM and SIGINT as a name to look at between steps, instead of a death in the middle of one.

    A context manager: what the signals did before is restored at its end.
    """

    def __init__(self) -> None:
        self.received = ""
        self._before: dict[signal.Signals, Any] = {}

    def __enter__(self) -> StopSignals:
        if threading.current_thread() is threading.main_thread():  # Python sets handlers nowhere else
            for number in (signal.SIGTERM, signal.SIGINT):
                self._before[number] = signal.signal(number, self._receive)
        return self

    def __exit__(self, *error: object) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)

    def wait(self, seconds: float) -> bool:
        """Whether a signal has come, at the latest in `seconds`."""
        end = time.monotonic() + seconds
        while not self.received and time.monotonic() < end:
            time.sleep(0.05)
        return bool(self.received)

    def _receive(self, number: int, frame: FrameType | None) -> None:
        self.received = signal.Signals(number).name
