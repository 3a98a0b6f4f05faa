"""Batches for the training loop, and masks of the documents in them.

A rank reads its slice of global batch `step`, in micro-batches, on its device.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Generator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch.nn.attention.flex_attention import BlockMask, create_block_mask

from trainer.data.samplers import Sampler
from trainer.data.shards import ShardError
from trainer.model import Mask

_NUM_PREFETCHED = 2  # micro-batches

# A target that the loss ignores.
IGNORED = -100


class Loader:
    """A rank's batches on its device. It keeps no state: a batch follows from its step.

    Global batch `step` is samples step·G … step·G+G−1, G being `batch`. Rank r of R takes the r-th
    of R slices and splits it into `accumulation` micro-batches of at most `device_batch_size`, both
    as evenly as complete samples allow. So the batch is the same for any number of ranks and any
    micro-batch, and need not be divisible. The loss of a micro-batch counts by its `weight`. All
    micro-batches have one shape, so that a model is compiled once: short ones are padded with
    samples whose targets are ignored.
    """

    def __init__(
        self,
        sampler: Sampler,
        batch: int,
        device_batch_size: int | None = None,
        rank: int = 0,
        world_size: int = 1,
        device: torch.device | str = "cpu",
        vocab_size: int = 1 << 32,
    ) -> None:
        if batch < world_size:
            raise ValueError(f"a batch of {batch} samples is too small for {world_size} ranks")
        self.sampler = sampler
        self.samples = batch
        self.rank = rank
        self.world_size = world_size
        self.device = torch.device(device)
        largest_slice = -(-batch // world_size)
        self.accumulation = -(-largest_slice // (device_batch_size or largest_slice))
        self.device_batch_size = -(-largest_slice // self.accumulation)
        self._is_uneven = batch % (world_size * self.accumulation) != 0
        self._vocab_size = vocab_size

    def windows(self, step: int, micro_step: int) -> np.ndarray:
        """Return the token ids (samples, block_size + 1) of one micro-batch of this rank."""
        begin, end = self._span(micro_step)
        return self.sampler.windows(step * self.samples + begin, max(1, end - begin))

    def weight(self, micro_step: int) -> float:
        """Return a micro-batch's share of the global batch.

        It is 0 for one that is all padding, which other ranks wait for.
        """
        begin, end = self._span(micro_step)
        return (end - begin) / self.samples

    def _span(self, micro_step: int) -> tuple[int, int]:
        """Return where in the global batch a micro-batch of this rank begins and ends."""
        slice_begin = self.samples * self.rank // self.world_size
        slice_end = self.samples * (self.rank + 1) // self.world_size
        size = slice_end - slice_begin
        begin = slice_begin + size * micro_step // self.accumulation
        end = slice_begin + size * (micro_step + 1) // self.accumulation
        return begin, end

    def batch(self, step: int, micro_step: int = 0) -> tuple[torch.Tensor, torch.Tensor]:
        """Return the inputs and targets of one micro-batch, each (samples, block_size) of int64."""
        number = step * self.accumulation + micro_step
        return self._split(number, self._read(number))

    def batches(self, step: int) -> Generator[tuple[torch.Tensor, torch.Tensor], None, None]:
        """Yield the inputs and targets of all micro-batches from global batch `step` on.

        They never end. A thread prefetches and pins them; the copy to the device is asynchronous.
        """
        with ThreadPoolExecutor(1, thread_name_prefix="loader") as thread:
            number = step * self.accumulation
            pending = [thread.submit(self._read, number + k) for k in range(_NUM_PREFETCHED)]
            while True:
                tokens = pending.pop(0).result()
                pending.append(thread.submit(self._read, number + _NUM_PREFETCHED))
                yield self._split(number, tokens)
                number += 1

    def __iter__(self) -> Generator[tuple[torch.Tensor, torch.Tensor], None, None]:
        """Yield inputs and targets from step 0 on, as `batches` does, without end."""
        return self.batches(0)

    def _read(self, number: int) -> torch.Tensor:
        step, micro_step = divmod(number, self.accumulation)
        windows = self.windows(step, micro_step)
        largest_id = windows.max()
        if largest_id >= self._vocab_size:
            raise ShardError(
                f"a shard was damaged since it was written: it has the token id {largest_id}, of a "
                f"vocabulary of {self._vocab_size}; `owt verify` names it"
            )
        if len(windows) < self.device_batch_size:
            windows = windows[np.arange(self.device_batch_size) % len(windows)]
        # The same bits as signed integers: torch has few operations for unsigned ones.
        signed = np.int16 if windows.dtype == np.uint16 else np.int32
        tokens = torch.from_numpy(windows.view(signed))
        return tokens.pin_memory() if self.device.type == "cuda" else tokens

    def _split(self, number: int, tokens: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Return the inputs and targets of micro-batch `number`, on the device."""
        unsigned_bits = 0xFFFF if tokens.dtype == torch.int16 else 0xFFFFFFFF
        ids = tokens.to(self.device, non_blocking=True).to(torch.int64).bitwise_and_(unsigned_bits)
        inputs = ids[:, :-1]
        targets = ids[:, 1:]
        # On every micro-batch of an uneven split, so that all have the same strides.
        if self._is_uneven:
            begin, end = self._span(number % self.accumulation)
            # Where all rows are padding, one keeps its targets: the loss, whose weight is 0, must
            # be a number.
            num_rows = max(1, end - begin)
            row = torch.arange(self.device_batch_size, device=self.device)[:, None]
            targets = targets.where(row < num_rows, IGNORED)
        return inputs, targets


@dataclass(frozen=True)
class DocumentBlocks:
    """Makes the arguments of `GPT.forward` that keep attention within each document.

    A document follows an end-of-text (`eot`), so documents are found in the inputs, on the device.
    The tokens before a window's first end-of-text are the rest of one document. Without `mask`,
    documents attend to each other, and there are no arguments.
    """

    eot: int
    mask: bool = False

    def __call__(self, inputs: torch.Tensor) -> dict[str, Any]:
        """Return the keyword arguments for inputs (B, T)."""
        if not self.mask:
            return {}
        return {"mask": attention_mask((inputs == self.eot).cumsum(1))}


def attention_mask(documents: torch.Tensor) -> Mask:
    """Return causal attention within documents, given each position's document number (B, T).

    On CUDA it is a block mask of FlexAttention (Dong et al., 2024), which skips blocks in which
    nothing is seen. Elsewhere it is a boolean mask: a quarter of a megabyte for a window of 512,
    four times that for 1,024.
    """
    if documents.device.type == "cuda":
        return block_mask(documents)
    length = documents.shape[1]
    is_causal = torch.ones(length, length, dtype=torch.bool, device=documents.device).tril()
    is_same_document = documents[:, :, None] == documents[:, None, :]
    return (is_same_document & is_causal)[:, None]


def block_mask(documents: torch.Tensor) -> BlockMask:
    """Return the same mask as blocks."""

    def is_visible(
        b: torch.Tensor, h: torch.Tensor, q: torch.Tensor, k: torch.Tensor
    ) -> torch.Tensor:
        return (q >= k) & (documents[b, q] == documents[b, k])

    batch, length = documents.shape
    create = _compiled_create() if documents.is_cuda else create_block_mask
    return create(is_visible, batch, None, length, length, device=str(documents.device))


@functools.cache
def _compiled_create() -> Callable[..., BlockMask]:
    # Uncompiled code would store every score.
    return torch.compile(create_block_mask, dynamic=False)
