"""The validation loss over a fixed set of windows, from the corpora's val split or from a text."""

from __future__ import annotations

import math
from collections.abc import Callable

import torch
from torch import nn

from schemas import SettingsError
from trainer.command_line import read_text
from trainer.config import TrainConfig
from trainer.corpora import Corpora, check_length
from trainer.data import DocumentBlocks
from trainer.distributed import Ranks
from trainer.pretrained import Tokenizer
from trainer.samplers import Packed
from trainer.shards import TokenizerInfo

VAL_TOKENS = 1 << 16  # 64 windows of 1,024


@torch.no_grad()
def validation_loss(
    net: nn.Module, windows: torch.Tensor, ranks: Ranks, blocks: DocumentBlocks, micro_batch: int
) -> float:
    """The mean loss in nats per token over `windows` (N, T + 1), which the ranks divide; the
    same on all ranks.

    `blocks` says whether documents see each other, as in training; the precision is that of the
    caller's autocast.
    """
    sums = torch.zeros(2, dtype=torch.float64, device=ranks.device)
    was_training = net.training
    net.eval()
    micro_batch = min(micro_batch, -(-len(windows) // ranks.world_size))
    at_once = ranks.world_size * micro_batch
    for first in range(0, len(windows), at_once):
        own = windows[first : first + at_once][ranks.rank :: ranks.world_size]
        # Every pass has one shape, and a rank without a window makes one too; the padding is
        # ignored.
        rows = torch.arange(micro_batch)
        ids = (own if len(own) else windows)[rows % max(1, len(own))].to(ranks.device, torch.int64)
        inputs, targets = (
            ids[:, :-1],
            ids[:, 1:].where((rows < len(own)).to(ranks.device)[:, None], -100),
        )
        loss = net(inputs, targets, reduction="sum", **blocks(inputs)).double()
        sums += torch.stack([loss, loss.new_tensor(len(own) * targets.shape[1])])
        ranks.sync()
    net.train(was_training)
    total, count = ranks.sum(sums.tolist())
    return total / count


def count_bytes(windows: torch.Tensor, tokenizer: TokenizerInfo) -> int:
    """Return the UTF-8 bytes of the windows' targets; 0 if the package tokenizers cannot tell."""
    targets = windows[:, 1:].flatten()
    if not len(targets):
        return 0
    try:
        return Tokenizer(tokenizer.path).count_bytes(targets[targets != tokenizer.eot].tolist())
    except ValueError:
        return 0


def bits_per_byte(loss: float, windows: torch.Tensor, num_bytes: int) -> float:
    """Return the mean loss in nats per token over windows (N, T + 1) as bits per byte."""
    return loss * windows[:, 1:].numel() / math.log(2) / num_bytes


def validation_set(
    corpora: Corpora, context: int, config: TrainConfig, say: Callable[[str], None]
) -> torch.Tensor:
    """Return the windows that training validates on, `VAL_TOKENS` at most; none if `val_every` is
    0, or there are no documents, which `say` explains."""
    nothing = torch.zeros(0, context + 1, dtype=torch.int32)
    if not config.val_every:
        return nothing
    count = max(1, VAL_TOKENS // context)
    if config.val_data:
        return windows_of_text(config.val_data, corpora.tokenizer, context, count)
    windows = validation_windows(corpora, context, count)
    if windows is None:
        say("no validation: data has no document in its val split")
        return nothing
    return windows


def validation_windows(corpora: Corpora, context: int, count: int) -> torch.Tensor | None:
    """The validation set (N, context + 1): about `count` windows, always the same, at most one
    epoch of `val`.

    Each dataset gives windows in proportion to its share. None without documents; ShardError if
    they fill no window.
    """
    splits = [dataset.documents("val") for dataset in corpora.datasets]
    tokens = [int(own.lengths.sum()) + len(own) for own in splits]
    if not any(tokens):
        return None
    check_length(max(tokens), context, f"{corpora.names}, split val")
    fit = [k for k, own in enumerate(tokens) if own > context]
    total, parts = sum(corpora.shares[k] for k in fit), []
    for k in fit:
        share = corpora.shares[k] / total if total else 1 / len(fit)
        sampler = Packed(splits[k], context, corpora.tokenizer.eot, seed=0)
        windows = sampler.windows(0, max(1, min(round(count * share), sampler.first_window(1))))
        parts.append(torch.from_numpy(windows.astype("int32")))
    return torch.cat(parts)


def windows_of_text(path: str, tokenizer: TokenizerInfo, context: int, count: int) -> torch.Tensor:
    """`count` of the contiguous windows (N, context + 1) of a text file, evenly spaced, or all;
    or SettingsError."""
    text = read_text(path, "val_data")
    ids = torch.tensor([tokenizer.eot, *Tokenizer(tokenizer.path).encode(text)], dtype=torch.int32)
    windows = (len(ids) - 1) // context
    if not windows:
        raise SettingsError(
            f"val_data: {path} has {len(ids) - 1} tokens, fewer than the context of {context}"
        )
    begin = (
        torch.linspace(0, windows - 1, min(windows, count), dtype=torch.float64).round().long()
        * context
    )
    return ids[begin[:, None] + torch.arange(context + 1)]
