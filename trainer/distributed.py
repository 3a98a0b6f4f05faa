"""The ranks of a run, signals to it, and the lock of its folder.

Ranks are those of torchrun's environment, TPU chips, or a single process.
"""

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
from trainer.config import XLA_DEVICES
from trainer.device import device_of

# How long ranks wait for each other to start, and in each operation of a step. A torchrun that is
# killed leaves ranks without the others.
_STEP_TIMEOUT = timedelta(minutes=5)
# In the first step, for a rank that still compiles.
_FIRST_STEP_TIMEOUT = timedelta(minutes=30)
# In `gather`, for a rank that copies shards or writes to a slow disk.
_GATHER_TIMEOUT = timedelta(days=1)
# The text of a RuntimeError when another rank is lost.
_LOST_RANK = re.compile(
    r"gloo.*(?:closed by peer|reset by peer|Timed out|Broken pipe)"
    r"|NCCL.*(?:remote|timeout|abort|peer)",
    re.DOTALL,
)


@dataclass
class Ranks:
    """This process and how it talks to the others of the run.

    A context manager, which leaves the group.
    """

    rank: int  # 0 in a single process
    world_size: int
    device: torch.device  # of this rank
    _control: Any = field(default=None, repr=False)

    @classmethod
    def join(cls, device: str) -> Ranks:
        """Join torchrun's process group if there is one; raises ValueError without the device."""
        if device in XLA_DEVICES:
            package = xla_package()
            runtime = importlib.import_module("torch_xla.runtime")
            world_size = runtime.world_size()
            rank = runtime.global_ordinal() if world_size > 1 else 0
            return XlaRanks(rank, world_size, package.device())
        own_device = device_of(device)
        if "RANK" not in os.environ:
            return cls(0, 1, own_device)
        # If DDP were the first to import it, something in it would keep the group.
        importlib.import_module("torch._dynamo")
        if own_device.type == "cuda":
            own_device = torch.device("cuda", int(os.environ["LOCAL_RANK"]))
            torch.cuda.set_device(own_device)
            dist.init_process_group("nccl", device_id=own_device, timeout=_STEP_TIMEOUT)
        else:
            dist.init_process_group("gloo", timeout=_STEP_TIMEOUT)
        distributed_c10d._set_pg_timeout(_FIRST_STEP_TIMEOUT)
        # Decisions go through a group of their own on the CPU, so that they never wait for the
        # device.
        control = dist.new_group(backend="gloo", timeout=_GATHER_TIMEOUT)
        return cls(dist.get_rank(), dist.get_world_size(), own_device, control)

    @property
    def is_main(self) -> bool:
        return self.rank == 0

    def after_first_step(self) -> None:
        """Shorten the wait for lost ranks: nothing is compiled any more."""
        if self._control is not None:
            distributed_c10d._set_pg_timeout(_STEP_TIMEOUT)

    def gather(self, value: Any) -> list[Any]:
        """Return the values that the ranks give, by rank.

        All ranks wait for the last one, however long it takes, and not for the device.
        """
        values = [value] * self.world_size
        if self.world_size > 1:
            dist.all_gather_object(values, value, group=self._control)
        return values

    def any(self, flag: bool) -> bool:
        """Return on every rank whether `flag` is true on any."""
        return any(self.gather(flag))

    def sum(self, values: Sequence[float]) -> list[float]:
        """Return the sums over ranks of each of the values."""
        return [sum(column) for column in zip(*self.gather(values), strict=True)]

    def average_gradients(self, model: nn.Module) -> None:
        """Average the gradients over the ranks, unless DDP does it in the backward pass."""

    def sync(self) -> None:
        """End a step on a device that records a step and runs it as one program, as XLA does."""

    def __enter__(self) -> Ranks:
        return self

    def __exit__(self, kind: Any, error: Any, trace: TracebackType | None) -> None:
        """Leave the group and end its threads: one of gloo's may abort the process as it ends.

        Raises ConnectionError if the error is another rank's end.
        """
        # Nothing may refer to the group any more, which the frames of an error do.
        cause = error
        while cause:
            traceback.clear_frames(cause.__traceback__)
            cause = cause.__cause__
        if self._control is not None:
            if error and self.device.type == "cuda":
                # Destroying NCCL's communicators would wait for operations that the other ranks may
                # never join.
                distributed_c10d._abort_process_group()
            else:
                dist.destroy_process_group()
            self._control = None
            # Modules and their hooks refer to each other.
            gc.collect()
        if _is_lost_rank(error):
            reason = str(error).partition("\n")[0]
            raise ConnectionError(
                f"another rank ended or cannot be reached: its own output has the reason; the same "
                f"command continues from the last checkpoint, as torchrun itself does with "
                f"--max-restarts ({reason})"
            ) from error


def _is_lost_rank(error: BaseException | None) -> bool:
    if isinstance(error, dist.DistError):
        return True
    return isinstance(error, RuntimeError) and bool(_LOST_RANK.search(str(error)))


class XlaRanks(Ranks):
    """Processes with one TPU chip each, which exchange data over the chips.

    Gradients are exchanged as part of a step's program.
    """

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
    """Return the package torch_xla; raises SettingsError if it is not installed."""
    try:
        import torch_xla
    except ImportError as error:
        raise SettingsError(
            f"device xla needs torch_xla ({error}): pip install 'torch_xla[tpu]'"
        ) from error
    return torch_xla


def launch_on_chips(work: Callable[..., None], *arguments: Any) -> None:
    """Call `work(number, *arguments)` in a process for each TPU chip of this host."""
    xla_package().launch(work, args=arguments)


def wrap_ddp(model: nn.Module, ranks: Ranks) -> nn.Module:
    """Return `model` as training calls it: by DDP if there are several ranks.

    XLA's ranks average gradients by `Ranks.average_gradients`.
    """
    if ranks.device.type == "xla" or ranks.world_size == 1:
        return model
    device_ids = [ranks.device.index] if ranks.device.type == "cuda" else None
    return DistributedDataParallel(model, device_ids=device_ids, gradient_as_bucket_view=True)


def averaging_when(net: nn.Module, is_last: bool) -> AbstractContextManager[Any]:
    """Return the context of a micro-batch's forward and backward pass; DDP wants both in it.

    Gradients are averaged once, with the last micro-batch.
    """
    if is_last or not isinstance(net, DistributedDataParallel):
        return nullcontext()
    return net.no_sync()


class StopSignals:
    """Receives SIGTERM and SIGINT as a name to check between steps.

    A context manager, which restores the handlers.
    """

    received = ""

    def __enter__(self) -> StopSignals:
        self._handlers: dict[signal.Signals, Any] = {}
        # Python allows handlers only in the main thread.
        if threading.current_thread() is threading.main_thread():
            for number in (signal.SIGTERM, signal.SIGINT):
                self._handlers[number] = signal.signal(number, self._receive)
        return self

    def __exit__(self, *error: object) -> None:
        for number, handler in self._handlers.items():
            signal.signal(number, handler)

    def wait(self, seconds: float) -> bool:
        """Wait up to `seconds` for a signal; return whether one has come."""
        end = time.monotonic() + seconds
        while not self.received and time.monotonic() < end:
            time.sleep(0.05)
        return bool(self.received)

    def _receive(self, number: int, frame: FrameType | None) -> None:
        self.received = signal.Signals(number).name


@contextmanager
def run_lock(folder: Path, say: Callable[[str], None], patience: float = 10) -> Iterator[None]:
    """Lock the run's `folder` by its file `.lock`, until the context or the process ends.

    It works between machines if the file system's locks do (NFS 4, Lustre with `-o flock`). If
    there are no locks, `say` is called and the run continues without. `patience` is the seconds to
    wait: when nodes leave and join, the previous writer may be about to end. Raises SettingsError,
    which names the process that has the lock.
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
                owner = file.read().strip() or "process unknown"
                raise SettingsError(
                    f"{folder} is being written by another run ({owner}); stop that one first, or "
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
