"""edges: documents that agree in a band meet in a bucket of its hash space."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from owt_pipeline.dedupe.collection import Collection
from owt_pipeline.dedupe.lsh import star_edges
from owt_pipeline.dedupe.places import places
from owt_pipeline.dedupe.steps.partitions import partitioned
from owt_pipeline.engine.commit import ShardWriter, shard_name
from owt_pipeline.engine.dataset import reading
from owt_pipeline.engine.storage import Storage

EDGES = pa.schema([("a", pa.uint64()), ("b", pa.uint64())])
"""Two places; a is the less. Kept as Parquet."""


def read_bands(
    shard: int, *, collection: Collection, partitions: int, keys: range
) -> Iterator[tuple[int, pa.RecordBatch]]:
    """(band * partitions + partition, band hashes of the shard's documents that have shingles) for each of `keys`."""
    bands = range(keys.start // partitions, (keys.stop - 1) // partitions + 1)
    sketches = collection.sketches(shard, ["row", "n_shingles", *(f"band_{band}" for band in bands)])
    taken = np.flatnonzero(sketches["n_shingles"].to_numpy())
    place = pa.array(places(shard, sketches["row"].to_numpy()[taken]))
    for band in bands:
        first = band * partitions
        wanted = range(max(keys.start - first, 0), min(keys.stop - first, partitions))
        hashes = pa.array(sketches[f"band_{band}"].to_numpy()[taken])
        batch = pa.RecordBatch.from_arrays([hashes, place], ["hash", "place"])
        for partition, part in partitioned(batch, "hash", partitions, wanted):
            yield first + partition, part


def read_edges(folder: Storage, key: int) -> tuple[np.ndarray, np.ndarray]:
    """Both ends of the edges in one file."""
    name = f"{shard_name(key)}.parquet"
    with reading(folder.path(name)), folder.open(name) as file:
        table = pq.read_table(file)
    return table["a"].to_numpy(), table["b"].to_numpy()


def find_edges(key: int, batches: list[pa.RecordBatch], writer: ShardWriter, *, oversized: int) -> None:
    """Write the edges that the buckets of a partition give, and count the buckets."""
    hashes = np.concatenate([batch["hash"].to_numpy() for batch in batches])
    place = np.concatenate([batch["place"].to_numpy() for batch in batches])
    edges, counts = star_edges(hashes, place, oversized)
    writer.write(pa.RecordBatch.from_arrays([pa.array(edges[:, 0]), pa.array(edges[:, 1])], schema=EDGES))
    writer.count({**counts, "edges": len(edges)})
