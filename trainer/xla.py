"""TPUs through torch_xla: `python -m trainer.xla CONFIG.toml` starts a process for every chip of
the host."""

from __future__ import annotations

import sys
from collections.abc import Sequence

from trainer.command_line import run_reporting
from trainer.config import parse
from trainer.distributed import xla_package
from trainer.train import main as train


def _process(index: int, arguments: Sequence[str] | None) -> None:
    code = train(arguments)
    if code:
        raise SystemExit(code)


def main(arguments: Sequence[str] | None = None) -> int:
    """Train on every XLA device of this host, one process each; the arguments are those of
    `trainer.train`."""
    given = [*(sys.argv[1:] if arguments is None else arguments), "--device", "xla"]

    def work() -> None:
        parse(given)  # a mistake is reported once, here
        xla_package().launch(_process, args=(given,))

    return run_reporting("trainer.xla", work)


if __name__ == "__main__":
    sys.exit(main())
