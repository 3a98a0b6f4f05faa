"""The model's shape with its presets, and the settings of a run. They need no torch."""

from __future__ import annotations

import dataclasses
import math
import os
import typing
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from schemas import SettingsError, option
from schemas.values import convert, did_you_mean

ACTIVATIONS = ("gelu", "relu2")


@dataclass(frozen=True)
class ModelConfig:
    """The model's shape."""

    vocab_size: int = 50257  # ids are below it
    block_size: int = 1024
    n_layer: int = 12
    n_head: int = 12
    n_embd: int = 768
    dropout: float = 0.0  # on attention and residuals, never on embeddings
    # Of an embedding projected up to `n_embd`; 0 for that width, as GPT-2 has (Lan et al., 2019).
    embedding_width: int = 0
    # All layers share one block's weights, as in ALBERT (Lan et al., 2019).
    shared_layers: bool = False
    # Positions by rotating queries and keys, and no position embedding (Su et al., 2021).
    rope: bool = False
    # Queries and keys of each head are divided by their RMS (Henry et al., 2020).
    qk_norm: bool = False
    bias: bool = True  # of linear layers and norms
    activation: str = "gelu"  # or relu2 for the squared ReLU (So et al., 2021)

    def __post_init__(self) -> None:
        for name in ("vocab_size", "block_size", "n_layer", "n_head", "n_embd"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name} {getattr(self, name)} is below 1")
        if not 0 <= self.dropout < 1 or self.embedding_width < 0:
            raise ValueError(
                f"dropout {self.dropout} is not from 0 to 1, or embedding_width "
                f"{self.embedding_width} is below 0"
            )
        if self.activation not in ACTIVATIONS:
            hint = did_you_mean(self.activation, ACTIVATIONS)
            raise ValueError(f"there is no activation {self.activation}{hint}")
        if self.n_embd % self.n_head:
            raise ValueError(f"n_embd {self.n_embd} does not divide into {self.n_head} heads")
        head_width = self.n_embd // self.n_head
        if self.rope and head_width % 2:
            raise ValueError(
                f"rope turns pairs of channels: a head of {head_width} has an odd number"
            )

    @property
    def padded_vocab_size(self) -> int:
        """The rows of the embedding: a multiple of 128, which is faster on matrix units."""
        return -(-self.vocab_size // 128) * 128


# The published sizes, ConnorJL's PrettyBig, 124M with pieces of modded-nanogpt, an ALBERT-style one
# as bkkaggle's ALGPT2, and one for a CPU.
PRESETS: dict[str, ModelConfig] = {
    "tiny": ModelConfig(block_size=128, n_layer=2, n_head=2, n_embd=64),
    "124M": ModelConfig(),
    "355M": ModelConfig(n_layer=24, n_head=16, n_embd=1024),
    "774M": ModelConfig(n_layer=36, n_head=20, n_embd=1280),
    "1.5B": ModelConfig(n_layer=48, n_head=25, n_embd=1600),
    "prettybig": ModelConfig(n_layer=25, n_head=16, n_embd=1024),
    "speedrun": ModelConfig(rope=True, qk_norm=True, activation="relu2"),
    # 12.2M parameters; ALBERT's width of 128 would make it 13.9M.
    "algpt2": ModelConfig(embedding_width=96, shared_layers=True),
}


def preset(name: str, **changes: Any) -> ModelConfig:
    """Return a preset with some fields changed; those given as None are kept.

    Raises ValueError for a name that is not a preset.
    """
    if name not in PRESETS:
        raise ValueError(f"there is no preset {name}{did_you_mean(name, PRESETS)}")
    given = {field: value for field, value in changes.items() if value is not None}
    return dataclasses.replace(PRESETS[name], **given)


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
    n_embd: int | None = option(None, "channels (default: the preset's)", minimum=1)
    block_size: int | None = option(None, "tokens of a window (default: the preset's)", minimum=1)
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
    device_batch_size: int | None = option(
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
    grad_clip: float = option(1.0, "largest norm of the gradient; 0 for none", minimum=0)

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

    eval_every: int = option(
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

    def windows_per_batch(self, block_size: int) -> int:
        """Return the samples of a global batch.

        Raises SettingsError if its tokens are not a multiple of the block size.
        """
        tokens = self.batch_tokens or default_batch(self.preset)
        if tokens % block_size:
            below = tokens // block_size * block_size
            above = below + block_size
            nearest = f"{below} or {above}" if below else str(above)
            raise SettingsError(
                f"batch_tokens {tokens} is not a multiple of block_size {block_size}; the nearest "
                f"values are {nearest}"
            )
        return tokens // block_size

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

    def learning_rate_at(self, step: int) -> float:
        """Return the learning rate at step 0 … max_steps−1, of settings that are `resolved`."""
        warmup_steps = self.warmup_steps or max(1, self.max_steps // 100)
        factor = schedule_factor(
            step,
            schedule=self.schedule or "",
            warmup_steps=warmup_steps,
            max_steps=self.max_steps,
            decay_fraction=self.decay_fraction,
        )
        return factor * self.peak_rate


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


def schedule_factor(
    step: int, schedule: str, warmup_steps: int, max_steps: int, decay_fraction: float = 0.2
) -> float:
    """Return the learning rate at step 0 … max_steps−1, as a factor of its peak.

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
