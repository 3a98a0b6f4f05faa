"""Positions as rotations of queries and keys: RoPE (Su et al., 2021)."""

from __future__ import annotations

import torch

Rotation = tuple[torch.Tensor, torch.Tensor]
"""Cosines and sines of the angles: (T, D / 2), or (B, 1, T, D / 2) where rows have positions of their own."""

_BASE = 10_000.0


def rotation_of(positions: torch.Tensor, channels: int) -> Rotation:
    """The rotation at positions (T,) or (B, T) of heads with `channels` channels, in float32.

    Channel pair i turns by position · 10000^(−2i / channels).
    """
    pairs = torch.arange(0, channels, 2, dtype=torch.float32, device=positions.device)
    angles = positions[..., None].float() * _BASE ** (-pairs / channels)
    if positions.dim() == 2:
        angles = angles[:, None]
    return angles.cos(), angles.sin()


def rotate(x: torch.Tensor, rotation: Rotation) -> torch.Tensor:
    """x (B, H, T, D) with the pair of channels i and i + D / 2 turned by angle i."""
    cos, sin = rotation
    left, right = x.float().chunk(2, dim=-1)
    return torch.cat([left * cos - right * sin, right * cos + left * sin], dim=-1)
