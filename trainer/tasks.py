"""Choosing and completing text: LAMBADA's last word and HellaSwag's endings, from their published files."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch

from trainer.distributed import Ranks
from trainer.model import GPT
from trainer.tokenizer import Tokenizer


def lambada(model: GPT, tokenizer: Tokenizer, path: Path, ranks: Ranks, micro_batch: int) -> dict[str, float]:
    """Accuracy of the last word, all its tokens the likeliest, and perplexity for each such word.

    Args:
      path: JSON Lines, each with a `text` whose last word is to be guessed (OpenAI's lambada_test.jsonl;
        Paperno et al., 2016).
    """
    pairs = []
    for number, entry in _lines(path, ("text",)):
        context, _, word = entry["text"].strip().rpartition(" ")
        if not context:
            raise ValueError(f"{path}, line {number}: the text is a single word, there is nothing to guess it from")
        pairs.append((tokenizer.encode(context), tokenizer.encode(" " + word)))
    nats, right = score_continuations(model, pairs, ranks, micro_batch)
    return {
        "lambada_accuracy": right.double().mean().item(),
        "lambada_perplexity": nats.mean().exp().item(),
    }


def hellaswag(model: GPT, tokenizer: Tokenizer, path: Path, ranks: Ranks, micro_batch: int) -> dict[str, float]:
    """Share of contexts whose right ending is the likeliest: in sum, and by the mean over its tokens (`_norm`).

    Args:
      path: JSON Lines, each with `ctx`, `endings` and `label` (hellaswag_val.jsonl; Zellers et al., 2019).
    """
    pairs: list[tuple[list[int], list[int]]] = []
    spans, labels = [], []
    for number, entry in _lines(path, ("ctx", "endings", "label")):
        label = int(entry["label"])
        if not 0 <= label < len(entry["endings"]):
            raise ValueError(f"{path}, line {number}: label {label} names none of {len(entry['endings'])} endings")
        context = tokenizer.encode(entry["ctx"])
        spans.append(slice(len(pairs), len(pairs) + len(entry["endings"])))
        pairs += [(context, tokenizer.encode(" " + ending)) for ending in entry["endings"]]
        labels.append(label)
    nats, _ = score_continuations(model, pairs, ranks, micro_batch)
    means = nats / torch.tensor([len(ending) for _, ending in pairs])
    chosen = zip(spans, labels, strict=True)
    hits = [(int(nats[own].argmin()) == label, int(means[own].argmin()) == label) for own, label in chosen]
    accuracy, norm = torch.tensor(hits, dtype=torch.float64).mean(0).tolist()
    return {"hellaswag_accuracy": accuracy, "hellaswag_accuracy_norm": norm}


@torch.no_grad()
def score_continuations(
    model: GPT, pairs: list[tuple[list[int], list[int]]], ranks: Ranks, micro_batch: int
) -> tuple[torch.Tensor, torch.Tensor]:
    """(nats of each continuation, whether greedy decoding writes it), on every rank; the work is shared.

    Args:
      pairs: (context, continuation) as ids. A context too long for the model loses its beginning.
    """
    device = model.wte.weight.device
    results = torch.zeros(2, len(pairs), dtype=torch.float64, device=device)
    # The longest first: passes of like lengths, and one that does not fit shows at once.
    order = sorted(range(len(pairs)), key=lambda k: -len(pairs[k][0]) - len(pairs[k][1]))[
        ranks.rank :: ranks.world_size
    ]
    for first in range(0, len(order), micro_batch):
        own = order[first : first + micro_batch]
        rows = [(pairs[k][0] + pairs[k][1])[-model.config.context - 1 :] for k in own]
        ids = torch.zeros(len(own), max(map(len, rows)), dtype=torch.int64)
        targets = torch.full((len(own), ids.shape[1] - 1), -100)
        for row, tokens in enumerate(rows):
            ids[row, : len(tokens)] = torch.tensor(tokens)
            begin = len(tokens) - len(pairs[own[row]][1])
            targets[row, begin - 1 : len(tokens) - 1] = ids[row, begin : len(tokens)]
        targets = targets.to(device)
        logits = model(ids[:, :-1].to(device)).float()
        nats = torch.nn.functional.cross_entropy(logits.transpose(1, 2), targets, ignore_index=-100, reduction="none")
        results[0, own] = nats.double().sum(1)
        results[1, own] = ((logits.argmax(2) == targets) | (targets == -100)).all(1).double()
    ranks.sum(results)
    return results[0].cpu(), results[1].bool().cpu()


def _lines(path: Path, keys: tuple[str, ...]) -> Iterator[tuple[int, dict[str, Any]]]:
    count = 0
    with path.open(encoding="utf-8") as file:
        for number, line in enumerate(file, 1):
            try:
                entry = json.loads(line)
                found = [key for key in keys if key not in entry]
            except (ValueError, TypeError) as error:
                raise ValueError(f"{path}, line {number} is no JSON object: {error}") from error
            if found:
                raise ValueError(f"{path}, line {number} has no {', '.join(found)}; expected {', '.join(keys)}")
            count += 1
            yield number, entry
    if not count:
        raise ValueError(f"{path} is empty")
