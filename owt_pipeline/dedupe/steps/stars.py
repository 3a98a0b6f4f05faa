"""stars: half a round of contracting components to stars. Nodes are split into partitions; so are the edges' files."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pyarrow as pa

from owt_pipeline.dedupe.shingles import mix
from owt_pipeline.dedupe.stars import checksum, large_star, small_star
from owt_pipeline.dedupe.steps.edges import EDGES, read_edges
from owt_pipeline.dedupe.steps.partitions import partitioned
from owt_pipeline.engine.commit import ShardWriter
from owt_pipeline.engine.storage import Storage

MODULUS = 1 << 62
"""Checksums are counted modulo this, so that they fit a manifest's integers."""


def read_by_center(
    file: int, *, edges: Storage, both_directions: bool, partitions: int, keys: range
) -> Iterator[tuple[int, pa.RecordBatch]]:
    """(partition, edges by center) of one file of edges: greater nodes as centers, or both."""
    low, high = read_edges(edges, file)
    center = np.concatenate([high, low]) if both_directions else high
    neighbour = np.concatenate([low, high]) if both_directions else low
    batch = pa.RecordBatch.from_pydict({"hash": mix(center), "center": center, "neighbour": neighbour})
    yield from partitioned(batch, "hash", partitions, keys)


def contract(key: int, batches: list[pa.RecordBatch], writer: ShardWriter, *, large: bool) -> None:
    """Write the edges that a partition's centers make of theirs, and count them."""
    center, neighbour = (
        np.concatenate([batch[name].to_numpy() for batch in batches]) for name in ("center", "neighbour")
    )
    edges = (large_star if large else small_star)(center, neighbour)
    writer.write(pa.RecordBatch.from_arrays([pa.array(edges[:, 0]), pa.array(edges[:, 1])], schema=EDGES))
    writer.count({"edges": len(edges), "checksum": checksum(edges) % MODULUS})
