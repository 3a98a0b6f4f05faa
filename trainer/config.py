"""The training run's settings: one frozen dataclass, read from TOML and from flags."""

from __future__ import annotations

import dataclasses
import math
import os
import sys
import typing
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from schemas import SettingsError, option
from schemas.settings import add_flags, flags_given, from_table
from schemas.values import convert
from trainer.command_line import command_parser, read_settings
from trainer.shape import PRESETS, ModelConfig, preset

OPTIMIZERS = ("adamw", "adafactor", "muon")
SCHEDULES = ("cosine", "linear", "wsd", "constant")
DEVICES = ("auto", "cpu", "cuda", "xla", "xla_host")
# One TPU chip, and every chip of the host.
XLA_DEVICES = ("xla", "xla_host")
# Peak rates of AdamW by size, as in table 2.1 of the GPT-3 paper (Brown et al., 2020); tiny's is
# from trials.
LEARNING_RATES = {
    "tiny": 3e-3,
    "124M": 6e-4,
    "355M": 3e-4,
    "774M": 2.5e-4,
    "1.5B": 2e-4,
    "prettybig": 3e-4,
    "speedrun": 6e-4,
    "algpt2": 6e-4,
}
_ADAFACTOR_RATE = 3e-2
# The share of the peak at the last step of `cosine` and `linear`.
_LAST_SHARE = 0.1
# 10 billion tokens in the default batches.
_DEFAULT_STEPS = 19073
_DEFAULT_BATCH_TOKENS = 524288
_TINY_BATCH_TOKENS = 8192


@dataclass(frozen=True)
class TrainConfig:
    """Settings of a training run. Those marked `shapes_bytes=False` may change when a run is
    resumed."""

    data: Sequence[str] = option(
        help="token shards, WORKDIR/tokens, local or s3:// or gs://; several are mixed in "
        "proportion to their tokens, "
        "or by weights: a/tokens=0.7 b/tokens=0.3", metavar="DIR", is_path=True,
    )  # fmt: skip
    out: str = option(
        help="folder of the run: its checkpoints and metrics",
        metavar="DIR",
        is_path=True,
        shapes_bytes=False,
    )
    init_from: str | None = option(
        None, "start from a checkpoint, with the state of the same optimizer, or a GPT-2 of "
        "Hugging Face: a folder, or a name such as gpt2",
        metavar="DIR", is_path=True,
    )  # fmt: skip
    preset: str = option("124M", "the model", choices=PRESETS)
    n_layer: int | None = option(None, "layers (default: the preset's)", minimum=1)
    n_head: int | None = option(None, "heads (default: the preset's)", minimum=1)
    width: int | None = option(None, "channels (default: the preset's)", minimum=1)
    context: int | None = option(None, "tokens of a window (default: the preset's)", minimum=1)
    dropout: float = option(0.0, "dropout on attention and residuals", minimum=0, maximum=0.99)
    bias: bool = option(True, "biases in linear layers and norms, as GPT-2 has")
    sampler: str = option(
        "packed", "how documents become windows", choices=("packed", "longbiased")
    )
    long_min_tokens: int = option(
        512, "longbiased: a long document has this many tokens", minimum=1
    )
    long_fraction: float = option(
        0.7, "longbiased: share of windows from long documents", minimum=0, maximum=1
    )
    document_mask: bool = option(
        False, "no attention across end-of-text: documents in a window do not see each other"
    )
    seed: int = option(
        1337, "of the weights, dropout and the order of documents", minimum=0, maximum=(1 << 32) - 1
    )

    batch_tokens: int | None = option(
        None, "tokens of a global batch (default: 524288; tiny: 8192)", minimum=1
    )
    micro_batch: int | None = option(
        None,
        "most windows in one forward pass (default: 16,384 tokens on a GPU; 8 windows on a CPU)",
        minimum=1,
        shapes_bytes=False,
    )
    max_steps: int = option(
        0, "0 for 19,073 (10 billion tokens), or one epoch with init_from", minimum=0
    )

    optimizer: str = option("adamw", "optimizer of the weights", choices=OPTIMIZERS)
    learning_rate: float | None = option(
        None,
        "peak (default: by preset, 6e-4 for 124M; a tenth of it with init_from; 3e-2 for "
        "adafactor)",
        minimum=0,
    )
    schedule: str | None = option(
        None, "after the warm-up (default: cosine, linear with init_from)", choices=SCHEDULES
    )
    warmup_steps: int = option(
        0, "steps of linear warm-up; 0 for a hundredth of max_steps", minimum=0
    )
    decay_fraction: float = option(0.2, "wsd: share of the steps that decay", minimum=0, maximum=1)
    weight_decay: float = option(0.1, "on matrices only", minimum=0)
    beta2: float = option(
        0.95, "AdamW's decay of the squared gradients, as GPT-3's", minimum=0, maximum=0.99999
    )
    clip: float = option(1.0, "largest norm of the gradient; 0 for none", minimum=0)

    device: str = option(
        "auto",
        "auto is cuda if there is a GPU; xla is a TPU chip, xla_host every chip of this host",
        choices=DEVICES,
        shapes_bytes=False,
    )
    dtype: str = option(
        "auto", "auto is bfloat16 on cuda and xla", choices=("auto", "float32", "bfloat16")
    )
    compile: bool | None = option(
        None, "torch.compile the model (default: on cuda)", shapes_bytes=False
    )
    checkpoint_activations: bool = option(
        False, "recompute activations, for less memory", shapes_bytes=False
    )

    val_every: int = option(
        250, "steps between validations; 0 for none", minimum=0, shapes_bytes=False
    )
    val_data: str | None = option(
        None,
        "a text file to validate on, in place of the val split",
        metavar="FILE",
        is_path=True,
    )
    save_every: int = option(
        1000, "steps between checkpoints; 0 for only the last", minimum=0, shapes_bytes=False
    )
    sign_key: str | None = option(
        None,
        "private key that signs each checkpoint",
        metavar="PEM",
        is_path=True,
        shapes_bytes=False,
    )
    verify_key: str | None = option(
        None,
        "public key whose owner must have signed checkpoints and init_from",
        metavar="PEM",
        is_path=True,
        shapes_bytes=False,
    )
    publish: str | None = option(
        None,
        "where the run is sent: a folder, hf://OWNER/NAME, s3:// or gs://",
        metavar="URI",
        is_path=True,
        shapes_bytes=False,
    )

    def __post_init__(self) -> None:
        # Also in a program, a wrong value is an error and not another optimizer or schedule.
        for field in dataclasses.fields(self):
            value = _without_paths(getattr(self, field.name))
            value = convert(field, _TYPES[field.name], value, field.name)
            object.__setattr__(self, field.name, value)
        if 0 < self.max_steps < self.warmup_steps:
            raise SettingsError(
                f"warmup_steps {self.warmup_steps} is above max_steps {self.max_steps}: the "
                "learning rate would not reach its peak; give fewer"
            )
        if self.document_mask and self.dropout:
            raise SettingsError(
                "FlexAttention has no dropout: give document_mask or dropout, not both"
            )
        if self.device in XLA_DEVICES and (self.compile or self.optimizer != "adamw"):
            raise SettingsError(
                f"device {self.device} supports neither compile nor optimizers other than "
                "adamw: leave them out"
            )

    def model_config(self, vocab_size: int) -> ModelConfig:
        """Return the model's shape; raises ValueError for one that cannot be."""
        changes = {name: getattr(self, name) for name in SHAPE}
        return preset(self.preset, vocab_size=vocab_size, **changes)

    @property
    def peak_rate(self) -> float:
        """The peak learning rate, by default the preset's."""
        if self.learning_rate is not None:
            return self.learning_rate
        is_adafactor = self.optimizer == "adafactor"
        rate = _ADAFACTOR_RATE if is_adafactor else LEARNING_RATES[self.preset]
        return rate / 10 if self.init_from else rate

    def windows_per_batch(self, context: int) -> int:
        """Return the samples of a global batch.

        Raises SettingsError if its tokens are not a multiple of the context.
        """
        tokens = self.batch_tokens or default_batch(self.preset)
        if tokens % context:
            below = tokens // context * context
            above = below + context
            nearest = f"{below} or {above}" if below else str(above)
            raise SettingsError(
                f"batch_tokens {tokens} is not a multiple of context {context}; the nearest values "
                f"are {nearest}"
            )
        return tokens // context

    def resolved(self, steps_an_epoch: int) -> TrainConfig:
        """Return the settings with this run's `max_steps`, `schedule` and `learning_rate`.

        Finetuning has other defaults: one epoch, of a linear decay.
        """
        default_steps = steps_an_epoch if self.init_from else _DEFAULT_STEPS
        default_schedule = "linear" if self.init_from else "cosine"
        return dataclasses.replace(
            self,
            max_steps=self.max_steps or default_steps,
            schedule=self.schedule or default_schedule,
            learning_rate=self.peak_rate,
        )

    def learning_rate_of(self, step: int) -> float:
        """Return the learning rate of step 0 … max_steps−1, of settings that are `resolved`."""
        warmup_steps = self.warmup_steps or max(1, self.max_steps // 100)
        share = learning_rate(
            step,
            schedule=self.schedule or "",
            warmup_steps=warmup_steps,
            max_steps=self.max_steps,
            decay_fraction=self.decay_fraction,
        )
        return share * self.peak_rate


_TYPES = typing.get_type_hints(TrainConfig)


def _without_paths(value: Any) -> Any:
    """Return a setting in which the paths are strings."""
    if isinstance(value, (list, tuple)):
        return tuple(_without_paths(item) for item in value)
    return os.fspath(value) if isinstance(value, os.PathLike) else value


def _names(cls: Any) -> set[str]:
    return {field.name for field in dataclasses.fields(cls)}


# The settings that define the model's shape.
SHAPE = _names(ModelConfig) & _names(TrainConfig)


def default_batch(name: str) -> int:
    """Return the tokens of a global batch for a preset."""
    return _TINY_BATCH_TOKENS if name == "tiny" else _DEFAULT_BATCH_TOKENS


def learning_rate(
    step: int, schedule: str, warmup_steps: int, max_steps: int, decay_fraction: float = 0.2
) -> float:
    """Return the learning rate of step 0 … max_steps−1, as a fraction of its peak.

    Linear warm-up; then `cosine` or `linear` down to a tenth at the last step, `wsd` (warm-up,
    stable, decay: constant, then linear to zero over the last `decay_fraction` of the steps; Hu et
    al., 2024), or `constant`.
    """
    if step < warmup_steps:
        return (step + 1) / warmup_steps
    if schedule == "constant":
        return 1.0
    if schedule == "wsd":
        decay_start = max(warmup_steps, round(max_steps * (1 - decay_fraction)))
        if step < decay_start:
            return 1.0
        # Zero would be reached one step after the last, which would do nothing with it.
        return 1 - _progress(step, decay_start, max_steps + 1)
    progress = _progress(step, warmup_steps, max_steps)
    if schedule == "cosine":
        progress = (1 - math.cos(math.pi * progress)) / 2
    return 1 - (1 - _LAST_SHARE) * progress


def _progress(step: int, start: int, end: int) -> float:
    """Return how far a decay from step `start` on is after this step; 1 at step `end` − 1."""
    return min(1.0, (step - start + 1) / max(1, end - start))


def config_of(settings: Mapping[str, Any], where: str) -> TrainConfig:
    """Return the settings of a checkpoint's record; raises SettingsError for an unknown one."""
    given = {name: value for name, value in settings.items() if value is not None}
    return from_table(TrainConfig, given, where)


# Flags of nanoGPT and of transformers' Trainer, and the settings that they are here.
_FOREIGN_FLAGS = {
    "lr": "learning_rate",
    "n_embd": "width",
    "block_size": "context",
    "batch_size": "micro_batch",
    "per_device_train_batch_size": "micro_batch",
    "max_iters": "max_steps",
    "warmup_iters": "warmup_steps",
    "eval_interval": "val_every",
    "eval_steps": "val_every",
    "save_steps": "save_every",
    "grad_clip": "clip",
    "max_grad_norm": "clip",
    "adam_beta2": "beta2",
    "lr_scheduler_type": "schedule",
    "optim": "optimizer",
    "gradient_checkpointing": "checkpoint_activations",
    "out_dir": "out",
    "output_dir": "out",
    "dataset": "data",
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
