"""The command for TPUs: `python -m trainer.xla CONFIG.toml` starts a process for each chip.

It uses all chips of this host. It takes the arguments of `trainer.train`.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence

from trainer.command_line import run_reporting
from trainer.config import parse
from trainer.distributed import xla_package
from trainer.train import main as train


def _train_rank(index: int, arguments: Sequence[str]) -> None:
    code = train(arguments)
    if code:
        raise SystemExit(code)


def main(arguments: Sequence[str] | None = None) -> int:
    """Train on every XLA device of this host; return the exit code."""
    flags = [*(sys.argv[1:] if arguments is None else arguments), "--device", "xla"]

    def launch() -> None:
        # Here, so that a mistake is reported once and not by every process.
        parse(flags)
        xla_package().launch(_train_rank, args=(flags,))

    return run_reporting("trainer.xla", launch)


if __name__ == "__main__":
    sys.exit(main())
