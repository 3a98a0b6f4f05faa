"""Windows that hold several documents: each by itself in attention, and its positions from 0."""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch.nn.attention.flex_attention import BlockMask, create_block_mask

Mask = torch.Tensor | BlockMask
"""Which position sees which: (B, 1, T, T) of bool, or FlexAttention's blocks of it."""


@dataclass(frozen=True)
class DocumentBlocks:
    """What a window's documents mean to the model: keyword arguments of `GPT.forward` for a batch of inputs.

    An end-of-text opens each document, so the inputs themselves say where documents begin, on the
    device, without a copy. What precedes a window's first end-of-text is the rest of one document.

    Attributes:
      eot: id of end-of-text.
      mask: no attention across end-of-text.
      reset_positions: position 0 at each end-of-text.
    """

    eot: int
    mask: bool = False
    reset_positions: bool = False

    def __call__(self, inputs: torch.Tensor, window: int = 0) -> dict[str, Any]:
        """`mask` and `positions` for inputs (B, T), those asked for.

        Args:
          window: positions that each one sees, itself included; 0 for all before it.
        """
        arguments: dict[str, Any] = {}
        narrow = window if window < inputs.shape[1] else 0
        if self.mask or narrow:
            documents = document_numbers(inputs, self.eot) if self.mask else torch.zeros_like(inputs)
            arguments["mask"] = attention_mask(documents, narrow)
        if self.reset_positions:
            arguments["positions"] = positions_within(inputs, self.eot)
        return arguments


def document_numbers(inputs: torch.Tensor, eot: int) -> torch.Tensor:
    """The number within its window of the document that each of inputs (B, T) belongs to; (B, T) int64."""
    return (inputs == eot).cumsum(1)


def positions_within(inputs: torch.Tensor, eot: int) -> torch.Tensor:
    """How far each of inputs (B, T) is from its document's end-of-text, or from the window's start; (B, T) int64."""
    index = torch.arange(inputs.shape[1], device=inputs.device)
    return index - torch.where(inputs == eot, index, 0).cummax(1).values


def attention_mask(documents: torch.Tensor, window: int = 0) -> Mask:
    """Causal attention within documents, by their numbers (B, T), and within the last `window` positions if not 0.

    On CUDA the blocks of FlexAttention (Dong et al., 2024), which skips those where nothing is seen;
    elsewhere a boolean mask: a quarter of a megabyte for a window of 512, four times that for 1,024.
    """
    if documents.device.type == "cuda":
        return block_mask(documents, window)
    length = documents.shape[1]
    causal = torch.ones(length, length, dtype=torch.bool, device=documents.device).tril()
    if window:
        causal = causal.triu(1 - window)
    return ((documents[:, :, None] == documents[:, None, :]) & causal)[:, None]


def block_mask(documents: torch.Tensor, window: int = 0) -> BlockMask:
    """The same as blocks for FlexAttention, found by compiled code on CUDA: uncompiled it writes out every score."""

    def sees(b: torch.Tensor, h: torch.Tensor, q: torch.Tensor, k: torch.Tensor) -> torch.Tensor:
        return (q >= k) & (q - k < reach) & (documents[b, q] == documents[b, k])

    batch, length = documents.shape
    reach = window or length
    create = _create_block_mask(documents.device.type)
    return create(sees, batch, None, length, length, device=str(documents.device))


@functools.cache
def _create_block_mask(device: str) -> Callable[..., BlockMask]:
    return torch.compile(create_block_mask, dynamic=False) if device == "cuda" else create_block_mask
