"""Validation: the same windows always, and the model's mean loss over them."""

from __future__ import annotations

import contextlib
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import nn

from schemas import SettingsError
from trainer.data import Corpora, split_documents
from trainer.distributed import Ranks
from trainer.documents import DocumentBlocks
from trainer.pretrained import Tokenizer
from trainer.samplers import Packed
from trainer.shards import TokenDataset, TokenizerInfo


@torch.no_grad()
def validation_loss(
    net: nn.Module,
    windows: torch.Tensor,
    ranks: Ranks,
    *,
    micro_batch: int,
    autocast: contextlib.AbstractContextManager[Any] | None = None,
    blocks: DocumentBlocks | None = None,
) -> float:
    """The mean loss in nats a token over `windows` (N, T + 1), each seen by one rank; equal on all ranks.

    `blocks` says whether the documents of a window see each other, as when the model was trained.
    """
    sums = torch.zeros(2, dtype=torch.float64, device=ranks.device)
    was_training = net.training
    net.eval()
    micro_batch = min(micro_batch, -(-len(windows) // ranks.world_size))
    at_once = ranks.world_size * micro_batch
    for first in range(0, len(windows), at_once):
        own = windows[first : first + at_once][ranks.rank :: ranks.world_size]
        # Every pass has one shape, and a rank without a window makes it too: a model spread over the ranks
        # needs them all. What fills it counts for nothing.
        rows = torch.arange(micro_batch)
        ids = (own if len(own) else windows)[rows % max(1, len(own))].to(ranks.device, torch.int64)
        inputs, targets = ids[:, :-1], ids[:, 1:].where((rows < len(own)).to(ranks.device)[:, None], -100)
        with autocast or contextlib.nullcontext():
            extra = blocks(inputs) if blocks else {}
            loss = net(inputs, targets, reduction="sum", **extra).double()
        sums += torch.stack([loss, loss.new_tensor(len(own) * targets.shape[1])])
        ranks.sync()
    net.train(was_training)
    total, count = ranks.sum(sums).tolist()
    return total / count


def fixed_windows(dataset: TokenDataset, context: int, count: int) -> torch.Tensor:
    """The validation set (windows, context + 1): the same `count` windows always, at most one epoch of `val`.

    Raises:
      ShardError: the split is missing or does not fill a window, or has an id outside the vocabulary.
    """
    documents = split_documents(dataset, "val", context)
    sampler = Packed(documents, context, dataset.tokenizer.eot, seed=0)
    windows = sampler.windows(0, min(count, sampler.first_window(1)))
    if windows.max() >= dataset.tokenizer.vocab_size:
        dataset.check_ids("val")
    return torch.from_numpy(windows.astype("int32"))


def validation_windows(corpora: Corpora, context: int, count: int, say: Callable[[str], None]) -> torch.Tensor | None:
    """About `count` windows (N, context + 1) of the corpora by their shares; None, and why, where a split is missing.

    Raises:
      ShardError: as `fixed_windows`, for a split that has documents.
    """
    for dataset in corpora.datasets:
        if not dataset.files.get("val") or not len(dataset.documents("val")):
            say(f"no validation: {dataset.folder} has no document in its val split")
            return None
    parts = [
        fixed_windows(dataset, context, math.ceil(count * share))
        for dataset, share in zip(corpora.datasets, corpora.shares, strict=True)
    ]
    return torch.cat(parts)


def windows_of_text(path: str, tokenizer: TokenizerInfo, context: int, count: int) -> torch.Tensor:
    """`count` of the contiguous windows (N, context + 1) of a text file, evenly spaced; all where it has no more.

    Raises:
      SettingsError: the file is missing, not UTF-8, or shorter than a window.
    """
    try:
        text = Path(path).read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise SettingsError(f"val_data: {path} cannot be read as text: {error}") from error
    ids = torch.tensor([tokenizer.eot, *Tokenizer(tokenizer.path).encode(text)], dtype=torch.int32)
    windows = (len(ids) - 1) // context
    if not windows:
        raise SettingsError(f"val_data: {path} has {len(ids) - 1} tokens, fewer than the context of {context}")
    begin = torch.linspace(0, windows - 1, min(windows, count), dtype=torch.float64).round().long() * context
    return ids[begin[:, None] + torch.arange(context + 1)]
