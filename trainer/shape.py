"""The model's shape, and presets of it. They need no torch."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from typing import Any

from schemas.values import did_you_mean

ACTIVATIONS = ("gelu", "relu2")


@dataclass(frozen=True)
class ModelConfig:
    """The model's shape."""

    vocab_size: int = 50257  # ids are below it
    context: int = 1024
    n_layer: int = 12
    n_head: int = 12
    width: int = 768
    dropout: float = 0.0  # on attention and residuals, never on embeddings
    # Of an embedding projected up to `width`; 0 for that width, as GPT-2 has (Lan et al., 2019).
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
        for name in ("vocab_size", "context", "n_layer", "n_head", "width"):
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
        if self.width % self.n_head:
            raise ValueError(f"width {self.width} does not divide into {self.n_head} heads")
        head_width = self.width // self.n_head
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
    "tiny": ModelConfig(context=128, n_layer=2, n_head=2, width=64),
    "124M": ModelConfig(),
    "355M": ModelConfig(n_layer=24, n_head=16, width=1024),
    "774M": ModelConfig(n_layer=36, n_head=20, width=1280),
    "1.5B": ModelConfig(n_layer=48, n_head=25, width=1600),
    "prettybig": ModelConfig(n_layer=25, n_head=16, width=1024),
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
