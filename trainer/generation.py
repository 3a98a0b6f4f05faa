"""How `GPT.generate` continues a text or ids."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from trainer.data.text import Tokenizer
from trainer.model import GPT, KVCache, TextTokenizer


@dataclass(frozen=True)
class Settings:
    """How many tokens are added, and how each is chosen; raises ValueError out of range."""

    max_new_tokens: int
    temperature: float
    top_k: int  # 0 for all
    top_p: float
    generator: torch.Generator | None

    def __post_init__(self) -> None:
        if min(self.max_new_tokens, self.temperature, self.top_k) < 0 or not 0 <= self.top_p <= 1:
            raise ValueError(
                f"max_new_tokens {self.max_new_tokens}, temperature {self.temperature} or top_k "
                f"{self.top_k} is below 0, or top_p {self.top_p} is not from 0 to 1"
            )


def continue_text(
    model: GPT, text: str, settings: Settings, tokenizer: TextTokenizer | None, stop: int | None
) -> str:
    """Return a text with its continuation. It begins a document, as texts in training do."""
    if tokenizer is None:
        if model.tokenizer_path is None:
            raise ValueError(
                "the model has no tokenizer: give generate(tokenizer=Tokenizer('tokenizer.json')), "
                "or ids in place of a text"
            )
        tokenizer = Tokenizer(model.tokenizer_path)
    start = [] if model.eot is None else [model.eot]
    ids = torch.tensor([*start, *tokenizer.encode(text)])
    stop = model.eot if stop is None else stop
    written = continue_ids(model, ids, settings, stop)
    return tokenizer.decode(written[len(start) :].tolist())


def continue_ids(
    model: GPT, ids: torch.Tensor, settings: Settings, stop: int | None
) -> torch.Tensor:
    """Return ids (B, T) or (T,) with their continuation."""
    if ids.dim() == 1:
        return continue_ids(model, ids[None], settings, stop)[0]
    block_size = model.config.block_size
    ids = ids.to(model.wte.weight.device).long()
    if ids.dim() != 2 or not ids.numel():
        raise ValueError(f"ids are rows of one length, of shape (B, T), not {tuple(ids.shape)}")
    if ids.min() < 0 or ids.max() >= model.config.vocab_size:
        raise ValueError(f"ids are outside the vocabulary of {model.config.vocab_size}")
    cache = KVCache(model, len(ids))
    is_done = torch.zeros(len(ids), dtype=torch.bool, device=ids.device)
    new_ids = ids[:, -block_size:]
    for _ in range(settings.max_new_tokens):
        if cache.length + new_ids.shape[1] > block_size:
            cache.length = 0
            new_ids = ids[:, -max(1, block_size // 2) :]
        new_ids = choose_tokens(model.next_logits(new_ids, cache).float(), settings)
        if stop is not None:
            new_ids[is_done] = stop
            is_done |= new_ids[:, 0] == stop
            if is_done.all():
                break
        ids = torch.cat([ids, new_ids], dim=1)
    return ids


def choose_tokens(logits: torch.Tensor, settings: Settings) -> torch.Tensor:
    """Return a token (B, 1) by the logits (B, V) of each row, as `GPT.generate` explains."""
    if settings.temperature == 0:
        return logits.argmax(1, keepdim=True)
    logits, ids = logits.sort(dim=1, descending=True, stable=True)
    # Below the highest, which is 0: a low temperature gives no infinity.
    logits = (logits - logits[:, :1]) / settings.temperature
    if settings.top_k:
        logits = logits[:, : settings.top_k]
    probabilities = logits.softmax(1)
    if settings.top_p < 1:
        # The token that reaches p is kept, and always the most likely one.
        is_outside = probabilities.cumsum(1) - probabilities >= settings.top_p
        is_outside[:, 0] = False
        probabilities = probabilities.masked_fill(is_outside, 0)
    # Drawn on the CPU, so that a seed means the same on every device.
    drawn = torch.multinomial(probabilities.cpu(), 1, generator=settings.generator)
    return ids.gather(1, drawn.to(ids.device))
