"""The loss of windows of tokens, and the windows to validate on: of a val split, or of a text."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple

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


class Window(NamedTuple):
    """Consecutive ids. The model predicts the last `num_targets` of them from all before each."""

    ids: torch.Tensor  # (T + 1,)
    num_targets: int


@dataclass(frozen=True)
class ValidationSet:
    """The windows that a model is validated on, none without a validation."""

    windows: list[Window]
    num_bytes: int  # UTF-8 bytes of the targets; 0 without the package tokenizers

    @classmethod
    def of_windows(cls, windows: list[Window], tokenizer: TokenizerInfo) -> ValidationSet:
        """Return the set with the bytes of its targets."""
        ids = [token for window in windows for token in window.ids[1:].tolist()]
        try:
            num_bytes = Tokenizer(tokenizer.path).count_bytes(
                [token for token in ids if token != tokenizer.eot]
            )
        except ValueError:
            num_bytes = 0
        return cls(windows, num_bytes)

    def figures(self, nats: torch.Tensor) -> dict[str, float]:
        """Return the mean loss in nats per token, and in bits per byte if the bytes are known.

        `nats` (N,) is the loss of each window.
        """
        total = nats.sum().item()
        figures = {"val_loss": total / sum(window.num_targets for window in self.windows)}
        if self.num_bytes:
            figures["val_bits_per_byte"] = total / math.log(2) / self.num_bytes
        return figures


@torch.no_grad()
def score_windows(
    net: nn.Module,
    windows: Sequence[Window],
    ranks: Ranks,
    blocks: DocumentBlocks,
    device_batch_size: int,
    is_stopping: Callable[[], bool] = lambda: False,
) -> torch.Tensor:
    """Return the loss of each window in nats (N,), in float64: the sum over its targets.

    The ranks divide the windows, and the result is the same on all of them. `blocks` decides
    whether documents attend to each other, as in training. If `is_stopping`, which gives all ranks
    the same answer, the rest is left out.
    """
    nats = torch.zeros(len(windows), dtype=torch.float64)
    was_training = net.training
    net.eval()
    device_batch_size = min(device_batch_size, -(-len(windows) // ranks.world_size))
    for first in range(0, len(windows), ranks.world_size * device_batch_size):
        if is_stopping():
            break
        end = min(first + ranks.world_size * device_batch_size, len(windows))
        numbers = list(range(first + ranks.rank, end, ranks.world_size))
        # A rank without a window makes a pass too.
        batch = [windows[k] for k in numbers] or [Window(windows[first].ids, 0)]
        inputs, targets = _stack(batch, device_batch_size)
        inputs = inputs.to(ranks.device)
        losses = net(inputs, targets.to(ranks.device), reduction="none", **blocks(inputs))
        nats[numbers] = losses.double().sum(1).cpu()[: len(numbers)]
        ranks.sync()
    net.train(was_training)
    return torch.tensor(ranks.sum(nats.tolist()), dtype=torch.float64)


def _stack(windows: Sequence[Window], num_rows: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the inputs and targets of windows, padded to `num_rows` and to the longest window.

    A compiled model has one shape, as long as all windows have one length.
    """
    shape = (num_rows, max(len(window.ids) for window in windows) - 1)
    inputs = torch.zeros(shape, dtype=torch.int64)
    targets = torch.full(shape, IGNORED)
    for row, (ids, num_targets) in enumerate(windows):
        end = len(ids) - 1
        inputs[row, :end] = ids[:-1]
        targets[row, end - num_targets : end] = ids[len(ids) - num_targets :]
    return inputs, targets


def text_windows(ids: Sequence[int], block_size: int, stride: int = 0) -> Iterator[Window]:
    """Yield windows that predict each of ids[1:] once, `stride` in each; 0 for the context.

    So each token is predicted from at least context − stride tokens, if there are as many.
    """
    stream = torch.as_tensor(ids)
    stride = stride or block_size
    for done in range(0, len(stream) - 1, stride):
        end = min(done + stride, len(stream) - 1)
        yield Window(stream[max(0, done + stride - block_size) : end + 1], end - done)


def validation_set(
    corpora: Corpora, block_size: int, config: TrainConfig, say: Callable[[str], None]
) -> ValidationSet:
    """Return what training validates on, `VAL_TOKENS` at most.

    It is empty if `eval_every` is 0, or if there are no documents, which `say` explains.
    """
    if not config.eval_every:
        return ValidationSet([], 0)
    max_windows = max(1, VAL_TOKENS // block_size)
    if config.val_data:
        windows = windows_of_text(config.val_data, corpora.tokenizer, block_size, max_windows)
    else:
        windows = validation_windows(corpora, block_size, max_windows)
    if not windows:
        say("no validation: data has no document in its val split")
    return ValidationSet.of_windows(windows, corpora.tokenizer)


def validation_windows(corpora: Corpora, block_size: int, count: int) -> list[Window]:
    """Return about `count` windows of the val split, always the same ones; none without documents.

    They are one epoch at most. Each dataset gives windows in proportion to its share. Raises
    ShardError if the documents fill no window.
    """
    splits = [dataset.documents("val") for dataset in corpora.datasets]
    num_tokens = [int(documents.lengths.sum()) + len(documents) for documents in splits]
    if not any(num_tokens):
        return []
    check_length(max(num_tokens), block_size, f"{corpora.names}, split val")
    usable = [k for k, tokens in enumerate(num_tokens) if tokens > block_size]
    # Without shares, where no dataset has a document to train on, all count alike.
    weights = [corpora.shares[k] for k in usable]
    if not any(weights):
        weights = [1.0] * len(usable)
    windows: list[Window] = []
    for k, weight in zip(usable, weights, strict=True):
        sampler = Packed(splits[k], block_size, corpora.tokenizer.eot, seed=0)
        num_windows = min(round(count * weight / sum(weights)), sampler.first_window(1))
        rows = sampler.windows(0, max(1, num_windows)).astype("int64")
        windows += [Window(row, block_size) for row in torch.from_numpy(rows)]
    return windows


def windows_of_text(
    path: str, tokenizer: TokenizerInfo, block_size: int, count: int
) -> list[Window]:
    """Return `count` contiguous windows of a text file, evenly spaced, or all.

    Raises SettingsError if the file cannot be read or fills no window.
    """
    ids = [tokenizer.eot, *Tokenizer(tokenizer.path).encode(read_text(path, "val_data"))]
    windows = [w for w in text_windows(ids, block_size) if w.num_targets == block_size]
    if not windows:
        raise SettingsError(
            f"val_data: {path} has {len(ids) - 1} tokens, fewer than the context of {block_size}"
        )
    chosen = torch.linspace(0, len(windows) - 1, min(len(windows), count), dtype=torch.float64)
    return [windows[k] for k in chosen.round().long().tolist()]
