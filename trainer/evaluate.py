"""Evaluate a model: its validation loss on shards, its perplexity and bits per byte on a text."""

from __future__ import annotations

import json
import math
import re
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple

import torch

from schemas import SettingsError, option
from trainer.command_line import note, read_text, run_command
from trainer.data.corpora import open_corpora
from trainer.data.loader import IGNORED, DocumentBlocks
from trainer.data.text import Tokenizer
from trainer.device import compute_dtype
from trainer.distributed import Ranks
from trainer.model import GPT
from trainer.pretrained import MODELS, ModelOptions, Pretrained
from trainer.validation import (
    count_bytes,
    score_windows,
    val_figures,
    validation_loss,
    validation_windows,
)

# math.exp overflows above 709.
_MAX_EXPONENT = 700


class TextScore(NamedTuple):
    """How well a model predicts a text."""

    nats: float  # negative log-likelihood
    num_tokens: int
    num_bytes: int  # of the text that the ids decode to, in UTF-8


def score_text(
    model: GPT,
    tokenizer: Tokenizer,
    text: str,
    eot: int,
    *,
    words: int = 0,
    stride: int = 0,
    micro_batch: int = 8,
) -> dict[str, float | int | None]:
    """Return figures of how well the model predicts `text`.

    Each token is predicted once, the first one from an end-of-text. `word_perplexity` divides by
    `words`, or, for 0, by those between white space. `stride` is as in `score_documents`. The
    result has tokens, words, bytes, loss (nats per token), perplexity (per token), word_perplexity
    (None over 1e304), and bits_per_byte (of the text that the ids decode to, in UTF-8). Raises
    ValueError if there is no text that the tokenizer can write, if the stride is longer than the
    context, or if the loss is not finite.
    """
    (score,) = score_texts(model, tokenizer, [text], eot, stride=stride, micro_batch=micro_batch)
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


def score_texts(
    model: GPT,
    tokenizer: Tokenizer,
    texts: Sequence[str],
    eot: int,
    *,
    stride: int = 0,
    micro_batch: int = 8,
) -> list[TextScore]:
    """Return the scores of those texts that the tokenizer can write.

    A tokenizer may lose characters that its vocabulary lacks: bytes are counted from its ids.
    Raises ValueError if it can write no text.
    """
    documents = []
    sizes = []
    for text in texts:
        ids = tokenizer.encode(text)
        num_bytes = min(len(text.encode("utf-8", "surrogatepass")), tokenizer.count_bytes(ids))
        if num_bytes:
            documents.append(ids)
            sizes.append(num_bytes)
    if not documents:
        raise ValueError(
            "there is no text, or the tokenizer cannot write any of it: it has no perplexity"
        )
    nats = score_documents(model, documents, eot, stride=stride, micro_batch=micro_batch)
    return [
        TextScore(document_nats, len(ids), num_bytes)
        for document_nats, ids, num_bytes in zip(nats.tolist(), documents, sizes, strict=True)
    ]


# There is nothing to mask in a window with one document.
_ONE_DOCUMENT = DocumentBlocks(eot=0, mask=False)


class _Window(NamedTuple):
    """A part of a document to predict: the last of the ids' successors are the targets."""

    document: int
    ids: list[int]
    targets: list[int]


def score_documents(
    model: GPT,
    documents: Sequence[Sequence[int]],
    eot: int,
    *,
    stride: int = 0,
    micro_batch: int = 8,
) -> torch.Tensor:
    """Return the negative log-likelihood of each document in nats (N,), in float64.

    A document's first token follows an end-of-text. Each window predicts `stride` tokens, which so
    see at least context − stride tokens before them. 0 means the context, which gives contiguous
    chunks. Raises ValueError for a stride that is longer than the context.
    """
    context = model.config.context
    device = model.wte.weight.device
    if not 0 <= stride <= context:
        raise ValueError(f"stride {stride} is not between 0 and the model's context {context}")
    windows = []
    for number, ids in enumerate(documents):
        for known_ids, next_ids in text_windows([eot, *ids], context, stride):
            windows.append(_Window(number, known_ids, next_ids))
    # The longest first: little padding, and a lack of memory shows at once.
    windows.sort(key=lambda window: -len(window.ids))
    nats = torch.zeros(len(documents), dtype=torch.float64)
    for first in range(0, len(windows), micro_batch):
        batch = windows[first : first + micro_batch]
        shape = (len(batch), len(batch[0].ids))
        inputs = torch.zeros(shape, dtype=torch.int64)
        targets = torch.full(shape, IGNORED)
        for row, window in enumerate(batch):
            end = len(window.ids)
            inputs[row, :end] = torch.tensor(window.ids)
            targets[row, end - len(window.targets) : end] = torch.tensor(window.targets)
        of_windows = score_windows(model, inputs.to(device), targets.to(device), _ONE_DOCUMENT)
        nats.index_add_(0, torch.tensor([window.document for window in batch]), of_windows.cpu())
    return nats


def text_windows(
    stream: list[int], context: int, stride: int
) -> Iterator[tuple[list[int], list[int]]]:
    """Yield inputs and targets that predict each token of stream[1:] once.

    Only the last `stride` inputs have targets; 0 for all.
    """
    stride = stride or context
    for done in range(0, len(stream) - 1, stride):
        end = min(done + stride, len(stream) - 1)
        yield stream[max(0, done + stride - context) : end], stream[done + 1 : end + 1]


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
    micro_batch: int = option(8, "windows in one forward pass", minimum=1)


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
            result |= _evaluate_text(trained, options.text, options)
        return result if ranks.is_main else {}


def _evaluate_data(trained: Pretrained, options: EvaluateOptions, ranks: Ranks) -> dict[str, Any]:
    corpora = open_corpora(options.data)
    trained.check_tokenizer(corpora.tokenizer, options.data[0])
    windows = validation_windows(corpora, trained.model.config.context, options.windows)
    names = ", ".join(options.data)
    if windows is None:
        raise ValueError(f"{names}: there is no document in the val split; give other --data")
    loss = validation_loss(trained.model, windows, ranks, trained.blocks, options.micro_batch)
    if not math.isfinite(loss):
        raise ValueError(f"the model's loss on {names} is not finite")
    figures = val_figures(loss, windows, count_bytes(windows, corpora.tokenizer))
    return {"val_windows": len(windows), **figures}


def _evaluate_text(trained: Pretrained, path: str, options: EvaluateOptions) -> dict[str, Any]:
    text = read_text(path, "text")
    words = 0
    if options.wikitext:
        # Before the text is changed: published perplexities count the words of the original.
        words = published_words(text)
    if options.detokenize:
        text = detokenize(text)
    figures = score_text(
        trained.model,
        Tokenizer(trained.tokenizer),
        text,
        trained.eot,
        words=words,
        stride=options.stride,
        micro_batch=options.micro_batch,
    )
    return {"text": path, "stride": options.stride or trained.model.config.context, **figures}


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
