"""Generate text, token by token."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import torch

from trainer.model import GPT, KVCache
from trainer.pretrained import Tokenizer


@torch.no_grad()
def generate(
    model: GPT,
    prompt: list[int],
    max_tokens: int,
    *,
    temperature: float = 1.0,
    top_k: int = 0,
    top_p: float = 1.0,
    stop: int | None = None,
    generator: torch.Generator | None = None,
) -> Iterator[int]:
    """Up to `max_tokens` ids that continue `prompt`, one by one, ending before `stop`.

    With a KV cache, each costs one token's forward pass. When the context is full, it is cut to its latest half.

    Args:
      prompt: at least one id.
      temperature: 0 picks the most likely token.
      top_k: sample from the k most likely tokens; 0 for all.
      top_p: sample from the fewest tokens that have this probability together (Holtzman et al., 2020).
    """
    if not prompt:
        raise ValueError("a prompt needs at least one token; end-of-text is the empty one")
    device = model.wte.weight.device
    context = model.config.context
    written = list(prompt)
    cache = KVCache(model, 1)
    ahead = written[-context:]
    for _ in range(max_tokens):
        if cache.length + len(ahead) > context:
            cache.length = 0
            ahead = written[-max(1, context // 2) :]
        logits = model.next_logits(torch.tensor([ahead], device=device), cache)[0]
        token = _choose(logits.float(), temperature, top_k, top_p, generator)
        if token == stop:
            return
        yield token
        written.append(token)
        ahead = [token]


def _choose(
    logits: torch.Tensor, temperature: float, top_k: int, top_p: float, generator: torch.Generator | None
) -> int:
    if temperature == 0:
        return int(logits.argmax())
    logits, ids = (logits / temperature).sort(descending=True, stable=True)
    if top_k:
        logits = logits[:top_k]
    probabilities = logits.softmax(0)
    if top_p < 1:
        # The token that reaches p is kept, and always the most likely one.
        outside = probabilities.cumsum(0) - probabilities >= top_p
        outside[0] = False
        probabilities = probabilities.masked_fill(outside, 0)
    # Drawn on the CPU, so that a seed means the same on every device.
    return int(ids[int(torch.multinomial(probabilities.cpu(), 1, generator=generator))])


def stream_text(tokenizer: Tokenizer, ids: Iterator[int], prompt: Sequence[int] = ()) -> Iterator[str]:
    """The text of `ids`, which continue those of `prompt`, in pieces that end at a character.

    All are decoded together: a character's bytes may be in several tokens, and decoders of some tokenizers (Metaspace)
    remove a space at the start of what they are given.
    """
    written = list(prompt)
    shown = len(tokenizer.decode(written))
    for token in ids:
        written.append(token)
        text = tokenizer.decode(written)
        if text.endswith("\ufffd"):
            continue
        yield text[shown:]
        shown = len(text)
    yield tokenizer.decode(written)[shown:]
