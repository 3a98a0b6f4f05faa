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
from owt_pipeline.engine.commit import ShardWriter
from owt_pipeline.engine.storage import Storage

GROUP_PARTS = pa.schema([(name, pa.uint32()) for name in ("group", "shard", "part", "batch", "documents")])
"""Where a group's candidates are, how many: the number of their record batch in the part's file of shingles."""

_GROUP_SHINGLES = 1 << 23  # at most, of the components verified together: 64 MB of hashes
_GROUPS = 16  # or fewer, smaller groups: for more workers than one
_LEAST_SHINGLES = 1 << 20  # of a group that is worth a file


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
    collection = collection.with_texts_of(np.unique(shards).tolist())
    part = collection.part_of(place)
    group = _groups(component, _sizes(place, part, collection))
    rows = pa.table({"row": row_of(place), "component": component.astype(np.uint64), "group": group})
    scatter(writer, by_shard, rows, shards, collection.num_shards)
    # A part's file of shingles holds one record batch a group, in the order of the groups.
    pairs, first, documents = np.unique(part << 32 | group, return_index=True, return_counts=True)
    part_of_pair = pairs >> 32
    batch = np.arange(len(pairs)) - np.searchsorted(part_of_pair, part_of_pair)
    columns = (pairs & 0xFFFFFFFF, shards[first], part_of_pair, batch, documents)
    table = [pa.array(values.astype(np.uint32)) for values in columns]
    writer.write(pa.RecordBatch.from_arrays(table, schema=GROUP_PARTS))
    sizes = np.unique(component, return_counts=True)[1]
    writer.count(
        {
            "candidates": len(place),
            "components": len(sizes),
            "largest_component": int(sizes.max(initial=0)),
            "groups": int(group.max(initial=-1)) + 1,
        }
    )


def documents_by(where: pa.Table, column: str) -> list[int]:
    """How many candidates each group, or each part up to the last that has any, holds by rows of GROUP_PARTS."""
    return np.bincount(where[column].to_numpy(), where["documents"].to_numpy()).astype(int).tolist()


def _edge_arrays(edges: Storage, keys: range) -> Iterator[np.ndarray]:
    for key in keys:
        yield np.column_stack(read_edges(edges, key))


def _sizes(place: np.ndarray, part: np.ndarray, collection: Collection) -> np.ndarray:
    """Shingles of each document at `place`, repeats included; places, and so their parts, are sorted."""
    sizes = np.zeros(len(place), np.int64)
    for number in np.unique(part).tolist():
        mine = slice(*np.searchsorted(part, [number, number + 1]))
        sizes[mine] = collection.sketches_of(number, row_of(place[mine]), ["n_shingles"])["n_shingles"].to_numpy()
    return sizes


def _groups(component: np.ndarray, size: np.ndarray) -> np.ndarray:
    """The group of each candidate: whole components in their order, of like size together."""
    _, index = np.unique(component, return_inverse=True)
    total = np.cumsum(np.bincount(index, weights=size))
    of_group = min(_GROUP_SHINGLES, max(_LEAST_SHINGLES, int(size.sum()) // _GROUPS))
    _, group = np.unique((total // of_group).astype(np.int64), return_inverse=True)
    return group[index] if len(index) else np.empty(0, np.int64)
