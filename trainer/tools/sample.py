"""Write text with a model:  python -m trainer.tools.sample RUN --prompt "Once upon a time"."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch

from schemas import option
from trainer.command_line import CommandParser, read_lines, run_command
from trainer.distributed import device_of, in_bfloat16
from trainer.generation import generate, stream_text
from trainer.pretrained import Tokenizer, load_pretrained


@dataclass(frozen=True)
class SampleOptions:
    """Settings of `trainer.tools.sample`."""

    prompt: tuple[str, ...] = option((), "texts to continue (default: a new document)", metavar="TEXT")
    prompts: str | None = option(None, "a file of prompts, one per line", metavar="FILE")
    num_samples: int = option(1, "samples of each prompt", minimum=1)
    max_tokens: int = option(200, "most tokens of a sample", minimum=1)
    temperature: float = option(0.8, "0 picks the most likely token", minimum=0)
    top_k: int = option(200, "sample from the k most likely tokens; 0 for all", minimum=0)
    top_p: float = option(1.0, "sample from the fewest tokens with this total probability", minimum=0, maximum=1)
    seed: int = option(1337, "of the random numbers", minimum=0)
    device: str = option("auto", "auto is cuda if there is a GPU", choices=("auto", "cpu", "cuda"))
    step: int | None = option(None, "the run's checkpoint of this step (default: the newest)", minimum=0)
    verify_key: str | None = option(None, "refuse a model unless the owner of this public key signed it", metavar="PEM")
    dtype: str = option("auto", "auto is bfloat16 on cuda", choices=("auto", "float32", "bfloat16"))
    compile: bool = option(False, "torch.compile the model: faster after half a minute")


def sample(folder: str, options: SampleOptions) -> Iterator[str]:
    """Pieces of text as they are generated; raises ValueError for a folder or file that cannot be used."""
    device = device_of(options.device)
    trained = load_pretrained(folder, device, verify_key=options.verify_key, step=options.step)
    if in_bfloat16(options.dtype, device):
        trained.model.to(torch.bfloat16)
    if options.compile:
        trained.model.next_logits = torch.compile(trained.model.next_logits, dynamic=True)  # type: ignore[method-assign]
    tokenizer = Tokenizer(trained.tokenizer)
    prompts = list(options.prompt)
    if options.prompts:
        prompts += read_lines(options.prompts, "prompts")
    generator = torch.Generator().manual_seed(options.seed)
    first = True
    for prompt in prompts or [""]:
        for _ in range(options.num_samples):
            yield prompt if first else f"\n---\n{prompt}"
            first = False
            known = tokenizer.encode(prompt)
            ids = generate(
                trained.model,
                [trained.eot, *known],  # as in training, where every document follows one
                options.max_tokens,
                temperature=options.temperature,
                top_k=options.top_k,
                top_p=options.top_p,
                stop=trained.eot,
                generator=generator,
            )
            yield from stream_text(tokenizer, ids, known)
    yield "\n"


def main(arguments: Sequence[str] | None = None) -> int:
    parser = CommandParser(prog="python -m trainer.tools.sample", description=__doc__)
    parser.add_argument(
        "model", metavar="MODEL", help="a checkpoint, a run's folder for its newest, or a GPT-2 folder of Hugging Face"
    )

    def work(given: argparse.Namespace, options: SampleOptions) -> None:
        for piece in sample(given.model, options):
            print(piece, end="", flush=True)

    return run_command(parser, SampleOptions, work, arguments)


if __name__ == "__main__":
    sys.exit(main())
