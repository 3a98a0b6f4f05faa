"""Batches for the training loop: a rank's slice of global batch `step`, on its device, fetched ahead."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Callable, Generator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from schemas import SettingsError
from trainer.manifest import ShardError
from trainer.samplers import Mixture, Packed, Sampler, longbiased
from trainer.shards import Documents, TokenDataset, TokenizerInfo, open_dataset

_MIX_KEY = 0x4D4958  # sets the places of the corpora apart from those of longbiased's two kinds


@dataclass(frozen=True)
class Corpora:
    """Token datasets of one tokenizer, and the share of the samples that each gives (they sum to 1).

    Which corpus sample i is from, and which of its samples, follows from (seed, i) as all else does, and
    each corpus is read in its own order: a corpus with a small share comes round less often.
    """

    datasets: tuple[TokenDataset, ...]
    shares: tuple[float, ...]

    @property
    def tokenizer(self) -> TokenizerInfo:
        return self.datasets[0].tokenizer

    @property
    def digest(self) -> str:
        """The dataset's own digest, or one over those of all and their shares."""
        if len(self.datasets) == 1:
            return self.datasets[0].digest
        lines = "".join(f"{d.digest}  {share!r}\n" for d, share in zip(self.datasets, self.shares, strict=True))
        return hashlib.sha256(lines.encode()).hexdigest()

    @property
    def epoch_tokens(self) -> int:
        """Tokens to predict in one pass over every document, each with its end-of-text."""
        lengths = [dataset.documents("train").lengths for dataset in self.datasets]
        return sum(int(own.sum()) + len(own) for own in lengths)

    def check_ids(self, windows: np.ndarray) -> None:
        """Raises ShardError where `windows` hold an id outside the vocabulary, naming a document that has it."""
        if windows.max() >= self.tokenizer.vocab_size:
            for dataset in self.datasets:
                dataset.check_ids("train")

    def sampler(self, name: str, context: int, seed: int, **options: Any) -> Sampler:
        """The training samples, by `make_sampler` of each corpus; raises ValueError naming one that is empty."""
        samplers = [make_sampler(dataset, "train", name, context, seed, **options) for dataset in self.datasets]
        return mix(samplers, list(self.shares), seed ^ _MIX_KEY)


def open_corpora(data: str, others: Sequence[str], **options: Any) -> Corpora:
    """The corpus `data`, mixed with `others`, each written FOLDER=SHARE; `data` has the rest of the samples.

    Args:
      options: as of `open_dataset`.

    Raises:
      SettingsError: an entry of another form, or shares of 1 or more in all.
      ShardError: as `open_dataset`, or corpora of different tokenizers.
    """
    entries = [_parse(entry) for entry in others]
    rest = 1 - sum(share for _, share in entries)
    if rest < 0 or (entries and math.isclose(rest, 0, abs_tol=1e-9)):
        raise SettingsError(f"mix: the shares sum to {1 - rest:g}, which leaves nothing of data; give less than 1")
    datasets = tuple(open_dataset(folder, **options) for folder in [data, *(folder for folder, _ in entries)])
    for dataset in datasets[1:]:
        if dataset.tokenizer.sha256 != datasets[0].tokenizer.sha256:
            raise ShardError(
                f"{dataset.folder} has the tokenizer {dataset.tokenizer.name}, {datasets[0].folder} has "
                f"{datasets[0].tokenizer.name} (another SHA-256); tokenize both with one"
            )
    return Corpora(datasets, (rest, *(share for _, share in entries)))


def _parse(entry: str) -> tuple[str, float]:
    folder, _, share = entry.rpartition("=")
    try:
        value = float(share)
    except ValueError:
        value = math.nan
    if not folder or not 0 < value < 1:
        raise SettingsError(f"mix: {entry!r} is not FOLDER=SHARE with a share between 0 and 1, as wiki/tokens=0.2")
    return folder, value


def make_sampler(
    dataset: TokenDataset,
    split: str,
    name: str,
    context: int,
    seed: int,
    *,
    long_min_tokens: int = 512,
    long_fraction: float = 0.7,
) -> Sampler:
    """The sampler `name` (`packed` or `longbiased`) over one split; raises ShardError where it is too short."""
    documents = split_documents(dataset, split, context)
    eot = dataset.tokenizer.eot
    try:
        if name == "packed":
            return Packed(documents, context, eot, seed)
        return longbiased(documents, context, eot, seed, long_min_tokens=long_min_tokens, long_fraction=long_fraction)
    except ValueError as error:
        raise ShardError(f"{dataset.folder}, split {split}: {error}") from error


def split_documents(dataset: TokenDataset, split: str, context: int) -> Documents:
    """The documents of one split; raises ShardError where they do not fill a window of `context` tokens."""
    documents = dataset.documents(split)
    tokens = int(documents.lengths.sum()) + len(documents)
    if not len(documents):
        raise ShardError(f"{dataset.folder}, split {split}: there is no document; run tokenize on more text")
    if tokens <= context:
        raise ShardError(
            f"{dataset.folder}, split {split}: {tokens:,} tokens, end-of-text included, are fewer than the "
            f"{context + 1:,} of a window; give a smaller context, or run tokenize on more text"
        )
    return documents


def mix(samplers: list[Sampler], weights: list[float], seed: int) -> Sampler:
    """Samples of several samplers in proportion to `weights`: mixtures of two, nested."""
    sampler, weight = samplers[-1], weights[-1]
    for position in range(len(samplers) - 2, -1, -1):
        weight += weights[position]
        sampler = Mixture(samplers[position], sampler, weights[position] / weight, seed + position)
    return sampler


class Loader:
    """A rank's batches. Its whole state is the step it is asked for.

    Global batch `step` is samples step·G … step·G+G−1. Rank r of R takes the r-th of R slices, and hands it
    out as micro-batches, both as even as whole samples allow. So the batch is the same for any number of
    ranks, any micro-batch, and does not need to divide; a micro-batch counts by its `weight`. All have one
    shape, so that a compiled model is compiled once: what one lacks is filled with samples that are no targets.

    Args:
      sampler: where samples come from.
      batch: G, the samples of a global batch, at least one a rank.
      micro_batch: the most samples of one forward pass on one rank.
      rank, world_size: r and R.
      device: where batches go.
      ahead: micro-batches to fetch before they are asked for.
      check: raises for windows that must not reach the model.

    Attributes:
      accumulation: micro-batches of a step, as many on every rank.
      micro_batch: samples of each, those that fill it included.
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
        check: Callable[[np.ndarray], None] = lambda windows: None,
    ) -> None:
        if batch < world_size:
            raise ValueError(f"a batch of {batch} samples is too small for {world_size} ranks")
        self.sampler, self.samples = sampler, batch
        self.rank, self.world_size, self.device = rank, world_size, torch.device(device)
        largest_slice = -(-batch // world_size)
        self.accumulation = -(-largest_slice // micro_batch)
        self.micro_batch = -(-largest_slice // self.accumulation)
        self._uneven = batch % (world_size * self.accumulation) != 0
        self._ahead, self._check = ahead, check

    def windows(self, step: int, micro_step: int) -> np.ndarray:
        """Token ids (samples, context + 1) of one micro-batch of this rank."""
        begin, end = self._span(micro_step)
        return self.sampler.windows(step * self.samples + begin, max(1, end - begin))

    def weight(self, micro_step: int) -> float:
        """The share of the global batch that a micro-batch is; 0 for one that only keeps step with other ranks."""
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
        """The same from global batch `step` on for ever, fetched ahead.

        A thread of its own reads and pins; the copy to the device does not wait.
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
        self._check(windows)
        if len(windows) < self.micro_batch:
            windows = windows[np.arange(self.micro_batch) % len(windows)]
        tokens = torch.from_numpy(_as_signed(windows))
        return tokens.pin_memory() if self.device.type == "cuda" else tokens

    def _split(self, number: int, tokens: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        inputs, targets = split_windows(tokens, self.device)
        if self._uneven:  # on every micro-batch, so that all have the same strides
            begin, end = self._span(number % self.accumulation)
            row = torch.arange(self.micro_batch, device=self.device)[:, None]
            # Where all rows fill, the micro-batch's weight is 0, and its loss must be a number.
            targets = targets.where(row < max(1, end - begin), -100)
        return inputs, targets


def split_windows(tokens: torch.Tensor, device: torch.device) -> tuple[torch.Tensor, torch.Tensor]:
    """Windows (B, T + 1) of int16 or int32 bits as (inputs, targets), each (B, T) int64 on `device`."""
    mask = 0xFFFF if tokens.dtype == torch.int16 else 0xFFFFFFFF
    wide = tokens.to(device, non_blocking=True).to(torch.int64).bitwise_and_(mask)
    return wide[:, :-1], wide[:, 1:]


def _as_signed(tokens: np.ndarray) -> np.ndarray:
    """The same bits as signed integers: torch has few operations for unsigned ones."""
    return tokens.view(np.int16 if tokens.dtype == np.uint16 else np.int32)
