"""The ranks of a run: those of torchrun's environment, TPU chips, or a single process; and
signals to it."""

from __future__ import annotations

import fcntl
import gc
import importlib
import os
import pickle
import re
import signal
import socket
import threading
import time
import traceback
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, field
from datetime import timedelta
from pathlib import Path
from types import FrameType, TracebackType
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed import distributed_c10d
from torch.nn.parallel import DistributedDataParallel

from schemas import SettingsError
from trainer.device import device_of

# That ranks wait for each other to start (a torchrun that is killed then leaves some alone), and in
# each operation of a step; in the first, for one that still compiles; and in `gather`, for one that
# copies shards or writes to a slow disk.
_STEP, _FIRST, _LONG = timedelta(minutes=5), timedelta(minutes=30), timedelta(days=1)
_LOST = re.compile(
    "gloo.*(?:closed by peer|reset by peer|Timed out|Broken "
    "pipe)|NCCL.*(?:remote|timeout|abort|peer)",
    re.DOTALL,
)  # a RuntimeError's text


@dataclass
class Ranks:
    """This process and how it talks to the others of the run; a context manager that leaves the
    group."""

    rank: int  # 0 in a single process
    world_size: int
    device: torch.device  # this rank's own
    _control: Any = field(default=None, repr=False)

    @classmethod
    def join(cls, device: str) -> Ranks:
        """Join torchrun's process group if there is one; raises ValueError if there is no such
        `device`."""
        if device == "xla":
            package, runtime = xla_package(), importlib.import_module("torch_xla.runtime")
            size = runtime.world_size()
            return XlaRanks(runtime.global_ordinal() if size > 1 else 0, size, package.device())
        place = device_of(device)
        if "RANK" not in os.environ:
            return cls(0, 1, place)
        importlib.import_module(
            "torch._dynamo"
        )  # if DDP were the first to, something of it would keep the group
        if place.type == "cuda":
            place = torch.device("cuda", int(os.environ["LOCAL_RANK"]))
            torch.cuda.set_device(place)
            dist.init_process_group("nccl", device_id=place, timeout=_STEP)
        else:
            dist.init_process_group("gloo", timeout=_STEP)
        distributed_c10d._set_pg_timeout(_FIRST)
        # Decisions go through a group of their own on the CPU, so that they never wait for the
        # device.
        control = dist.new_group(backend="gloo", timeout=_LONG)
        return cls(dist.get_rank(), dist.get_world_size(), place, control)

    @property
    def main(self) -> bool:
        return self.rank == 0

    def after_first_step(self) -> None:
        """From now on a rank that is lost ends the others soon: nothing is compiled any more."""
        if self._control is not None:
            distributed_c10d._set_pg_timeout(_STEP)

    def gather(self, value: Any) -> list[Any]:
        """The values that the ranks give, by rank; all wait for the last, however long it takes,
        not for the device."""
        found = [value] * self.world_size
        if self.world_size > 1:
            dist.all_gather_object(found, value, group=self._control)
        return found

    def any(self, flag: bool) -> bool:
        """Whether `flag` is true on any rank; every rank gets the same answer."""
        return any(self.gather(flag))

    def sum(self, values: Sequence[float]) -> list[float]:
        """The sums over ranks."""
        return [sum(column) for column in zip(*self.gather(values), strict=True)]

    # What DDP and CUDA do by themselves, and `XlaRanks` on request.

    def average_gradients(self, model: nn.Module) -> None:
        """Average the gradients over the ranks."""

    def sync(self) -> None:
        """End a step on a device that records what a step computes and runs it as one program,
        as XLA does."""

    def __enter__(self) -> Ranks:
        return self

    def __exit__(self, kind: Any, error: Any, trace: TracebackType | None) -> None:
        """Leave the group and end its threads: one of gloo's may abort the process when the
        interpreter ends.

        Nothing may refer to the group any more, which the frames of an error do. After an error the
        communicators are aborted: destroying NCCL's waits for operations that the other ranks may
        never join.
        """
        cause = error
        while cause:
            traceback.clear_frames(cause.__traceback__)
            cause = cause.__cause__
        if self._control is not None:
            if error and self.device.type == "cuda":
                distributed_c10d._abort_process_group()
            else:
                dist.destroy_process_group()
            self._control = None
            gc.collect()  # modules and their hooks refer to each other
        if isinstance(error, dist.DistError) or (
            isinstance(error, RuntimeError) and _LOST.search(str(error))
        ):
            reason = str(error).partition("\n")[0]
            raise ConnectionError(
                "another rank ended or cannot be reached: its own output says why; the same "
                "command continues from "
                f"the last checkpoint, as torchrun itself does with --max-restarts ({reason})"
            ) from error


class XlaRanks(Ranks):
    """Processes with one TPU chip each, which exchange data over the chips; gradients as part of
    a step's program."""

    def gather(self, value: Any) -> list[Any]:
        if self.world_size == 1:
            return [value]
        import torch_xla.core.xla_model as xm

        return [pickle.loads(part) for part in xm.rendezvous("gather", pickle.dumps(value))]

    def average_gradients(self, model: nn.Module) -> None:
        if self.world_size > 1:
            import torch_xla.core.xla_model as xm

            gradients = [p.grad for p in model.parameters() if p.grad is not None]
            xm.all_reduce(xm.REDUCE_SUM, gradients, scale=1 / self.world_size)

    def sync(self) -> None:
        xla_package().sync()


def xla_package() -> Any:
    """torch_xla; raises SettingsError if it is not installed."""
    try:
        import torch_xla
    except ImportError as error:
        raise SettingsError(
            f"device xla needs torch_xla ({error}): pip install 'torch_xla[tpu]'"
        ) from error
    return torch_xla


def averaging(model: nn.Module, ranks: Ranks) -> nn.Module:
    """`model` as training calls it: by DDP, but for XLA (`Ranks.average_gradients`) and a single
    process."""
    if ranks.device.type == "xla" or ranks.world_size == 1:
        return model
    place = [ranks.device.index] if ranks.device.type == "cuda" else None
    return DistributedDataParallel(model, device_ids=place, gradient_as_bucket_view=True)


def averaged_when(net: nn.Module, last: bool) -> AbstractContextManager[Any]:
    """Context of a micro-batch's forward and backward pass (both, for DDP): gradients are
    averaged with the `last`."""
    return nullcontext() if last or not isinstance(net, DistributedDataParallel) else net.no_sync()


class StopSignals:
    """Receives SIGTERM and SIGINT as a name to check between steps; a context manager, which
    restores the handlers."""

    received = ""

    def __enter__(self) -> StopSignals:
        here = (
            threading.current_thread() is threading.main_thread()
        )  # Python allows handlers only there
        self._before = {
            n: signal.signal(n, self._receive) for n in (signal.SIGTERM, signal.SIGINT) if here
        }
        return self

    def __exit__(self, *error: object) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)

    def wait(self, seconds: float) -> bool:
        """Wait up to `seconds` for a signal; returns whether one has come."""
        end = time.monotonic() + seconds
        while not self.received and time.monotonic() < end:
            time.sleep(0.05)
        return bool(self.received)

    def _receive(self, number: int, frame: FrameType | None) -> None:
        self.received = signal.Signals(number).name


@contextmanager
def sole_writer(folder: Path, say: Callable[[str], None], patience: float = 10) -> Iterator[None]:
    """Lock the run's `folder` by its file `.lock`; the lock is released when the process ends,
    however it ends.

    It works between machines if the file system's locks do (NFS 4, Lustre with `-o flock`). If
    there are no locks, `say` is called and the run continues without. `patience` is the seconds to
    wait: when nodes leave and join, the previous writer may be about to end. Raises SettingsError,
    which names the process that holds the lock.
    """
    folder.mkdir(parents=True, exist_ok=True)
    end = time.monotonic() + patience
    with (folder / ".lock").open("a+", encoding="utf-8") as file:
        while True:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                if time.monotonic() < end:
                    time.sleep(0.2)
                    continue
                file.seek(0)
                other = file.read().strip() or "process unknown"
                raise SettingsError(
                    f"{folder} is being written by another run ({other}); stop that one first, or "
                    f"give another --out"
                ) from None
            except OSError as error:
                say(
                    f"{folder} cannot be locked ({error.strerror}): make sure that no other run "
                    f"writes there"
                )
            break
        file.truncate(0)
        file.write(f"process {os.getpid()} on {socket.gethostname()}\n")
        file.flush()
        yield
