"""Batches for the training loop: a rank's slice of global batch `step`, on its device; and masks
of documents."""

from __future__ import annotations

import functools
from collections.abc import Generator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch.nn.attention.flex_attention import BlockMask, create_block_mask

from trainer.model import Mask
from trainer.samplers import Sampler
from trainer.shards import ShardError

_AHEAD = 2  # micro-batches that are prefetched


class Loader:
    """A rank's batches on its device. It keeps no state: a batch follows from its step.

    Global batch `step` is samples step·G … step·G+G−1, G being `batch`. Rank r of R takes the r-th
    of R slices and splits it into `accumulation` micro-batches of at most `micro_batch`, both as
    evenly as complete samples allow. So the batch is the same for any number of ranks and any
    micro-batch, and need not be divisible; the loss of a micro-batch counts by its `weight`. All
    micro-batches have one shape, so that a model is compiled once: short ones are padded with
    samples whose targets are ignored.
    """

    def __init__(
        self, sampler: Sampler, batch: int, micro_batch: int | None = None, rank: int = 0,
        world_size: int = 1,
        device: torch.device | str = "cpu", vocab_size: int = 1 << 32,
    ) -> None:  # fmt: skip
        if batch < world_size:
            raise ValueError(f"a batch of {batch} samples is too small for {world_size} ranks")
        self.sampler, self.samples = sampler, batch
        self.rank, self.world_size, self.device = rank, world_size, torch.device(device)
        largest_slice = -(-batch // world_size)
        self.accumulation = -(-largest_slice // (micro_batch or largest_slice))
        self.micro_batch = -(-largest_slice // self.accumulation)
        self._uneven = batch % (world_size * self.accumulation) != 0
        self._vocab_size = vocab_size

    def windows(self, step: int, micro_step: int) -> np.ndarray:
        """Token ids (samples, context + 1) of one micro-batch of this rank."""
        begin, end = self._span(micro_step)
        return self.sampler.windows(step * self.samples + begin, max(1, end - begin))

    def weight(self, micro_step: int) -> float:
        """A micro-batch's share of the global batch; 0 for one that is all padding, which other
        ranks wait for."""
        begin, end = self._span(micro_step)
        return (end - begin) / self.samples

    def _span(self, micro_step: int) -> tuple[int, int]:
        first = self.samples * self.rank // self.world_size
        own = self.samples * (self.rank + 1) // self.world_size - first
        return first + own * micro_step // self.accumulation, first + own * (
            micro_step + 1
        ) // self.accumulation

    def batch(self, step: int, micro_step: int = 0) -> tuple[torch.Tensor, torch.Tensor]:
        """(inputs, targets) of one micro-batch, each (samples, context) int64 on the device."""
        number = step * self.accumulation + micro_step
        return self._split(number, self._read(number))

    def batches(self, step: int) -> Generator[tuple[torch.Tensor, torch.Tensor], None, None]:
        """The micro-batches from global batch `step` on, without end, each as (inputs, targets)
        of (samples, context).

        A thread prefetches and pins them; the copy to the device is asynchronous.
        """
        with ThreadPoolExecutor(1, thread_name_prefix="loader") as reader:
            number = step * self.accumulation
            waiting = [reader.submit(self._read, number + k) for k in range(_AHEAD)]
            while True:
                tokens = waiting.pop(0).result()
                waiting.append(reader.submit(self._read, number + _AHEAD))
                yield self._split(number, tokens)
                number += 1

    def _read(self, number: int) -> torch.Tensor:
        windows = self.windows(*divmod(number, self.accumulation))
        if (largest := windows.max()) >= self._vocab_size:
            raise ShardError(
                f"a shard was damaged since it was written: it has the token id {largest}, of a "
                f"vocabulary of "
                f"{self._vocab_size}; `owt verify` names it"
            )
        if len(windows) < self.micro_batch:
            windows = windows[np.arange(self.micro_batch) % len(windows)]
        # The same bits as signed integers: torch has few operations for unsigned ones.
        tokens = torch.from_numpy(
            windows.view(np.int16 if windows.dtype == np.uint16 else np.int32)
        )
        return tokens.pin_memory() if self.device.type == "cuda" else tokens

    def _split(self, number: int, tokens: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        mask = 0xFFFF if tokens.dtype == torch.int16 else 0xFFFFFFFF
        wide = tokens.to(self.device, non_blocking=True).to(torch.int64).bitwise_and_(mask)
        inputs, targets = wide[:, :-1], wide[:, 1:]
        if self._uneven:  # on every micro-batch, so that all have the same strides
            begin, end = self._span(number % self.accumulation)
            row = torch.arange(self.micro_batch, device=self.device)[:, None]
            # If all rows are padding, one keeps its targets: the loss, whose weight is 0, must be a
            # number.
            targets = targets.where(row < max(1, end - begin), -100)
        return inputs, targets


@dataclass(frozen=True)
class DocumentBlocks:
    """Makes keyword arguments of `GPT.forward` for inputs (B, T): with `mask`, no attention
    across end-of-text (`eot`).

    Each document begins with an end-of-text, so they are found in the inputs, on the device. The
    tokens before a window's first end-of-text are the rest of one document.
    """

    eot: int
    mask: bool = False

    def __call__(self, inputs: torch.Tensor) -> dict[str, Any]:
        return {"mask": attention_mask((inputs == self.eot).cumsum(1))} if self.mask else {}


def attention_mask(documents: torch.Tensor) -> Mask:
    """Causal attention within documents, by the number of each position's document in its window
    (B, T).

    On CUDA a block mask of FlexAttention (Dong et al., 2024), which skips blocks in which nothing
    is seen; elsewhere a boolean mask: a quarter of a megabyte for a window of 512, four times that
    for 1,024.
    """
    if documents.device.type == "cuda":
        return block_mask(documents)
    length = documents.shape[1]
    causal = torch.ones(length, length, dtype=torch.bool, device=documents.device).tril()
    return ((documents[:, :, None] == documents[:, None, :]) & causal)[:, None]


def block_mask(documents: torch.Tensor) -> BlockMask:
    """The same as a block mask. It is made by compiled code on CUDA: uncompiled code would store
    every score."""

    def sees(b: torch.Tensor, h: torch.Tensor, q: torch.Tensor, k: torch.Tensor) -> torch.Tensor:
        return (q >= k) & (documents[b, q] == documents[b, k])

    batch, length = documents.shape
    create = _compiled_mask() if documents.is_cuda else create_block_mask
    return create(sees, batch, None, length, length, device=str(documents.device))


_compiled_mask = functools.cache(lambda: torch.compile(create_block_mask, dynamic=False))
