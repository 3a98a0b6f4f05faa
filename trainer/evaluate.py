"""Evaluate a model: its validation loss on shards, its perplexity and bits per byte on a text."""

from __future__ import annotations

import json
import math
import re
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple

import torch

from schemas import SettingsError, option
from trainer.command_line import note, read_text, run_command
from trainer.data.corpora import open_corpora
from trainer.data.loader import DocumentBlocks
from trainer.data.text import Tokenizer
from trainer.device import compute_dtype
from trainer.distributed import Ranks
from trainer.model import GPT
from trainer.pretrained import MODELS, ModelOptions, Pretrained
from trainer.validation import ValidationSet, score_windows, text_windows, validation_windows

# math.exp overflows above 709.
_MAX_EXPONENT = 700


class TextScore(NamedTuple):
    """How well a model predicts a text."""

    nats: float  # negative log-likelihood
    num_tokens: int
    num_bytes: int  # of the text that the ids decode to, in UTF-8


def score_texts(
    model: GPT,
    tokenizer: Tokenizer,
    texts: Sequence[str],
    eot: int,
    *,
    stride: int = 0,
    device_batch_size: int = 8,
    ranks: Ranks | None = None,
) -> list[TextScore]:
    """Return the scores of those texts that the tokenizer can write.

    Each token is predicted once, the first one from an end-of-text, and each window predicts
    `stride` tokens; 0 means the context, which gives contiguous chunks. A tokenizer may lose
    characters that its vocabulary lacks: bytes are counted from its ids. Raises ValueError if it
    can write no text, or for a stride that is longer than the context.
    """
    block_size = model.config.block_size
    if not 0 <= stride <= block_size:
        raise ValueError(f"stride {stride} is not between 0 and the model's context {block_size}")
    sizes: list[tuple[int, int]] = []
    windows = []
    for text in texts:
        ids = tokenizer.encode(text)
        num_bytes = min(len(text.encode("utf-8", "surrogatepass")), tokenizer.count_bytes(ids))
        if not num_bytes:
            continue
        for window in text_windows([eot, *ids], block_size, stride):
            windows.append((len(sizes), window))
        sizes.append((len(ids), num_bytes))
    if not sizes:
        raise ValueError(
            "there is no text, or the tokenizer cannot write any of it: it has no perplexity"
        )
    # The longest first: little padding, and a lack of memory shows at once.
    windows.sort(key=lambda window: -len(window[1].ids))
    ranks = ranks or Ranks(0, 1, model.wte.weight.device)
    # There is nothing to mask in a window with one document.
    blocks = DocumentBlocks(eot=eot, mask=False)
    scores = score_windows(
        model, [window for _, window in windows], ranks, blocks, device_batch_size
    )
    nats = torch.zeros(len(sizes), dtype=torch.float64)
    nats.index_add_(0, torch.tensor([number for number, _ in windows]), scores)
    return [TextScore(total, *size) for total, size in zip(nats.tolist(), sizes, strict=True)]


def describe_score(score: TextScore, text: str, words: int = 0) -> dict[str, float | int | None]:
    """Return the figures of a text's score.

    They are tokens, words, bytes, loss (nats per token), bits_per_byte, perplexity (per token) and
    word_perplexity. That divides by `words`, or, for 0, by those between white space. Raises
    ValueError if the loss is not finite.
    """
    text_bytes = len(text.encode("utf-8", "surrogatepass"))
    if score.num_bytes < text_bytes:
        note(
            f"the tokenizer loses {text_bytes - score.num_bytes:,} of the text's {text_bytes:,} "
            f"bytes: bits_per_byte is of the others"
        )
    if not math.isfinite(score.nats):
        raise ValueError("the model's loss on the text is not finite; it has no perplexity")
    words = words or len(text.split())
    loss = score.nats / score.num_tokens
    return {
        "tokens": score.num_tokens,
        "words": words,
        "bytes": score.num_bytes,
        "loss": loss,
        "bits_per_byte": score.nats / math.log(2) / score.num_bytes,
        "perplexity": _perplexity(loss),
        "word_perplexity": _perplexity(score.nats / max(1, words)),
    }


def _perplexity(nats: float) -> float | None:
    """Return e to the power of nats; None where JSON has no number for it.

    A text without white space may reach that per word.
    """
    return math.exp(nats) if nats < _MAX_EXPONENT else None


# Megatron-LM's detokenizer. The first is inside numbers and compounds.
_DETOKENIZING_RULES = (
    (r" @([-,.])@ ", r"\1"),
    (r" ([:;.!?,])( |$)", r"\1\2"),
    (r" '(s|t|d|m|ll|re|ve)\b", r"'\1"),
    (r"s ' ", r"s' "),
    (r"([(\[{]) ([^()\[\]{}]*?) ([)\]}])", r"\1\2\3"),
    (r'" ([^"\n]*?) "', r'"\1"'),
    (r"' ([^'\n]*?) '", r"'\1'"),
    (r"=( =)+", lambda match: match[0].replace(" ", "")),
    (" \xb0 ", "\xb0"),
    (r" N ", " 1 "),
    (r" \n", "\n"),
    (r"\n ", "\n"),
)


def published_words(text: str) -> int:
    """Return the number of words that published WikiText perplexities divide by.

    They are those between white space, and line ends. Merity et al. (2016, table 1) give 245,569
    tokens for the test set, which has 241,211 words and 4,358 lines, whose ends are the token
    `<eos>`; blank lines count. It is the same for `wiki.test.tokens` and `wiki.test.raw`.
    """
    return len(text.split()) + text.count("\n")


def detokenize(text: str) -> str:
    """Return `wiki.test.tokens` or `.raw` as running text."""
    for pattern, replacement in _DETOKENIZING_RULES:
        text = re.sub(pattern, replacement, text)
    return text


@dataclass(frozen=True)
class EvaluateOptions(ModelOptions):
    """Settings of `trainer.evaluate`."""

    data: tuple[str, ...] = option(
        (), "token shards: the validation loss over their val split", metavar="DIR", is_path=True
    )
    windows: int = option(256, "number of validation windows, at most one epoch", minimum=1)
    text: str | None = option(
        None, "a text file whose perplexity to compute", metavar="FILE", is_path=True
    )
    stride: int = option(
        0, "tokens that each window predicts; 0 for contiguous chunks of the context", minimum=0
    )
    wikitext: bool = option(
        False, "count words as published WikiText perplexities do, with line ends"
    )
    detokenize: bool = option(
        False, "turn WikiText's tokens into running text, for a model not trained on them"
    )
    device_batch_size: int = option(8, "windows in one forward pass", minimum=1)


def evaluate(folder: str, options: EvaluateOptions) -> dict[str, Any]:
    """Return the requested figures, on rank 0; raises ValueError for what cannot be evaluated."""
    if not (options.data or options.text):
        raise SettingsError("nothing to evaluate: give --data DIR, --text FILE, or both")
    with Ranks.join(options.device) as ranks:
        trained = options.load(folder, ranks.device)
        trained.model.compute_in(compute_dtype(options.dtype, ranks.device))
        result: dict[str, Any] = {"model": str(trained.folder)}
        if trained.record:
            result["step"] = trained.record.step
        if options.data:
            result |= _evaluate_data(trained, options, ranks)
        if options.text:
            result |= _evaluate_text(trained, options, ranks)
        if not ranks.is_main:
            return {}
        return result


def _evaluate_data(trained: Pretrained, options: EvaluateOptions, ranks: Ranks) -> dict[str, Any]:
    corpora = open_corpora(options.data)
    trained.check_tokenizer(corpora.tokenizer, options.data[0])
    windows = validation_windows(corpora, trained.model.config.block_size, options.windows)
    names = ", ".join(options.data)
    if not windows:
        raise ValueError(f"{names}: there is no document in the val split; give other --data")
    nats = score_windows(trained.model, windows, ranks, trained.blocks, options.device_batch_size)
    if not nats.isfinite().all():
        raise ValueError(f"the model's loss on {names} is not finite")
    figures = ValidationSet.of_windows(windows, corpora.tokenizer).figures(nats)
    return {"val_windows": len(windows), **figures}


def _evaluate_text(trained: Pretrained, options: EvaluateOptions, ranks: Ranks) -> dict[str, Any]:
    text = read_text(options.text or "", "text")
    words = 0
    if options.wikitext:
        # Before the text is changed: published perplexities count the words of the original.
        words = published_words(text)
    if options.detokenize:
        text = detokenize(text)
    (score,) = score_texts(
        trained.model,
        Tokenizer(trained.tokenizer),
        [text],
        trained.eot,
        stride=options.stride,
        device_batch_size=options.device_batch_size,
        ranks=ranks,
    )
    stride = options.stride or trained.model.config.block_size
    return {"text": options.text, "stride": stride, **describe_score(score, text, words)}


def print_figures(model: str, options: EvaluateOptions) -> None:
    """Print the requested figures as JSON, on rank 0."""
    if result := evaluate(model, options):
        print(json.dumps(result, indent=1))


main = partial(
    run_command,
    "trainer.evaluate",
    __doc__,
    {"model": MODELS},
    EvaluateOptions,
    print_figures,
)


if __name__ == "__main__":
    sys.exit(main())
