"""The training run's settings: one frozen dataclass, read from TOML and from flags."""

from __future__ import annotations

import dataclasses
import os
import typing
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from schemas import SettingsError, option
from schemas.settings import add_flags, flags_given, from_table
from schemas.values import convert
from trainer.command_line import command_parser, read_settings
from trainer.optimizers import OPTIMIZERS
from trainer.schedules import SCHEDULES, learning_rate
from trainer.shape import PRESETS, ModelConfig, preset

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
# 10 billion tokens in the default batches.
_DEFAULT_STEPS = 19073
_DEFAULT_BATCH_TOKENS = 524288
_TINY_BATCH_TOKENS = 8192


@dataclass(frozen=True)
class TrainConfig:
    """Settings of `trainer.train`. Those marked `shapes_bytes=False` may change when a run is
    resumed."""

    data: tuple[str, ...] = option(
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
        "most windows in one forward pass (default: by the GPU's memory; CPU: 8)",
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
            warmup_steps=min(warmup_steps, self.max_steps),
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


# Once settings beside the preset. Records keep them, as the preset has them: tools made for
# records of earlier versions read them there.
_OF_PRESET = ("rope", "qk_norm", "activation")
# Earlier versions had them. Any value of these may be ignored.
_IGNORED = ("cache",)
# These may be ignored if they had their default.
_DEFAULT_OF_REMOVED: dict[str, Any] = {"rope": False, "qk_norm": False, "activation": "gelu"}


def recorded_settings(config: TrainConfig) -> dict[str, Any]:
    """Return the settings as a checkpoint's record has them."""
    return dataclasses.asdict(config) | _pieces_of(config.preset)


def _pieces_of(name: str) -> dict[str, Any]:
    """Return the pieces of a preset; none for a name that is not one."""
    if name not in PRESETS:
        return {}
    return {piece: getattr(PRESETS[name], piece) for piece in _OF_PRESET}


def config_of(
    settings: Mapping[str, Any], where: str, say: Callable[[str], None] = lambda message: None
) -> TrainConfig:
    """Return the settings of a record that this or another version wrote in `where`.

    Those that it lacks have their defaults. Raises SettingsError as `known_entries`.
    """
    given = {name: value for name, value in settings.items() if value is not None}
    pieces = {name: given[name] for name in _OF_PRESET if name in given}
    without_pieces = {name: value for name, value in given.items() if name not in pieces}
    name = given.get("preset", TrainConfig.preset)
    if pieces.items() <= _pieces_of(name).items():
        given = without_pieces
    elif pieces == _pieces_of("speedrun"):
        # A record of a version without this preset.
        given = _with_speedrun(without_pieces)
    return from_table(TrainConfig, known_entries(TrainConfig, given, where, say), where)


def _with_speedrun(given: dict[str, Any]) -> dict[str, Any]:
    """Return the settings with the preset speedrun and the size of the preset that they have."""
    name = given.get("preset", TrainConfig.preset)
    if name in PRESETS and name != "124M":
        for size in ("n_layer", "n_head", "width", "context"):
            given.setdefault(size, getattr(PRESETS[name], size))
        given.setdefault("batch_tokens", default_batch(name))
    return given | {"preset": "speedrun"}


def known_entries(
    cls: type, entries: Mapping[str, Any], where: str, say: Callable[[str], None]
) -> dict[str, Any]:
    """Return the entries that are fields of `cls`.

    `say` names each other one that had its default, or was empty or off. Raises SettingsError for
    one that had another value: its effect is unknown here.
    """
    fields = _names(cls)
    for name in sorted(entries.keys() - fields):
        value = entries[name]
        if not _is_ignorable(name, value):
            remedy = "use the version that wrote it"
            if cls is TrainConfig:
                remedy += ", or start a new run with --init_from"
            raise SettingsError(
                f"{where}: this version has no setting {name}, which was {value}; {remedy}"
            )
        say(f"{where}: the setting {name}, which was {value}, does not exist any more")
    return {name: value for name, value in entries.items() if name in fields}


def _is_ignorable(name: str, value: Any) -> bool:
    """Return whether a setting that does not exist any more had no effect."""
    if name in _IGNORED:
        return True
    if name in _DEFAULT_OF_REMOVED:
        return bool(value == _DEFAULT_OF_REMOVED[name])
    return not value


_EXAMPLES = """\
examples:
  python -m trainer.train --data run/tokens --out gpt2 --preset 124M
  torchrun --standalone --nproc-per-node=8 -m trainer.train CONFIG.toml
  TORCH_DISABLE_SHARE_RDZV_TCP_STORE=1 \\
      torchrun --nnodes=1:8 --nproc-per-node=8 --max-restarts=100 \\
      --rdzv-backend=c10d --rdzv-endpoint=HOST:29400 \\
      -m trainer.train CONFIG.toml

The last one on every node, for nodes that join and leave; without the variable, torchrun 2.13
waits forever when one joins."""


def parse(arguments: Sequence[str] | None = None) -> TrainConfig:
    """Return the settings of a command line; flags override a CONFIG.toml.

    Raises SettingsError.
    """
    parser = command_parser(
        "trainer.train",
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
    parsed = parser.parse_args(arguments)
    table: dict[str, Any] = {}
    where = "flags"
    if parsed.config:
        table, where = read_settings(parsed.config.expanduser())
    return from_table(TrainConfig, {**table, **flags_given(TrainConfig, parsed)}, where)
