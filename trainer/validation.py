"""The loss of windows, and the validation set: from the corpora's val split, or from a text."""

from __future__ import annotations

import math
from collections.abc import Callable

import torch
from torch import nn

from schemas import SettingsError
from trainer.command_line import read_text
from trainer.config import TrainConfig
from trainer.data.corpora import Corpora, check_length
from trainer.data.loader import IGNORED, DocumentBlocks
from trainer.data.samplers import Packed
from trainer.data.shards import TokenizerInfo
from trainer.data.text import Tokenizer
from trainer.distributed import Ranks

# Tokens that training validates on: 64 windows of 1,024.
VAL_TOKENS = 1 << 16


@torch.no_grad()
def score_windows(
    net: nn.Module, inputs: torch.Tensor, targets: torch.Tensor, blocks: DocumentBlocks
) -> torch.Tensor:
    """Return the loss of each window in nats (B,), in float64: the sum over its targets.

    Inputs and targets are (B, T); targets of −100 are ignored. `net` is in evaluation mode.
    """
    losses = net(inputs, targets, reduction="none", **blocks(inputs))
    return losses.double().sum(1)


@torch.no_grad()
def validation_loss(
    net: nn.Module,
    windows: torch.Tensor,
    ranks: Ranks,
    blocks: DocumentBlocks,
    micro_batch: int,
    is_stopping: Callable[[], bool] = lambda: False,
) -> float:
    """Return the mean loss in nats per token over `windows` (N, T + 1), which the ranks divide.

    It is the same on all ranks. `blocks` decides whether documents attend to each other, as in
    training. If `is_stopping`, which gives all ranks the same answer, the rest is left out.
    """
    nats = torch.zeros((), dtype=torch.float64, device=ranks.device)
    was_training = net.training
    net.eval()
    micro_batch = min(micro_batch, -(-len(windows) // ranks.world_size))
    rows = torch.arange(micro_batch)
    for first in range(0, len(windows), ranks.world_size * micro_batch):
        if is_stopping():
            break
        of_all_ranks = windows[first : first + ranks.world_size * micro_batch]
        of_rank = of_all_ranks[ranks.rank :: ranks.world_size]
        # Every pass has one shape, and a rank without a window makes one too. Targets of the
        # padding are ignored.
        num_windows = len(of_rank)
        padded = (of_rank if num_windows else windows)[rows % max(1, num_windows)]
        ids = padded.to(ranks.device, torch.int64)
        is_window = (rows < num_windows).to(ranks.device)[:, None]
        targets = ids[:, 1:].where(is_window, IGNORED)
        nats += score_windows(net, ids[:, :-1], targets, blocks).sum()
        ranks.sync()
    net.train(was_training)
    (total,) = ranks.sum([nats.item()])
    return total / windows[:, 1:].numel()


def count_bytes(windows: torch.Tensor, tokenizer: TokenizerInfo) -> int:
    """Return the UTF-8 bytes of the windows' targets; 0 without the package tokenizers."""
    targets = windows[:, 1:].flatten()
    if not len(targets):
        return 0
    try:
        return Tokenizer(tokenizer.path).count_bytes(targets[targets != tokenizer.eot].tolist())
    except ValueError:
        return 0


def val_figures(loss: float, windows: torch.Tensor, num_bytes: int) -> dict[str, float]:
    """Return the mean loss in nats per token over windows (N, T + 1), also as bits per byte.

    Without the latter if the bytes are not known, which is 0.
    """
    if not num_bytes:
        return {"val_loss": loss}
    bits = loss * windows[:, 1:].numel() / math.log(2)
    return {"val_loss": loss, "val_bits_per_byte": bits / num_bytes}


def validation_set(
    corpora: Corpora, context: int, config: TrainConfig, say: Callable[[str], None]
) -> torch.Tensor:
    """Return the windows that training validates on, `VAL_TOKENS` at most.

    There are none if `val_every` is 0, or if there are no documents, which `say` explains.
    """
    nothing = torch.zeros(0, context + 1, dtype=torch.int32)
    if not config.val_every:
        return nothing
    max_windows = max(1, VAL_TOKENS // context)
    if config.val_data:
        return windows_of_text(config.val_data, corpora.tokenizer, context, max_windows)
    windows = validation_windows(corpora, context, max_windows)
    if windows is None:
        say("no validation: data has no document in its val split")
        return nothing
    return windows


def validation_windows(corpora: Corpora, context: int, count: int) -> torch.Tensor | None:
    """Return about `count` windows (N, context + 1) of the val split, always the same ones.

    They are one epoch at most. Each dataset gives windows in proportion to its share. None without
    documents; raises ShardError if they fill no window.
    """
    splits = [dataset.documents("val") for dataset in corpora.datasets]
    num_tokens = [int(documents.lengths.sum()) + len(documents) for documents in splits]
    if not any(num_tokens):
        return None
    check_length(max(num_tokens), context, f"{corpora.names}, split val")
    usable = [k for k, tokens in enumerate(num_tokens) if tokens > context]
    total_share = sum(corpora.shares[k] for k in usable)
    parts = []
    for k in usable:
        share = corpora.shares[k] / total_share if total_share else 1 / len(usable)
        sampler = Packed(splits[k], context, corpora.tokenizer.eot, seed=0)
        num_windows = min(round(count * share), sampler.first_window(1))
        windows = sampler.windows(0, max(1, num_windows))
        parts.append(torch.from_numpy(windows.astype("int32")))
    return torch.cat(parts)


def windows_of_text(path: str, tokenizer: TokenizerInfo, context: int, count: int) -> torch.Tensor:
    """Return `count` contiguous windows (N, context + 1) of a text file, evenly spaced, or all.

    Raises SettingsError if the file cannot be read or fills no window.
    """
    text = read_text(path, "val_data")
    ids = torch.tensor([tokenizer.eot, *Tokenizer(tokenizer.path).encode(text)], dtype=torch.int32)
    num_windows = (len(ids) - 1) // context
    if not num_windows:
        raise SettingsError(
            f"val_data: {path} has {len(ids) - 1} tokens, fewer than the context of {context}"
        )
    chosen = torch.linspace(0, num_windows - 1, min(num_windows, count), dtype=torch.float64)
    begin = chosen.round().long() * context
    return ids[begin[:, None] + torch.arange(context + 1)]
