"""Rows by the partition of the hash space that they go to: a shard's split, and those of all shards gathered."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator

import numpy as np
import pyarrow as pa

from owt_pipeline.dedupe.lsh import partition_of
from owt_pipeline.engine.commit import ShardWriter


def partitioned(
    batch: pa.RecordBatch, column: str, partitions: int, wanted: range
) -> Iterator[tuple[int, pa.RecordBatch]]:
    """The rows of each wanted partition of `column`: a batch for each, if only an empty one."""
    if partitions == 1:
        yield 0, batch
        return
    partition = partition_of(batch[column].to_numpy(), partitions)
    if len(wanted) == 1:
        yield wanted[0], batch.take(pa.array(np.flatnonzero(partition == wanted[0])))
        return
    order = np.argsort(partition, kind="stable")
    bounds = np.searchsorted(partition[order], np.arange(partitions + 1))
    for key in wanted:
        yield key, batch.take(pa.array(order[bounds[key] : bounds[key + 1]]))


def gather(
    key: int,
    writer: ShardWriter,
    *,
    over: Iterable[int],
    read: Callable[..., Iterable[tuple[int, pa.RecordBatch]]],
    reduce: Callable[[int, list[pa.RecordBatch], ShardWriter], None],
) -> None:
    """Reduce the rows that `read` finds for one key in each of `over`: `ReducePartitions` without Beam."""
    reduce(key, [batch for source in over for _, batch in read(source, keys=range(key, key + 1))], writer)
