"""TPUs through torch_xla:  python -m trainer.xla CONFIG.toml  starts a process for every chip of the host.

`python -m trainer.train --device xla` uses a single one. XLA records what a step computes and runs it as one program,
compiled at the first step; `Ranks.sync` ends a step, so that every step is the same program.
"""

from __future__ import annotations

import pickle
import sys
from collections.abc import Sequence
from typing import Any

import torch
from torch import nn

from schemas import SettingsError
from trainer.config import parse
from trainer.distributed import Ranks


def join() -> XlaRanks:
    """This process' XLA device, among those that `main` started; raises SettingsError without torch_xla."""
    package = _package()
    import torch_xla.runtime as runtime

    size = runtime.world_size()
    return XlaRanks(runtime.global_ordinal() if size > 1 else 0, size, package.device())


class XlaRanks(Ranks):
    """Processes with a TPU chip each. What they exchange goes over the chips, a step's gradients within its program."""

    @property
    def distributed(self) -> bool:
        return self.world_size > 1

    def any(self, flag: bool) -> bool:
        return any(self.gather(flag))

    def sum(self, tensor: torch.Tensor) -> torch.Tensor:
        return torch.stack(self.gather(tensor.cpu())).sum(0)

    def gather(self, value: Any) -> list[Any]:
        if not self.distributed:
            return [value]
        import torch_xla.core.xla_model as xm

        return [pickle.loads(part) for part in xm.rendezvous("gather", pickle.dumps(value))]

    def from_main(self, value: Any) -> Any:
        return self.gather(value)[0]

    def share_weights(self, model: nn.Module) -> None:
        if self.distributed:
            weights = [parameter.data for parameter in model.parameters()]
            self._add_up([weight * (self.rank == 0) for weight in weights], weights, 1.0)
            self.sync()

    def average_gradients(self, model: nn.Module) -> None:
        if self.distributed:
            gradients = [p.grad for p in model.parameters() if p.grad is not None]
            self._add_up(gradients, gradients, 1 / self.world_size)

    def _add_up(self, tensors: list[torch.Tensor], results: list[torch.Tensor], scale: float) -> None:
        """The sums over ranks, scaled, into `results`: one collective for all of them."""
        import torch_xla.core.xla_model as xm

        flat = torch.cat([tensor.flatten() for tensor in tensors])
        xm.all_reduce(xm.REDUCE_SUM, [flat], scale=scale)
        for result, part in zip(results, flat.split([tensor.numel() for tensor in tensors]), strict=True):
            result.copy_(part.view_as(result))

    def sync(self) -> None:
        _package().sync()

    def stack(self, values: Sequence[torch.Tensor]) -> torch.Tensor:
        return torch.stack([value.cpu() for value in values])  # on the device it would be another program

    def leave(self) -> None:
        pass


def _package() -> Any:
    try:
        import torch_xla
    except ImportError as error:
        raise SettingsError(
            f"device xla needs the package torch_xla ({error}): pip install 'torch_xla[tpu]'"
        ) from error
    return torch_xla


def _process(index: int, arguments: Sequence[str] | None) -> None:
    from trainer import train

    code = train.main(arguments)
    if code:
        raise SystemExit(code)


def main(arguments: Sequence[str] | None = None) -> int:
    """Train on every XLA device of this host, one process each; the arguments are those of `trainer.train`."""
    given = list(sys.argv[1:] if arguments is None else arguments)
    try:
        parse([*given, "--device", "xla"])  # a mistake is told once, here
        _package().launch(_process, args=([*given, "--device", "xla"],))
    except SettingsError as error:
        print(f"trainer.xla: {error}", file=sys.stderr, flush=True)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
