"""Train a GPT-2: `python -m trainer --data WORKDIR/tokens --out RUN`."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from schemas import SettingsError
from schemas.settings import add_flags, flags_given, from_table
from trainer.command_line import command_parser, read_settings, run_reporting
from trainer.config import TrainConfig
from trainer.distributed import launch_on_chips
from trainer.loop import train, train_on_chip
from trainer.metrics import Diverged

# Flags of nanoGPT, of transformers' Trainer and of earlier versions, and the settings here.
_FOREIGN_FLAGS = {
    "lr": "learning_rate",
    "batch_size": "device_batch_size",
    "per_device_train_batch_size": "device_batch_size",
    "max_iters": "max_steps",
    "warmup_iters": "warmup_steps",
    "eval_interval": "eval_every",
    "eval_steps": "eval_every",
    "save_steps": "save_every",
    "max_grad_norm": "grad_clip",
    "adam_beta2": "beta2",
    "lr_scheduler_type": "schedule",
    "optim": "optimizer",
    "gradient_checkpointing": "checkpoint_activations",
    "out_dir": "out",
    "output_dir": "out",
    "dataset": "data",
    "width": "n_embd",
    "context": "block_size",
    "micro_batch": "device_batch_size",
    "clip": "grad_clip",
    "val_every": "eval_every",
}
_SWITCHES = ("bias", "document_mask", "compile", "checkpoint_activations")


def _check_foreign(arguments: Sequence[str]) -> None:
    """Raise SettingsError for a flag of nanoGPT or transformers, which names the flag here."""
    for argument in arguments:
        name, sign, value = argument.removeprefix("--").partition("=")
        if not argument.startswith("--"):
            continue
        ours = f"--{_FOREIGN_FLAGS.get(name)}"
        if sign and name in _SWITCHES:
            ours = f"--{name}" if value.lower() in ("true", "1") else f"--no_{name}"
        elif name not in _FOREIGN_FLAGS:
            continue
        raise SettingsError(f"{argument} is {ours} here; see python -m trainer --help")


_EXAMPLES = """\
examples:
  python -m trainer --data run/tokens --out gpt2 --preset 124M
  torchrun --standalone --nproc-per-node=8 -m trainer CONFIG.toml
  TORCH_DISABLE_SHARE_RDZV_TCP_STORE=1 \\
      torchrun --nnodes=1:8 --nproc-per-node=8 --max-restarts=100 \\
      --rdzv-backend=c10d --rdzv-endpoint=HOST:29400 \\
      -m trainer CONFIG.toml

The last one on every node, for nodes that join and leave; without the variable, torchrun 2.13
waits forever when one joins."""


def parse(arguments: Sequence[str] | None = None) -> TrainConfig:
    """Return the settings of a command line; flags override a CONFIG.toml.

    Raises SettingsError.
    """
    parser = command_parser(
        "trainer",
        "[CONFIG.toml]",
        "Train a GPT-2 on token shards. The same command again continues where it stopped.",
        _EXAMPLES,
    )
    parser.add_argument(
        "config",
        nargs="?",
        type=Path,
        metavar="[CONFIG.toml]",
        help="settings, at the top or in [train]",
    )
    add_flags(parser, TrainConfig)
    arguments = sys.argv[1:] if arguments is None else arguments
    _check_foreign(arguments)
    parsed = parser.parse_args(arguments)
    table: dict[str, Any] = {}
    where = "flags"
    if parsed.config:
        table, where = read_settings(parsed.config.expanduser())
    return from_table(TrainConfig, {**table, **flags_given(TrainConfig, parsed)}, where)


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
