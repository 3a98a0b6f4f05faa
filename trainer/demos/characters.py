"""A text's style, learned character by character:  python -m trainer.demos.characters --data FILE

minGPT's second demo (Karpathy, 2020), in the setting that nanoGPT's README gives for a CPU. The model trains on the
first nine tenths of the text; the rest gives the validation loss, by contiguous windows.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch

from schemas import SettingsError, option
from trainer.command_line import CommandParser, read_text, run_command
from trainer.demos.addition import Batch, fit
from trainer.distributed import device_of
from trainer.model import GPT, ModelConfig
from trainer.sample import generate

CONTEXT, BATCH = 64, 12
TINYSHAKESPEARE = "https://raw.githubusercontent.com/karpathy/char-rnn/master/data/tinyshakespeare/input.txt"
PUBLISHED = 1.88
"""Validation loss on tinyshakespeare after 2,000 steps of this size, by nanoGPT's README."""


@dataclass(frozen=True)
class CharactersOptions:
    """Settings of `trainer.demos.characters`."""

    data: str | None = option(None, "a text file, UTF-8", metavar="FILE")
    steps: int = option(2000, f"optimizer steps of {BATCH} windows of {CONTEXT} characters", minimum=1)
    characters: int = option(500, "characters of the sample", minimum=1)
    seed: int = option(1337, "of the weights, the batches and the sample", minimum=0)
    device: str = option("auto", "auto is cuda where there is one", choices=("auto", "cpu", "cuda"))


@dataclass(frozen=True)
class Text:
    """A text as numbers of its alphabet: `train` and `validation` are (N,) of int64."""

    alphabet: str
    train: torch.Tensor
    validation: torch.Tensor

    @classmethod
    def read(cls, path: str | None) -> Text:
        """The text in the file; raises SettingsError for one that is missing, no text, or too short."""
        if path is None:
            raise SettingsError(
                f"no text given: add --data FILE. For tinyshakespeare:  curl -o input.txt {TINYSHAKESPEARE}"
            )
        text = read_text(path, "data")
        alphabet = "".join(sorted(set(text)))
        numbers = {character: number for number, character in enumerate(alphabet)}
        ids = torch.tensor([numbers[character] for character in text], dtype=torch.int64)
        split = len(ids) * 9 // 10
        if len(ids) - split <= CONTEXT:
            raise SettingsError(f"{path} has {len(ids)} characters; at least {10 * (CONTEXT + 1)} are needed")
        return cls(alphabet, ids[:split], ids[split:])


def learn(text: Text, options: CharactersOptions, say: Callable[[str], None]) -> GPT:
    """A model trained on windows at random places of `text.train`; raises ValueError for a device not there."""
    torch.manual_seed(options.seed)
    device = device_of(options.device)
    model = GPT(ModelConfig(vocab_size=len(text.alphabet), context=CONTEXT, n_layer=4, n_head=4, width=128)).to(device)

    def draw() -> Batch:
        begin = torch.randint(len(text.train) - CONTEXT, (BATCH, 1))
        windows = text.train[begin + torch.arange(CONTEXT + 1)].to(device)
        return windows[:, :-1], windows[:, 1:]

    fit(model, draw, steps=options.steps, peak=2e-3, warmup_steps=100, say=say)
    return model


@torch.no_grad()
def validation_loss(model: GPT, text: Text) -> float:
    """Mean nats a character over `text.validation`, its last incomplete window left out."""
    count = (len(text.validation) - 1) // CONTEXT
    inputs = text.validation[: count * CONTEXT].view(count, CONTEXT)
    targets = text.validation[1 : count * CONTEXT + 1].view(count, CONTEXT)
    device = model.wte.weight.device
    parts = zip(inputs.split(64), targets.split(64), strict=True)
    return sum(model(x.to(device), y.to(device), reduction="sum").item() for x, y in parts) / targets.numel()


def main(arguments: Sequence[str] | None = None) -> int:
    parser = CommandParser(
        prog="python -m trainer.demos.characters",
        description="Train a small GPT on the characters of a text, and let it write.",
        epilog=f"tinyshakespeare (1.1 MB):  curl -o input.txt {TINYSHAKESPEARE}",
    )

    def work(given: argparse.Namespace, options: CharactersOptions) -> None:
        text = Text.read(options.data)
        print(f"{len(text.train):,} characters to train on, {len(text.alphabet)} different ones", flush=True)
        model = learn(text, options, lambda message: print(message, flush=True))
        loss = validation_loss(model, text)
        print(
            f"validation loss {loss:.4f} after {options.steps:,} steps (nanoGPT: {PUBLISHED} on tinyshakespeare, 2,000)"
        )
        first = text.alphabet.find("\n")
        generator = torch.Generator().manual_seed(options.seed)
        ids = generate(model, [max(0, first)], options.characters, temperature=0.8, generator=generator)
        print("".join(text.alphabet[k] for k in ids))

    return run_command(parser, CharactersOptions, work, arguments)


if __name__ == "__main__":
    sys.exit(main())
