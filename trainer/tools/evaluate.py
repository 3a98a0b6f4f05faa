"""Evaluate a model: validation loss over a fixed set of windows, perplexity of a text, LAMBADA, HellaSwag."""

from __future__ import annotations

import argparse
import functools
import json
import math
import re
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from schemas import SettingsError, option
from trainer.command_line import CommandParser, note, read_text, run_command
from trainer.data import open_corpora
from trainer.distributed import Ranks, autocast_of
from trainer.model import GPT
from trainer.pretrained import Tokenizer, load_pretrained
from trainer.validation import validation_loss, validation_windows


def score_text(
    model: GPT, tokenizer: Tokenizer, text: str, eot: int, *, words: int = 0, stride: int = 0, micro_batch: int = 8
) -> dict[str, float | int]:
    """How well the model predicts `text`: each token once, the first one from an end-of-text.

    Args:
      words: that `word_perplexity` divides by; 0 for the words between white space.
      stride: as of `score_documents`.

    Returns:
      tokens, words, bytes, loss (nats per token), perplexity (per token), word_perplexity, bits_per_byte (of UTF-8).
      Bytes that the tokenizer cannot write are not predicted, so they do not count.

    Raises:
      ValueError: there is no text that the tokenizer can write, or the stride is longer than the context.
    """
    ids = tokenizer.encode(text)
    written = written_bytes(tokenizer, ids, text)
    if not ids or not written:
        raise ValueError("the text is empty, or the tokenizer cannot write any of it: it has no perplexity")
    if (lost := _length(text) - written) > 0:
        note(f"the tokenizer loses {lost:,} of the text's {_length(text):,} bytes: bits_per_byte is of those it keeps")
    nats = float(score_documents(model, [ids], eot, stride=stride, micro_batch=micro_batch))
    words = words or len(text.split())
    return {
        "tokens": len(ids),
        "words": words,
        "loss": nats / len(ids),
        "perplexity": _exp(nats / len(ids)),
        "word_perplexity": _exp(nats / max(1, words)),
        "bytes": written,
        "bits_per_byte": nats / math.log(2) / written,
    }


def written_bytes(tokenizer: Tokenizer, ids: Sequence[int], text: str) -> int:
    """The UTF-8 bytes of `text` that its `ids` have: a tokenizer may drop or replace what is not in its vocabulary."""
    return min(_length(text), tokenizer.count_bytes(ids))


def _length(text: str) -> int:
    return len(text.encode("utf-8", "surrogatepass"))


def score_documents(
    model: GPT, documents: Sequence[Sequence[int]], eot: int, *, stride: int = 0, micro_batch: int = 8
) -> torch.Tensor:
    """The negative log-likelihood of each document in nats (N,), float64; its first token follows an end-of-text.

    Args:
      stride: tokens predicted by each window. 0 means the context, which gives contiguous chunks; less gives a sliding
        window, in which each token sees at least context − stride tokens before it.

    Raises:
      ValueError: the stride is longer than the context.
    """
    context, device = model.config.context, model.wte.weight.device
    if not 0 <= stride <= context:
        raise ValueError(f"stride {stride} is not between 0 and the model's context {context}")
    windows = [(k, *own) for k, ids in enumerate(documents) for own in text_windows([eot, *ids], context, stride)]
    nats, _ = score_windows(model, [own for _, *own in windows], Ranks(0, 1, device), micro_batch)
    return torch.zeros(len(documents), dtype=nats.dtype).index_add_(0, torch.tensor([k for k, *_ in windows]), nats)


@torch.no_grad()
def score_windows(
    model: GPT, windows: Sequence[Sequence[Sequence[int]]], ranks: Ranks, micro_batch: int
) -> torch.Tensor:
    """The negative log-likelihood in nats of each window's targets, and whether greedy decoding gives them: (2, N).

    Float64, the same on every rank; the ranks divide the work.

    Args:
      windows: (inputs, targets) as ids: at most `context` inputs, and those of their last targets that are scored.
    """
    context, device = model.config.context, model.wte.weight.device
    results = torch.zeros(2, len(windows), dtype=torch.float64, device=device)
    # The longest first: little padding, and running out of memory shows at once.
    order = sorted(range(len(windows)), key=lambda k: -len(windows[k][0]))[ranks.rank :: ranks.world_size]
    rows, step = min(micro_batch, len(order)), -(-context // 4)  # at most four shapes, each compiled once
    for first in range(0, len(order), micro_batch):
        own = order[first : first + micro_batch]
        shape = rows, min(context, -(-len(windows[own[0]][0]) // step) * step)
        inputs, targets = torch.zeros(shape, dtype=torch.int64), torch.full(shape, -100)
        for row, k in enumerate(own):
            ids, wanted = windows[k]
            inputs[row, : len(ids)] = torch.tensor(ids)
            targets[row, len(ids) - len(wanted) : len(ids)] = torch.tensor(wanted)
        targets = targets.to(device)
        logits = model(inputs.to(device)).float()
        nats = torch.nn.functional.cross_entropy(logits.transpose(1, 2), targets, ignore_index=-100, reduction="none")
        right = (logits.argmax(2) == targets) | (targets == -100)
        results[:, own] = torch.stack([nats.double().sum(1), right.all(1).double()])[:, : len(own)]
    return ranks.sum(results).cpu()


def text_windows(stream: list[int], context: int, stride: int) -> Iterator[tuple[list[int], list[int]]]:
    """(inputs, the last of their targets): between them the windows predict each token of stream[1:] once.

    Each predicts `stride` of them, or, for 0, `context`.
    """
    stride = stride or context
    for done in range(0, len(stream) - 1, stride):
        end = min(done + stride, len(stream) - 1)
        yield stream[max(0, done + stride - context) : end], stream[done + 1 : end + 1]


_RULES = [
    (re.compile(pattern), replacement)
    for pattern, replacement in (
        (r" @([-,.])@ ", r"\1"),  # inside numbers and compounds
        (r" ([:;.!?,])( |$)", r"\1\2"),
        (r" '(s|t|d|m|ll|re|ve)\b", r"'\1"),
        (r"s ' ", r"s' "),
        (r"([(\[{]) ([^()\[\]{}]*?) ([)\]}])", r"\1\2\3"),
        (r'" ([^"\n]*?) "', r'"\1"'),
        (r"' ([^'\n]*?) '", r"'\1'"),
        (r"= = = =", "===="),
        (r"= = =", "==="),
        (r"= =", "=="),
        (r" " + chr(176) + " ", chr(176)),
        (r" N ", " 1 "),
        (r" \n", "\n"),
        (r"\n ", "\n"),
    )
]


_WIKITEXT = {241_211: ("test", 4_358), 213_886: ("validation", 3_760)}  # words: (set, lines)


def published_words(text: str, path: str) -> tuple[int, str]:
    """(number of words that published WikiText perplexities divide by, the published set that the file is, or "").

    It counts words between white space and line ends: Merity et al. (2016, table 1) give 217,646 tokens for the
    validation set and 245,569 for the test set, which has 241,211 words and 4,358 lines, whose ends are the token
    `<eos>`. It is the same for `wiki.test.tokens` and `wiki.test.raw`, since `<unk>` replaces single words.

    Raises:
      ValueError: the words are those of a published set but the lines are not, as after removing blank lines.
    """
    words, lines = len(text.split()), text.count("\n")
    name, wanted = _WIKITEXT.get(words, ("", lines))
    if lines != wanted:
        raise ValueError(
            f"{path} has the {words:,} words of WikiText's {name} set, but {lines:,} lines in place of {wanted:,}; "
            "take the file as it was published: its blank lines count"
        )
    return words + lines, name


def detokenize(text: str) -> str:
    """`wiki.test.tokens` or `.raw` as running text, by the rules of Megatron-LM's detokenizer."""
    for pattern, replacement in _RULES:
        text = pattern.sub(replacement, text)
    return text


TASKS: dict[str, dict[str, type | tuple[type, ...]]] = {
    "lambada": {"text": str},
    "hellaswag": {"activity_label": str, "ctx_a": str, "ctx_b": str, "endings": list, "label": (int, str)},
}
"""The keys of each line of a task's file, and their types."""

_BRACKETS = re.compile(r"\[.*?\]")


def lambada(model: GPT, tokenizer: Tokenizer, path: Path, ranks: Ranks, micro_batch: int) -> dict[str, torch.Tensor]:
    """Scores of each text's last word (N,), as lm-evaluation-harness defines `lambada_openai`.

    `lambada_acc` is 1 if greedy decoding gives all its tokens; `lambada_nats` is its negative log-likelihood.

    Args:
      path: JSON Lines, each with a `text` whose last word is to be predicted (OpenAI's lambada_test.jsonl;
        Paperno et al., 2016).
    """
    pairs = []
    for number, entry in json_lines(path, TASKS["lambada"]):
        context, _, word = entry["text"].strip().rpartition(" ")
        if not context:
            raise ValueError(f"{path}, line {number}: the text is a single word, without a context to predict it from")
        pairs.append((context, " " + word))
    nats, greedy = score_continuations(model, tokenizer, pairs, ranks, micro_batch)
    return {"lambada_acc": greedy, "lambada_nats": nats}


def hellaswag(model: GPT, tokenizer: Tokenizer, path: Path, ranks: Ranks, micro_batch: int) -> dict[str, torch.Tensor]:
    """Whether the right ending of each context (N,) is the most likely, as lm-evaluation-harness defines `hellaswag`.

    `hellaswag_acc` compares the endings' log-likelihoods, `hellaswag_acc_norm` divides these by the endings' lengths in
    characters.

    Args:
      path: JSON Lines, each with `activity_label`, `ctx_a`, `ctx_b`, `endings` and `label` (hellaswag_val.jsonl;
        Zellers et al., 2019).
    """
    pairs: list[tuple[str, str]] = []
    spans, labels = [], []
    for number, entry in json_lines(path, TASKS["hellaswag"]):
        if not all(isinstance(ending, str) for ending in entry["endings"]):
            raise ValueError(f"{path}, line {number}: endings are {entry['endings']!r}, expected a list of texts")
        endings, label = [_tidy(ending) for ending in entry["endings"]], str(entry["label"])
        if label not in map(str, range(len(endings))):
            raise ValueError(
                f"{path}, line {number}: label {entry['label']!r} is not the number of one of {len(endings)} endings, "
                "from 0 on; take hellaswag_val.jsonl (the test set's labels are not public)"
            )
        context = _tidy(f"{entry['activity_label']}: {entry['ctx_a']} {entry['ctx_b'].capitalize()}")
        spans.append(slice(len(pairs), len(pairs) + len(endings)))
        pairs += [(context, " " + ending) for ending in endings]
        labels.append(int(label))
    nats, _ = score_continuations(model, tokenizer, pairs, ranks, micro_batch)
    by_character = nats / torch.tensor([len(ending) - 1 for _, ending in pairs]).clamp(min=1)
    hits = [
        [float(own[span].argmin()) == label for span, label in zip(spans, labels, strict=True)]
        for own in (nats, by_character)
    ]
    return dict(zip(("hellaswag_acc", "hellaswag_acc_norm"), torch.tensor(hits, dtype=torch.float64), strict=True))


def _tidy(text: str) -> str:
    """A context or ending without the markup of WikiHow, the source of a part of HellaSwag."""
    return _BRACKETS.sub("", text.strip().replace(" [title]", ". ")).replace("  ", " ")


def score_continuations(
    model: GPT, tokenizer: Tokenizer, pairs: Sequence[tuple[str, str]], ranks: Ranks, micro_batch: int
) -> torch.Tensor:
    """`score_windows` of each (context, continuation); what exceeds the model's context is cut at its beginning."""
    windows = []
    for context, continuation in pairs:
        ids, before = tokenizer.encode(context + continuation), len(tokenizer.encode(context))
        wanted = max(1, len(ids) - before)
        ids = ids[-model.config.context - 1 :]
        windows.append((ids[:-1], ids[1:][-wanted:]))
    return score_windows(model, windows, ranks, micro_batch)


def json_lines(path: Path, keys: Mapping[str, type | tuple[type, ...]]) -> Iterator[tuple[int, dict[str, Any]]]:
    """(number, object) of each line of a file of JSON Lines; raises ValueError for one that lacks any of `keys`."""
    text = read_text(str(path), "the task's file").removesuffix("\n")
    if not text:
        raise ValueError(f"{path} is empty")
    for number, line in enumerate(text.split("\n"), 1):  # JSON may contain other characters at which splitlines splits
        try:
            entry = json.loads(line)
        except ValueError as error:
            raise ValueError(f"{path}, line {number} is no JSON object: {error}") from error
        found = [
            key for key, kind in keys.items() if not isinstance(entry, dict) or not isinstance(entry.get(key), kind)
        ]
        if found:
            raise ValueError(
                f"{path}, line {number} has no {', '.join(found)}; expected an object with {', '.join(keys)}"
            )
        yield number, entry


@dataclass(frozen=True)
class EvaluateOptions:
    """Settings of `trainer.tools.evaluate`."""

    data: tuple[str, ...] = option(
        (), "token shards, several as in training: the validation loss over their val split", metavar="DIR"
    )
    windows: int = option(256, "number of validation windows, at most one epoch", minimum=1)
    text: str | None = option(None, "a text file whose perplexity to compute", metavar="FILE")
    stride: int = option(0, "tokens that each window predicts; 0 for contiguous chunks of the context", minimum=0)
    wikitext: bool = option(False, "count words as published WikiText perplexities do, with line ends")
    detokenize: bool = option(False, "turn WikiText's tokens into running text, for a model not trained on them")
    lambada: str | None = option(None, "LAMBADA's lambada_test.jsonl: scores of the last word", metavar="FILE")
    hellaswag: str | None = option(None, "HellaSwag's hellaswag_val.jsonl: acc and acc_norm", metavar="FILE")
    micro_batch: int = option(8, "windows in one forward pass", minimum=1)
    device: str = option("auto", "auto is cuda if there is a GPU", choices=("auto", "cpu", "cuda"))
    step: int | None = option(None, "the run's checkpoint of this step (default: the newest)", minimum=0)
    verify_key: str | None = option(None, "refuse a model unless the owner of this public key signed it", metavar="PEM")
    dtype: str = option("auto", "auto is bfloat16 on cuda", choices=("auto", "float32", "bfloat16"))
    compile: bool = option(False, "torch.compile the model: faster after half a minute")


def evaluate(folder: str, options: EvaluateOptions) -> dict[str, Any]:
    """The requested figures, on rank 0; raises ValueError for what cannot be evaluated."""
    if not (options.data or options.text or options.lambada or options.hellaswag):
        raise SettingsError("nothing to evaluate: give --data DIR, --text, --lambada or --hellaswag FILE, or several")
    with Ranks.join(options.device) as ranks:
        return _evaluate(folder, options, ranks)


def _evaluate(folder: str, options: EvaluateOptions, ranks: Ranks) -> dict[str, Any]:
    with autocast_of(options.dtype, ranks.device):
        trained = load_pretrained(folder, ranks.device, verify_key=options.verify_key, step=options.step)
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
            raw = read_text(options.text, "text")
            words = len(raw.split())
            result |= {"text": options.text, "stride": options.stride or model.config.context}
            if options.wikitext:
                words, known = published_words(raw, options.text)
                result["wikitext"] = f"the published {known} set" if known else "not a published set"
            text = detokenize(raw) if options.detokenize else raw
            result |= score_text(
                model, tokenizer(), text, trained.eot, words=words, stride=options.stride, micro_batch=micro_batch
            )
        for task, file in ((lambada, options.lambada), (hellaswag, options.hellaswag)):
            if file:
                items = task(model, tokenizer(), Path(file), ranks, micro_batch)
                result |= {name: own.mean().item() for name, own in items.items()}
        if options.lambada:
            result["lambada_perplexity"] = _exp(result.pop("lambada_nats"))
        return result if ranks.main else {}


def main(arguments: Sequence[str] | None = None) -> int:
    parser = CommandParser(prog="python -m trainer.tools.evaluate", description=__doc__)
    parser.add_argument(
        "model", metavar="MODEL", help="a checkpoint, a run's folder for its newest, or a GPT-2 folder of Hugging Face"
    )

    def work(given: argparse.Namespace, options: EvaluateOptions) -> None:
        if result := evaluate(given.model, options):  # on rank 0
            print(json.dumps(result, indent=1))

    return run_command(parser, EvaluateOptions, work, arguments)


def _exp(value: float) -> float:
    return math.exp(value) if value < 700 else math.inf


if __name__ == "__main__":
    sys.exit(main())
