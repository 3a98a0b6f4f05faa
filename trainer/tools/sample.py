"""Write text with a model:  python -m trainer.tools.sample RUN --prompt "Once upon a time"."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch

from schemas import option
from trainer.command_line import run_command
from trainer.device import device_of, in_bfloat16
from trainer.model import GPT, KVCache
from trainer.pretrained import MODELS, ModelOptions, Tokenizer, load_pretrained


@dataclass(frozen=True)
class SampleOptions(ModelOptions):
    """Settings of `trainer.tools.sample`."""

    prompt: tuple[str, ...] = option(
        (), "texts to continue (default: a new document)", metavar="TEXT"
    )
    num_samples: int = option(1, "samples of each prompt", minimum=1)
    max_tokens: int = option(200, "most tokens of a sample", minimum=1)
    temperature: float = option(0.8, "0 picks the most likely token", minimum=0)
    top_k: int = option(200, "sample from the k most likely tokens; 0 for all", minimum=0)
    top_p: float = option(
        1.0, "sample from the fewest tokens with this total probability", minimum=0, maximum=1
    )
    seed: int = option(1337, "of the random numbers", minimum=0)


def sample(folder: str, options: SampleOptions) -> Iterator[str]:
    """Each sample with its prompt, as it is finished; raises ValueError for a folder that cannot
    be used."""
    device = device_of(options.device)
    trained = load_pretrained(folder, device, verify_key=options.verify_key, step=options.step)
    model, tokenizer = trained.model, Tokenizer(trained.tokenizer)
    if in_bfloat16(options.dtype, device):
        model.to(torch.bfloat16)
    how: Any = {name: getattr(options, name) for name in ("temperature", "top_k", "top_p")}
    how |= {"stop": trained.eot, "generator": torch.Generator().manual_seed(options.seed)}
    for prompt in options.prompt or [""]:
        known = tokenizer.encode(prompt)
        for _ in range(options.num_samples):
            # As in training, a document follows an end-of-text. All ids are decoded together: a
            # character's bytes may be in several tokens, and some decoders remove a space at the
            # start.
            ids = generate(model, [trained.eot, *known], options.max_tokens, **how)
            yield tokenizer.decode([*known, *ids])


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

    With a KV cache, each costs one token's forward pass. When the context is full, it is cut to its
    latest half. A `temperature` of 0 picks the most likely token; else it is one of the `top_k`
    most likely (0 for all), and of the fewest that have the probability `top_p` together (Holtzman
    et al., 2020). The prompt has at least one token.
    """
    device, context = model.wte.weight.device, model.config.context
    written, cache = list(prompt), KVCache(model, 1)
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
    logits: torch.Tensor,
    temperature: float,
    top_k: int,
    top_p: float,
    generator: torch.Generator | None,
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


def print_samples(model: str, options: SampleOptions) -> None:
    for number, text in enumerate(sample(model, options)):
        print("---\n" * (number > 0) + text, flush=True)


main = partial(
    run_command, "trainer.tools.sample", __doc__, {"model": MODELS}, SampleOptions, print_samples
)


if __name__ == "__main__":
    sys.exit(main())
