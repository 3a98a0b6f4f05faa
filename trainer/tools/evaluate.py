"""Evaluate a model: validation loss over a fixed set of windows, perplexity and bits per byte of
a text."""

from __future__ import annotations

import json
import math
import re
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch

from schemas import SettingsError, option
from trainer.command_line import note, read_text, run_command
from trainer.corpora import open_corpora
from trainer.device import autocast_of
from trainer.distributed import Ranks
from trainer.model import GPT
from trainer.pretrained import MODELS, ModelOptions, Tokenizer, load_pretrained
from trainer.validation import bits_per_byte, count_bytes, validation_loss, validation_windows


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
    """How well the model predicts `text`: each token once, the first one from an end-of-text.

    `word_perplexity` divides by `words`, or, for 0, by those between white space; `stride` is that
    of `score_documents`. The result has tokens, words, bytes, loss (nats per token), perplexity
    (per token), word_perplexity (None over 1e304), and bits_per_byte (of the text that the ids
    decode to, in UTF-8).
    Raises ValueError: there is no text that the tokenizer can write, the stride is longer than the
    context, or the loss is not finite.
    """
    ((nats, tokens, size),) = score_texts(
        model, tokenizer, [text], eot, stride=stride, micro_batch=micro_batch
    )
    words, length = words or len(text.split()), len(text.encode("utf-8", "surrogatepass"))
    if size < length:
        note(
            f"the tokenizer loses {length - size:,} of the text's {length:,} bytes: bits_per_byte "
            f"is of the others"
        )
    counts = {"tokens": tokens, "words": words, "bytes": size}
    losses = {"loss": nats / tokens, "bits_per_byte": nats / math.log(2) / size}
    if not math.isfinite(nats):
        raise ValueError("the model's loss on the text is not finite; it has no perplexity")
    rates = {"perplexity": nats / tokens, "word_perplexity": nats / max(1, words)}
    # JSON has no infinity, which those of a text without white space may reach.
    perplexities = {key: math.exp(own) if own < 700 else None for key, own in rates.items()}
    return counts | losses | perplexities


def score_texts(
    model: GPT,
    tokenizer: Tokenizer,
    texts: Sequence[str],
    eot: int,
    *,
    stride: int = 0,
    micro_batch: int = 8,
) -> list[tuple[float, int, int]]:
    """(negative log-likelihood in nats, tokens, bytes) of each text that the tokenizer can write.

    A tokenizer may lose what is not in its vocabulary: bytes are those that its ids have.
    ValueError if there is none.
    """
    written = []
    for text in texts:
        ids = tokenizer.encode(text)
        if size := min(len(text.encode("utf-8", "surrogatepass")), tokenizer.count_bytes(ids)):
            written.append((ids, size))
    if not written:
        raise ValueError(
            "there is no text, or the tokenizer cannot write any of it: it has no perplexity"
        )
    nats = score_documents(
        model, [ids for ids, _ in written], eot, stride=stride, micro_batch=micro_batch
    )
    return [(own, len(ids), size) for own, (ids, size) in zip(nats.tolist(), written, strict=True)]


@torch.no_grad()
def score_documents(
    model: GPT,
    documents: Sequence[Sequence[int]],
    eot: int,
    *,
    stride: int = 0,
    micro_batch: int = 8,
) -> torch.Tensor:
    """The negative log-likelihood of each document in nats (N,), float64; its first token
    follows an end-of-text.

    Each window predicts `stride` tokens, which so see at least context − stride tokens before them;
    0 means the context, which gives contiguous chunks. A longer stride is a ValueError.
    """
    context, device = model.config.context, model.wte.weight.device
    if not 0 <= stride <= context:
        raise ValueError(f"stride {stride} is not between 0 and the model's context {context}")
    windows = [
        (k, *own)
        for k, ids in enumerate(documents)
        for own in text_windows([eot, *ids], context, stride)
    ]
    # The longest first: little padding, and running out of memory shows at once.
    windows.sort(key=lambda window: -len(window[1]))
    result = torch.zeros(len(documents), dtype=torch.float64)
    for first in range(0, len(windows), micro_batch):
        own = windows[first : first + micro_batch]
        shape = len(own), len(own[0][1])
        inputs, targets = torch.zeros(shape, dtype=torch.int64), torch.full(shape, -100)
        for row, (_, ids, wanted) in enumerate(own):
            inputs[row, : len(ids)] = torch.tensor(ids)
            targets[row, len(ids) - len(wanted) : len(ids)] = torch.tensor(wanted)
        nats = model(inputs.to(device), targets.to(device), reduction="none").double().sum(1).cpu()
        result.index_add_(0, torch.tensor([k for k, *_ in own]), nats)
    return result


def text_windows(
    stream: list[int], context: int, stride: int
) -> Iterator[tuple[list[int], list[int]]]:
    """(inputs, targets of the last `stride` of them; 0 for all): they predict each token of
    stream[1:] once."""
    stride = stride or context
    for done in range(0, len(stream) - 1, stride):
        end = min(done + stride, len(stream) - 1)
        yield stream[max(0, done + stride - context) : end], stream[done + 1 : end + 1]


_RULES = (  # of Megatron-LM's detokenizer
    (r" @([-,.])@ ", r"\1"),  # inside numbers and compounds
    (r" ([:;.!?,])( |$)", r"\1\2"),
    (r" '(s|t|d|m|ll|re|ve)\b", r"'\1"),
    (r"s ' ", r"s' "),
    (r"([(\[{]) ([^()\[\]{}]*?) ([)\]}])", r"\1\2\3"),
    (r'" ([^"\n]*?) "', r'"\1"'),
    (r"' ([^'\n]*?) '", r"'\1'"),
    (r"=( =)+", lambda found: found[0].replace(" ", "")),
    (" \xb0 ", "\xb0"),
    (r" N ", " 1 "),
    (r" \n", "\n"),
    (r"\n ", "\n"),
)


def published_words(text: str) -> int:
    """The number of words that published WikiText perplexities divide by: those between white
    space, and line ends.

    Merity et al. (2016, table 1) give 245,569 tokens for the test set, which has 241,211 words and
    4,358 lines, whose ends are the token `<eos>`; blank lines count. It is the same for
    `wiki.test.tokens` and `wiki.test.raw`.
    """
    return len(text.split()) + text.count("\n")


def detokenize(text: str) -> str:
    """`wiki.test.tokens` or `.raw` as running text."""
    for pattern, replacement in _RULES:
        text = re.sub(pattern, replacement, text)
    return text


@dataclass(frozen=True)
class EvaluateOptions(ModelOptions):
    """Settings of `trainer.tools.evaluate`."""

    data: tuple[str, ...] = option(
        (), "token shards: the validation loss over their val split", metavar="DIR"
    )
    windows: int = option(256, "number of validation windows, at most one epoch", minimum=1)
    text: str | None = option(None, "a text file whose perplexity to compute", metavar="FILE")
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
    """The requested figures, on rank 0; raises ValueError for what cannot be evaluated."""
    if not (options.data or options.text):
        raise SettingsError("nothing to evaluate: give --data DIR, --text FILE, or both")
    with Ranks.join(options.device) as ranks, autocast_of(options.dtype, ranks.device):
        trained = load_pretrained(
            folder, ranks.device, verify_key=options.verify_key, step=options.step
        )
        model, micro_batch = trained.model, options.micro_batch
        result: dict[str, Any] = {"model": str(trained.folder)}
        if trained.record:
            result["step"] = trained.record.step
        if options.data:
            corpora = open_corpora(options.data)
            trained.check_tokenizer(corpora.tokenizer, options.data[0])
            windows = validation_windows(corpora, model.config.context, options.windows)
            if windows is None:
                raise ValueError(
                    f"{', '.join(options.data)}: there is no document in the val split; give other "
                    f"--data"
                )
            result["val_windows"] = len(windows)
            loss = validation_loss(model, windows, ranks, trained.blocks, micro_batch)
            if not math.isfinite(loss):
                raise ValueError(f"the model's loss on {', '.join(options.data)} is not finite")
            result["val_loss"] = loss
            if num_bytes := count_bytes(windows, corpora.tokenizer):
                result["val_bits_per_byte"] = bits_per_byte(loss, windows, num_bytes)
        if options.text:
            text, tokenizer = read_text(options.text, "text"), Tokenizer(trained.tokenizer)
            words = published_words(text) if options.wikitext else 0
            text = detokenize(text) if options.detokenize else text
            how = {"words": words, "stride": options.stride, "micro_batch": micro_batch}
            result |= {"text": options.text, "stride": options.stride or model.config.context}
            result |= score_text(model, tokenizer, text, trained.eot, **how)
        return result if ranks.main else {}


def print_figures(model: str, options: EvaluateOptions) -> None:
    if result := evaluate(model, options):
        print(json.dumps(result, indent=1))


main = partial(
    run_command,
    "trainer.tools.evaluate",
    __doc__,
    {"model": MODELS},
    EvaluateOptions,
    print_figures,
)


if __name__ == "__main__":
    sys.exit(main())
