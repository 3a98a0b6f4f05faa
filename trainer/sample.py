"""Write text with a model:  python -m trainer.sample RUN --prompt "Once upon a time"."""

from __future__ import annotations

import argparse
import importlib.util
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch

from schemas import option
from trainer.command_line import CommandParser, read_text, run_command
from trainer.distributed import device_of, in_bfloat16
from trainer.model import GPT, KVCache
from trainer.pretrained import Tokenizer, load_pretrained


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
    """Up to `max_tokens` ids that follow `prompt`, one by one, ending before `stop`.

    Each costs one token's forward pass, by a KV cache. When the context is full, writing continues from
    its latest half.

    Args:
      prompt: at least one id.
      temperature: 0 takes the likeliest.
      top_k: of the k likeliest alone; 0 for all.
      top_p: of the fewest that together have probability p (Holtzman et al., 2020).
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
        # The token that crosses p stays, and the likeliest always.
        outside = probabilities.cumsum(0) - probabilities >= top_p
        outside[0] = False
        probabilities = probabilities.masked_fill(outside, 0)
    # Drawn on the CPU, so that a seed means the same on every device.
    return int(ids[int(torch.multinomial(probabilities.cpu(), 1, generator=generator))])


@dataclass(frozen=True)
class SampleOptions:
    """Settings of `trainer.sample`."""

    prompt: tuple[str, ...] = option((), "texts to continue (default: a new document)", metavar="TEXT")
    prompts: str | None = option(None, "a file of prompts, one a line", metavar="FILE")
    num_samples: int = option(1, "samples of each prompt", minimum=1)
    max_tokens: int = option(200, "tokens of a sample at most", minimum=1)
    temperature: float = option(0.8, "0 takes the likeliest token", minimum=0)
    top_k: int = option(200, "draw from the k likeliest; 0 for all", minimum=0)
    top_p: float = option(1.0, "draw from the fewest with this probability together", minimum=0, maximum=1)
    seed: int = option(1337, "of the draws", minimum=0)
    device: str = option("auto", "auto is cuda where there is one", choices=("auto", "cpu", "cuda"))
    step: int | None = option(None, "the run's checkpoint of this step, where not the newest", minimum=0)
    verify_key: str | None = option(None, "take a model only if the owner of this public key signed it", metavar="PEM")
    dtype: str = option("auto", "auto is bfloat16 on cuda", choices=("auto", "float32", "bfloat16"))
    compile: bool = option(False, "torch.compile the model: faster after half a minute")


def sample(folder: str, options: SampleOptions) -> Iterator[str]:
    """Pieces of text as they are written; raises ValueError for a folder or file that does not serve."""
    device = device_of(options.device)
    trained = load_pretrained(folder, device, verify_key=options.verify_key, step=options.step)
    if in_bfloat16(options.dtype, device):
        trained.model.to(torch.bfloat16)
    if options.compile:
        trained.model.next_logits = torch.compile(trained.model.next_logits, dynamic=True)  # type: ignore[method-assign]
    tokenizer = Tokenizer(trained.tokenizer)
    prompts = list(options.prompt)
    if options.prompts:
        prompts += read_text(options.prompts, "prompts").splitlines()
    generator = torch.Generator().manual_seed(options.seed)
    first = True
    for prompt in prompts or [""]:
        for _ in range(options.num_samples):
            yield prompt if first else f"\n---\n{prompt}"
            first = False
            ids = generate(
                trained.model,
                [trained.eot, *tokenizer.encode(prompt)],  # as in training, where every document follows one
                options.max_tokens,
                temperature=options.temperature,
                top_k=options.top_k,
                top_p=options.top_p,
                stop=trained.eot,
                generator=generator,
            )
            yield from stream_text(tokenizer, ids)
    yield "\n"


def write_texts(model: GPT, tokenizer: Path, eot: int, *, count: int, max_tokens: int) -> list[str]:
    """`count` new documents of at most `max_tokens`, by the same draws each time; none without the package tokenizers.

    The model's mode and torch's own random numbers are left as they were.
    """
    if importlib.util.find_spec("tokenizers") is None:
        return []
    loaded, generator = Tokenizer(tokenizer), torch.Generator().manual_seed(0)
    was_training = model.training
    model.eval()
    texts = []
    # Uncompiled: compiled blocks have the shape of a micro-batch, and each length would be compiled anew.
    with torch.compiler.set_stance("force_eager"):
        for _ in range(count):
            ids = generate(model, [eot], max_tokens, temperature=0.8, top_k=200, stop=eot, generator=generator)
            texts.append("".join(stream_text(loaded, ids)))
    model.train(was_training)
    return texts


def stream_text(tokenizer: Tokenizer, ids: Iterator[int]) -> Iterator[str]:
    """The text of `ids` in pieces, each complete: a character's bytes may be spread over tokens."""
    written: list[int] = []
    shown = ""
    for token in ids:
        written.append(token)
        text = tokenizer.decode(written)
        if text.endswith("\ufffd"):
            continue
        yield text[len(shown) :]
        shown = text
    yield tokenizer.decode(written)[len(shown) :]


def main(arguments: Sequence[str] | None = None) -> int:
    parser = CommandParser(prog="python -m trainer.sample", description=__doc__)
    parser.add_argument(
        "model", metavar="MODEL", help="a checkpoint, a run's folder for its newest, or a GPT-2 folder of Hugging Face"
    )

    def work(given: argparse.Namespace, options: SampleOptions) -> None:
        for piece in sample(given.model, options):
            print(piece, end="", flush=True)

    return run_command(parser, SampleOptions, work, arguments)


if __name__ == "__main__":
    sys.exit(main())
