"""GPT-2 as OpenAI published it, in one class: presets, forward pass with loss, and a KV cache.

Shapes: B sequences, T tokens, C channels (`n_embd`), H heads, D = C / H, V vocabulary, N = B · T.
"Language Models are Unsupervised Multitask Learners" (Radford et al., 2019); openai/gpt-2.
"""

from __future__ import annotations

import functools
import importlib
import math
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Protocol, overload

import torch
import torch.nn.functional as F
from torch import nn
from torch.nn.attention.flex_attention import BlockMask, flex_attention
from torch.utils.checkpoint import checkpoint

from trainer.config import PRESETS, ModelConfig, TrainConfig, preset
from trainer.optim import make_optimizers

__all__ = ["GPT", "PRESETS", "KVCache", "ModelConfig", "preset"]

# The positions that each one attends to: (B, 1, T, T) of bool, or FlexAttention's blocks of it.
Mask = torch.Tensor | BlockMask
# Cosines and sines of the angles, (T, D / 2) each.
Rotation = tuple[torch.Tensor, torch.Tensor]
# Rows of one length (B, T), or one row.
Ids = torch.Tensor | Sequence[Sequence[int]] | Sequence[int]
# Stores keys and values, and returns all that are stored.
Extend = Callable[[torch.Tensor, torch.Tensor], tuple[torch.Tensor, torch.Tensor]]


class TextTokenizer(Protocol):
    """Anything that turns a text into ids and back, as `trainer.Tokenizer` does."""

    def encode(self, text: str, /) -> list[int]: ...
    def decode(self, ids: list[int], /) -> str: ...


class KVCache:
    """The keys and values of the first `length` positions, in every layer."""

    def __init__(self, model: GPT, batch: int) -> None:
        config = model.config
        head_width = config.n_embd // config.n_head
        shape = (config.n_layer, 2, batch, config.n_head, config.block_size, head_width)
        weight = model.wte.weight
        dtype = model.compute_dtype or weight.dtype
        self._store = torch.zeros(shape, dtype=dtype, device=weight.device)
        self.length = 0

    def extend(
        self, layer: int, k: torch.Tensor, v: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Store the next positions' keys and values of a layer; return all that are stored."""
        end = self.length + k.shape[2]
        keys, values = self._store[layer]
        keys[:, :, self.length : end] = k
        values[:, :, self.length : end] = v
        return keys[:, :, :end], values[:, :, :end]


class Linear(nn.Linear):
    """A linear layer that multiplies in `compute_dtype`, while its weights keep their own type.

    It is nanochat's alternative to autocast. Losses are the same, bit for bit, except where layers
    share weights: autocast adds up the gradients of their one copy in bfloat16.
    """

    compute_dtype: torch.dtype | None = None  # None: as the weights

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        dtype = self.compute_dtype or self.weight.dtype
        bias = None if self.bias is None else self.bias.to(dtype)
        return F.linear(x.to(dtype), self.weight.to(dtype), bias)


class GPT(nn.Module):
    """A GPT-2, whose parameters have the names of the published checkpoints.

    An example of a name is `h.0.attn.c_attn.weight`.
    """

    # Recompute each block's activations in the backward pass of training.
    checkpoint_activations = False
    # The type in which matrices are multiplied; None for the type of the weights.
    compute_dtype: torch.dtype | None = None
    # Of the training data, if the model comes from a run or a folder.
    tokenizer_path: Path | None = None
    eot: int | None = None

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self.config = config
        embedding_width = config.embedding_width or config.n_embd
        # The weight of the output, too.
        self.wte = nn.Embedding(config.padded_vocab_size, embedding_width)
        if not config.rope:
            self.wpe = nn.Embedding(config.block_size, embedding_width)
        if config.embedding_width:
            self.embedding_up = Linear(embedding_width, config.n_embd, bias=config.bias)
            self.embedding_down = Linear(config.n_embd, embedding_width, bias=config.bias)
        num_blocks = 1 if config.shared_layers else config.n_layer
        self.h = nn.ModuleList(Block(config) for _ in range(num_blocks))
        self.ln_f = nn.LayerNorm(config.n_embd, bias=config.bias)
        self._initialize()

    @torch.no_grad()
    def _initialize(self) -> None:
        for name, module in self.named_modules():
            if not isinstance(module, (Linear, nn.Embedding)):
                continue
            std = 0.02
            if name.endswith("c_proj"):
                # The residual stream is a sum of 2·n_layer projections: this keeps its variance.
                std = 0.02 * (1 / math.sqrt(2 * self.config.n_layer))
            nn.init.normal_(module.weight, std=std)
            if isinstance(module, Linear) and self.config.bias:
                nn.init.zeros_(module.bias)
        self.wte.weight[self.config.vocab_size :] = 0

    @classmethod
    def from_pretrained(cls, source: str | Path) -> GPT:
        """Return the model of a checkpoint, of a run's newest one, or of a Hugging Face GPT-2.

        The latter is a folder, or a name such as gpt2. The model is in evaluation mode, on the CPU.
        """
        pretrained = importlib.import_module("trainer.pretrained")
        model: GPT = pretrained.load_pretrained(str(source)).model
        return model

    def configure_optimizers(self, config: TrainConfig) -> list[torch.optim.Optimizer]:
        """Return the optimizers that `config` names, with its rate, decay and beta2."""
        return make_optimizers(
            config.optimizer,
            self,
            lr=config.peak_rate,
            weight_decay=config.weight_decay,
            beta2=config.beta2,
        )

    def compute_in(self, dtype: torch.dtype) -> None:
        """Multiply matrices in `dtype`; weights, norms and the loss keep their own types."""
        self.compute_dtype = dtype
        for module in self.modules():
            if isinstance(module, Linear):
                module.compute_dtype = dtype

    def compile_parts(self) -> None:
        """Compile the blocks and the output.

        One compilation serves all blocks. In parts, so that DDP averages the gradients of a block
        while earlier blocks still compute theirs.
        """
        for block in self.h:
            block.forward = torch.compile(block.forward, dynamic=False)  # type: ignore[method-assign]
        self._output = torch.compile(self._output, dynamic=False)  # type: ignore[method-assign]

    def forward(
        self,
        ids: torch.Tensor,
        targets: torch.Tensor | None = None,
        reduction: str = "mean",
        mask: Mask | None = None,
    ) -> torch.Tensor:
        """Return the logits (B, T, V) of `ids` (B, T), or with `targets` their loss in nats.

        Targets (B, T) of −100 are ignored. `reduction` of the cross-entropy is `mean`, `sum`,
        or `none` for (B, T). `mask` is which position attends to which (`data.attention_mask`); by
        default each attends to all before it.
        """
        if ids.device.type == "cpu" and ids.numel() and int(ids.max()) >= self.config.vocab_size:
            # The embedding has rows beyond the vocabulary. A GPU would have to be waited for.
            raise ValueError(
                f"the id {ids.max()} is outside the vocabulary, which has {self.config.vocab_size}"
            )
        return self._output(self._hidden(ids, None, mask), targets, reduction)

    def next_logits(self, ids: torch.Tensor, cache: KVCache) -> torch.Tensor:
        """Return the logits (B, V) of the token after `ids` (B, T), and add those to `cache`.

        T is 1 unless the cache is empty.
        """
        x = self._hidden(ids, cache)[:, -1]
        cache.length += ids.shape[1]
        return self._output(x, None, "")

    @overload
    def generate(
        self,
        prompt: str,
        max_new_tokens: int,
        temperature: float = ...,
        top_k: int | None = ...,
        *,
        top_p: float = ...,
        stop: int | None = ...,
        generator: torch.Generator | None = ...,
        tokenizer: TextTokenizer | None = ...,
    ) -> str: ...

    @overload
    def generate(
        self,
        prompt: Ids,
        max_new_tokens: int,
        temperature: float = ...,
        top_k: int | None = ...,
        *,
        top_p: float = ...,
        stop: int | None = ...,
        generator: torch.Generator | None = ...,
    ) -> torch.Tensor: ...

    @torch.no_grad()
    def generate(
        self,
        prompt: str | Ids,
        max_new_tokens: int,
        temperature: float = 1.0,
        top_k: int | None = None,
        *,
        top_p: float = 1.0,
        stop: int | None = None,
        generator: torch.Generator | None = None,
        tokenizer: TextTokenizer | None = None,
    ) -> str | torch.Tensor:
        """Return the prompt with up to `max_new_tokens` more, in the mode that the model is in.

        The prompt is ids (B, T) in rows of one length, ids (T,), or a text. A text begins a
        document and ends before its end-of-text. It is read by `tokenizer`, or by the one of the
        model's training data.

        With a KV cache, a token costs one token's forward pass. A full context is cut to its latest
        half. A `temperature` of 0 picks the most likely token. Otherwise it is drawn from the
        `top_k` most likely (None or 0 for all), and from the fewest whose probability is at least
        `top_p` (Holtzman et al., 2020). A row that has `stop` goes on with it. When all rows have
        it, the result ends before the tokens in which all are `stop`. Raises ValueError for other
        rows, ids outside the vocabulary, values out of range, or a text without a tokenizer.
        """
        generation = importlib.import_module("trainer.generation")
        settings = generation.Settings(max_new_tokens, temperature, top_k or 0, top_p, generator)
        result: str | torch.Tensor
        if isinstance(prompt, str):
            result = generation.continue_text(self, prompt, settings, tokenizer, stop)
        else:
            result = generation.continue_ids(self, torch.as_tensor(prompt), settings, stop)
        return result

    def save_pretrained(
        self, folder: str | Path, tokenizer: Path | None = None, eot: int | None = None
    ) -> None:
        """Write a folder that transformers reads: configuration, weights and a tokenizer.

        The latter is the `tokenizer.json` with the end-of-text `eot`, by default those of the
        model's training data. Raises ValueError for a model with parts that transformers' GPT-2
        does not have.
        """
        huggingface = importlib.import_module("trainer.huggingface")
        tokenizer = tokenizer or self.tokenizer_path
        huggingface.save_huggingface(
            self, Path(folder), tokenizer, self.eot if eot is None else eot
        )

    def _hidden(
        self, ids: torch.Tensor, cache: KVCache | None, mask: Mask | None = None
    ) -> torch.Tensor:
        """Return the residual stream (B, T, C) after the last block."""
        config = self.config
        past = cache.length if cache else 0
        end = past + ids.shape[1]
        if end > config.block_size:
            raise ValueError(f"{end} tokens exceed the context of {config.block_size}")
        positions = torch.arange(past, end, device=ids.device)
        x = self.wte(ids)
        rotation = None
        if config.rope:
            rotation = rotation_of(positions, config.n_embd // config.n_head)
        else:
            x = x + self.wpe(positions)
        if config.embedding_width:
            # The residual stream has the type of the embedding in every model.
            x = self.embedding_up(x).type_as(x)
        for layer in range(config.n_layer):
            # Layers that share weights have one block.
            block = self.h[layer % len(self.h)]
            if self.checkpoint_activations and self.training:
                x = checkpoint(block, x, None, mask, rotation, use_reentrant=False)
            else:
                extend = functools.partial(cache.extend, layer) if cache else None
                x = block(x, extend, mask, rotation)
        return x

    def _output(
        self, x: torch.Tensor, targets: torch.Tensor | None, reduction: str
    ) -> torch.Tensor:
        """Return the logits of the residual stream, or their loss; compiled as one part."""
        x = self.ln_f(x)
        if self.config.embedding_width:
            x = self.embedding_down(x)
        dtype = self.compute_dtype or self.wte.weight.dtype
        weight = self.wte.weight.to(dtype)
        if targets is None:
            return F.linear(x.to(dtype), weight)[..., : self.config.vocab_size]
        # The padding is masked here. A view without it has rows that a GPU reads and writes more
        # slowly.
        logits = F.linear(x.flatten(0, 1).to(dtype), weight).float()
        # In place and unknown to autograd: its gradient is 0 in any case, and a masked copy would
        # write all logits again, forward and backward. So would the gradient of `logits` if that
        # were a view.
        with torch.no_grad():
            logits[:, self.config.vocab_size :] = -math.inf
        loss = F.cross_entropy(logits, targets.flatten(), reduction=reduction, ignore_index=-100)
        return loss.view_as(targets) if reduction == "none" else loss

    @property
    def n_parameters(self) -> int:
        """The number of trained parameters, without the padding of the vocabulary."""
        num_padding = self.config.padded_vocab_size - self.config.vocab_size
        num_all = sum(parameter.numel() for parameter in self.parameters())
        return num_all - num_padding * self.wte.embedding_dim

    @property
    def flops_per_token(self) -> float:
        """Operations of a training step per token (PaLM, Chowdhery et al., 2022, appendix B)."""
        config = self.config
        num_multiplied = sum(parameter.numel() for parameter in self.h.parameters())
        if config.shared_layers:
            num_multiplied *= config.n_layer
        num_multiplied += self.wte.weight.numel() + 2 * config.embedding_width * config.n_embd
        return 6 * num_multiplied + 12 * config.n_layer * config.n_embd * config.block_size


class Block(nn.Module):
    """Pre-norm attention and MLP, each added to the residual stream."""

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self.ln_1 = nn.LayerNorm(config.n_embd, bias=config.bias)
        self.attn = Attention(config)
        self.ln_2 = nn.LayerNorm(config.n_embd, bias=config.bias)
        self.mlp = MLP(config)

    def forward(
        self,
        x: torch.Tensor,
        extend: Extend | None = None,
        mask: Mask | None = None,
        rotation: Rotation | None = None,
    ) -> torch.Tensor:
        x = x + self.attn(self.ln_1(x), extend, mask, rotation)
        return x + self.mlp(self.ln_2(x))


class Attention(nn.Module):
    """Causal self-attention."""

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self.n_head = config.n_head
        self.dropout = config.dropout
        self.qk_norm = config.qk_norm
        self.c_attn = Linear(config.n_embd, 3 * config.n_embd, bias=config.bias)
        self.c_proj = Linear(config.n_embd, config.n_embd, bias=config.bias)
        self.resid_dropout = nn.Dropout(config.dropout)

    def forward(
        self,
        x: torch.Tensor,
        extend: Extend | None,
        mask: Mask | None,
        rotation: Rotation | None,
    ) -> torch.Tensor:
        q, k, v = (
            part.unflatten(2, (self.n_head, -1)).transpose(1, 2)  # (B, H, T, D)
            for part in self.c_attn(x).chunk(3, dim=2)
        )
        if self.qk_norm:
            q = F.rms_norm(q.float(), q.shape[-1:])
            k = F.rms_norm(k.float(), k.shape[-1:])
        if rotation is not None:
            q = rotate(q, rotation)
            k = rotate(k, rotation)
        # Norm and rotation are in float32; attention wants one type.
        q = q.type_as(v)
        k = k.type_as(v)
        if extend is not None:
            k, v = extend(k, v)
        if isinstance(mask, BlockMask):
            attend = _compiled_attention() if q.is_cuda else flex_attention
            y = attend(q, k, v, block_mask=mask)
        else:
            is_causal = mask is None
            # A single query attends to all keys. A branch, so that it stays a bool in compiled
            # code, where the length may be symbolic.
            if x.shape[1] == 1:
                is_causal = False
            dropout = self.dropout if self.training else 0.0
            y = F.scaled_dot_product_attention(
                q, k, v, attn_mask=mask, dropout_p=dropout, is_causal=is_causal
            )
        return self.resid_dropout(self.c_proj(y.transpose(1, 2).flatten(2)))


@functools.cache
def _compiled_attention() -> Any:
    # Uncompiled, FlexAttention computes all scores.
    return torch.compile(flex_attention)


class MLP(nn.Module):
    """A hidden layer of four times the width, with GELU in its tanh form or the squared ReLU."""

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self.is_relu2 = config.activation == "relu2"
        self.c_fc = Linear(config.n_embd, 4 * config.n_embd, bias=config.bias)
        self.c_proj = Linear(4 * config.n_embd, config.n_embd, bias=config.bias)
        self.resid_dropout = nn.Dropout(config.dropout)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.c_fc(x)
        x = F.relu(x).square() if self.is_relu2 else F.gelu(x, approximate="tanh")
        return self.resid_dropout(self.c_proj(x))


def rotation_of(positions: torch.Tensor, channels: int) -> Rotation:
    """Return the rotation at positions (T,), in float32.

    Channel pair i turns by position · 10000^(−2i / channels).
    """
    pairs = torch.arange(0, channels, 2, dtype=torch.float32, device=positions.device)
    angles = positions[:, None].float() * 10_000.0 ** (-pairs / channels)
    return angles.cos(), angles.sin()


def rotate(x: torch.Tensor, rotation: Rotation) -> torch.Tensor:
    """Return x (B, H, T, D) in float32, its channels i and i + D / 2 turned by angle i."""
    cos, sin = rotation
    left, right = x.float().chunk(2, dim=-1)
    return torch.cat([left * cos - right * sin, right * cos + left * sin], dim=-1)
