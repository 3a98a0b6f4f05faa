"""Write text with a model:  python -m trainer.sample RUN --prompt "Once upon a time"."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial

import torch

from schemas import option
from trainer.command_line import run_command
from trainer.data.text import Tokenizer
from trainer.device import compute_dtype, device_of
from trainer.pretrained import MODELS, ModelOptions

_BATCH = 8  # samples of a prompt that are written together


@dataclass(frozen=True)
class SampleOptions(ModelOptions):
    """Settings of `trainer.sample`."""

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
    """Yield each sample with its prompt, as it is finished.

    Raises ValueError for a folder that cannot be used.
    """
    device = device_of(options.device)
    trained = options.load(folder, device)
    tokenizer = Tokenizer(trained.tokenizer)
    eot = trained.eot
    # Weights too: the pass of one token reads all of them and computes little.
    model = trained.model.to(compute_dtype(options.dtype, device))
    generator = torch.Generator().manual_seed(options.seed)
    for prompt in options.prompt or [""]:
        prompt_ids = tokenizer.encode(prompt)
        # As in training, a document follows an end-of-text.
        start = torch.tensor([[eot, *prompt_ids]], device=device)
        for first in range(0, options.num_samples, _BATCH):
            num_rows = min(_BATCH, options.num_samples - first)
            rows = model.generate(
                start.expand(num_rows, -1),
                options.max_tokens,
                temperature=options.temperature,
                top_k=options.top_k,
                top_p=options.top_p,
                stop=eot,
                generator=generator,
            )
            for row in rows.tolist():
                new_ids = row[start.shape[1] :]
                if eot in new_ids:
                    new_ids = new_ids[: new_ids.index(eot)]
                # All ids are decoded together: a character's bytes may be in several tokens, and
                # some decoders remove a space at the start.
                yield tokenizer.decode([*prompt_ids, *new_ids])


def print_samples(model: str, options: SampleOptions) -> None:
    """Print the samples with a line between them."""
    for number, text in enumerate(sample(model, options)):
        if number:
            print("---")
        print(text, flush=True)


main = partial(
    run_command, "trainer.sample", __doc__, {"model": MODELS}, SampleOptions, print_samples
)


if __name__ == "__main__":
    sys.exit(main())
