"""Choosing and completing text: LAMBADA's last word and HellaSwag's endings, from their published files."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from trainer.distributed import Ranks
from trainer.model import GPT
from trainer.pretrained import Tokenizer

_BRACKETS = re.compile(r"\[.*?\]")


def lambada(model: GPT, tokenizer: Tokenizer, path: Path, ranks: Ranks, micro_batch: int) -> dict[str, float]:
    """LAMBADA in the two ways that are published.

    - `lambada_acc` and `lambada_perplexity`: the last word is right when greedy decoding writes all its tokens; the
      perplexity is for each such word. As lm-evaluation-harness defines `lambada_openai`, and Megatron-LM with
      `--strict-lambada`.
    - `lambada_last_token_acc`: only the text's last token is asked for, after all others. As Megatron-LM without
      that flag, and OpenAI for GPT-2.

    Args:
      path: JSON Lines, each with a `text` whose last word is to be guessed (OpenAI's lambada_test.jsonl;
        Paperno et al., 2016).
    """
    pairs = []
    for number, entry in _lines(path, ("text",)):
        context, _, word = entry["text"].strip().rpartition(" ")
        if not context:
            raise ValueError(f"{path}, line {number}: the text is a single word, there is nothing to guess it from")
        pairs.append(_encode_pair(tokenizer, context, " " + word))
    scores = score_continuations(model, pairs, ranks, micro_batch)
    return {
        "lambada_acc": scores.greedy.double().mean().item(),
        "lambada_perplexity": scores.nats.mean().exp().item(),
        "lambada_last_token_acc": scores.last_token.double().mean().item(),
    }


def hellaswag(model: GPT, tokenizer: Tokenizer, path: Path, ranks: Ranks, micro_batch: int) -> dict[str, float]:
    """Share of contexts whose right ending is the likeliest, as lm-evaluation-harness defines `hellaswag`.

    `hellaswag_acc` compares the endings' log-likelihoods, `hellaswag_acc_norm` these divided by the endings' length
    in characters.

    Args:
      path: JSON Lines, each with `activity_label`, `ctx_a`, `ctx_b`, `endings` and `label` (hellaswag_val.jsonl;
        Zellers et al., 2019).
    """
    pairs: list[tuple[list[int], list[int]]] = []
    lengths: list[int] = []
    spans, labels = [], []
    for number, entry in _lines(path, ("activity_label", "ctx_a", "ctx_b", "endings", "label")):
        label, endings = int(entry["label"]), [_tidy(ending) for ending in entry["endings"]]
        if not 0 <= label < len(endings):
            raise ValueError(f"{path}, line {number}: label {label} names none of {len(endings)} endings")
        context = _tidy(f"{entry['activity_label']}: {entry['ctx_a']} {entry['ctx_b'].capitalize()}")
        spans.append(slice(len(pairs), len(pairs) + len(endings)))
        pairs += [_encode_pair(tokenizer, context, " " + ending) for ending in endings]
        lengths += [len(ending) for ending in endings]
        labels.append(label)
    nats = score_continuations(model, pairs, ranks, micro_batch).nats
    by_character = nats / torch.tensor(lengths).clamp(min=1)
    chosen = zip(spans, labels, strict=True)
    hits = [(int(nats[own].argmin()) == label, int(by_character[own].argmin()) == label) for own, label in chosen]
    accuracy, norm = torch.tensor(hits, dtype=torch.float64).mean(0).tolist()
    return {"hellaswag_acc": accuracy, "hellaswag_acc_norm": norm}


def _tidy(text: str) -> str:
    """A context or ending without the marks of WikiHow, from which a part of HellaSwag is."""
    return _BRACKETS.sub("", text.strip().replace(" [title]", ". ")).replace("  ", " ")


def _encode_pair(tokenizer: Tokenizer, context: str, continuation: str) -> tuple[list[int], list[int]]:
    """Both as ids, the continuation as it is written after the context."""
    ids, before = tokenizer.encode(context + continuation), tokenizer.encode(context)
    return ids[: len(before)], ids[len(before) :]


@dataclass(frozen=True)
class Scores:
    """Of each continuation (N,).

    Attributes:
      nats: negative log-likelihood.
      greedy: whether greedy decoding writes all of it.
      last_token: whether its last token is the likeliest after all others.
    """

    nats: torch.Tensor
    greedy: torch.Tensor
    last_token: torch.Tensor


@torch.no_grad()
def score_continuations(model: GPT, pairs: list[tuple[list[int], list[int]]], ranks: Ranks, micro_batch: int) -> Scores:
    """The scores of every continuation, on every rank; the work is shared.

    Args:
      pairs: (context, continuation) as ids. A context too long for the model loses its beginning.
    """
    device = model.wte.weight.device
    results = torch.zeros(3, len(pairs), dtype=torch.float64, device=device)
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
        right = logits.argmax(2) == targets
        results[1, own] = (right | (targets == -100)).all(1).double()
        last = torch.tensor([len(tokens) - 2 for tokens in rows], device=device)
        results[2, own] = right.gather(1, last[:, None])[:, 0].double()
    nats, greedy, last_token = ranks.sum(results).cpu()
    return Scores(nats, greedy.bool(), last_token.bool())


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


def published_words(text: str) -> int:
    """The words of a WikiText file that published perplexities divide by: those at white space, and every line's end.

    Merity et al. (2016, table 1) give 217,646 tokens for the validation set and 245,569 for the test set: the test
    file has 241,211 words at white space and 4,358 lines, whose ends are the token `<eos>`. It is the same number for
    `wiki.test.tokens` and `wiki.test.raw`, where `<unk>` replaces single words.
    """
    return len(text.split()) + text.count("\n")


def detokenize(text: str) -> str:
    """`wiki.test.tokens` or `.raw` as running text, by the rules of Megatron-LM's detokenizer, written anew."""
    for pattern, replacement in _RULES:
        text = pattern.sub(replacement, text)
    return text
