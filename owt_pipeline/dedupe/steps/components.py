"""components: candidates that edges join are decided on together, in groups of components that fit into memory."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial

import numpy as np
import pyarrow as pa

from owt_pipeline.dedupe.collection import Collection
from owt_pipeline.dedupe.components import connected_components
from owt_pipeline.dedupe.places import row_of, shard_of
from owt_pipeline.dedupe.step_files import scatter
from owt_pipeline.dedupe.steps.edges import read_edges
from owt_pipeline.runtime.shards import ShardWriter
from owt_pipeline.runtime.storage import Storage

GROUP_SHARDS = pa.schema([("group", pa.uint32()), ("shard", pa.uint32()), ("batch", pa.uint32())])
"""Where a group's candidates are: the number of their record batch in the shard's file of shingles."""

_GROUP_SHINGLES = 1 << 23  # of the components verified together: 64 MB of hashes


def join_components(
    key: int, writer: ShardWriter, *, edges: Storage, keys: range, collection: Collection, by_shard: Storage
) -> None:
    """Tell each shard which of its rows are candidates, of which component, verified in which group.

    Left out are components of which all documents stand.
    """
    place, component = connected_components(partial(_edge_arrays, edges, keys))
    own = component < np.searchsorted(place, collection.first_standing)  # its least place is an own one
    place, component = place[own], component[own]
    shards = shard_of(place)
    group = _groups(component, _sizes(place, shards, collection))
    rows = pa.table({"row": row_of(place), "component": component.astype(np.uint64), "group": group})
    scatter(by_shard, rows, shards, collection.num_shards)
    # A shard's file of shingles holds one record batch a group, in the order of the groups.
    pairs = np.unique(shards << 32 | group)
    shard_of_pair = pairs >> 32
    batch = np.arange(len(pairs)) - np.searchsorted(shard_of_pair, shard_of_pair)
    table = [pa.array(values.astype(np.uint32)) for values in (pairs & 0xFFFFFFFF, shard_of_pair, batch)]
    writer.write(pa.RecordBatch.from_arrays(table, schema=GROUP_SHARDS))
    sizes = np.unique(component, return_counts=True)[1]
    writer.count(
        {
            "candidates": len(place),
            "components": len(sizes),
            "largest_component": int(sizes.max(initial=0)),
            "groups": int(group.max(initial=-1)) + 1,
        }
    )


def _edge_arrays(edges: Storage, keys: range) -> Iterator[np.ndarray]:
    for key in keys:
        yield np.column_stack(read_edges(edges, key))


def _sizes(place: np.ndarray, shards: np.ndarray, collection: Collection) -> np.ndarray:
    """Shingles of each document at `place`, repeats included; places are sorted."""
    sizes = np.zeros(len(place), np.int64)
    for shard in np.unique(shards).tolist():
        mine = slice(*np.searchsorted(shards, [shard, shard + 1]))
        sizes[mine] = collection.sketches_of(shard, row_of(place[mine]), ["n_shingles"])["n_shingles"].to_numpy()
    return sizes


def _groups(component: np.ndarray, size: np.ndarray) -> np.ndarray:
    """The group of each candidate: whole components in their order, of some _GROUP_SHINGLES each."""
    _, index = np.unique(component, return_inverse=True)
    total = np.cumsum(np.bincount(index, weights=size))
    _, group = np.unique((total // _GROUP_SHINGLES).astype(np.int64), return_inverse=True)
    return group[index] if len(index) else np.empty(0, np.int64)
