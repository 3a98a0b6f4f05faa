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
from trainer.pretrained import MODELS, ModelOptions, Tokenizer, load_pretrained

_AT_ONCE = 8  # samples of a prompt that are written together


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
        # As in training, a document follows an end-of-text.
        start = torch.tensor([[trained.eot, *known]], device=device)
        for first in range(0, options.num_samples, _AT_ONCE):
            count = min(_AT_ONCE, options.num_samples - first)
            for row in model.generate(start.expand(count, -1), options.max_tokens, **how).tolist():
                ids = row[len(known) + 1 :]
                end = ids.index(trained.eot) if trained.eot in ids else len(ids)
                # All ids are decoded together: a character's bytes may be in several tokens, and
                # some decoders remove a space at the start.
                yield tokenizer.decode([*known, *ids[:end]])


def print_samples(model: str, options: SampleOptions) -> None:
    for number, text in enumerate(sample(model, options)):
        print("---\n" * (number > 0) + text, flush=True)


main = partial(
    run_command, "trainer.tools.sample", __doc__, {"model": MODELS}, SampleOptions, print_samples
)


if __name__ == "__main__":
    sys.exit(main())
