"""What the report reads, in pieces, and how they are dealt out to a bounded number of parts."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from owt_pipeline.engine.dataset import DatasetReader

MOST_PARTS = 1 << 12
"""Parts of a pass: enough to keep a cluster busy, few enough that their summaries merge in two rounds of 64."""

FAN_IN = 64
"""Summaries that are merged by one part."""


@dataclass(frozen=True)
class Piece:
    """One shard of a dataset: its `data`, its `rejects`, or of its rows those `dropped` thereafter."""

    dataset: str
    kind: str
    shard: int


def parts(readers: Mapping[str, DatasetReader], kinds: Sequence[tuple[str, str]]) -> range:
    """The parts that the pieces of these kinds are dealt out to."""
    return range(min(MOST_PARTS, sum(readers[name].num_shards for name, _ in kinds)))


def pieces_of(part: int, readers: Mapping[str, DatasetReader], kinds: Sequence[tuple[str, str]]) -> Iterator[Piece]:
    """The pieces of one part: each `MOST_PARTS`-th of all."""
    before = 0
    for name, kind in kinds:
        shards = readers[name].num_shards
        for shard in range((part - before) % MOST_PARTS, shards, MOST_PARTS):
            yield Piece(name, kind, shard)
        before += shards


def rows_of_parts(readers: Mapping[str, DatasetReader], kinds: Sequence[tuple[str, str]]) -> list[int]:
    """Rows that each part reads."""
    rows = [0] * len(parts(readers, kinds))
    before = 0
    for name, kind in kinds:
        for file in readers[name].files("rejects" if kind == "rejects" else "data"):
            rows[(before + file.shard) % MOST_PARTS] += file.rows
        before += readers[name].num_shards
    return rows
