"""exact: documents with the same normalised text find each other by its hash."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pyarrow as pa

from owt_pipeline.dedupe.collection import Collection
from owt_pipeline.dedupe.exact import exact_duplicates
from owt_pipeline.dedupe.places import places, row_of, shard_of
from owt_pipeline.dedupe.step_files import one_batch, read_step, scatter
from owt_pipeline.dedupe.steps.partitions import partitioned
from owt_pipeline.engine.commit import ShardWriter
from owt_pipeline.engine.storage import Storage

_COLUMNS = ["text_high", "text_low", "precedence", "url_id"]


def read_text_hashes(
    shard: int, *, collection: Collection, partitions: int, keys: range
) -> Iterator[tuple[int, pa.RecordBatch]]:
    """(partition, text hashes of the shard's documents) for each of `keys`."""
    hashes = collection.hashes(shard)
    documents = hashes.select(_COLUMNS).append_column("place", pa.array(places(shard, hashes["row"].to_numpy())))
    yield from partitioned(one_batch(documents.to_batches(), documents.schema), "text_high", partitions, keys)


def find_exact(
    partition: int, batches: list[pa.RecordBatch], writer: ShardWriter, *, first_standing: np.uint64
) -> None:
    """Write which documents of a partition repeat which."""
    writer.write(exact_duplicates(one_batch(batches, batches[0].schema), first_standing))


def split_exact(
    key: int, writer: ShardWriter, *, exact: Storage, partitions: range, by_shard: Storage, num_shards: int
) -> None:
    """Tell each shard which of its rows go."""
    gone = np.sort(read_step(exact, partitions, ["place"])["place"].to_numpy())
    scatter(writer, by_shard, pa.table({"row": row_of(gone)}), shard_of(gone), num_shards)
