"""Splitting a shard's rows by the partition of the hash space that they go to."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pyarrow as pa

from owt_pipeline.dedupe.lsh import partition_of


def partitioned(
    batch: pa.RecordBatch, column: str, partitions: int, wanted: range
) -> Iterator[tuple[int, pa.RecordBatch]]:
    """The rows of each wanted partition of `column`: a batch for each, if only an empty one."""
    if partitions == 1:
        yield 0, batch
        return
    partition = partition_of(batch[column].to_numpy(), partitions)
    order = np.argsort(partition, kind="stable")
    bounds = np.searchsorted(partition[order], np.arange(partitions + 1))
    for key in wanted:
        yield key, batch.take(pa.array(order[bounds[key] : bounds[key + 1]]))
