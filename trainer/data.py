"""Batches for the training loop: a rank's slice of global batch `step`, on its device, fetched ahead.

And the mask that separates the documents of a window.
"""

from __future__ import annotations

import functools
import hashlib
import math
from collections.abc import Callable, Generator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch.nn.attention.flex_attention import BlockMask, create_block_mask

from schemas import SettingsError
from trainer.manifest import ShardError
from trainer.model import Mask
from trainer.samplers import Packed, Sampler, longbiased, mix
from trainer.shards import TokenDataset, TokenizerInfo, check_same_tokenizer, open_dataset

_MIX_KEY = 0x4D4958  # so that the places of the corpora differ from those of longbiased's two kinds


@dataclass(frozen=True)
class Corpora:
    """Token datasets with one tokenizer, and each one's share of the samples (they sum to 1).

    (seed, i) determines which corpus sample i is from, and which of its samples it is. Each corpus is read in its own
    order: one with a small share takes longer to repeat.

    Attributes:
      datasets, shares: what is read.
      tokens: of each dataset, to predict in one pass over its documents, each with its end-of-text.
    """

    datasets: tuple[TokenDataset, ...]
    shares: tuple[float, ...]
    tokens: tuple[int, ...]

    @property
    def tokenizer(self) -> TokenizerInfo:
        return self.datasets[0].tokenizer

    @property
    def names(self) -> str:
        return ", ".join(dataset.folder for dataset in self.datasets)

    @property
    def digest(self) -> str:
        """The digest of a single dataset, or one over the digests and shares of all."""
        if len(self.datasets) == 1:
            return self.datasets[0].digest
        lines = "".join(f"{d.digest}  {share!r}\n" for d, share in zip(self.datasets, self.shares, strict=True))
        return hashlib.sha256(lines.encode()).hexdigest()

    def description(self) -> list[dict[str, Any]]:
        """Each dataset as a run's record describes it: folder, digest, number of files of each split, share."""
        return [
            {
                "folder": dataset.folder,
                "digest": dataset.digest,
                "files": {split: len(files) for split, files in dataset.files.items()},
                "share": share,
            }
            for dataset, share in zip(self.datasets, self.shares, strict=True)
        ]

    def sampler(
        self, name: str, context: int, seed: int, *, long_min_tokens: int = 512, long_fraction: float = 0.7
    ) -> Sampler:
        """The training samples, `packed` or `longbiased`: a mixture of those of each dataset.

        Raises:
          ShardError: there are too few tokens for a window, or no document is long enough for `longbiased`.
        """
        check_length(sum(self.tokens), context, f"{self.names}, split train")
        used = [k for k, tokens in enumerate(self.tokens) if tokens]
        documents = [self.datasets[k].documents("train") for k in used]
        eot = self.tokenizer.eot
        long = [name == "longbiased" and bool((own.lengths >= long_min_tokens).any()) for own in documents]
        if name == "longbiased" and not any(long):
            raise ShardError(
                f"{self.names}, split train: no document has {long_min_tokens} tokens or more; lower long_min_tokens, "
                "or use packed"
            )
        how = {"long_min_tokens": long_min_tokens, "long_fraction": long_fraction}
        samplers = [  # a dataset without a long document gives of all its own
            longbiased(own, context, eot, seed, **how) if has_long else Packed(own, context, eot, seed)  # type: ignore[arg-type]
            for own, has_long in zip(documents, long, strict=True)
        ]
        return mix(samplers, [self.shares[k] for k in used], seed ^ _MIX_KEY)


def open_corpora(data: Sequence[str], cache: str | Path | None = None, begun: Sequence[dict[str, Any]] = ()) -> Corpora:
    """The token shards in the folders `data`.

    Args:
      data: folders, sampled in proportion to their tokens; or FOLDER=WEIGHT, in proportion to the weights.
      cache: of `open_dataset`.
      begun: the `description` of the corpora that a run has begun with: datasets that have grown since are opened as
        they were.

    Raises:
      SettingsError: an entry is invalid, or only some have weights.
      ShardError: as `open_dataset`; the tokenizers differ; or a dataset is named twice.
    """
    if not data or not all(data):
        raise SettingsError("data: name a folder of token shards, WORKDIR/tokens")
    entries = [_parse(entry) for entry in data]
    if len({weight is None for _, weight in entries}) > 1:
        folder = next(folder for folder, weight in entries if weight is None)
        raise SettingsError(f"data: {folder} has no weight, others have; write {folder}=WEIGHT, or give none a weight")
    datasets = [open_dataset(folder, cache) for folder, _ in entries]
    known: dict[str, TokenDataset] = {}
    for dataset in datasets:
        check_same_tokenizer(dataset, datasets[0])
        if dataset.files and (other := known.setdefault(dataset.digest, dataset)) is not dataset:
            raise ShardError(f"{other.folder} and {dataset.folder} are the same tokens; name them once")
    if len(datasets) == len(begun):
        datasets = [dataset.first(entry["files"]) for dataset, entry in zip(datasets, begun, strict=True)]
    counts = [int((lengths := dataset.documents("train").lengths).sum()) + len(lengths) for dataset in datasets]
    # A dataset without a document in `train` has no share.
    weights = [weight if weight and count else count for (_, weight), count in zip(entries, counts, strict=True)]
    shares = tuple(weight / (sum(weights) or 1) for weight in weights)
    return Corpora(tuple(datasets), shares, tuple(counts))


def _parse(entry: str) -> tuple[str, float | None]:
    folder, sign, text = entry.rpartition("=")
    try:
        weight = float(text) if sign else None
    except ValueError:
        return entry, None  # a folder may have the sign in its name
    if weight is None:
        return entry, None
    if not folder or not 0 < weight < math.inf:
        raise SettingsError(f"data: {entry!r} is not FOLDER=WEIGHT with a weight above 0, as wiki/tokens=0.3")
    return folder, weight


def check_length(tokens: int, context: int, where: str) -> None:
    """Raises ShardError unless `tokens`, end-of-text included, fill a window of `context`."""
    if not tokens:
        raise ShardError(f"{where}: there is no document; run tokenize on more text")
    if tokens <= context:
        raise ShardError(
            f"{where}: {tokens:,} tokens, end-of-text included, are fewer than the "
            f"{context + 1:,} of a window; give a smaller context, or run tokenize on more text"
        )


class Loader:
    """A rank's batches. It keeps no state: a batch follows from its step.

    Global batch `step` is samples step·G … step·G+G−1. Rank r of R takes the r-th of R slices and splits it into
    micro-batches, both as evenly as complete samples allow. So the batch is the same for any number of ranks and any
    micro-batch, and need not be divisible; the loss of a micro-batch counts by its `weight`. All micro-batches have one
    shape, so that a model is compiled once: short ones are padded with samples whose targets are ignored.

    Args:
      sampler: where samples come from.
      batch: G, the samples of a global batch, at least one per rank.
      micro_batch: the most samples in one forward pass of a rank.
      rank, world_size: r and R.
      device: where batches go.
      ahead: micro-batches to prefetch.
      vocab_size: ids are below it.

    Attributes:
      accumulation: micro-batches per step, the same number on every rank.
      micro_batch: samples of each, including the padding.
    """

    def __init__(
        self,
        sampler: Sampler,
        batch: int,
        micro_batch: int,
        *,
        rank: int = 0,
        world_size: int = 1,
        device: torch.device | str = "cpu",
        ahead: int = 2,
        vocab_size: int = 1 << 32,
    ) -> None:
        if batch < world_size:
            raise ValueError(f"a batch of {batch} samples is too small for {world_size} ranks")
        self.sampler, self.samples = sampler, batch
        self.rank, self.world_size, self.device = rank, world_size, torch.device(device)
        largest_slice = -(-batch // world_size)
        self.accumulation = -(-largest_slice // micro_batch)
        self.micro_batch = -(-largest_slice // self.accumulation)
        self._uneven = batch % (world_size * self.accumulation) != 0
        self._ahead, self._vocab_size = ahead, vocab_size

    def windows(self, step: int, micro_step: int) -> np.ndarray:
        """Token ids (samples, context + 1) of one micro-batch of this rank."""
        begin, end = self._span(micro_step)
        return self.sampler.windows(step * self.samples + begin, max(1, end - begin))

    def weight(self, micro_step: int) -> float:
        """A micro-batch's share of the global batch; 0 for one that is all padding, which other ranks wait for."""
        begin, end = self._span(micro_step)
        return (end - begin) / self.samples

    def _span(self, micro_step: int) -> tuple[int, int]:
        first = self.samples * self.rank // self.world_size
        own = self.samples * (self.rank + 1) // self.world_size - first
        return first + own * micro_step // self.accumulation, first + own * (micro_step + 1) // self.accumulation

    def batch(self, step: int, micro_step: int = 0) -> tuple[torch.Tensor, torch.Tensor]:
        """(inputs, targets) of one micro-batch, each (samples, context) int64 on the device."""
        number = step * self.accumulation + micro_step
        return self._split(number, self._read(number))

    def batches(self, step: int) -> Generator[tuple[torch.Tensor, torch.Tensor], None, None]:
        """The micro-batches from global batch `step` on, without end.

        A thread prefetches and pins them; the copy to the device is asynchronous.
        """
        with ThreadPoolExecutor(1, thread_name_prefix="loader") as reader:
            number = step * self.accumulation
            waiting = [reader.submit(self._read, number + k) for k in range(self._ahead)]
            while True:
                tokens = waiting.pop(0).result()
                waiting.append(reader.submit(self._read, number + self._ahead))
                yield self._split(number, tokens)
                number += 1

    def _read(self, number: int) -> torch.Tensor:
        windows = self.windows(*divmod(number, self.accumulation))
        if (largest := windows.max()) >= self._vocab_size:
            raise ShardError(
                f"a shard was damaged since it was written: it has the token id {largest}, of a vocabulary of "
                f"{self._vocab_size}; `owt verify` names it"
            )
        if len(windows) < self.micro_batch:
            windows = windows[np.arange(self.micro_batch) % len(windows)]
        # The same bits as signed integers: torch has few operations for unsigned ones.
        tokens = torch.from_numpy(windows.view(np.int16 if windows.dtype == np.uint16 else np.int32))
        return tokens.pin_memory() if self.device.type == "cuda" else tokens

    def _split(self, number: int, tokens: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        inputs, targets = split_windows(tokens, self.device)
        if self._uneven:  # on every micro-batch, so that all have the same strides
            begin, end = self._span(number % self.accumulation)
            row = torch.arange(self.micro_batch, device=self.device)[:, None]
            # If all rows are padding, one keeps its targets: the loss, whose weight is 0, must be a number.
            targets = targets.where(row < max(1, end - begin), -100)
        return inputs, targets


def split_windows(tokens: torch.Tensor, device: torch.device) -> tuple[torch.Tensor, torch.Tensor]:
    """Windows (B, T + 1) of int16 or int32 bits as (inputs, targets), each (B, T) int64 on `device`."""
    mask = 0xFFFF if tokens.dtype == torch.int16 else 0xFFFFFFFF
    wide = tokens.to(device, non_blocking=True).to(torch.int64).bitwise_and_(mask)
    return wide[:, :-1], wide[:, 1:]


@dataclass(frozen=True)
class DocumentBlocks:
    """How the model treats the documents of a window: makes keyword arguments of `GPT.forward` for a batch of inputs.

    Each document begins with an end-of-text, so they are found in the inputs, on the device. The tokens before a
    window's first end-of-text are the rest of one document.

    Attributes:
      eot: id of end-of-text.
      mask: no attention across end-of-text.
    """

    eot: int
    mask: bool = False

    def __call__(self, inputs: torch.Tensor) -> dict[str, Any]:
        """`mask`, if it is enabled, for inputs (B, T)."""
        return {"mask": attention_mask(document_numbers(inputs, self.eot))} if self.mask else {}


def document_numbers(inputs: torch.Tensor, eot: int) -> torch.Tensor:
    """The number within its window of the document that each of inputs (B, T) belongs to; (B, T) int64."""
    return (inputs == eot).cumsum(1)


def attention_mask(documents: torch.Tensor) -> Mask:
    """Causal attention within documents, by their numbers (B, T).

    On CUDA a block mask of FlexAttention (Dong et al., 2024), which skips blocks in which nothing is seen; elsewhere a
    boolean mask: a quarter of a megabyte for a window of 512, four times that for 1,024.
    """
    if documents.device.type == "cuda":
        return block_mask(documents)
    length = documents.shape[1]
    causal = torch.ones(length, length, dtype=torch.bool, device=documents.device).tril()
    return ((documents[:, :, None] == documents[:, None, :]) & causal)[:, None]


def block_mask(documents: torch.Tensor) -> BlockMask:
    """The same as a block mask. It is made by compiled code on CUDA: uncompiled code would store every score."""

    def sees(b: torch.Tensor, h: torch.Tensor, q: torch.Tensor, k: torch.Tensor) -> torch.Tensor:
        return (q >= k) & (documents[b, q] == documents[b, k])

    batch, length = documents.shape
    create = _create_block_mask(documents.device.type)
    return create(sees, batch, None, length, length, device=str(documents.device))


@functools.cache
def _create_block_mask(device: str) -> Callable[..., BlockMask]:
    return torch.compile(create_block_mask, dynamic=False) if device == "cuda" else create_block_mask
