"""Train a GPT-2: `python -m trainer --data WORKDIR/tokens --out RUN`."""

from __future__ import annotations

import sys
from collections.abc import Sequence

from trainer.command_line import run_reporting
from trainer.config import parse
from trainer.distributed import launch_on_chips
from trainer.loop import train, train_on_chip
from trainer.metrics import Diverged


def main(arguments: Sequence[str] | None = None) -> int:
    """Train as the command line or `arguments` specify; return the exit code."""

    def parse_and_train() -> None:
        config = parse(arguments)
        if config.device == "xla_host":
            launch_on_chips(train_on_chip, config)
        else:
            train(config)

    return run_reporting("trainer", parse_and_train, Diverged)


if __name__ == "__main__":
    sys.exit(main())
