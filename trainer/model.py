"""GPT-2 as OpenAI published it, in one class: presets, forward pass with loss, and a KV cache.

Shapes: B sequences, T tokens, C channels (`width`), H heads, D = C / H, V vocabulary, N = B · T.
"Language Models are Unsupervised Multitask Learners" (Radford et al., 2019); openai/gpt-2.
"""

from __future__ import annotations

import functools
import importlib
import math

import torch
import torch.nn.functional as F
from torch import nn
from torch.nn.attention.flex_attention import BlockMask, flex_attention
from torch.utils.checkpoint import checkpoint

from trainer.config import TrainConfig
from trainer.optimizers import make_optimizers
from trainer.shape import PRESETS, ModelConfig, preset

__all__ = ["GPT", "PRESETS", "KVCache", "ModelConfig", "preset"]

Mask = (
    torch.Tensor | BlockMask
)  # which position sees which: (B, 1, T, T) of bool, or FlexAttention's blocks of it


Cached = tuple[
    torch.Tensor, int
]  # a layer's keys and values of the positions seen (2, B, H, context, D); their number
Rotation = tuple[torch.Tensor, torch.Tensor]  # cosines and sines of the angles: (T, D / 2) each


class KVCache:
    """Keys and values of the positions seen, for each layer: (B, H, context, D), filled to
    `length`."""

    def __init__(self, model: GPT, batch: int) -> None:
        config, weight = model.config, model.wte.weight
        shape = (
            config.n_layer,
            2,
            batch,
            config.n_head,
            config.context,
            config.width // config.n_head,
        )
        self.store = torch.zeros(shape, dtype=weight.dtype, device=weight.device)
        self.length = 0


class GPT(nn.Module):
    """A GPT-2. Parameters have the names of the published checkpoints
    (`h.0.attn.c_attn.weight`)."""

    # recompute each block's activations in the backward pass of training
    checkpoint_activations = False

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self.config = config
        embedding = config.embedding_width or config.width
        self.wte = nn.Embedding(config.padded_vocab_size, embedding)  # the output's weight too
        if not config.rope:
            self.wpe = nn.Embedding(config.context, embedding)
        if config.embedding_width:
            self.embedding_up = nn.Linear(embedding, config.width, bias=config.bias)
            self.embedding_down = nn.Linear(config.width, embedding, bias=config.bias)
        self.h = nn.ModuleList(
            Block(config) for _ in range(1 if config.shared_layers else config.n_layer)
        )
        self.ln_f = nn.LayerNorm(config.width, bias=config.bias)
        for name, module in self.named_modules():
            if isinstance(module, (nn.Linear, nn.Embedding)):
                # Projections into the residual stream: their sum over 2·n_layer keeps the variance.
                scale = 1 / math.sqrt(2 * config.n_layer) if name.endswith("c_proj") else 1.0
                nn.init.normal_(module.weight, std=0.02 * scale)
            if isinstance(module, nn.Linear) and config.bias:
                nn.init.zeros_(module.bias)
        with torch.no_grad():
            self.wte.weight[config.vocab_size :] = 0

    def forward(
        self,
        ids: torch.Tensor,
        targets: torch.Tensor | None = None,
        reduction: str = "mean",
        mask: Mask | None = None,
    ) -> torch.Tensor:
        """The cross-entropy in nats of `ids` (B, T); without `targets` the logits (B, T, V).

        Targets (B, T) of −100 are ignored. The `reduction` is `mean`, `sum`, or `none` for (B, T).
        `mask` says which position sees which (`data.attention_mask`); by default each sees all
        before it.
        """
        return self._output(self._hidden(ids, None, mask), targets, reduction)

    @classmethod
    def from_pretrained(cls, source: str) -> GPT:
        """Return the model of a checkpoint, a run's newest one, or a GPT-2 of Hugging Face: a
        folder, or a name such as gpt2. It is in evaluation mode, on the CPU."""
        model: GPT = importlib.import_module("trainer.pretrained").load_pretrained(source).model
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

    @torch.no_grad()
    def generate(
        self,
        ids: torch.Tensor,
        max_tokens: int,
        temperature: float = 1.0,
        top_k: int | None = None,
        *,
        top_p: float = 1.0,
        stop: int | None = None,
        generator: torch.Generator | None = None,
    ) -> torch.Tensor:
        """Return `ids` (B, T) with up to `max_tokens` more, (B, T + n), in the mode the model is
        in.

        With a KV cache, a token costs one token's forward pass. When the context is full, it is cut
        to its latest half. A `temperature` of 0 picks the most likely token; else it is one of the
        `top_k` most likely (None or 0 for all), and of the fewest that have the probability `top_p`
        together (Holtzman et al., 2020). A row that has `stop` goes on with it; when all have, the
        result ends before the tokens in which all are `stop`. T is at least 1.
        """
        context, cache = self.config.context, KVCache(self, len(ids))
        is_done = torch.zeros(len(ids), dtype=torch.bool, device=ids.device)
        ahead = ids[:, -context:]
        for _ in range(max_tokens):
            if cache.length + ahead.shape[1] > context:
                cache.length = 0
                ahead = ids[:, -max(1, context // 2) :]
            logits = self.next_logits(ahead, cache).float()
            ahead = choose_tokens(logits, temperature, top_k or 0, top_p, generator)
            if stop is not None:
                ahead[is_done] = stop
                is_done |= ahead[:, 0] == stop
                if is_done.all():
                    break
            ids = torch.cat([ids, ahead], dim=1)
        return ids

    def next_logits(self, ids: torch.Tensor, cache: KVCache) -> torch.Tensor:
        """Return the logits (B, V) of the token after `ids` (B, T), which are added to `cache`; T
        is 1 unless that is empty."""
        x = self._hidden(ids, cache)[:, -1]
        cache.length += ids.shape[1]
        return self._output(x, None, "")

    def compile_parts(self) -> None:
        """Compile each block (one compilation) and the output, so that DDP averages a block's
        gradients meanwhile."""
        for block in self.h:
            block.forward = torch.compile(block.forward, dynamic=False)  # type: ignore[method-assign]
        self._output = torch.compile(self._output, dynamic=False)  # type: ignore[method-assign]

    def _hidden(
        self, ids: torch.Tensor, cache: KVCache | None, mask: Mask | None = None
    ) -> torch.Tensor:
        past, config = cache.length if cache else 0, self.config
        if past + ids.shape[1] > config.context:
            raise ValueError(f"{past + ids.shape[1]} tokens exceed the context of {config.context}")
        positions = torch.arange(past, past + ids.shape[1], device=ids.device)
        x = self.wte(ids) if config.rope else self.wte(ids) + self.wpe(positions)
        rotation = rotation_of(positions, config.width // config.n_head) if config.rope else None
        if config.embedding_width:
            x = self.embedding_up(x)
        for layer in range(config.n_layer):
            block = self.h[0 if config.shared_layers else layer]
            if self.checkpoint_activations and self.training:
                x = checkpoint(block, x, None, mask, rotation, use_reentrant=False)
            else:
                x = block(x, (cache.store[layer], past) if cache else None, mask, rotation)
        return x

    def _output(
        self, x: torch.Tensor, targets: torch.Tensor | None, reduction: str
    ) -> torch.Tensor:
        x = self.ln_f(x)
        logits = F.linear(
            self.embedding_down(x) if self.config.embedding_width else x, self.wte.weight
        )
        if targets is None:
            return logits[..., : self.config.vocab_size]
        # Masked where the loss is taken: a view without the padding has rows that a GPU reads and
        # writes more slowly.
        logits = logits.flatten(0, 1).float()
        padding = torch.arange(logits.shape[1], device=x.device) >= self.config.vocab_size
        logits = logits.masked_fill(padding, -math.inf)
        loss = F.cross_entropy(logits, targets.flatten(), reduction=reduction, ignore_index=-100)
        return loss.view_as(targets) if reduction == "none" else loss

    @property
    def n_parameters(self) -> int:
        """Trained parameters, without the padding of the vocabulary."""
        padding = (self.config.padded_vocab_size - self.config.vocab_size) * self.wte.embedding_dim
        return sum(p.numel() for p in self.parameters()) - padding

    @property
    def flops_per_token(self) -> float:
        """Operations of a training step per token, as in PaLM's appendix B (Chowdhery et al.,
        2022)."""
        config = self.config
        used = sum(p.numel() for block in self.h for p in block.parameters())
        used *= config.n_layer if config.shared_layers else 1
        used += self.wte.weight.numel() + 2 * config.embedding_width * config.width
        return 6 * used + 12 * config.n_layer * config.width * config.context


def choose_tokens(
    logits: torch.Tensor,
    temperature: float,
    top_k: int,
    top_p: float,
    generator: torch.Generator | None,
) -> torch.Tensor:
    """Return a token (B, 1) by the logits (B, V) of each row, as `GPT.generate` explains."""
    if temperature == 0:
        return logits.argmax(1, keepdim=True)
    logits, ids = (logits / temperature).sort(dim=1, descending=True, stable=True)
    if top_k:
        logits = logits[:, :top_k]
    probabilities = logits.softmax(1)
    if top_p < 1:
        # The token that reaches p is kept, and always the most likely one.
        outside = probabilities.cumsum(1) - probabilities >= top_p
        outside[:, 0] = False
        probabilities = probabilities.masked_fill(outside, 0)
    # Drawn on the CPU, so that a seed means the same on every device.
    drawn = torch.multinomial(probabilities.cpu(), 1, generator=generator)
    return ids.gather(1, drawn.to(ids.device))


class Block(nn.Module):
    """Pre-norm attention and MLP, each added to the residual stream."""

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self.ln_1 = nn.LayerNorm(config.width, bias=config.bias)
        self.attn = Attention(config)
        self.ln_2 = nn.LayerNorm(config.width, bias=config.bias)
        self.mlp = MLP(config)

    def forward(
        self,
        x: torch.Tensor,
        cache: Cached | None = None,
        mask: Mask | None = None,
        rotation: Rotation | None = None,
    ) -> torch.Tensor:
        x = x + self.attn(self.ln_1(x), cache, mask, rotation)
        return x + self.mlp(self.ln_2(x))


class Attention(nn.Module):
    """Causal self-attention."""

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self.n_head, self.dropout, self.qk_norm = config.n_head, config.dropout, config.qk_norm
        self.c_attn = nn.Linear(config.width, 3 * config.width, bias=config.bias)
        self.c_proj = nn.Linear(config.width, config.width, bias=config.bias)
        self.resid_dropout = nn.Dropout(config.dropout)

    def forward(
        self, x: torch.Tensor, cache: Cached | None, mask: Mask | None, rotation: Rotation | None
    ) -> torch.Tensor:
        q, k, v = (
            part.unflatten(2, (self.n_head, -1)).transpose(1, 2)  # (B, H, T, D)
            for part in self.c_attn(x).chunk(3, dim=2)
        )
        if self.qk_norm:
            q, k = F.rms_norm(q, q.shape[-1:]), F.rms_norm(k, k.shape[-1:])
        if rotation is not None:
            q, k = rotate(q, rotation), rotate(k, rotation)
        q, k = (
            q.type_as(v),
            k.type_as(v),
        )  # autocast computes rms_norm in float32, and FlexAttention wants one type
        # A bool also in compiled code, where the length may be symbolic.
        causal = True if x.shape[1] > 1 else False  # noqa: SIM210
        if cache is not None:
            (keys, values), past = cache
            end = past + x.shape[1]
            keys[:, :, past:end], values[:, :, past:end] = k, v
            k, v = keys[:, :, :end], values[:, :, :end]
        if isinstance(mask, BlockMask):
            y = (_compiled_attention() if q.is_cuda else flex_attention)(q, k, v, block_mask=mask)
        else:
            dropout, causal = self.dropout if self.training else 0.0, causal and mask is None
            y = F.scaled_dot_product_attention(
                q, k, v, attn_mask=mask, dropout_p=dropout, is_causal=causal
            )
        return self.resid_dropout(self.c_proj(y.transpose(1, 2).flatten(2)))


_compiled_attention = functools.cache(
    lambda: torch.compile(flex_attention)
)  # uncompiled, it computes all scores


class MLP(nn.Module):
    """A hidden layer of four times the width, with GELU in its tanh form or the squared ReLU."""

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self.relu2 = config.activation == "relu2"
        self.c_fc = nn.Linear(config.width, 4 * config.width, bias=config.bias)
        self.c_proj = nn.Linear(4 * config.width, config.width, bias=config.bias)
        self.resid_dropout = nn.Dropout(config.dropout)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.c_fc(x)
        return self.resid_dropout(
            self.c_proj(F.relu(x).square() if self.relu2 else F.gelu(x, approximate="tanh"))
        )


def rotation_of(positions: torch.Tensor, channels: int) -> Rotation:
    """The rotation at positions (T,) in float32: channel pair i turns by position · 10000^(−2i /
    channels)."""
    pairs = torch.arange(0, channels, 2, dtype=torch.float32, device=positions.device)
    angles = positions[:, None].float() * 10_000.0 ** (-pairs / channels)
    return angles.cos(), angles.sin()


def rotate(x: torch.Tensor, rotation: Rotation) -> torch.Tensor:
    """x (B, H, T, D) with the pair of channels i and i + D / 2 turned by angle i."""
    cos, sin = rotation
    left, right = x.float().chunk(2, dim=-1)
    return torch.cat([left * cos - right * sin, right * cos + left * sin], dim=-1)
