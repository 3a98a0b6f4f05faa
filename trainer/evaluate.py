"""Evaluate a model: validation loss over fixed windows, a text's perplexity, LAMBADA, HellaSwag."""

from __future__ import annotations

import dataclasses
import functools
import json
import math
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from schemas import SettingsError, option
from schemas.settings import add_flags, flags_given, from_table
from trainer.command_line import CommandParser, report
from trainer.data import open_corpora
from trainer.distributed import Ranks, autocast_of
from trainer.model import GPT
from trainer.pretrained import Tokenizer, load_pretrained
from trainer.signing import Verifier
from trainer.tasks import detokenize, hellaswag, lambada, published_words
from trainer.validation import validation_loss, validation_windows


@dataclass(frozen=True)
class TextScore:
    """How well a model predicts a text.

    Attributes:
      nats: negative log-likelihood of the whole text.
      tokens, words, bytes: of the text; words are split at white space, bytes are UTF-8.
    """

    nats: float
    tokens: int
    words: int
    bytes: int

    def report(self) -> dict[str, float | int]:
        return {
            "tokens": self.tokens,
            "words": self.words,
            "loss": self.nats / self.tokens,
            "perplexity": _exp(self.nats / self.tokens),
            "word_perplexity": _exp(self.nats / max(1, self.words)),
            "bits_per_byte": self.nats / math.log(2) / self.bytes,
        }


@torch.no_grad()
def score_text(
    model: GPT, tokenizer: Tokenizer, text: str, eot: int, *, stride: int = 0, micro_batch: int = 8
) -> TextScore:
    """Predict every token of `text` once, the first from an end-of-text.

    Args:
      stride: tokens predicted by each window. The context gives contiguous chunks (0 stands for it);
        less gives a sliding window, in which each token sees at least context − stride before it.

    Raises:
      ValueError: the text has no token, or the stride is longer than the context.
    """
    ids = tokenizer.encode(text)
    context = model.config.context
    if not ids:
        raise ValueError("the text is empty: it has no perplexity")
    if not 0 <= stride <= context:
        raise ValueError(f"stride {stride} is not between 0 and the model's context {context}")
    device = model.wte.weight.device
    nats = 0.0
    windows = list(text_windows([eot, *ids], context, stride or context))
    shape = min(micro_batch, len(windows)), max(len(inputs) for inputs, _ in windows)  # one for all passes
    for first in range(0, len(windows), micro_batch):
        batch = windows[first : first + micro_batch]
        inputs = torch.full(shape, eot)
        targets = torch.full(shape, -100)
        for row, (window, wanted) in enumerate(batch):
            inputs[row, : len(window)] = torch.tensor(window)
            targets[row, len(window) - len(wanted) : len(window)] = torch.tensor(wanted)
        nats += float(model(inputs.to(device), targets.to(device), reduction="sum"))
    return TextScore(nats, len(ids), len(text.split()), len(text.encode("utf-8", "surrogatepass")))


def text_windows(stream: list[int], context: int, stride: int) -> Iterator[tuple[list[int], list[int]]]:
    """(inputs, the last of their targets): between them the windows predict each token of stream[1:] once."""
    for done in range(0, len(stream) - 1, stride):
        end = min(done + stride, len(stream) - 1)
        yield stream[max(0, done + stride - context) : end], stream[done + 1 : end + 1]


@dataclass(frozen=True)
class EvaluateOptions:
    """Settings of `trainer.evaluate`."""

    data: tuple[str, ...] = option(
        (), "token shards, several as in training: the validation loss over their val split", metavar="DIR"
    )
    windows: int = option(256, "windows of the validation set, at most one epoch", minimum=1)
    text: str | None = option(None, "a text file: its perplexity", metavar="FILE")
    stride: int = option(0, "tokens a window predicts; 0 for contiguous chunks of the context", minimum=0)
    wikitext: bool = option(False, "count the text's words as published WikiText perplexities do, line ends included")
    detokenize: bool = option(False, "read WikiText's tokens as running text, for a model that was not trained on them")
    lambada: str | None = option(None, "LAMBADA's lambada_test.jsonl: its last word, its last token", metavar="FILE")
    hellaswag: str | None = option(None, "HellaSwag's hellaswag_val.jsonl: acc and acc_norm", metavar="FILE")
    micro_batch: int = option(8, "windows of one forward pass", minimum=1)
    device: str = option("auto", "auto is cuda where there is one", choices=("auto", "cpu", "cuda"))
    verify_key: str | None = option(None, "take a model only if the owner of this public key signed it", metavar="PEM")
    dtype: str = option("auto", "auto is bfloat16 on cuda", choices=("auto", "float32", "bfloat16"))
    compile: bool = option(False, "torch.compile the model: faster after half a minute")


def evaluate(folder: str, options: EvaluateOptions) -> dict[str, Any]:
    """The figures asked for, on every rank; raises ValueError for what cannot be evaluated."""
    if not (options.data or options.text or options.lambada or options.hellaswag):
        raise SettingsError("nothing to evaluate: give --data DIR, --text, --lambada or --hellaswag FILE, or several")
    with Ranks.join(options.device) as ranks:
        return _evaluate(folder, options, ranks)


def _evaluate(folder: str, options: EvaluateOptions, ranks: Ranks) -> dict[str, Any]:
    with autocast_of(options.dtype, ranks.device):
        trained = load_pretrained(folder, ranks.device, Verifier(options.verify_key) if options.verify_key else None)
        model, micro_batch = trained.model, options.micro_batch
        if options.compile:
            model = torch.compile(model)  # type: ignore[assignment]
        tokenizer = functools.cache(lambda: Tokenizer(trained.tokenizer))
        result: dict[str, Any] = {"model": str(trained.folder)}
        if trained.step is not None:
            result["step"] = trained.step
        if options.data:
            corpora = open_corpora(options.data)
            trained.check_tokenizer(corpora.tokenizer, options.data[0])
            windows = validation_windows(corpora, model.config.context, options.windows)
            if windows is None:
                raise ValueError(f"{', '.join(options.data)}: there is no document in the val split; give other --data")
            result["val_windows"] = len(windows)
            result["val_loss"] = validation_loss(model, windows, ranks, micro_batch=micro_batch, blocks=trained.blocks)
        if options.text:
            raw = Path(options.text).read_text(encoding="utf-8")
            text = detokenize(raw) if options.detokenize else raw
            score = score_text(model, tokenizer(), text, trained.eot, stride=options.stride, micro_batch=micro_batch)
            score = dataclasses.replace(score, words=published_words(raw) if options.wikitext else len(raw.split()))
            result |= {"text": options.text, "stride": options.stride or model.config.context, **score.report()}
        for task, file in ((lambada, options.lambada), (hellaswag, options.hellaswag)):
            if file:
                result |= task(model, tokenizer(), Path(file), ranks, micro_batch)
        return result if ranks.main else {}


def main(arguments: Sequence[str] | None = None) -> int:
    parser = CommandParser(prog="python -m trainer.evaluate", description=__doc__)
    parser.add_argument(
        "model", metavar="MODEL", help="a checkpoint, a run's folder for its newest, or a GPT-2 folder of Hugging Face"
    )
    add_flags(parser, EvaluateOptions)
    try:
        namespace = parser.parse_args(arguments)
        options = from_table(EvaluateOptions, flags_given(EvaluateOptions, namespace), "flags")
        result = evaluate(namespace.model, options)
    except (ValueError, OSError) as error:
        return report("trainer.evaluate", error)
    if result:
        print(json.dumps(result, indent=1))
    return 0


def _exp(value: float) -> float:
    return math.exp(value) if value < 700 else math.inf


if __name__ == "__main__":
    sys.exit(main())
